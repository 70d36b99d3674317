package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// bugs are the rows of the list, by group.
var bugs = []struct {
	group string
	rows  int
}{{"RX", 10}, {"TX", 6}, {"CTL", 12}, {"SW", 4}, {"TAP", 10}, {"GRO", 10}, {"VF", 10}, {"INS", 8}, {"ST", 8}, {"DM", 6}}

// bugRow is a row of the table of known bugs.
var bugRow = regexp.MustCompile(`(?m)^\| ([A-Z]+-\d+) \| (.*) \| (.*) \| (.*) \|$`)

// tests are a module's tests: "package.Name" and the texts in each, which name its
// subtests.
type tests map[string]map[string]bool

// add adds the tests of one file.
func (t tests) add(pkg string, file *ast.File) {
	for _, d := range file.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Recv != nil || !regexp.MustCompile(`^(Test|Fuzz|Example)`).MatchString(fn.Name.Name) {
			continue
		}
		texts := map[string]bool{}
		ast.Inspect(fn, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				if s, err := strconv.Unquote(l.Value); err == nil {
					texts[s] = true
				}
			}
			return true
		})
		t[pkg+"."+fn.Name.Name] = texts
	}
}

// missing tells what is wrong with the rows of a table.
func (t tests) missing(text string) (found []string) {
	seen := map[string]int{}
	for _, r := range bugRow.FindAllStringSubmatch(text, -1) {
		id, named, open := r[1], r[3], r[4]
		seen[id]++
		if named == "" && open == "" {
			found = append(found, id+": neither a test nor what it needs")
		}
		if open != "" && !strings.HasPrefix(open, "open: needs ") {
			found = append(found, id+": does not say what it needs")
		}
		for _, name := range inline.FindAllString(named, -1) {
			name = strings.Trim(name, "`")
			at := strings.Index(name, ".Test") // a package's path has slashes too
			if at < 0 {
				at = strings.Index(name, ".Fuzz")
			}
			fn, sub, has := strings.Cut(name[max(at, 0):], "/")
			texts, known := t[name[:max(at, 0)]+fn]
			switch {
			case !known:
				found = append(found, fmt.Sprintf("%s: there is no test %s", id, name))
			case has && !texts[sub]:
				found = append(found, fmt.Sprintf("%s: %s has no subtest of that name", id, name))
			}
		}
	}
	for _, b := range bugs {
		for n := range b.rows {
			id := fmt.Sprintf("%s-%d", b.group, n+1)
			if seen[id] != 1 {
				found = append(found, fmt.Sprintf("%s: %d rows", id, seen[id]))
			}
			delete(seen, id)
		}
	}
	for id := range seen {
		found = append(found, id+": not in the list")
	}
	return found
}

// TestKnownBugs: every row of the list of known bugs has tests that exist, or
// says what it needs first.
func TestKnownBugs(t *testing.T) {
	all := tests{}
	walk(t, func(file, name string) {
		if strings.HasSuffix(name, "_test.go") {
			tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			all.add(path.Dir(name), tree)
		}
	})
	require.Greater(t, len(all), 300)
	text, err := os.ReadFile(filepath.Join(root, "docs/contributing/known-bugs.md"))
	require.NoError(t, err)
	for _, what := range all.missing(string(text)) {
		t.Error(what)
	}
}

func TestMissing(t *testing.T) {
	tree, err := parser.ParseFile(token.NewFileSet(), "a_test.go", `package a; func TestA() { t.Run("a/b c", nil) }; func helper() {}`, 0)
	require.NoError(t, err)
	known := tests{}
	known.add("x/a", tree)
	var rest strings.Builder // every row but the one that the case has
	for _, b := range bugs {
		for n := range b.rows {
			if id := fmt.Sprintf("%s-%d", b.group, n+1); id != "DM-6" {
				fmt.Fprintf(&rest, "| %s | a |  | open: needs time |\n", id)
			}
		}
	}
	for _, c := range []struct {
		name, row string
		want      []string
	}{
		{"a test", "| DM-6 | a | `x/a.TestA` |  |", nil},
		{"a subtest", "| DM-6 | a | `x/a.TestA/a/b c` |  |", nil},
		{"open", "| DM-6 | a |  | open: needs time |", nil},
		{"both", "| DM-6 | a | `x/a.TestA` | open: needs time |", nil},
		{"neither", "| DM-6 | a |  |  |", []string{"DM-6: neither a test nor what it needs"}},
		{"no reason", "| DM-6 | a |  | later |", []string{"DM-6: does not say what it needs"}},
		{"no such test", "| DM-6 | a | `x/a.TestB` |  |", []string{"DM-6: there is no test x/a.TestB"}},
		{"no such package", "| DM-6 | a | `x.TestA` |  |", []string{"DM-6: there is no test x.TestA"}},
		{"a helper", "| DM-6 | a | `x/a.helper` |  |", []string{"DM-6: there is no test x/a.helper"}},
		{"no such subtest", "| DM-6 | a | `x/a.TestA/b` |  |", []string{"DM-6: x/a.TestA/b has no subtest of that name"}},
		{"twice", "| DM-6 | a | `x/a.TestA` |  |\n| DM-6 | a | `x/a.TestA` |  |", []string{"DM-6: 2 rows"}},
		{"forgotten", "", []string{"DM-6: 0 rows"}},
		{"one too many", "| DM-6 | a | `x/a.TestA` |  |\n| DM-7 | a | `x/a.TestA` |  |", []string{"DM-7: not in the list"}},
	} {
		t.Run(c.name, func(t *testing.T) { assert.Equal(t, c.want, known.missing(rest.String()+c.row)) })
	}
}
