package hwsim

// fifo is a queue in a growing circle of entries: no allocation once it has
// reached its size.
type fifo[T any] struct {
	buf  []T // length 0 or a power of two
	head uint64
	tail uint64
}

func (f *fifo[T]) len() int { return int(f.tail - f.head) }

func (f *fifo[T]) push(v T) {
	if f.len() == len(f.buf) {
		bigger := make([]T, max(16, 2*len(f.buf)))
		n := 0
		for ; f.head != f.tail; f.head++ {
			bigger[n] = *f.at(0)
			n++
		}
		f.buf, f.head, f.tail = bigger, 0, uint64(n)
	}
	f.buf[f.tail&uint64(len(f.buf)-1)] = v
	f.tail++
}

// at returns entry i from the head; valid until the next push.
func (f *fifo[T]) at(i int) *T { return &f.buf[(f.head+uint64(i))&uint64(len(f.buf)-1)] }

func (f *fifo[T]) pop() T {
	v := *f.at(0)
	f.drop()
	return v
}

// drop forgets the head.
func (f *fifo[T]) drop() {
	var zero T
	*f.at(0) = zero
	f.head++
}

// reset empties the queue and keeps its memory.
func (f *fifo[T]) reset() {
	clear(f.buf)
	f.head, f.tail = 0, 0
}
