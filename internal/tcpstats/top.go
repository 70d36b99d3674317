package tcpstats

import (
	"container/heap"
	"fmt"
	"slices"
)

// Order is what records are sorted by: the sum of fields, largest first.
type Order struct {
	name   string
	fields []Field
}

// orders are words for --by that are no names of fields, or mean more than one.
var orders = map[string][]Field{
	"rtt": {FieldRTT}, "rttvar": {FieldRTTVar}, "min_rtt": {FieldMinRTT}, "mss": {FieldSndMSS}, "rate": {FieldDeliveryRate},
	"bytes": {FieldBytesAcked, FieldBytesReceived}, "segs": {FieldSegsIn, FieldSegsOut}, "queue": {FieldRecvQueue, FieldSendQueue},
}

// ParseOrder finds an order by the name of a field, or one of rtt, rttvar, min_rtt, mss,
// rate, bytes, segs, queue.
func ParseOrder(name string) (Order, error) {
	if f, ok := orders[name]; ok {
		return Order{name, f}, nil
	}
	if i, ok := FieldByName(name); ok && (i.Kind == Gauge || i.Kind == Counter) {
		return Order{name, []Field{i.Field}}, nil
	}
	return Order{}, fmt.Errorf("cannot sort by %q: want a field that is a number, such as retrans, or rtt, bytes, rate, mss, segs, queue", name)
}

// Groups are what records must have for it.
func (o Order) Groups() (g Groups) {
	for _, f := range o.fields {
		g |= f.Group()
	}
	return g
}

// Of is what a record is sorted by; ok is false when it has none of the fields.
func (o Order) Of(r *Record) (v uint64, ok bool) {
	for _, f := range o.fields {
		n, has := r.Uint(f)
		if has {
			v, ok = v+n, true
		}
	}
	return v, ok
}

// Top keeps the n largest records of many, in memory for n.
type Top struct {
	n     int
	order Order
	heap  topHeap
	seq   int
}

// NewTop keeps n records, at least one.
func NewTop(n int, o Order) *Top { return &Top{n: max(n, 1), order: o} }

type ranked struct {
	value uint64
	seq   int // of two equal ones the first stays
	r     Record
}

func (a *ranked) less(b *ranked) bool {
	if a.value != b.value {
		return a.value < b.value
	}
	return a.seq > b.seq
}

type topHeap []ranked

func (h topHeap) Len() int           { return len(h) }
func (h topHeap) Less(i, j int) bool { return h[i].less(&h[j]) }
func (h topHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *topHeap) Push(x any)        { *h = append(*h, x.(ranked)) }
func (h *topHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}

// Add looks at a record. One without the fields is left out.
func (t *Top) Add(r *Record) {
	v, ok := t.order.Of(r)
	if !ok {
		return
	}
	x := ranked{value: v, seq: t.seq}
	t.seq++
	switch {
	case len(t.heap) < t.n:
		x.r = *r
		heap.Push(&t.heap, x)
	case t.heap[0].less(&x):
		x.r = *r
		t.heap[0] = x
		heap.Fix(&t.heap, 0)
	}
}

// Sorted are the records, the largest first. They are the caller's.
func (t *Top) Sorted() []Record {
	all := slices.Clone(t.heap)
	slices.SortFunc(all, func(a, b ranked) int {
		switch {
		case b.less(&a):
			return -1
		case a.less(&b):
			return 1
		}
		return 0
	})
	out := make([]Record, len(all))
	for i := range all {
		out[i] = all[i].r
	}
	return out
}
