package mutants

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "../.."

// The mutants of this tree, without running them: each still has its place, and its
// test exists. Whoever changes such a line learns it here and not from CI.
func TestEveryMutantHasItsPlaceAndItsTest(t *testing.T) {
	list, err := Load(filepath.Join(module, "testdata", "mutants"))
	require.NoError(t, err)
	assert.GreaterOrEqual(t, len(list), 40)
	for _, m := range list {
		t.Run(m.Name, func(t *testing.T) {
			src, err := os.ReadFile(filepath.Join(module, filepath.FromSlash(m.File)))
			require.NoError(t, err, m.From)
			broken, err := m.Apply(src)
			require.NoError(t, err)
			assert.NotEqual(t, string(src), string(broken), "%s: it changes nothing", m.From)
			assert.NotContains(t, m.File, "_test.go", m.From)
			assert.True(t, declares(t, m.Package, m.Test), "%s: %s has no func %s: name a test that exists", m.From, m.Package, m.Test)
		})
	}
}

// declares tells whether a package has a test of a name.
func declares(t *testing.T, pkg, test string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(module, filepath.FromSlash(pkg), "*_test.go"))
	require.NoError(t, err)
	decl := regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(test) + `\(t \*testing\.T\)`)
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		if decl.Match(b) {
			return true
		}
	}
	return false
}
