package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"time"

	"oxpd/internal/tcpstats"
)

// Limits protect the host from clients. They are read when an open, or a read, begins.
type Limits struct {
	MaxOpen     int           // max_open_fds
	MaxReaders  int           // max_concurrent_readers
	MaxDuration time.Duration // max_read_duration_ms; 0: none
	MinInterval time.Duration // min_read_interval_ms; 0: none
}

// DefaultLimits are those of a service that was told nothing else.
func DefaultLimits() Limits {
	return Limits{MaxOpen: 16, MaxReaders: 32, MaxDuration: 5 * time.Second}
}

// Bounds of the limits.
const (
	MostOpen     = 1024
	MostReaders  = 1024
	MostDuration = time.Hour
	MostInterval = time.Hour
)

// Check tells what is wrong with limits.
func (l Limits) Check() error {
	switch {
	case l.MaxOpen < 1 || l.MaxOpen > MostOpen:
		return fmt.Errorf("max_open_fds is %d: want 1 to %d", l.MaxOpen, MostOpen)
	case l.MaxReaders < 1 || l.MaxReaders > MostReaders:
		return fmt.Errorf("max_concurrent_readers is %d: want 1 to %d", l.MaxReaders, MostReaders)
	case l.MaxDuration < 0 || l.MaxDuration > MostDuration:
		return fmt.Errorf("max_read_duration_ms is %d: want 0 to %d", l.MaxDuration.Milliseconds(), MostDuration.Milliseconds())
	case l.MinInterval < 0 || l.MinInterval > MostInterval:
		return fmt.Errorf("min_read_interval_ms is %d: want 0 to %d", l.MinInterval.Milliseconds(), MostInterval.Milliseconds())
	}
	return nil
}

// Clock is monotonic time.
type Clock interface{ Now() time.Duration }

// Config is what a service needs. Clock is required.
type Config struct {
	Sources func(tcpstats.SourceKind) tcpstats.Source // nil, or returns nil: that source is off
	Limits  Limits
	Clock   Clock
}

// Stats counts. What a read counts is added at its end, at once.
type Stats struct {
	Opens       uint64 // ever
	Open        int    // now
	Reading     int    // now
	RefusedOpen uint64 // for max_open_fds
	RefusedRead uint64 // for max_concurrent_readers and min_read_interval_ms

	Reads       uint64 // that have ended
	Visited     uint64
	Emitted     uint64
	Skipped     map[string]uint64 // by reason
	Aborted     uint64
	Errors      uint64 // reads that ended for a source, or a client, that failed
	TimedOut    uint64
	Interrupted uint64        // by CANCEL
	Time        time.Duration // of all reads
	MaxTime     time.Duration
}

// Service is where opens come from. Safe for concurrent use.
type Service struct {
	cfg Config

	mu       sync.Mutex
	limits   Limits
	stats    Stats
	profiles map[string]tcpstats.Filter
}

// New makes a service. Zero limits are the defaults.
func New(cfg Config) *Service {
	if cfg.Limits == (Limits{}) {
		cfg.Limits = DefaultLimits()
	}
	s := &Service{cfg: cfg, limits: cfg.Limits, profiles: map[string]tcpstats.Filter{}}
	s.stats.Skipped = map[string]uint64{}
	return s
}

// Limits are those in force.
func (s *Service) Limits() Limits {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limits
}

// SetLimits puts limits into force, all of them or none. What is open stays open.
func (s *Service) SetLimits(l Limits) error {
	if err := l.Check(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limits = l
	return nil
}

// Stats reads the counters.
func (s *Service) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.stats
	out.Skipped = make(map[string]uint64, len(s.stats.Skipped))
	for k, v := range s.stats.Skipped {
		out.Skipped[k] = v
	}
	return out
}

// Refusal is a request that was not followed: its code, and why.
type Refusal struct {
	Code   tcpstats.Code
	Reason string
}

func (e *Refusal) Error() string { return string(e.Code) + ": " + e.Reason }

// Open is one client's. Its methods are safe for concurrent use.
type Open struct {
	s *Service

	mu     sync.Mutex
	filter tcpstats.Filter
	last   time.Duration // when its last read began
	ever   bool
	closed bool
}

// Open makes one, with the default filter. Errors: *Refusal, EMFILE.
func (s *Service) Open() (*Open, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stats.Open >= s.limits.MaxOpen {
		s.stats.RefusedOpen++
		return nil, &Refusal{tcpstats.CodeTooManyOpen, fmt.Sprintf("max_open_fds is %d, and so many clients are connected", s.limits.MaxOpen)}
	}
	s.stats.Open++
	s.stats.Opens++
	return &Open{s: s, filter: tcpstats.Default()}, nil
}

// Close gives the open's place to others. Reads that are under way go on.
func (o *Open) Close() {
	o.mu.Lock()
	was := o.closed
	o.closed = true
	o.mu.Unlock()
	if was {
		return
	}
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	o.s.stats.Open--
}

// SetFilter changes the filter of the reads that come. Errors: *tcpstats.SyntaxError; then
// it is as it was.
func (o *Open) SetFilter(text string) error {
	f, err := tcpstats.Parse(text)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.filter = f
	return nil
}

// UseProfile copies the filter of a profile, as it is now. Errors: *Refusal, ENOENT and
// ENAMETOOLONG.
func (o *Open) UseProfile(name string) error {
	if len(name) > MaxProfileName {
		return CheckProfileName(name)
	}
	f, ok := o.s.profile(name)
	if !ok {
		return &Refusal{tcpstats.CodeNoProfile, fmt.Sprintf("there is no profile %q", name)}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.filter = f
	return nil
}

// Filter is the one in force.
func (o *Open) Filter() tcpstats.Filter {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.filter
}

// Reading is a read that may begin.
type Reading struct {
	o      *Open
	filter tcpstats.Filter
	source tcpstats.Source
	began  time.Duration
	limit  time.Duration
}

// Begin asks for a read. The caller runs it, always. Errors: *Refusal, EBUSY and ENODEV.
func (o *Open) Begin() (*Reading, error) {
	f := o.Filter()
	var source tcpstats.Source
	if o.s.cfg.Sources != nil {
		source = o.s.cfg.Sources(f.Source)
	}
	if source == nil {
		return nil, &Refusal{tcpstats.CodeNoSource, fmt.Sprintf("source=%v is off", f.Source)}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	now := o.s.cfg.Clock.Now() // of two that begin at once, the one that counts second is later
	l := o.s.limits
	switch {
	case o.s.stats.Reading >= l.MaxReaders:
		o.s.stats.RefusedRead++
		return nil, &Refusal{tcpstats.CodeBusy, fmt.Sprintf("max_concurrent_readers is %d, and so many reads are under way", l.MaxReaders)}
	case o.ever && now-o.last < l.MinInterval:
		o.s.stats.RefusedRead++
		return nil, &Refusal{tcpstats.CodeBusy, fmt.Sprintf("the last read began %d ms ago, min_read_interval_ms is %d", (now - o.last).Milliseconds(), l.MinInterval.Milliseconds())}
	}
	o.s.stats.Reading++
	o.last, o.ever = now, true
	return &Reading{o: o, filter: f, source: source, began: now, limit: l.MaxDuration}, nil
}

// Left is how much of the read's duration is left, and whether it has a bound.
func (r *Reading) Left() (time.Duration, bool) {
	if r.limit == 0 {
		return 0, false
	}
	return r.limit - (r.o.s.cfg.Clock.Now() - r.began), true
}

// Errors by which a sink tells why it took no more.
var (
	// ErrSlow says that the client did not take the records in time.
	ErrSlow = errors.New("client does not read")
)

// Run reads. Each chunk goes to sink, which keeps nothing of it, and has it taken whole
// when it returns nil. A read that ctx ends was cancelled. buf has room for
// tcpstats.ChunkBytes.
func (r *Reading) Run(ctx context.Context, buf []byte, sink func(b []byte, records int) error) tcpstats.End {
	tcpstats.Probe(ctx, tcpstats.PointRead)
	end, walked := r.run(ctx, buf[:0], sink)
	end.Source = r.filter.Source.String()
	end.Visited = walked.Visited
	end.Skipped, end.PushedDown = walked.Reasons(), walked.PushedDown.Names()
	end.Inconsistent, end.Truncated = walked.Inconsistent, walked.Truncated
	end.Aborted = walked.Visited - walked.SkippedAll() - end.Emitted
	took := r.o.s.cfg.Clock.Now() - r.began
	end.ElapsedUS = took.Microseconds()
	r.o.s.count(&end, took)
	tcpstats.Probe(ctx, tcpstats.PointReadDone)
	return end
}

func (r *Reading) run(ctx context.Context, buf []byte, sink func(b []byte, records int) error) (end tcpstats.End, walked tcpstats.Walked) {
	fail := func(code tcpstats.Code, reason string) {
		end.Code, end.Reason, end.Partial = code, reason, true
	}
	c, err := r.source.Open(ctx, &tcpstats.Query{Filter: r.filter})
	if err != nil {
		fail(tcpstats.CodeFailed, err.Error())
		return end, walked
	}
	for {
		if ctx.Err() != nil {
			fail(tcpstats.CodeCancelled, "cancelled")
			break
		}
		if left, bounded := r.Left(); bounded && left <= 0 {
			fail(tcpstats.CodeTimedOut, fmt.Sprintf("max_read_duration_ms is %d", r.limit.Milliseconds()))
			break
		}
		out, n, err := c.Next(ctx, buf)
		if n > 0 {
			if serr := sink(out, n); serr == nil {
				end.Emitted += uint64(n)
			} else if err == nil {
				err = serr
			}
		}
		if err == io.EOF {
			break
		}
		switch {
		case err == nil:
		case ctx.Err() != nil:
			fail(tcpstats.CodeCancelled, "cancelled")
		case errors.Is(err, ErrSlow):
			fail(tcpstats.CodeTimedOut, err.Error())
		default:
			fail(tcpstats.CodeFailed, err.Error())
		}
		if err != nil {
			break
		}
		runtime.Gosched()
	}
	if err := c.Close(); err != nil && end.Code == tcpstats.CodeOK {
		fail(tcpstats.CodeFailed, err.Error())
	}
	return end, c.Walked()
}

// count adds what a read has counted.
func (s *Service) count(end *tcpstats.End, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &s.stats
	t.Reading--
	t.Reads++
	t.Visited += end.Visited
	t.Emitted += end.Emitted
	t.Aborted += end.Aborted
	for why, n := range end.Skipped {
		t.Skipped[why] += n
	}
	t.Time += took
	t.MaxTime = max(t.MaxTime, took)
	switch end.Code {
	case tcpstats.CodeOK:
	case tcpstats.CodeCancelled:
		t.Interrupted++
	case tcpstats.CodeTimedOut:
		t.TimedOut++
	default:
		t.Errors++
	}
}
