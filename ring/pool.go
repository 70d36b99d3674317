package ring

import (
	"sync"

	"oxpd/ring/wire"
)

// Sizes of gather buffers: one for every frame that an MTU allows, one for
// longer ones (datapath.md 3.6).
const (
	gatherSmall = wire.FrameRoom
	gatherLarge = 16384
)

// pool holds the buffers that spans are gathered into. It is bounded: all
// memory is taken at the start, and an empty pool is a normal result. Buffers
// are reused last in, first out, because the last one is still in the cache.
// Safe for concurrent use.
type pool struct {
	small, large stack
}

type stack struct {
	mu   sync.Mutex
	free [][]byte
	size int // buffers in existence
	high int // most that were out at once
}

func newPool(small, large int) *pool {
	p := &pool{}
	p.small.fill(small, gatherSmall)
	p.large.fill(large, gatherLarge)
	return p
}

func (s *stack) fill(n, bytes int) {
	s.size = n
	s.free = make([][]byte, n)
	mem := make([]byte, n*bytes)
	for i := range s.free {
		s.free[i] = mem[i*bytes : (i+1)*bytes : (i+1)*bytes]
	}
}

// get returns a buffer for a frame of n bytes, or nil: none free, or longer
// than any.
func (p *pool) get(n int) []byte {
	switch {
	case n <= gatherSmall:
		return p.small.pop()
	case n <= gatherLarge:
		return p.large.pop()
	}
	return nil
}

// put takes back a buffer that get returned; nil is ignored.
func (p *pool) put(b []byte) {
	switch cap(b) {
	case gatherSmall:
		p.small.push(b[:gatherSmall])
	case gatherLarge:
		p.large.push(b[:gatherLarge])
	}
}

func (s *stack) pop() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free) == 0 {
		return nil
	}
	b := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	s.high = max(s.high, s.size-len(s.free))
	return b
}

func (s *stack) push(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, b)
}

// census returns how many buffers exist, are free, and were out at most.
func (s *stack) census() (size, free, high int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.size, len(s.free), s.high
}

// gather copies the pieces of a span of frameBytes bytes, which starts in the
// receive buffer of entry r, into dst and returns it cut to length.
func (o *OQ) gather(dst []byte, r uint32, frameBytes int) []byte {
	first, _ := o.buffer(r)
	n := copy(dst[:frameBytes], first[wire.PrefixSize:])
	for n < frameBytes {
		r++
		b, _ := o.buffer(r)
		n += copy(dst[n:frameBytes], b)
	}
	return dst[:frameBytes]
}

// spread appends to dst the pieces of a span of frameBytes bytes, which starts in the
// receive buffer of entry r with first, where they lie.
func (o *OQ) spread(dst [][]byte, r uint32, first []byte, frameBytes int) [][]byte {
	dst = append(dst, first)
	for left := frameBytes - len(first); left > 0; {
		r++
		b, _ := o.buffer(r)
		b = b[:min(left, len(b))]
		dst = append(dst, b)
		left -= len(b)
	}
	return dst
}
