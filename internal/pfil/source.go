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
	MaxFilesBytes = 128 << 20 // of sets and programs, together
)

// Source is everything that a set of rules is made of: what Parse needs, and no file.
type Source struct {
	Name  string            // of the rule file; errors begin with it
	Rules []byte            //
	Files map[string][]byte // content of each file that a set or program names, by its path as written
}

// fileName is what errors call a file that the rules name.
func (s *Source) fileName(path string) string {
	if !strings.ContainsRune(s.Name, filepath.Separator) {
		return path
	}
	return s.path(path)
}

// ReadSource reads a rule file and the files that it names, relative to its own
// directory. Errors: of the system (errors.Is); of files that are too large or no regular
// files. Each begins with the line that names the file, and *Error about the lines go
// before. Lines are not looked at for their own sake: with all files read that is left to
// Parse.
func ReadSource(path string) (Source, error) {
	s := Source{Name: path, Files: map[string][]byte{}}
	var err error
	if s.Rules, err = readFile(path, MaxRulesBytes); err != nil {
		return Source{}, fmt.Errorf("read rules: %w", err)
	}
	p := newParser(s)
	p.lines()
	left := int64(MaxFilesBytes)
	unread := false
	read := func(named string, line, col int) {
		if _, known := s.Files[named]; known || p.full() {
			return
		}
		b, err := readFile(s.path(named), left)
		if err != nil {
			unread = true
			p.errs = append(p.errs, fmt.Errorf("%s:%d:%d: %w", path, line, col, err))
			return
		}
		left -= int64(len(b))
		s.Files[named] = b
	}
	for i := range p.out.Sets {
		read(p.out.Sets[i].Path, p.out.Sets[i].Line, p.out.Sets[i].col)
	}
	for i := range p.out.Programs {
		read(p.out.Programs[i].Path, p.out.Programs[i].Line, p.out.Programs[i].col)
	}
	if unread {
		return Source{}, errors.Join(p.errs...)
	}
	return s, nil
}

// path is where a file that the rules name is.
func (s *Source) path(named string) string {
	if filepath.IsAbs(named) {
		return named
	}
	return filepath.Join(filepath.Dir(s.Name), named)
}

// readFile reads a regular file of at most most bytes.
func readFile(path string, most int64) ([]byte, error) {
	// Not blocking: a pipe that nobody writes to would be waited for by open already.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	tooLong := fmt.Errorf("%s is too long: %d MiB of rules, and %d MiB of other files together, are read", path, MaxRulesBytes>>20, MaxFilesBytes>>20)
	if fi.Size() > most {
		return nil, tooLong
	}
	b, err := io.ReadAll(io.LimitReader(f, most+1)) // it may grow meanwhile
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > most {
		return nil, tooLong
	}
	return b, nil
}
