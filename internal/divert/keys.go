package divert

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Setting is one of the Settings, as configuration and commands have it.
type Setting struct{ Key, Value string }

// key is a Setting's name, and how it is read and written.
type key struct {
	name string
	get  func(s *Settings) string
	set  func(s *Settings, text string) error
}

var keys = [...]key{
	{"queue-len", func(s *Settings) string { return strconv.Itoa(s.QueueLen) }, func(s *Settings, text string) error {
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%q: want %d to %d frames", text, MinQueueLen, MaxQueueLen)
		}
		s.QueueLen = n
		return nil
	}},
	{"queue-bytes", func(s *Settings) string { return FormatSize(s.QueueBytes) }, func(s *Settings, text string) (err error) {
		s.QueueBytes, err = ParseSize(text)
		return err
	}},
	{"buffer-size", func(s *Settings) string { return FormatSize(s.BufferSize) }, func(s *Settings, text string) (err error) {
		s.BufferSize, err = ParseSize(text)
		return err
	}},
	policyKey("on-full", func(s *Settings) *Policy { return &s.OnFull }),
	policyKey("on-absent", func(s *Settings) *Policy { return &s.OnAbsent }),
	policyKey("on-stall", func(s *Settings) *Policy { return &s.OnStall }),
	{"stall-ms", func(s *Settings) string { return strconv.FormatInt(s.Stall.Milliseconds(), 10) }, func(s *Settings, text string) error {
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return fmt.Errorf("%q: want %d to %d", text, MinStall.Milliseconds(), MaxStall.Milliseconds())
		}
		s.Stall = time.Duration(n) * time.Millisecond
		return nil
	}},
	{"order", func(s *Settings) string { return s.Order.String() }, func(s *Settings, text string) (err error) {
		s.Order, err = ParseOrder(text)
		return err
	}},
}

func policyKey(name string, of func(s *Settings) *Policy) key {
	return key{name, func(s *Settings) string { return of(s).String() }, func(s *Settings, text string) (err error) {
		*of(s), err = ParsePolicy(text)
		return err
	}}
}

// Keys are the names of all settings.
func Keys() []string {
	var names []string
	for i := range keys {
		names = append(names, keys[i].name)
	}
	return names
}

// List is all settings, in a fixed order.
func (s Settings) List() []Setting {
	var list []Setting
	for i := range keys {
		list = append(list, Setting{keys[i].name, keys[i].get(&s)})
	}
	return list
}

// With is s with one setting changed. What cannot be is refused, by an error that names
// the key.
func (s Settings) With(c Setting) (Settings, error) {
	i := slices.IndexFunc(keys[:], func(k key) bool { return k.name == c.Key })
	if i < 0 {
		return s, fmt.Errorf("no setting is called %q: want %s", c.Key, strings.Join(Keys(), ", "))
	}
	changed := s
	if err := keys[i].set(&changed, c.Value); err != nil {
		return s, fmt.Errorf("%s: %w", c.Key, err)
	}
	if err := changed.Check(); err != nil {
		return s, err
	}
	return changed, nil
}

// FormatSize writes a size as ParseSize reads it, in the largest unit that it is whole in.
func FormatSize(n int64) string {
	for _, u := range []struct {
		bytes int64
		name  string
	}{{1 << 30, "gb"}, {1 << 20, "mb"}, {1 << 10, "kb"}} {
		if n != 0 && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}
