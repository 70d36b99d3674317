package pfil

import (
	"slices"
	"time"

	"oxpd/internal/board"
	"oxpd/ring/wire"
)

// samplesKept is how many frames each shard keeps; later ones take the place of the
// oldest. SampleBytes is how much of each: what fits the card's first buffer.
const (
	samplesKept = 256
	SampleBytes = wire.FirstPayload
)

// samples is a ring of copies of frames.
type samples struct {
	slots []slot
	made  uint64 // copies made, ever
}

type slot struct {
	filter     *filter
	from       *loaded
	rule       int
	at         int64
	port       int
	dir        Direction
	frameBytes int
	n          int
	bytes      []byte // SampleBytes of them
}

// makeSamples allocates the rings where there are none. Called with the table's mutex.
func (t *Table) makeSamples() {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		have := s.samples.slots != nil
		s.mu.Unlock()
		if have {
			continue
		}
		slots, memory := make([]slot, samplesKept), make([]byte, samplesKept*SampleBytes)
		for j := range slots {
			slots[j].bytes = memory[j*SampleBytes : (j+1)*SampleBytes : (j+1)*SampleBytes]
		}
		s.mu.Lock()
		s.samples.slots = slots
		s.mu.Unlock()
	}
}

// put copies a frame's beginning.
func (r *samples) put(f *filter, l *loaded, rule int, at int64, port int, dir Direction, first []byte, frameBytes int) {
	s := &r.slots[r.made%samplesKept]
	r.made++
	s.filter, s.from, s.rule, s.at, s.port, s.dir, s.frameBytes = f, l, rule, at, port, dir, frameBytes
	s.n = copy(s.bytes, first)
}

// Sampled is a copy of a frame that a sample rule matched.
type Sampled struct {
	Filter     string
	Line       int    // of the rule
	Rule       string // its text
	Time       time.Time
	Port       board.Port
	Dir        Direction
	FrameBytes int    // of the whole frame
	Bytes      []byte // its beginning
}

// Samples are the copies that are kept, of one filter or of all (""), oldest first,
// and how many the rings had no room for any more. They stay.
func (t *Table) Samples(name string) (kept []Sampled, overwritten uint64, err error) {
	if name != "" {
		t.mu.Lock()
		_, err = t.find(name)
		t.mu.Unlock()
		if err != nil {
			return nil, 0, err
		}
	}
	for i := range t.shards {
		s := &t.shards[i]
		for j := range samplesKept {
			s.mu.Lock()
			if n := s.samples.made; j == 0 && n > samplesKept {
				overwritten += n - samplesKept
			}
			var one Sampled
			ok := s.samples.slots != nil && s.samples.slots[j].from != nil
			if ok {
				one = s.samples.slots[j].copy()
			}
			s.mu.Unlock()
			if ok && (name == "" || one.Filter == name) {
				kept = append(kept, one)
			}
		}
	}
	slices.SortStableFunc(kept, func(a, b Sampled) int { return a.Time.Compare(b.Time) })
	return kept, overwritten, nil
}

func (s *slot) copy() Sampled {
	r := &s.from.rules.Rules[s.rule]
	return Sampled{
		Filter: s.filter.name, Line: r.Line, Rule: r.String(), Time: time.Unix(0, s.at), Port: board.ByIndex(s.port), Dir: s.dir,
		FrameBytes: s.frameBytes, Bytes: slices.Clone(s.bytes[:s.n]),
	}
}
