package pfil

import (
	"slices"
	"time"

	"oxpd/internal/board"
	"oxpd/ring/wire"
)

const (
	// SampleBytes is how much of a sampled frame is kept: what fits the card's first
	// buffer.
	SampleBytes = wire.FirstPayload
	// samplesKept is how many frames each shard keeps; later ones take the place of the
	// oldest.
	samplesKept = 256
	// sampleStep is how many are copied while a shard is held.
	sampleStep = 16
)

// samples is a ring of copies of frames.
type samples struct {
	slots []slot
	made  uint64 // copies made, ever
}

// slot is one copy. It knows its rule by words: the program may be gone.
type slot struct {
	filter     string
	rule       string
	line       int
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
		have := false
		s.between(func() { have = s.samples.slots != nil })
		if have {
			continue
		}
		slots, memory := make([]slot, samplesKept), make([]byte, samplesKept*SampleBytes)
		for j := range slots {
			slots[j].bytes = memory[j*SampleBytes : (j+1)*SampleBytes : (j+1)*SampleBytes]
		}
		s.between(func() { s.samples.slots = slots })
	}
}

// next is the slot for one more copy.
func (r *samples) next() *slot {
	s := &r.slots[r.made%samplesKept]
	r.made++
	return s
}

// take copies a frame's beginning.
func (s *slot) take(first []byte, frameBytes int) {
	s.frameBytes = frameBytes
	s.n = copy(s.bytes, first)
}

// overwritten is how many copies there is no room for any more.
func (r *samples) overwritten() uint64 { return max(r.made, samplesKept) - samplesKept }

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
// and how many copies of whatever filter the rings had no room for any more. They stay.
// Errors: *UnknownError.
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
		out, over := t.shards[i].sampled(name)
		kept = append(kept, out...)
		overwritten += over
	}
	slices.SortStableFunc(kept, func(a, b Sampled) int { return a.Time.Compare(b.Time) })
	return kept, overwritten, nil
}

// sampled copies what the shard keeps of a filter, or of all, oldest first. What is
// overwritten meanwhile is left out.
func (s *shard) sampled(name string) (kept []Sampled, overwritten uint64) {
	r := &s.samples
	var at, end uint64
	s.between(func() { at, end = r.overwritten(), r.made })
	overwritten = at
	for at < end {
		s.between(func() {
			at = max(at, r.overwritten())
			for stop := min(at+sampleStep, end); at < stop; at++ {
				if one := &r.slots[at%samplesKept]; name == "" || name == one.filter {
					kept = append(kept, one.copy())
				}
			}
		})
	}
	return kept, overwritten
}

func (s *slot) copy() Sampled {
	return Sampled{
		Filter: s.filter, Line: s.line, Rule: s.rule, Time: time.Unix(0, s.at), Port: board.ByIndex(s.port), Dir: s.dir,
		FrameBytes: s.frameBytes, Bytes: slices.Clone(s.bytes[:s.n]),
	}
}
