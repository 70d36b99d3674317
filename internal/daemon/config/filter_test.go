package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/internal/pfil"
)

func TestFilters(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	write("rules/flood", "set bad file bad.txt\ndrop ip from set bad to any in\n")
	write("rules/bad.txt", "192.0.2.0/24\n")
	write("twice", "count ip from any to any\ndrop udp from any to any\n")
	wrong := write("wrong", "drop udp fro any to any\ncount ip from any to any\ndrop icmp from any to any port 7\n")
	load := func(text string) (Config, error) { return Load(write("oxpd.yaml", text)) }
	file := filepath.Join(dir, "oxpd.yaml")

	t.Run("read, beside the configuration", func(t *testing.T) {
		c, err := load("filters:\n  - name: flood\n    file: rules/flood\n    link: [all in, F1 out]\n  - {name: b, file: " + filepath.Join(dir, "twice") + "}\n")
		require.NoError(t, err)
		require.Len(t, c.Filters, 2)
		f := c.Filters[0]
		assert.Equal(t, filepath.Join(dir, "rules/flood"), f.Source.Name)
		assert.Equal(t, map[string][]byte{"bad.txt": []byte("192.0.2.0/24\n")}, f.Source.Files)
		links := f.Links()
		require.Len(t, links, board.Ports+1)
		assert.Equal(t, FilterLink{board.ByIndex(8), pfil.Out}, links[board.Ports])
		assert.Empty(t, c.Filters[1].Links())
		doubts := c.Doubts()
		require.Len(t, doubts, 1)
		assert.Contains(t, doubts[0], "twice:2: this rule never matches")
		b, err := c.YAML()
		require.NoError(t, err)
		assert.Contains(t, string(b), "  - name: flood\n    file: rules/flood\n    link: [all in, F1 out]\n")
		assert.NotContains(t, string(b), "192.0.2")
	})
	for _, tc := range []struct {
		name, text string
		want       []string
	}{
		{"rules that do not compile, each with both places", "workers: 1\nfilters:\n  - name: x\n    file: wrong\n", []string{
			file + ":4: filters.0.file: " + wrong + `:1:10: found "fro", expected`,
			file + ":4: filters.0.file: " + wrong + ":3:",
		}},
		{"a file that is not there", "filters: [{name: x, file: none}]\n", []string{file + ":1: filters.0.file: read rules: open " + filepath.Join(dir, "none")}},
		{"a folder", "filters: [{name: x, file: rules}]\n", []string{"filters.0.file: read rules: " + filepath.Join(dir, "rules") + " is not a regular file"}},
		{"no file", "filters:\n  - name: x\n", []string{file + ":2: filters.0.file: empty: want the file that has the rules"}},
		{"no name", "filters:\n  - {name: y, file: twice}\n  - file: twice\n", []string{file + ":3: filters.1.name: the name of the filter is empty"}},
		{"a name that is none", "filters: [{name: a b, file: twice}]\n", []string{`filters.0.name: name of a filter "a b": want letters`}},
		{"a name twice", "filters:\n  - {name: y, file: twice}\n  - {name: y, file: twice}\n", []string{file + ":3: filters.1.name: y is the name of filters.0 already"}},
		{"a port that is not there", "filters:\n  - name: y\n    file: twice\n    link:\n      - oxp13 in\n", []string{file + `:4: filters.0.link: unknown port "oxp13"`}},
		{"a way that is none", "filters: [{name: y, file: twice, link: [oxp1 up]}]\n", []string{`filters.0.link: "oxp1 up": want PORT or all, then in or out or nothing, such as "oxp1 in"`}},
		{"three words", "filters: [{name: y, file: twice, link: [oxp1 in out]}]\n", []string{`filters.0.link: "oxp1 in out": want PORT or all`}},
		{"an empty link", "filters: [{name: y, file: twice, link: ['']}]\n", []string{`filters.0.link: "": want PORT or all`}},
		{"a place twice", "filters: [{name: y, file: twice, link: [all in, F1]}]\n", []string{`filters.0.link: "F1" is in "all in" already`}},
		{"an unknown key", "filters:\n  - name: y\n    fiel: twice\n", []string{file + `:3: unknown key "fiel"`}},
		{"no list", "filters: {name: y}\n", []string{file + ":1: keys with values has the wrong type: want a list"}},
		{"a link that is no list", "filters: [{name: y, file: twice, link: all in}]\n", []string{`"all in" has the wrong type: want a list`}},
		{"too many", "filters: [" + strings.Repeat("{name: y, file: twice},", pfil.MaxFilters+1) + "]\n", []string{"filters: 65 are too many: want 64 at most"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := load(tc.text)
			require.Error(t, err)
			for _, want := range tc.want {
				assert.Contains(t, err.Error(), want)
			}
			var e *Error
			require.ErrorAs(t, err, &e)
		})
	}
}
