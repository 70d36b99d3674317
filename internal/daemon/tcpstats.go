package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/internal/tcpstats"
	"oxpd/internal/tcpstats/flows"
	"oxpd/internal/tcpstats/inetdiag"
	"oxpd/internal/tcpstats/serve"
)

// sweepPeriod is how often flows are looked at for those that are idle.
const sweepPeriod = time.Second

// statsService answers questions about TCP connections. It outlives the card. Safe for
// concurrent use.
type statsService struct {
	serve *serve.Service
	host  tcpstats.Source
	watch *flowWatch
	clock clock
	log   *slog.Logger
	path  string

	ctx   context.Context
	end   context.CancelFunc
	tasks sync.WaitGroup

	changing sync.Mutex // one change at a time

	mu      sync.Mutex
	conf    config.TCPStats // settings in force; its profiles are not looked at
	unmade  error           // why there is no socket, or not for the group
	stopped bool
}

// newStatsService makes the service. Nothing is opened before start.
func newStatsService(cfg config.Config, netns string, fan *fanout, clock clock, log *slog.Logger) *statsService {
	s := &statsService{
		host: inetdiag.New(inetdiag.Config{NetNS: netns, Ports: fan.interfaces}), watch: fan.flows, clock: clock, log: log, path: cfg.StatsSocket(), conf: cfg.TCPStats,
	}
	s.ctx, s.end = context.WithCancel(context.Background())
	s.serve = serve.New(serve.Config{Sources: s.source, Limits: cfg.TCPStats.Limits(), Clock: clock})
	return s
}

// source is where records of a kind come from, nil when that is off.
func (s *statsService) source(k tcpstats.SourceKind) tcpstats.Source {
	if k == tcpstats.Host {
		return s.host
	}
	if t := s.watch.table.Load(); t != nil {
		return t
	}
	return nil
}

// start makes the socket and puts the configuration into force. A socket that the
// configuration does not name need not be: the datapath starts without it.
func (s *statsService) start() error {
	for _, name := range slices.Sorted(maps.Keys(s.conf.Profiles)) {
		if err := s.serve.SetProfile(name, s.conf.Profiles[name]); err != nil {
			return fmt.Errorf("tcpstats.profiles.%s: %w", name, err)
		}
	}
	s.apply(s.conf)
	l, err := s.listen()
	if err != nil && s.conf.Socket != "" {
		s.stop()
		return err
	}
	if err != nil {
		s.mu.Lock()
		s.unmade = err
		s.mu.Unlock()
		s.log.Warn("there is no socket for TCP statistics: tcpstats.socket of the configuration may name another", "err", err)
	} else {
		s.spawn("socket of TCP statistics", l.Run)
	}
	s.spawn("flows", s.sweep)
	return nil
}

// listen makes the socket, for the group of the configuration. A group that cannot have it
// is no reason to carry no frames: then it is root's alone, and the log says so.
func (s *statsService) listen() (*serve.Listener, error) {
	group, err := groupID(s.conf.Group)
	if err == nil {
		var l *serve.Listener
		l, err = serve.Listen(s.serve, serve.ListenConfig{Path: s.path, Group: group, Log: s.log})
		if err == nil || group <= 0 {
			return l, err
		}
	}
	l, again := serve.Listen(s.serve, serve.ListenConfig{Path: s.path, Log: s.log})
	if again != nil {
		return nil, again
	}
	err = fmt.Errorf("tcpstats.group: %w", err)
	s.mu.Lock()
	s.unmade = err
	s.mu.Unlock()
	s.log.Warn("the socket of TCP statistics is for root alone", "err", err)
	return l, nil
}

// groupID is the number of a group, -1 for none.
func groupID(name string) (int, error) {
	if name == "" {
		return -1, nil
	}
	if n, err := strconv.ParseUint(name, 10, 31); err == nil {
		return int(n), nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(g.Gid)
}

// spawn runs a part until it ends. An error of it takes nothing else along.
func (s *statsService) spawn(what string, run func(ctx context.Context) error) {
	s.tasks.Add(1)
	go func() {
		defer s.tasks.Done()
		if err := run(s.ctx); err != nil {
			s.log.Error("TCP statistics are not served any more", "what", what, "err", err)
		}
	}()
}

// sweep forgets idle flows until ctx ends, which is no error.
func (s *statsService) sweep(ctx context.Context) error {
	for s.clock.Sleep(ctx, sweepPeriod) == nil {
		if t := s.watch.table.Load(); t != nil {
			t.Sweep(s.watch.unix(s.clock.Now()))
		}
	}
	return nil
}

// stop ends the reads and takes the socket away.
func (s *statsService) stop() {
	s.end()
	s.tasks.Wait()
	s.changing.Lock()
	defer s.changing.Unlock()
	s.stopped = true
	s.watch.table.Store(nil)
}

// apply puts settings into force. A table of flows that changes is made anew, and begins
// empty. Called with changing, or before anybody asks.
func (s *statsService) apply(c config.TCPStats) {
	s.mu.Lock()
	before := s.conf
	s.conf = c
	s.mu.Unlock()
	_ = s.serve.SetLimits(c.Limits()) // they have been checked
	there := s.watch.table.Load()
	same := there != nil && before.FlowMax == c.FlowMax && before.FlowIdle == c.FlowIdle
	switch {
	case s.stopped || !c.Flow:
		s.watch.table.Store(nil)
	case !same:
		s.watch.table.Store(flows.New(flows.Config{MaxFlows: c.FlowMax, Idle: time.Duration(c.FlowIdle)}))
	}
}

// reload puts into force what has changed in the configuration. The rest stays as it is,
// also where commands have changed it.
func (s *statsService) reload(before, now *config.TCPStats) {
	s.changing.Lock()
	defer s.changing.Unlock()
	set, changed := s.current(), false
	was, will := before.List(), now.List()
	for i := range will {
		if will[i] != was[i] {
			set, _ = set.With(will[i]) // the configuration was checked
			changed = true
		}
	}
	if changed {
		s.apply(set)
	}
	for _, name := range slices.Sorted(maps.Keys(before.Profiles)) {
		if _, stays := now.Profiles[name]; !stays {
			if err := s.serve.RemoveProfile(name); err != nil {
				s.log.Info("profile was removed before", "profile", name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(now.Profiles)) {
		if text, had := before.Profiles[name]; had && text == now.Profiles[name] {
			continue
		}
		if err := s.serve.SetProfile(name, now.Profiles[name]); err != nil {
			s.log.Error("profile is not as configured", "profile", name, "err", err)
		}
	}
}

func (s *statsService) current() config.TCPStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conf
}

// set implements statistics: all of the settings, or none when one is refused.
func (s *statsService) set(settings []config.StatsSetting) error {
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
	s.log.Info("TCP statistics are set", "settings", strings.Join(words, " "))
	return nil
}

// setProfile implements statistics.
func (s *statsService) setProfile(name, filter string) error {
	if err := s.serve.SetProfile(name, filter); err != nil {
		return statsRefusal(err)
	}
	s.log.Info("profile is set", "profile", name, "filter", filter)
	return nil
}

// removeProfile implements statistics.
func (s *statsService) removeProfile(name string) error {
	if err := s.serve.RemoveProfile(name); err != nil {
		return statsRefusal(err)
	}
	s.log.Info("profile is removed", "profile", name)
	return nil
}

// statsRefusal gives an error of the service the code that the control socket has for it.
func statsRefusal(err error) error {
	var r *serve.Refusal
	switch {
	case !errors.As(err, &r):
		return &refusal{fmt.Errorf("filter: %w", err), client.CodeUsage}
	case r.Code == tcpstats.CodeNoProfile:
		return &refusal{errors.New(r.Reason), client.CodeNotFound}
	case r.Code == tcpstats.CodeNoSpace:
		return &refusal{errors.New(r.Reason), client.CodeRefused}
	}
	return &refusal{errors.New(r.Reason), client.CodeUsage}
}

// view implements statistics.
func (s *statsService) view() client.TCPStats {
	st, conf := s.serve.Stats(), s.current()
	out := client.TCPStats{
		Schema: client.Schema, Socket: s.path, Settings: []client.TCPStatsSetting{}, Profiles: []client.TCPStatsProfile{},
		Open: st.Open, Reading: st.Reading, TimeUS: st.Time.Microseconds(), MaxUS: st.MaxTime.Microseconds(),
		Counters: map[string]uint64{
			"opens": st.Opens, "opens_refused": st.RefusedOpen, "reads": st.Reads, "reads_refused": st.RefusedRead,
			"visited": st.Visited, "emitted": st.Emitted, "aborted": st.Aborted, "errors": st.Errors, "timed_out": st.TimedOut, "interrupted": st.Interrupted,
		},
	}
	for _, why := range tcpstats.Skips() {
		out.Counters["skipped_"+why.String()] = st.Skipped[why.String()]
	}
	for _, v := range conf.List() {
		out.Settings = append(out.Settings, client.TCPStatsSetting{Key: v.Key, Value: v.Value})
	}
	for _, p := range s.serve.Profiles() {
		out.Profiles = append(out.Profiles, client.TCPStatsProfile{Name: p.Name, Filter: p.Filter})
	}
	s.mu.Lock()
	if s.unmade != nil {
		out.Warning = s.unmade.Error()
	}
	s.mu.Unlock()
	if t := s.watch.table.Load(); t != nil {
		f := t.Stats()
		out.Flow = &client.TCPStatsFlow{
			Flows: f.Flows, MaxFlows: f.MaxFlows, HalfOpen: f.HalfOpen, HalfLimit: f.HalfLimit,
			Counters: map[string]uint64{
				"seen": f.Seen, "segments": f.Segments, "ignored": f.Ignored, "strays": f.Strays, "pushed_out": f.Pushed, "refused": f.Refused, "expired": f.Expired,
			},
		}
	}
	return out
}
