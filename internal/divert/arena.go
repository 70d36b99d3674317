package divert

// classes are the sizes of buffers in bytes. A frame of the largest MTU with two tags
// has 9,022.
var classes = [...]int{128, 256, 512, 1024, 1536, 2048, 4096, 9216, 1 << 16}

// arena is a queue's memory: buffers of a few sizes that are used again. What traffic of
// one size has left is given up when another size needs more than slack.
type arena struct {
	free  [len(classes)][][]byte
	held  int64 // bytes of all buffers, free or in use
	spare int64 // of the free ones
	slack int64 // what may be held
}

// classOf is the smallest class of n bytes, -1 when there is none.
func classOf(n int) int {
	for i, size := range classes {
		if n <= size {
			return i
		}
	}
	return -1
}

// get is a buffer of n bytes with anything in it; nil for more than the largest class.
func (a *arena) get(n int) []byte {
	c := classOf(n)
	if c < 0 {
		return nil
	}
	if last := len(a.free[c]) - 1; last >= 0 {
		b := a.free[c][last]
		a.free[c] = a.free[c][:last]
		a.spare -= int64(cap(b))
		return b[:n]
	}
	if a.held+int64(classes[c]) > a.slack {
		a.trim()
	}
	a.held += int64(classes[c])
	return make([]byte, n, classes[c])
}

// put takes a buffer of get back.
func (a *arena) put(b []byte) {
	c := classOf(cap(b))
	a.free[c] = append(a.free[c], b[:0])
	a.spare += int64(cap(b))
}

// trim gives up what is free.
func (a *arena) trim() {
	for c := range a.free {
		clear(a.free[c])
		a.free[c] = a.free[c][:0]
	}
	a.held -= a.spare
	a.spare = 0
}
