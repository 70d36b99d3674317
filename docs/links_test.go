// Package docs holds the tests of the documentation.
package docs

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// root is the module's folder from here.
const root = ".."

var (
	fence   = regexp.MustCompile("(?ms)^```.*?^```[ \t]*$")
	inline  = regexp.MustCompile("`[^`\n]*`")
	link    = regexp.MustCompile(`!?\[[^\]]*\]\(([^()\s]*(?:\([^()]*\)[^()\s]*)?)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.*?) *$`)
	// cited is a page named in a comment, with or without its folder.
	cited = regexp.MustCompile(`(?:[A-Za-z-]+/)*[A-Za-z-]+\.md\b`)
)

// page is a Markdown file.
type page struct {
	name    string // from the module's folder, with slashes
	links   []string
	anchors map[string]bool
}

func newPage(name, text string) page {
	p := page{name: name, anchors: map[string]bool{}}
	text = fence.ReplaceAllString(text, "")
	for _, h := range heading.FindAllStringSubmatch(text, -1) {
		p.anchors[anchor(h[1])] = true
	}
	for _, l := range link.FindAllStringSubmatch(inline.ReplaceAllString(text, ""), -1) {
		p.links = append(p.links, l[1])
	}
	return p
}

// anchor is what a heading is called in a link.
func anchor(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(heading) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			b.WriteRune(r)
		}
	}
	return b.String()
}

// dead returns the links of a page that lead nowhere. exists tells whether a file
// or folder is there, pages are all Markdown files by name.
func dead(p page, pages map[string]page, exists func(string) bool) []string {
	var found []string
	for _, l := range p.links {
		if strings.HasPrefix(l, "https://") {
			continue // not looked up: the tests need no network
		}
		target, fragment, _ := strings.Cut(l, "#")
		name := p.name
		if target != "" {
			name = filepath.ToSlash(filepath.Join(filepath.Dir(p.name), target))
		}
		q, isPage := pages[name]
		switch {
		case strings.Contains(l, ":") || strings.HasPrefix(l, "/") || strings.HasPrefix(name, ".."):
			found = append(found, l+": neither relative nor https")
		case !exists(name):
			found = append(found, l+": no such file")
		case fragment != "" && (!isPage || !q.anchors[fragment]):
			found = append(found, l+": no such heading")
		}
	}
	return found
}

// all reads the module's Markdown files.
func all(t *testing.T) map[string]page {
	t.Helper()
	pages := map[string]page{}
	walk(t, func(path, name string) {
		if strings.HasSuffix(name, ".md") {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			pages[name] = newPage(name, string(text))
		}
	})
	return pages
}

// walk visits the module's files but for hidden folders and what is built.
func walk(t *testing.T, visit func(path, name string)) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		switch {
		case d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || name == "bin" || d.Name() == "testdata"):
			return filepath.SkipDir
		case !d.IsDir():
			visit(path, name)
		}
		return nil
	}))
}

func TestNoLinkIsDead(t *testing.T) {
	pages := all(t)
	require.Greater(t, len(pages), 20)
	for name, p := range pages {
		for _, l := range dead(p, pages, func(f string) bool {
			_, err := os.Stat(filepath.Join(root, f))
			return err == nil
		}) {
			t.Errorf("%s: %s", name, l)
		}
	}
}

func TestEveryPageIsReached(t *testing.T) {
	pages := all(t)
	reached := map[string]bool{}
	var follow func(name string)
	follow = func(name string) {
		p, ok := pages[name]
		if !ok || reached[name] {
			return
		}
		reached[name] = true
		for _, l := range p.links {
			target, _, _ := strings.Cut(l, "#")
			follow(filepath.ToSlash(filepath.Join(filepath.Dir(name), target)))
		}
	}
	follow("README.md")
	for name := range pages {
		assert.True(t, reached[name], "no way leads from README.md to %s", name)
	}
}

// TestCitedPagesExist looks at the comments of the code, which cite pages by name.
func TestCitedPagesExist(t *testing.T) {
	known := map[string]bool{}
	for name := range all(t) {
		for at := name; ; { // by its whole path, or any end of it
			known[at] = true
			_, rest, more := strings.Cut(at, "/")
			if !more {
				break
			}
			at = rest
		}
	}
	walk(t, func(path, name string) {
		if !strings.HasSuffix(name, ".go") {
			return
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		require.NoError(t, err)
		for _, c := range f.Comments {
			for _, page := range cited.FindAllString(c.Text(), -1) {
				assert.True(t, known[page], "%s cites %s", name, page)
			}
		}
	})
}

func TestDead(t *testing.T) {
	pages := map[string]page{}
	for name, text := range map[string]string{
		"README.md":      "# Top",
		"docs/a.md":      "# A\n## Two words, one `code`\n```\n# not a heading\n```",
		"docs/sub/b.md":  "",
		"docs/sub/c.txt": "",
	} {
		pages[name] = newPage(name, text)
	}
	exists := func(f string) bool { _, ok := pages[f]; return ok || f == "docs" }
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"a sibling", "[x](b.md)", nil},
		{"one up", "[x](../a.md)", nil},
		{"a heading", "[x](../a.md#two-words-one-code)", nil},
		{"its own heading", "# Here\n[x](#here)", nil},
		{"a folder", "[x](../../docs)", nil},
		{"https", "[x](https://example.com/a)", nil},
		{"no such file", "[x](nowhere.md)", []string{"nowhere.md: no such file"}},
		{"no such heading", "[x](../a.md#three)", []string{"../a.md#three: no such heading"}},
		{"a heading in a code block", "[x](../a.md#not-a-heading)", []string{"../a.md#not-a-heading: no such heading"}},
		{"out of the tree", "[x](../../../a.md)", []string{"../../../a.md: neither relative nor https"}},
		{"absolute", "[x](/docs/a.md)", []string{"/docs/a.md: neither relative nor https"}},
		{"http", "[x](http://example.com)", []string{"http://example.com: neither relative nor https"}},
		{"in a code block", "```\n[x](nowhere.md)\n```", nil},
		{"in code", "`[x](nowhere.md)`", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPage("docs/sub/b.md", c.text)
			pages[p.name] = p
			assert.Equal(t, c.want, dead(p, pages, exists))
		})
	}
}
