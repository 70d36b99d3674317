package daemon

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/internal/divert"
)

// engineView is what is known of the engine at a queue, beside what the queue knows.
type engineView struct {
	name     string            // what it calls itself; empty: it has not said, or there is none
	pid      int               // 0 when that is not known
	buffer   int               // of its socket, bytes; 0 when it has none
	counters map[string]uint64 // of the way to it
	warning  string            // what is wrong with it; empty: nothing
}

// engines are what takes frames from the queues.
type engines interface {
	// engine tells of the one at a queue.
	engine(q *divert.Queue) engineView
	// setPair gives a port the interfaces and the queue of a tap-pair, or takes them away.
	setPair(p board.Port, on bool, s divert.Settings) error
}

// divertService shows and changes inspection, which outlives the card. Safe for concurrent
// use.
type divertService struct {
	in      *divert.Inspector
	engines engines
	log     *slog.Logger

	changing sync.Mutex // one change at a time

	mu       sync.Mutex
	settings divert.Settings
	kinds    [board.Ports]divert.Kind
	risk     string // of the configuration
}

func newDivertService(in *divert.Inspector, e engines, log *slog.Logger) *divertService {
	return &divertService{in: in, engines: e, log: log, settings: divert.Defaults()}
}

// boot puts what the configuration has into force. A port that does not get its tap-pair
// is an error: its frames would go where nobody wants them.
func (s *divertService) boot(d *config.Divert) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	s.note(d)
	s.apply(d.Settings())
	for _, p := range board.All() {
		all, kind := d.Mode(p)
		if !all && kind == divert.Socket {
			continue // as it is
		}
		if err := s.mode(p, all, kind); err != nil {
			return err
		}
	}
	return nil
}

// reload puts into force what has changed in the configuration. The rest stays as it is,
// also where commands have changed it.
func (s *divertService) reload(before, now *config.Divert) {
	s.changing.Lock()
	defer s.changing.Unlock()
	s.note(now)
	if changed := before.Changed(now); len(changed) > 0 {
		set := s.current()
		for _, c := range changed {
			set, _ = set.With(c) // the configuration was checked
		}
		s.apply(set)
	}
	for _, p := range board.All() {
		wasAll, wasKind := before.Mode(p)
		all, kind := now.Mode(p)
		if all == wasAll && kind == wasKind {
			continue
		}
		if err := s.mode(p, all, kind); err != nil {
			s.log.Error("inspection is not as configured", "port", p.Name, "err", err)
		}
	}
}

// note keeps what is wrong with a configuration, and says it.
func (s *divertService) note(d *config.Divert) {
	risk := d.Risk()
	if risk != "" {
		s.log.Warn("the configuration has a value that is not used", "why", risk)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.risk = risk
}

func (s *divertService) current() divert.Settings {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settings
}

// apply puts settings into force in all queues.
func (s *divertService) apply(set divert.Settings) {
	s.mu.Lock()
	s.settings = set
	s.mu.Unlock()
	s.in.Set(set)
}

// set implements diverting: all of the settings, or none when one is refused.
func (s *divertService) set(settings []divert.Setting) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	set := s.current()
	var words []string
	for _, c := range settings {
		var err error
		if set, err = set.With(c); err != nil {
			return &refusal{err, client.CodeUsage}
		}
		words = append(words, c.Key+"="+c.Value)
	}
	s.apply(set)
	s.log.Info("inspection is set", "settings", strings.Join(words, " "))
	return nil
}

// setPort implements diverting. A nil kind stays as it is.
func (s *divertService) setPort(p board.Port, all bool, kind *divert.Kind) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	if kind == nil {
		is := s.kind(p)
		kind = &is
	}
	return s.mode(p, all, *kind)
}

func (s *divertService) kind(p board.Port) divert.Kind {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kinds[p.Index]
}

// mode sets which frames of a port are inspected, and by what; both, or neither when there
// is an error. A port is whole behind its new engine, and no longer before: frames that
// were on their way to the old one stay there.
func (s *divertService) mode(p board.Port, all bool, kind divert.Kind) error {
	if kind != s.kind(p) {
		if err := s.engines.setPair(p, kind == divert.TapPair, s.current()); err != nil {
			return fmt.Errorf("inspect %s by %v: %w", p.Name, kind, err)
		}
		s.mu.Lock()
		s.kinds[p.Index] = kind
		s.mu.Unlock()
	}
	s.in.SetAll(p.Index, all)
	s.log.Info("port is inspected", "port", p.Name, "frames", framesWord(all), "engine", kind.String())
	return nil
}

// view implements diverting.
func (s *divertService) view(only *board.Port) client.Divert {
	s.mu.Lock()
	set, kinds, risk := s.settings, s.kinds, s.risk
	s.mu.Unlock()
	out := client.Divert{Schema: client.Schema, Settings: divertSettings(set), Queues: []client.DivertQueue{}, Ports: []client.DivertPort{}, Warnings: []string{}}
	if risk != "" {
		out.Warnings = append(out.Warnings, risk)
	}
	for i, q := range s.in.Queues() {
		kind := divert.TapPair
		if i < len(s.in.Listeners()) {
			kind = divert.Socket
		}
		st, e := q.Stats(), s.engines.engine(q)
		out.Queues = append(out.Queues, divertQueue(&st, kind, &e))
		if e.warning != "" {
			out.Warnings = append(out.Warnings, e.warning)
		}
		if w := s.unserved(&st, kind, kinds, set); w != "" {
			out.Warnings = append(out.Warnings, w)
		}
	}
	for _, p := range board.All() {
		if only == nil || only.Index == p.Index {
			counts := [divert.Directions]divert.Counts{divert.In: s.in.Counts(p.Index, divert.In), divert.Out: s.in.Counts(p.Index, divert.Out)}
			out.Ports = append(out.Ports, divertPort(p, s.in.Wants(p.Index), kinds[p.Index], counts))
		}
	}
	return out
}

// unserved is the warning of a queue that ports of whole are behind and that nobody takes
// frames from, "" when there is nothing to warn of.
func (s *divertService) unserved(st *divert.QueueStats, kind divert.Kind, kinds [board.Ports]divert.Kind, set divert.Settings) string {
	policy, why := set.OnAbsent, "no engine is attached"
	switch st.State {
	case divert.Absent:
	case divert.Stalled:
		policy, why = set.OnStall, "the engine gives no verdicts"
	case divert.Idle, divert.Busy:
		return ""
	}
	var behind []string
	for _, p := range board.All() {
		if s.in.Wants(p.Index) && kinds[p.Index] == kind && (kind == divert.Socket || st.Name == p.Name) {
			behind = append(behind, p.Name)
		}
	}
	if len(behind) == 0 {
		return ""
	}
	what, fates := "frames of ", [...]string{divert.Drop: "are dropped", divert.Pass: "pass uninspected"}
	if kind == divert.Socket && len(s.in.Listeners()) > 1 {
		what, fates = "its share of the frames of ", [...]string{divert.Drop: "is dropped", divert.Pass: "passes uninspected"}
	}
	return fmt.Sprintf("%s: %s: %s%s %s", st.Name, why, what, strings.Join(behind, ", "), fates[policy])
}

// of is which frames of a port are inspected, and by what; nil when it is those that
// filters divert, by the engines at the listeners.
func (s *divertService) of(p board.Port) *client.DivertMode {
	all, kind := s.in.Wants(p.Index), s.kind(p)
	if !all && kind == divert.Socket {
		return nil
	}
	return &client.DivertMode{Frames: framesWord(all), Engine: kind.String()}
}

// brief are the queues that something is behind, for the status.
func (s *divertService) brief() []client.DivertEngine {
	v := s.view(nil)
	used := map[string]bool{}
	for i := range v.Ports {
		p := &v.Ports[i]
		if p.Frames == client.FramesAll || p.Total("divert_seen") > 0 {
			used[p.Engine] = true
		}
	}
	var out []client.DivertEngine
	for i := range v.Queues {
		q := &v.Queues[i]
		if used[q.Kind] || q.State != client.QueueAbsent {
			out = append(out, client.DivertEngine{Queue: q.Name, Kind: q.Kind, State: q.State, Engine: q.Engine, Queued: q.Queued})
		}
	}
	return out
}

// restartCost is what a restart costs the engines that are there, "" without any.
func (s *divertService) restartCost(engines []client.DivertEngine) string {
	if !slices.ContainsFunc(engines, func(e client.DivertEngine) bool { return e.State != client.QueueAbsent }) {
		return ""
	}
	fate := "dropped"
	if s.current().OnAbsent == divert.Pass {
		fate = "passed uninspected"
	}
	return "the engines' connections: what they are to inspect is " + fate + " until they have connected again, and what waits for a verdict is lost when oxpd is killed"
}
