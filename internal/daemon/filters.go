package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/internal/pfil"
)

// filterService owns the table of filters, which outlives the card, and knows which of
// them are the configuration's. Safe for concurrent use.
type filterService struct {
	table *pfil.Table
	log   *slog.Logger

	changing sync.Mutex      // one change at a time; a million prefixes take seconds
	conf     []config.Filter // as last put into force

	mu     sync.Mutex
	origin map[string]string // of each filter that is loaded
}

func newFilterService(log *slog.Logger) *filterService {
	return &filterService{table: pfil.NewTable(filterShards, time.Now), log: log, origin: map[string]string{}}
}

// boot loads and links what the configuration has, in its order.
func (s *filterService) boot(filters []config.Filter) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	for i := range filters {
		if err := s.follow(&filters[i], nil); err != nil {
			return err
		}
	}
	s.conf = filters
	return nil
}

// reload puts the filters of a configuration that was read again into force. What the
// file says of a filter holds again, whatever was done to it meanwhile; what it no longer
// has is taken out, unless a command has put other rules in its place; filters and links
// that only commands have made stay.
func (s *filterService) reload(filters []config.Filter) {
	s.changing.Lock()
	defer s.changing.Unlock()
	for i := range s.conf {
		before := &s.conf[i]
		if find(filters, before.Name) == nil {
			s.leave(before)
		}
	}
	for i := range filters {
		if err := s.follow(&filters[i], find(s.conf, filters[i].Name)); err != nil {
			s.log.Error("filter is not as configured", "filter", filters[i].Name, "err", err)
		}
	}
	s.conf = filters
}

func find(filters []config.Filter, name string) *config.Filter {
	i := slices.IndexFunc(filters, func(f config.Filter) bool { return f.Name == name })
	if i < 0 {
		return nil
	}
	return &filters[i]
}

// leave takes a filter out that the configuration has no longer.
func (s *filterService) leave(f *config.Filter) {
	if s.originOf(f.Name) != client.OriginConfig {
		s.log.Info("filter is no longer in the configuration: what a command has loaded stays", "filter", f.Name)
		return
	}
	err := s.unlinkAll(f.Name)
	if err == nil {
		err = s.table.Unload(f.Name)
	}
	if err != nil {
		s.log.Error("filter stays, though the configuration has it no longer", "filter", f.Name, "err", err)
		return
	}
	s.from(f.Name, "")
	s.log.Info("filter is no longer in the configuration: taken out", "filter", f.Name)
}

// follow makes a filter what the configuration says. before is what it said until now,
// nil when it had none of that name.
func (s *filterService) follow(f, before *config.Filter) error {
	have, err := s.table.Source(f.Name)
	if err != nil || !same(&have, &f.Source) {
		l, err := s.table.Load(f.Name, f.Source)
		if err != nil {
			return fmt.Errorf("filter %s: %w", f.Name, err)
		}
		s.log.Info("filter is loaded", "filter", f.Name, "file", f.Source.Name, "rules", l.Rules, "kept", l.Kept)
		for _, w := range l.Warnings {
			s.log.Warn("filter has a rule that is most likely not meant", "filter", f.Name, "why", w)
		}
	}
	s.from(f.Name, client.OriginConfig)
	want := map[config.FilterLink]bool{}
	there := s.table.Links(f.Name)
	for _, l := range f.Links() {
		want[l] = true
		if !linkedAt(there, l) {
			s.log.Info("filter is linked", "filter", f.Name, "port", l.Port.Name, "direction", l.Dir.String())
		}
		if err := s.table.Link(f.Name, []board.Port{l.Port}, l.Dir); err != nil {
			return fmt.Errorf("filter %s: link %s %v: %w", f.Name, l.Port.Name, l.Dir, err)
		}
	}
	if before == nil {
		return nil
	}
	for _, l := range before.Links() {
		if want[l] {
			continue
		}
		var not *pfil.NotLinkedError
		err := s.table.Unlink(f.Name, []board.Port{l.Port}, l.Dir)
		switch {
		case err == nil:
			s.log.Info("filter is unlinked", "filter", f.Name, "port", l.Port.Name, "direction", l.Dir.String())
		case !errors.As(err, &not):
			return fmt.Errorf("filter %s: unlink %s %v: %w", f.Name, l.Port.Name, l.Dir, err)
		}
	}
	return nil
}

// linkedAt tells whether a link is whole among hooks.
func linkedAt(there []pfil.Hook, l config.FilterLink) bool {
	for _, d := range []pfil.Direction{pfil.In, pfil.Out} {
		if l.Dir&d != 0 && !slices.Contains(there, pfil.Hook{Port: l.Port, Dir: d}) {
			return false
		}
	}
	return true
}

func same(a, b *pfil.Source) bool {
	return a.Name == b.Name && bytes.Equal(a.Rules, b.Rules) && maps.EqualFunc(a.Files, b.Files, bytes.Equal)
}

func (s *filterService) unlinkAll(name string) error {
	all := board.All()
	err := s.table.Unlink(name, all[:], pfil.Both)
	var not *pfil.NotLinkedError
	if errors.As(err, &not) {
		return nil
	}
	return err
}

// load implements filtering.
func (s *filterService) load(in client.FilterSource) (client.FilterLoaded, error) {
	s.changing.Lock()
	defer s.changing.Unlock()
	l, err := s.table.Load(in.Name, pfil.Source{Name: in.File, Rules: in.Rules, Files: in.Files})
	if err != nil {
		return client.FilterLoaded{}, err
	}
	s.from(in.Name, client.OriginCommand)
	s.log.Info("filter is loaded", "filter", in.Name, "file", in.File, "rules", l.Rules, "kept", l.Kept)
	return client.FilterLoaded{
		Schema: client.Schema, Name: in.Name, Rules: l.Rules, Replaced: l.Replaced, Kept: l.Kept, Added: l.Added, Removed: l.Removed,
		Links: linksOf(s.table.Links(in.Name)), Warnings: append([]string{}, l.Warnings...),
	}, nil
}

// unload implements filtering.
func (s *filterService) unload(name string) (client.Filters, error) {
	s.changing.Lock()
	defer s.changing.Unlock()
	if err := s.table.Unload(name); err != nil {
		return client.Filters{}, err
	}
	s.from(name, "")
	s.log.Info("filter is unloaded", "filter", name)
	return s.list(), nil
}

// link implements filtering.
func (s *filterService) link(name string, ports []board.Port, dir pfil.Direction) (client.FilterView, error) {
	return s.change("filter is linked", s.table.Link, name, ports, dir)
}

// unlink implements filtering.
func (s *filterService) unlink(name string, ports []board.Port, dir pfil.Direction) (client.FilterView, error) {
	return s.change("filter is unlinked", s.table.Unlink, name, ports, dir)
}

func (s *filterService) change(what string, do func(string, []board.Port, pfil.Direction) error, name string, ports []board.Port, dir pfil.Direction) (client.FilterView, error) {
	s.changing.Lock()
	defer s.changing.Unlock()
	if err := do(name, ports, dir); err != nil {
		return client.FilterView{}, err
	}
	at := client.AllPorts
	if len(ports) == 1 {
		at = ports[0].Name
	}
	s.log.Info(what, "filter", name, "port", at, "direction", dir.String())
	return s.show(name)
}

// from notes where a filter came from; empty: it is gone.
func (s *filterService) from(name, origin string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if origin == "" {
		delete(s.origin, name)
		return
	}
	s.origin[name] = origin
}

func (s *filterService) originOf(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.origin[name]
}

// list implements filtering.
func (s *filterService) list() client.Filters {
	doc := client.Filters{Schema: client.Schema, Filters: []client.Filter{}}
	for _, i := range s.table.List() {
		doc.Filters = append(doc.Filters, s.brief(&i))
	}
	for _, p := range board.All() {
		for _, o := range s.of(p) {
			if len(o.Filters) > 1 {
				doc.Order = append(doc.Order, o)
			}
		}
	}
	return doc
}

// brief is a filter as documents have it.
func (s *filterService) brief(i *pfil.Info) client.Filter {
	return client.Filter{
		Name: i.Name, File: i.File, Origin: s.originOf(i.Name), Rules: i.Rules, Loaded: i.Loaded, Links: linksOf(i.Links),
		Judged: client.FilterCount{Frames: i.Matched.Hits + i.Unmatched.Hits, Bytes: i.Matched.Bytes + i.Unmatched.Bytes},
		Gone:   filterCount(i.Gone), Unmatched: filterCount(i.Unmatched),
	}
}

// show implements filtering.
func (s *filterService) show(name string) (client.FilterView, error) {
	v, err := s.table.Show(name)
	if err != nil {
		return client.FilterView{}, err
	}
	doc := client.FilterView{Schema: client.Schema, Filter: s.brief(&v.Info), Now: time.Now(), List: []client.FilterRule{}, Warnings: append([]string{}, v.Warnings...)}
	for i := range v.Rules {
		r := &v.Rules[i]
		rule := client.FilterRule{Line: r.Line, Verdict: r.Verdict.String(), Rule: r.Text, Hits: r.Hits, Bytes: r.Bytes}
		if !r.Last.IsZero() {
			rule.LastHit = &r.Last
		}
		doc.List = append(doc.List, rule)
	}
	return doc, nil
}

// source implements filtering.
func (s *filterService) source(name string) (client.FilterSource, error) {
	src, err := s.table.Source(name)
	return client.FilterSource{Schema: client.Schema, Name: name, File: src.Name, Rules: src.Rules, Files: src.Files}, err
}

// samples implements filtering.
func (s *filterService) samples(name string, w io.Writer) error {
	kept, _, err := s.table.Samples(name)
	if err != nil {
		return err
	}
	return writeSamples(w, kept)
}

// linkedNames are the filters that judge somewhere, in order of name.
func (s *filterService) linkedNames() []string {
	var names []string
	for _, p := range board.All() {
		for _, o := range s.of(p) {
			names = append(names, o.Filters...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// of is the filters at a port, in the order in which they are asked.
func (s *filterService) of(p board.Port) []client.FilterOrder {
	var out []client.FilterOrder
	for _, d := range []pfil.Direction{pfil.In, pfil.Out} {
		h := pfil.Hook{Port: p, Dir: d}
		if c := s.table.Chain(h); len(c) > 0 {
			out = append(out, client.FilterOrder{FilterLink: linkView(h), Filters: c})
		}
	}
	return out
}

func filterCount(t pfil.Totals) client.FilterCount {
	return client.FilterCount{Frames: t.Hits, Bytes: t.Bytes}
}

func linkView(h pfil.Hook) client.FilterLink {
	return client.FilterLink{IfName: h.Port.Name, Label: h.Port.Label, Direction: h.Dir.String()}
}

func linksOf(hooks []pfil.Hook) []client.FilterLink {
	out := []client.FilterLink{}
	for _, h := range hooks {
		out = append(out, linkView(h))
	}
	return out
}
