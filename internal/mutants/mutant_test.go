package mutants

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const twoMutants = `# a comment

name: one
file: a/b.go
test: ./a TestA
why: because
-	x := 1
+	x := 2

name: two
file: c.go
test: ./. TestC
# between
why: because: of that
-	y()
-	z()
`

func TestParse(t *testing.T) {
	list, err := Parse("m.txt", strings.NewReader(twoMutants))
	require.NoError(t, err)
	assert.Equal(t, []Mutant{
		{Name: "one", File: "a/b.go", Package: "./a", Test: "TestA", Why: "because", Old: []string{"\tx := 1"}, New: []string{"\tx := 2"}, From: "m.txt:3"},
		{Name: "two", File: "c.go", Package: "./.", Test: "TestC", Why: "because: of that", Old: []string{"\ty()", "\tz()"}, From: "m.txt:10"},
	}, list)
}

func TestParseRefuses(t *testing.T) {
	const good = "name: one\nfile: a.go\ntest: ./a TestA\nwhy: w\n-x\n+y\n"
	for name, tc := range map[string]struct{ old, new, want string }{
		"no name":                {"name: one\n", "", `"" ends without name:`},
		"no file":                {"file: a.go\n", "", `"one" ends without file:`},
		"no test":                {"test: ./a TestA\n", "", "without test:"},
		"no reason":              {"why: w\n", "", "without why:"},
		"nothing to replace":     {"-x\n", "", "without a line that begins with -"},
		"an empty value":         {"why: w", "why:", `m.txt:4: "why:": want name:`},
		"a key that is none":     {"why: w", "who: w", `m.txt:4: unknown key "who"`},
		"a key twice":            {"why: w", "why: w\nwhy: v", "m.txt:5: a second why: put an empty line between two mutants"},
		"no key":                 {"why: w", "because", "m.txt:4"},
		"a test without package": {"./a TestA", "TestA", `test "TestA": want a package and a test`},
		"a package that is none": {"./a TestA", "a TestA", "want a package and a test"},
		"a subtest":              {"TestA", "TestA/x", "want a package and a test"},
		"two tests":              {"TestA", "TestA TestB", "want a package and a test"},
		"no test's name":         {"TestA", "FuzzA", "want a package and a test"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, good, tc.old)
			_, err := Parse("m.txt", strings.NewReader(strings.Replace(good, tc.old, tc.new, 1)))
			require.ErrorIs(t, err, ErrFormat)
			assert.ErrorContains(t, err, tc.want)
		})
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	_, err := Load(dir)
	require.ErrorIs(t, err, ErrFormat, "none at all")
	one := "name: one\nfile: a.go\ntest: ./a TestA\nwhy: w\n-x\n"
	write(t, dir, "b.txt", one)
	write(t, dir, "a.txt", strings.Replace(one, "one", "two", 1))
	write(t, dir, "notes.md", "anything")
	list, err := Load(dir)
	require.NoError(t, err)
	require.Len(t, list, 2)
	assert.Equal(t, "two", list[0].Name, "by name of the file")
	write(t, dir, "c.txt", one)
	_, err = Load(dir)
	require.ErrorIs(t, err, ErrFormat)
	assert.ErrorContains(t, err, `c.txt:1: "one" is also at b.txt:1`)
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, filepath.FromSlash(name))
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

func TestApply(t *testing.T) {
	const src = "a\n\tb\n\t\tc\nb\nc\n"
	for name, tc := range map[string]struct {
		old, new []string
		want     string
		times    int
	}{
		"one line, whatever its indentation": {[]string{"a"}, []string{"z"}, "z\n\tb\n\t\tc\nb\nc\n", 1},
		"lines together":                     {[]string{"a", "b"}, []string{"x"}, "x\n\t\tc\nb\nc\n", 1},
		"taken out":                          {[]string{"c", "b"}, nil, "a\n\tb\nc\n", 1},
		"more lines than before":             {[]string{"a"}, []string{"\ty", "z"}, "\ty\nz\n\tb\n\t\tc\nb\nc\n", 1},
		"none such":                          {[]string{"d"}, nil, "", 0},
		"in another order":                   {[]string{"b", "a"}, nil, "", 0},
		"part of a line":                     {[]string{""}, nil, "a\n\tb\n\t\tc\nb\nc", 1},
		"twice":                              {[]string{"b", "c"}, nil, "", 2},
	} {
		t.Run(name, func(t *testing.T) {
			m := Mutant{Name: "one", File: "f.go", From: "m.txt:1", Old: tc.old, New: tc.new}
			got, err := m.Apply([]byte(src))
			if tc.times == 1 {
				require.NoError(t, err)
				assert.Equal(t, tc.want, string(got))
				return
			}
			var e *PlaceError
			require.ErrorAs(t, err, &e)
			assert.Equal(t, tc.times, e.Times)
			assert.ErrorContains(t, err, `m.txt:1: "one": f.go has`)
			assert.ErrorContains(t, err, "testdata/mutants")
		})
	}
}
