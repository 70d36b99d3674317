package pfil

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// write makes files below a folder of the test's own.
func write(t *testing.T, content map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range content {
		at := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
		require.NoError(t, os.WriteFile(at, []byte(text), 0o644))
	}
	return dir
}

func TestReadSource(t *testing.T) {
	dir := write(t, map[string]string{
		"etc/f.rules":      "# x\nset bad file sets/bad.txt\nprogram all file \"../all programs\"\ndrop ip from set bad to any\n",
		"etc/sets/bad.txt": "192.0.2.1\n",
		"all programs":     "1\n6 0 0 1\n",
	})
	path := filepath.Join(dir, "etc", "f.rules")
	s, err := ReadSource(path)
	require.NoError(t, err)
	assert.Equal(t, path, s.Name)
	assert.Equal(t, map[string][]byte{"sets/bad.txt": []byte("192.0.2.1\n"), "../all programs": []byte("1\n6 0 0 1\n")}, s.Files)
	r, err := Parse(s)
	require.NoError(t, err)
	assert.Len(t, r.Sets[0].Prefixes, 1)

	s.Files["sets/bad.txt"] = []byte("x")
	_, err = Parse(s)
	assert.ErrorContains(t, err, filepath.Join(dir, "etc", "sets", "bad.txt")+`:1:1: found "x"`)
}

func TestReadSourceOfAnAbsolutePath(t *testing.T) {
	dir := write(t, map[string]string{"bad.txt": "192.0.2.1\n"})
	rules := write(t, map[string]string{"f.rules": "set bad file " + filepath.Join(dir, "bad.txt")})
	s, err := ReadSource(filepath.Join(rules, "f.rules"))
	require.NoError(t, err)
	assert.Equal(t, "192.0.2.1\n", string(s.Files[filepath.Join(dir, "bad.txt")]))
}

func TestReadSourceRefuses(t *testing.T) {
	dir := write(t, map[string]string{
		"gone.rules":   "pass any from any to any\n  set bad file gone.txt\nset worse file gone.txt",
		"wrong.rules":  "deny any\nset bad file gone.txt",
		"folder.rules": "program all file folder",
		"folder/x":     "::",
		"large.rules":  "set a file folder/x\nset b file whole",
	})
	at := func(name string) string { return filepath.Join(dir, name) }
	// Files with holes: they take no room.
	for name, bytes := range map[string]int64{"whole": MaxFilesBytes - 1, "rules": MaxRulesBytes + 1} {
		require.NoError(t, os.WriteFile(at(name), nil, 0o644))
		require.NoError(t, os.Truncate(at(name), bytes))
	}
	for _, tc := range []struct{ name, want string }{
		{"none.rules", "read rules: open " + at("none.rules")},
		{"folder", "read rules: " + at("folder") + " is not a regular file"},
		{"/dev/null", "read rules: /dev/null is not a regular file"},
		{"gone.rules", at("gone.rules") + ":2:16: open " + at("gone.txt")},
		{"wrong.rules", at("wrong.rules") + `:1:1: found "deny"`},
		{"wrong.rules", at("wrong.rules") + ":2:14: open "},
		{"folder.rules", at("folder.rules") + ":1:18: " + at("folder") + " is not a regular file"},
		{"large.rules", at("large.rules") + ":2:12: " + at("whole") + " is too long: 16 MiB of rules, and 128 MiB of other files together"},
		{"rules", "read rules: " + at("rules") + " is too long"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := tc.name
			if !filepath.IsAbs(path) {
				path = at(path)
			}
			s, err := ReadSource(path)
			assert.ErrorContains(t, err, tc.want)
			assert.Zero(t, s)
		})
	}
	_, err := ReadSource(at("gone.rules"))
	assert.ErrorIs(t, err, fs.ErrNotExist)
}

func TestReadSourceLeavesTheLinesToParse(t *testing.T) {
	s, err := ReadSource(filepath.Join(write(t, map[string]string{"f": "deny"}), "f"))
	require.NoError(t, err)
	_, err = Parse(s)
	assert.Error(t, err)
}

func TestReadSourceTellsOfTwentyFiles(t *testing.T) {
	var text string
	for i := range maxErrors + 5 {
		text += fmt.Sprintf("set s%d file gone%d\n", i, i)
	}
	_, err := ReadSource(filepath.Join(write(t, map[string]string{"f": text}), "f"))
	assert.Len(t, unjoin(err), maxErrors)
}
