package pfil

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Limits of files, in bytes.
const (
	MaxRulesBytes = 16 << 20
	MaxFileBytes  = 128 << 20 // of sets and programs, each
)

// Source is everything that a set of rules is made of: what Parse needs, and no file.
type Source struct {
	Name  string            // of the rule file; errors begin with it
	Rules []byte            //
	Files map[string][]byte // content of each file that a set or program names, by its path as written
}

// fileName is what errors call a file that the rules name.
func (s *Source) fileName(path string) string {
	if filepath.IsAbs(path) || !strings.ContainsRune(s.Name, filepath.Separator) {
		return path
	}
	return filepath.Join(filepath.Dir(s.Name), path)
}

// ReadSource reads a rule file and the files that it names, relative to its own
// directory. Errors: those of Parse about its declarations; of the system; of files
// that are too large or no regular files.
func ReadSource(path string) (Source, error) {
	s := Source{Name: path, Files: map[string][]byte{}}
	var err error
	if s.Rules, err = readFile(path, MaxRulesBytes); err != nil {
		return Source{}, err
	}
	var errs []error
	for _, named := range s.named() {
		at := named
		if !filepath.IsAbs(at) {
			at = filepath.Join(filepath.Dir(path), at)
		}
		b, err := readFile(at, MaxFileBytes)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		s.Files[named] = b
	}
	if len(errs) > 0 {
		return Source{}, errors.Join(errs...)
	}
	return s, nil
}

// named are the paths that the declarations of a source give.
func (s *Source) named() []string {
	p := parser{src: *s, out: &Rules{}, sets: map[string]bool{}, programs: map[string]bool{}}
	p.lines()
	var paths []string
	seen := map[string]bool{}
	add := func(path string) {
		if !seen[path] {
			seen[path] = true
			paths = append(paths, path)
		}
	}
	for i := range p.out.Sets {
		add(p.out.Sets[i].Path)
	}
	for i := range p.out.Programs {
		add(p.out.Programs[i].Path)
	}
	return paths
}

// readFile reads a regular file of at most most bytes.
func readFile(path string, most int64) ([]byte, error) {
	// Not blocking: a pipe that nobody writes to would be waited for by open already.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("read rules: %s is not a regular file", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	if int64(len(b)) > most {
		return nil, fmt.Errorf("read rules: %s is longer than %d MiB", path, most>>20)
	}
	return b, nil
}
