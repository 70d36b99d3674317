package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/pfil"
)

// Filter is a filter that is loaded before the first frame comes, and where it is linked.
type Filter struct {
	// Name is what `oxpd filter` calls it.
	Name string `yaml:"name"`
	// File has its rules; a path that is not absolute begins at the configuration file. The files that the rules name begin at theirs.
	File string `yaml:"file"`
	// Link says where it judges: PORT or all, then in or out, both without: [all in, oxp9 out]. Empty: it is loaded, and linked nowhere.
	Link []string `yaml:"link,flow,omitempty"`

	// Source is what was read of File when the configuration was, and has compiled.
	Source pfil.Source `yaml:"-"`
}

// FilterLink is one place of a filter. Dir is In or Out.
type FilterLink struct {
	Port board.Port
	Dir  pfil.Direction
}

// Links are the places of a filter, each once, in the order of the file. What Check
// refuses is left out.
func (f *Filter) Links() []FilterLink {
	var out []FilterLink
	seen := map[FilterLink]bool{}
	for _, text := range f.Link {
		links, _ := parseLink(text) // none with an error
		for _, l := range links {
			if !seen[l] {
				seen[l] = true
				out = append(out, l)
			}
		}
	}
	return out
}

// parseLink reads PORT or all, and in or out behind it.
func parseLink(text string) ([]FilterLink, error) {
	const form = "want PORT or all, then in or out or nothing, such as %q"
	words := strings.Fields(text)
	if len(words) == 0 || len(words) > 2 {
		return nil, fmt.Errorf("%q: "+form, text, "oxp9 in")
	}
	all := board.All()
	ports := all[:]
	if words[0] != client.AllPorts {
		p, err := board.Parse(words[0])
		if err != nil {
			return nil, err
		}
		ports = []board.Port{p}
	}
	dirs := []pfil.Direction{pfil.In, pfil.Out}
	if len(words) == 2 {
		switch words[1] {
		case client.DirectionIn:
			dirs = dirs[:1]
		case client.DirectionOut:
			dirs = dirs[1:]
		default:
			return nil, fmt.Errorf("%q: "+form, text, words[0]+" in")
		}
	}
	var out []FilterLink
	for _, p := range ports {
		for _, d := range dirs {
			out = append(out, FilterLink{p, d})
		}
	}
	return out, nil
}

// checkFilters refuses filters that cannot be, without a look at their files.
func (c Config) checkFilters(bad func(path []string, format string, args ...any)) {
	if len(c.Filters) > pfil.MaxFilters {
		bad([]string{"filters"}, "%d are too many: want %d at most", len(c.Filters), pfil.MaxFilters)
		return
	}
	names := map[string]int{}
	for i, f := range c.Filters {
		at := []string{"filters", strconv.Itoa(i)}
		key := func(k string) []string { return append(at[:2:2], k) }
		if err := client.CheckFilterName(f.Name); err != nil {
			bad(key("name"), "%v", err)
		} else if first, twice := names[f.Name]; twice {
			bad(key("name"), "%s is the name of filters.%d already", f.Name, first)
		}
		names[f.Name] = i
		if f.File == "" {
			bad(key("file"), "empty: want the file that has the rules")
		}
		links := map[FilterLink]string{}
		for _, text := range f.Link {
			ls, err := parseLink(text)
			if err != nil {
				bad(key("link"), "%v", err)
			}
			for _, l := range ls {
				if first, twice := links[l]; twice {
					bad(key("link"), "%q is in %q already", text, first)
					break
				}
				links[l] = text
			}
		}
	}
}

// readFilters reads and compiles the filters' files. path is that of the configuration.
func (c *Config) readFilters(path string, bad func(path []string, format string, args ...any)) {
	for i := range c.Filters {
		f := &c.Filters[i]
		file := f.File
		if !filepath.IsAbs(file) {
			file = filepath.Join(filepath.Dir(path), file)
		}
		src, err := pfil.ReadSource(file)
		if err == nil {
			_, err = compile(src)
		}
		for _, e := range joined(err) {
			bad([]string{"filters", strconv.Itoa(i), "file"}, "%v", e)
		}
		f.Source = src
	}
}

// Doubts are what is most likely not meant in the filters' rules.
func (c Config) Doubts() []string {
	var out []string
	for i := range c.Filters {
		if rules, err := pfil.Parse(c.Filters[i].Source); err == nil {
			out = append(out, rules.Warnings...)
		}
	}
	return out
}

func compile(src pfil.Source) (*pfil.Program, error) {
	rules, err := pfil.Parse(src)
	if err != nil {
		return nil, err
	}
	return pfil.Compile(rules)
}

// joined are the errors that err joins, none of nil.
func joined(err error) []error {
	var many interface{ Unwrap() []error }
	switch {
	case err == nil:
		return nil
	case errors.As(err, &many):
		return many.Unwrap()
	}
	return []error{err}
}
