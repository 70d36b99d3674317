package daemon

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/internal/divert"
	"oxpd/internal/frame"
	"oxpd/internal/pfil"
	"oxpd/internal/port"
	"oxpd/ring"
)

// outletRig is a fanout with a port in a namespace, and a queue with an engine that a
// test plays.
type outletRig struct {
	*fanout
	queue *divert.Queue
	port  *port.Port
}

func newOutletRig(t *testing.T, set func(*divert.Settings)) *outletRig {
	t.Helper()
	ns := newNetNS(t)
	f := newFanout(pfil.NewTable(filterShards, time.Now), &leapClock{})
	s := divert.Defaults()
	if set != nil {
		set(&s)
	}
	q := divert.NewQueue(divert.QueueConfig{
		Name: "q", Settings: s, Limit: f.limit, Clock: f.clock, Outlet: &outlet{fan: f, ctx: context.Background(), shard: port.QueueShards},
	})
	f.inspector = divert.NewInspector([]*divert.Queue{q})
	b := board.ByIndex(8)
	p, err := port.Open(port.Config{Port: b, NetNS: ns.Path(), Counters: f.counts[b.Index]})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	require.NoError(t, p.SetUp(context.Background(), true))
	f.join(p)
	return &outletRig{fanout: f, queue: q, port: p}
}

// counters of the port.
func (r *outletRig) counter(name string) (value uint64) {
	r.port.Stats().Each(func(n string, v uint64) {
		if n == name {
			value = v
		}
	})
	return value
}

// ringFrames are frames as a ring hands them on that the judge has seen.
func (r *outletRig) ringFrames(lengths ...int) (out []ring.Frame) {
	tag := uint16(r.port.Board().Tag)
	for _, n := range lengths {
		b := frameOf(max(n, 14))[:n]
		head := new(frame.Packet)
		out = append(out, ring.Frame{Tag: tag, Verdict: r.Judge(0, b, n, tag, head), Bytes: n, Pieces: [][]byte{b}, Head: head})
	}
	r.fanout.Leave(0)
	return out
}

// settle has the engine decide about all that waits.
func (r *outletRig) settle(code divert.Code) (n int) {
	var tickets [64]divert.Ticket
	var verdicts [64]divert.Verdict
	for {
		k := r.queue.Take(tickets[:])
		if k == 0 {
			return n
		}
		for i := range k {
			verdicts[i] = divert.Verdict{ID: tickets[i].ID, Code: code}
		}
		r.queue.Sent(tickets[:k], k)
		r.queue.Settle(verdicts[:k])
		n += k
	}
}

// What the port would not take is offered to nobody, and counted as ever.
func TestOnlyFramesThatFitAreInspected(t *testing.T) {
	r := newOutletRig(t, nil)
	r.queue.Attach()
	r.inspector.SetAll(r.port.Board().Index, true)
	r.Deliver(0, r.ringFrames(13, 14, 60, 1514, 1515, 9014))
	assert.Equal(t, 3, r.queue.Stats().Frames)
	assert.EqualValues(t, []uint64{1, 2, 0}, []uint64{r.counter("rx_malformed"), r.counter("rx_toolong"), r.counter("rx_packets")})
	assert.Equal(t, 3, r.settle(divert.CodeAccept))
	assert.EqualValues(t, 3, r.counter("rx_packets"))
}

// What a filter drops is not inspected; what it lets pass is when the port is whole, and
// what it diverts is in any case. The policy's frames go on at once.
func TestFiltersComeBeforeInspection(t *testing.T) {
	r := newOutletRig(t, nil)
	r.queue.Attach()
	p := r.port.Board()
	_, err := r.filters.Load("x", pfil.Source{Name: "x", Rules: []byte("drop any from any to any length 100\ndivert any from any to any length 200\n")})
	require.NoError(t, err)
	require.NoError(t, r.filters.Link("x", []board.Port{p}, pfil.Both))
	out := &outward{fanout: r.fanout}
	for _, all := range []bool{false, true} {
		r.inspector.SetAll(p.Index, all)
		var in []ring.Verdict
		for _, f := range r.ringFrames(100, 200, 300) {
			in = append(in, f.Verdict)
		}
		var sent []port.Outcome
		for _, n := range []int{100, 200, 300} {
			sent = append(sent, out.Judge(p, frameOf(n)))
		}
		out.Leave()
		if all {
			assert.Equal(t, []ring.Verdict{ring.Drop, ring.Divert, ring.Divert}, in)
			assert.Equal(t, []port.Outcome{port.Drop, port.Take, port.Take}, sent)
			continue
		}
		assert.Equal(t, []ring.Verdict{ring.Drop, ring.Divert, ring.Pass}, in)
		assert.Equal(t, []port.Outcome{port.Drop, port.Take, port.Pass}, sent)
	}
	assert.EqualValues(t, 3, r.inspector.Counts(p.Index, divert.Out).Seen)
	r.queue.Detach()
	set := divert.Defaults()
	set.OnAbsent = divert.Pass
	r.inspector.Set(set)
	assert.Equal(t, port.Pass, out.Judge(p, frameOf(200)), "nobody is there, and the policy lets it go on")
	before := r.counter("rx_packets")
	r.Deliver(0, r.ringFrames(200, 300))
	assert.EqualValues(t, before+2, r.counter("rx_packets"))
}

// heldSlots is a queue of the card that takes everything.
type heldSlots struct {
	sync.Mutex
	slot [9278]byte
	tags []uint16
}

func (s *heldSlots) Flush() {}
func (s *heldSlots) Reap()  {}

func (s *heldSlots) Reserve() []byte { return s.slot[:] }
func (s *heldSlots) Commit(tag uint16, _ int) {
	if len(s.tags) < cap(s.tags) {
		s.tags = append(s.tags, tag)
	}
}

// The way of frames that go on: to the card when there is one, counted when there is
// none, and each in its counter when its interface has never been.
func TestOutletWays(t *testing.T) {
	r := newOutletRig(t, nil)
	slots := &heldSlots{tags: make([]uint16, 0, 100)}
	tx, err := port.NewTransmitter(nil, slots, nil, r.clock, nil)
	require.NoError(t, err)
	defer tx.Close()
	o := &outlet{fan: r.fanout, ctx: context.Background(), shard: port.Shards - 1}
	up, never := r.port.Board().Index, 3
	var frames []divert.Released
	for i := range 100 {
		frames = append(frames, divert.Released{Port: up, Dir: divert.Direction(i % 2), Frame: frameOf(60 + i)})
	}
	for range 70 {
		frames = append(frames, divert.Released{Port: up, Dir: divert.Out, Frame: frameOf(60)})
	}
	frames = append(frames, divert.Released{Port: never, Dir: divert.In, Frame: frameOf(60)}, divert.Released{Port: never, Dir: divert.Out, Frame: frameOf(60)})
	o.Release(frames)
	assert.EqualValues(t, []uint64{50, 120}, []uint64{r.counter("rx_packets"), r.counter("tx_gone")})
	s := r.counts[never].Stats()
	assert.EqualValues(t, []uint64{1, 1}, []uint64{s.TapDown, s.TxGone})
	r.sendBy(tx)
	o.Release(frames)
	assert.EqualValues(t, []uint64{100, 120, 120}, []uint64{r.counter("rx_packets"), r.counter("tx_gone"), r.counter("tx_packets")})
	for _, tag := range slots.tags {
		require.EqualValues(t, r.port.Board().Tag, tag)
	}
}

// Neither way of a frame that is inspected allocates: offered, decided, let go on.
func TestInspectingAllocatesNothing(t *testing.T) {
	r := newOutletRig(t, nil)
	r.queue.Attach()
	p := r.port.Board()
	r.inspector.SetAll(p.Index, true)
	frames := r.ringFrames(60, 1514, 100, 700)
	slots := &heldSlots{}
	tx, err := port.NewTransmitter(nil, slots, nil, r.clock, nil)
	require.NoError(t, err)
	defer tx.Close()
	r.sendBy(tx)
	out, b := &outward{fanout: r.fanout}, frameOf(1514)
	var tickets [8]divert.Ticket
	var verdicts [8]divert.Verdict
	assert.Zero(t, testing.AllocsPerRun(200, func() {
		r.Deliver(0, frames)
		for range 4 {
			out.Judge(p, b)
		}
		out.Leave()
		n := r.queue.Take(tickets[:])
		for i := range n {
			verdicts[i] = divert.Verdict{ID: tickets[i].ID, Code: divert.CodeAccept}
		}
		r.queue.Sent(tickets[:n], n)
		r.queue.Settle(verdicts[:n])
	}))
	assert.Zero(t, r.queue.Stats().Frames)
	assert.EqualValues(t, 4*201, r.counter("rx_packets"))
	assert.EqualValues(t, 4*201, r.counter("tx_packets"))
}

// Each frame from the host is read anew: the queue that it comes to is that of its own
// hosts.
func TestOutwardReadsEachFrame(t *testing.T) {
	f := newFanout(pfil.NewTable(filterShards, time.Now), &leapClock{})
	queues := []*divert.Queue{handQueue("a"), handQueue("b"), handQueue("c"), handQueue("d")}
	f.inspector = divert.NewInspector(queues)
	for _, q := range queues {
		q.Attach()
	}
	f.inspector.SetAll(0, true)
	out := &outward{fanout: f}
	var want [4]int
	for i := range byte(32) {
		b := frameOf(60)
		b[5], b[11] = i, 7*i // other hosts
		if i%2 == 0 {
			copy(b[12:], []byte{0x08, 0x00, 0x45, 0, 0, 46})
			b[frame.HeaderSize+15], b[frame.HeaderSize+19] = i, 7*i
		}
		var head frame.Packet
		f.inspector.Offer(0, &divert.Offered{Port: 1, Pieces: [][]byte{b}, Bytes: len(b), Head: &head})
		for q := range queues {
			want[q] = int(queues[q].Counts(1, divert.In).Seen)
		}
		require.Equal(t, port.Take, out.Judge(board.ByIndex(0), b))
	}
	var got [4]int
	for q := range queues {
		got[q] = int(queues[q].Counts(0, divert.Out).Seen)
	}
	assert.Equal(t, want, got)
	assert.Equal(t, 4, len(slices.DeleteFunc(got[:], func(n int) bool { return n == 0 })), "of all four")
}

// waiting is an outlet that holds a frame until it may go on.
type waiting struct{ inside, goOn chan struct{} }

func (w waiting) Release([]divert.Released) {
	w.inside <- struct{}{}
	<-w.goOn
}

// A frame that is counted as accepted and has not reached its interface yet is no lost one:
// the counters do not belong together while it is on its way.
func TestCensusWaitsForTheOutlet(t *testing.T) {
	w := waiting{make(chan struct{}), make(chan struct{})}
	q := divert.NewQueue(divert.QueueConfig{Name: "q", Settings: divert.Defaults(), Outlet: w, Limit: func(int) int { return 1500 }, Clock: &leapClock{}})
	in := divert.NewInspector([]*divert.Queue{q})
	q.Attach()
	b := frameOf(60)
	in.Offer(0, &divert.Offered{Pieces: [][]byte{b}, Bytes: len(b), Head: new(frame.Packet)})
	counts, still := in.Census()
	assert.True(t, still)
	assert.EqualValues(t, 1, counts[0][divert.In].Queued)
	done := make(chan struct{})
	var tickets [1]divert.Ticket
	q.Take(tickets[:])
	id := tickets[0].ID
	q.Sent(tickets[:], 1)
	go func() { defer close(done); q.Settle([]divert.Verdict{{ID: id, Code: divert.CodeAccept}}) }()
	<-w.inside
	counts, still = in.Census()
	assert.False(t, still)
	assert.EqualValues(t, 1, counts[0][divert.In].Accepted)
	w.goOn <- struct{}{}
	<-done
	_, still = in.Census()
	assert.True(t, still)
}
