package hwsim

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pageRows are the cells of a table of a hardware page, by the first one.
func pageRows(t *testing.T, page, heading string) map[string][]string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../docs/hardware", page))
	require.NoError(t, err)
	_, text, found := strings.Cut(string(b), "\n"+heading)
	require.True(t, found, heading)
	if at := strings.Index(text, "\n## "); at >= 0 {
		text = text[:at]
	}
	rows := map[string][]string{}
	for _, line := range strings.Split(text, "\n") {
		cells := strings.Split(line, "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if len(cells) > 2 {
			rows[cells[1]] = cells[1:]
		}
	}
	return rows
}

func TestFaultRowsAreThoseOfThePages(t *testing.T) {
	endpoint, datapath := pageRows(t, "endpoint.md", "## 15. "), pageRows(t, "datapath.md", "## 7. ")
	kebab := regexp.MustCompile(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`)
	next, seen := map[string]int{}, map[string]string{}
	for _, r := range FaultRows() {
		letter := r.ID[:1]
		next[letter]++
		assert.Equal(t, fmt.Sprintf("%s%d", letter, next[letter]), r.ID, "numbers go up by one")
		assert.Regexp(t, kebab, r.Name)
		assert.Empty(t, seen[r.Name], "%s has the name %s too", r.ID, r.Name)
		seen[r.Name] = r.ID
		assert.NotEmpty(t, r.Effect, r.ID)
		assert.NotEmpty(t, r.By, r.ID)
		assert.Contains(t, []FaultHow{HowSwitch, HowMisuse, HowChoice, HowEvent, HowOutside}, r.How, r.ID)
		page := map[string]string{"F": "endpoint.md", "D": "datapath.md", "R": "rpc-lif.md", "S": "switch.md"}[letter]
		assert.True(t, strings.HasPrefix(r.Source, page+" "), r.ID)
		switch letter {
		case "F":
			require.Contains(t, endpoint, r.ID)
			assert.Equal(t, endpoint[r.ID][2], r.Effect, r.ID)
		case "D":
			require.Contains(t, datapath, r.ID[1:])
			cells := datapath[r.ID[1:]]
			says := cells[2]
			if says == "" { // the page says only what the driver does
				says = cells[3]
			}
			assert.Equal(t, says, r.Effect, r.ID)
		}
	}
	assert.Equal(t, 30, next["F"])
	assert.Equal(t, 28, next["D"])
}

func TestFaultRowsNameWhatThereIs(t *testing.T) {
	fields := map[string]bool{}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Faults]()) {
		fields[f.Name] = true
	}
	for _, r := range FaultRows() {
		if r.How == HowSwitch {
			first, _, _ := strings.Cut(r.By, ",")
			first, _, _ = strings.Cut(first, ";")
			first, _, _ = strings.Cut(first, " ")
			assert.True(t, fields[first], "%s: Faults has no %s", r.ID, first)
		}
		if r.Switched() {
			for _, name := range []string{r.Name, r.ID} {
				_, err := (&Injection{Name: name}).resolve()
				assert.NoError(t, err, r.ID)
			}
		}
	}
}

func TestFaultRowOf(t *testing.T) {
	for _, name := range []string{"F28", "f28", "fast-path-wedged", "Fast-Path-Wedged"} {
		r, ok := FaultRowOf(name)
		require.True(t, ok, name)
		assert.Equal(t, "F28", r.ID)
	}
	_, ok := FaultRowOf("F31")
	assert.False(t, ok)
}
