package mutants

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// Mutant is one break of the source.
type Mutant struct {
	Name    string
	File    string // from the module's folder, with slashes
	Package string // of the test, as go test takes it: ./ring
	Test    string // top-level name
	Why     string
	Old     []string // lines as they stand in the file, one after the other
	New     []string
	From    string // file and line of the mutant itself
}

// ErrFormat says that a file of mutants cannot be read; the message says where and why.
var ErrFormat = errors.New("mutants: not a list of mutants")

// Load reads all mutants of a folder, file by file in the order of names.
//
// Errors: ErrFormat, also for two mutants of one name and for a folder without any.
func Load(dir string) ([]Mutant, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		return nil, fmt.Errorf("mutants: list %s: %w", dir, err)
	}
	sort.Strings(names)
	var all []Mutant
	seen := map[string]string{}
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("mutants: %w", err)
		}
		list, err := Parse(filepath.Base(name), f)
		f.Close()
		if err != nil {
			return nil, err
		}
		for _, m := range list {
			if other, ok := seen[m.Name]; ok {
				return nil, fmt.Errorf("%w: %s: %q is also at %s: give it another name", ErrFormat, m.From, m.Name, other)
			}
			seen[m.Name] = m.From
		}
		all = append(all, list...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: no mutant in %s", ErrFormat, dir)
	}
	return all, nil
}

// Parse reads one file of mutants; name is for messages. Errors: ErrFormat.
func Parse(name string, r io.Reader) ([]Mutant, error) {
	var (
		list []Mutant
		m    *Mutant
	)
	bad := func(line int, format string, args ...any) error {
		return fmt.Errorf("%w: %s:%d: %s", ErrFormat, name, line, fmt.Sprintf(format, args...))
	}
	end := func(line int) error {
		if m == nil {
			return nil
		}
		if missing := m.missing(); missing != "" {
			return bad(line, "%q ends without %s", m.Name, missing)
		}
		list = append(list, *m)
		m = nil
		return nil
	}
	s := bufio.NewScanner(r)
	line := 0
	for s.Scan() {
		line++
		text := s.Text()
		switch {
		case strings.TrimSpace(text) == "":
			if err := end(line); err != nil {
				return nil, err
			}
			continue
		case text[0] == '#':
			continue
		case m == nil:
			m = &Mutant{From: fmt.Sprintf("%s:%d", name, line)}
		}
		if err := m.set(text); err != nil {
			return nil, bad(line, "%v", err)
		}
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("mutants: read %s: %w", name, err)
	}
	if err := end(line); err != nil {
		return nil, err
	}
	return list, nil
}

// set takes one line of a mutant.
func (m *Mutant) set(text string) error {
	switch text[0] {
	case '-':
		m.Old = append(m.Old, text[1:])
		return nil
	case '+':
		m.New = append(m.New, text[1:])
		return nil
	}
	key, value, found := strings.Cut(text, ":")
	value = strings.TrimSpace(value)
	if !found || value == "" {
		return fmt.Errorf("%q: want name:, file:, test: or why: with a value, or a line that begins with - or +", text)
	}
	var at *string
	switch key {
	case "name":
		at = &m.Name
	case "file":
		at = &m.File
	case "why":
		at = &m.Why
	case "test":
		at = &m.Test
		pkg, test, two := strings.Cut(value, " ")
		if !two || !strings.HasPrefix(pkg, "./") || !strings.HasPrefix(test, "Test") || strings.ContainsAny(test, " /") {
			return fmt.Errorf("test %q: want a package and a test of it, as in ./ring TestX", value)
		}
		m.Package, value = pkg, test
	default:
		return fmt.Errorf("unknown key %q: want name, file, test or why", key)
	}
	if *at != "" {
		return fmt.Errorf("a second %s: put an empty line between two mutants", key)
	}
	*at = value
	return nil
}

func (m *Mutant) missing() string {
	for _, f := range []struct{ key, value string }{{"name:", m.Name}, {"file:", m.File}, {"test:", m.Test}, {"why:", m.Why}} {
		if f.value == "" {
			return f.key
		}
	}
	if len(m.Old) == 0 {
		return "a line that begins with -"
	}
	return ""
}

// PlaceError says that the lines of a mutant are not in its file exactly once.
type PlaceError struct {
	Mutant Mutant
	Times  int
}

func (e *PlaceError) Error() string {
	m := &e.Mutant
	if e.Times == 0 {
		return fmt.Sprintf("%s: %q: %s has no such line any more:\n\t%s\nwrite down in testdata/mutants what stands there now, so that the mutant is the same break as before",
			m.From, m.Name, m.File, strings.Join(trimmed(m.Old), "\n\t"))
	}
	return fmt.Sprintf("%s: %q: %s has these lines %d times:\n\t%s\nadd the line before or behind to both sides in testdata/mutants",
		m.From, m.Name, m.File, e.Times, strings.Join(trimmed(m.Old), "\n\t"))
}

func trimmed(lines []string) []string {
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = strings.TrimSpace(l)
	}
	return out
}

// Apply returns src with the mutant in it. Errors: *PlaceError.
func (m *Mutant) Apply(src []byte) ([]byte, error) {
	lines := strings.Split(string(src), "\n")
	have, old := trimmed(lines), trimmed(m.Old)
	at, times := 0, 0
	for i := 0; i+len(old) <= len(have); i++ {
		if equal(have[i:i+len(old)], old) {
			at = i
			times++
		}
	}
	if times != 1 {
		return nil, &PlaceError{Mutant: *m, Times: times}
	}
	out := append([]string(nil), lines[:at]...)
	out = append(out, m.New...)
	out = append(out, lines[at+len(old):]...)
	return []byte(strings.Join(out, "\n")), nil
}

func equal(a, b []string) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
