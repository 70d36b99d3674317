package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "../.."

func TestCommittedPagesAreThoseOfThisSource(t *testing.T) {
	pages, err := generate(module)
	require.NoError(t, err)
	for _, p := range pages {
		t.Run(p.path, func(t *testing.T) {
			committed, err := os.ReadFile(filepath.Join(module, filepath.FromSlash(p.path)))
			require.NoError(t, err)
			assert.Equal(t, p.text, string(committed), "run make generate and commit the result")
		})
	}
}

// TestEveryKeyHasARow: what `oxpd config show` prints is explained on the page, also the keys
// of a section.
func TestEveryKeyHasARow(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(module, "docs/reference/config.md"))
	require.NoError(t, err)
	_, shown, _ := strings.Cut(string(page), "```\n")
	shown, rest, found := strings.Cut(shown, "\n```")
	require.True(t, found)
	keys := regexp.MustCompile(`(?m)^ *([a-z-]+):`).FindAllStringSubmatch(shown, -1)
	require.Greater(t, len(keys), 20)
	for _, k := range keys {
		assert.Contains(t, rest, "\n| `"+k[1]+"` | ", k[1])
	}
}

func TestTableCellsKeepTheirBars(t *testing.T) {
	d := new(document)
	d.table([]string{"a", "b"}, [][]string{{"x|y", "z"}})
	assert.Equal(t, "| a | b |\n|---|---|\n| x\\|y | z |\n\n", d.String())
}

func TestNumber(t *testing.T) {
	for n, want := range map[int]string{0: "0", 72: "72", 1024: "1,024", 9278: "9,278", 1234567: "1,234,567"} {
		assert.Equal(t, want, number(n))
	}
}

func TestSubcommands(t *testing.T) {
	assert.Equal(t, []string{"run", "status"}, subcommands("x\n\nAvailable Commands:\n  help     y\n  run      z\n  status   w\n\nFlags:\n  -h\n"))
	assert.Empty(t, subcommands("Usage:\n  oxpd run\n"))
}

func TestAmount(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 949.3245: "949.3245", 1.9: "1.9", 4900: "4,900", 8e8: "800,000,000", 63015384615.4: "63,015,384,615"} {
		assert.Equal(t, want, amount(v))
	}
}
