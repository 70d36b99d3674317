package port

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/board"
	"oxpd/internal/clock"
)

// TestTransmit: what Linux sends arrives in the card's queue byte for byte, with
// the port's tag, in order.
func TestTransmit(t *testing.T) {
	ns := newNS(t)
	p := open(t, ns)
	require.NoError(t, p.SetMTU(context.Background(), board.MaxMTU))
	linux := listen(t, ns, p.Index())
	slots := newSlots(255)
	slots.auto = true
	transmit(t, slots, p)

	var want []sent
	var total int
	for i, n := range []int{14, 15, 59, 60, 64, 1514, 1515, 9000, 9014} {
		b := ether(n, 0, byte(i))
		want = append(want, sent{uint16(p.Board().Tag), b})
		total += n
		linux.send(b)
	}
	tagged := ether(9018, 1, 9)
	want = append(want, sent{uint16(p.Board().Tag), tagged})
	total += len(tagged)
	linux.send(tagged)

	eventually(t, "all frames in the queue", func() bool { return slots.count() == len(want) })
	assert.Equal(t, want, slots.all())
	s := p.Stats()
	assert.EqualValues(t, len(want), s.TxPackets)
	assert.EqualValues(t, total, s.TxBytes, "unpadded")
	assert.Zero(t, s.TxDrops)
	assert.Zero(t, s.TapKernelDropped)
}

// TestTransmitRefuses: a frame that must not be posted takes no slot and moves
// one counter.
func TestTransmitRefuses(t *testing.T) {
	for _, tc := range []struct {
		name  string
		mtu   int
		bytes int
		vlans int
		want  string
	}{
		{"nothing", 1500, 0, 0, "tx_malformed"},
		{"one byte", 1500, 1, 0, "tx_malformed"},
		{"13 bytes", 1500, 13, 0, "tx_malformed"},
		{"14 bytes", 1500, 14, 0, "tx_packets"},
		{"MTU and header", 1500, 1514, 0, "tx_packets"},
		{"one byte more", 1500, 1515, 0, "tx_toolong"},
		{"four more with a tag", 1500, 1518, 1, "tx_packets"},
		{"eight more with two tags", 1500, 1522, 2, "tx_packets"},
		{"nine more with two tags", 1500, 1523, 2, "tx_toolong"},
		{"largest", 9000, 9022, 2, "tx_packets"},
		{"fills the slot: may have been cut", 65000, slotSize, 0, "tx_toolong"},
		{"one byte less than the slot", 65000, slotSize - 1, 0, "tx_packets"},
		{"longer than the slot", 65000, slotSize + 1, 0, "tx_toolong"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q := &queued{frames: [][]byte{ether(tc.bytes, tc.vlans, 0), ether(60, 0, 0)}}
			p := newPort(Config{Port: board.ByIndex(0)}, q, nil)
			p.SetLimit(tc.mtu)
			slots := newSlots(255)
			tr := bare(slots, p)
			require.NoError(t, tr.round(context.Background(), []int32{1}))

			moved := map[string]uint64{}
			p.counters.Stats().Each(func(name string, v uint64) {
				if v > 0 && name != "tx_bytes" {
					moved[name] = v
				}
			})
			want := map[string]uint64{"tx_packets": 1} // the second frame
			want[tc.want]++
			if tc.want != "tx_packets" {
				want["tx_drops"] = 1
			}
			assert.Equal(t, want, moved)
			assert.EqualValues(t, want["tx_packets"], slots.count(), "slots used")
			assert.EqualValues(t, 2, p.counters.Stats().TxFrames())
		})
	}
}

// TestTransmitLongerThanASlot: somebody has raised the interface's MTU to the most
// that a TAP takes, and uses it before it is put back. The kernel cuts what does not
// fit into a slot; whatever the limit is then, no cut frame is posted, and the
// frames behind it are.
func TestTransmitLongerThanASlot(t *testing.T) {
	ns := newNS(t)
	p := open(t, ns)
	ip(t, ns, "link set oxp9 mtu 65521")
	linux := listen(t, ns, p.Index())
	slots := newSlots(255)
	slots.auto = true
	transmit(t, slots, p)
	for i, tc := range []struct {
		limit, bytes int
		want         string
	}{
		{board.DefaultMTU, 65000, "tx_toolong"},
		{board.DefaultMTU, 9200, "tx_toolong"},
		{board.MaxMTU, slotSize, "tx_toolong"},
		{65521, slotSize, "tx_toolong"},
		{65521, 65000, "tx_toolong"},
		{65521, slotSize - 1, "tx_packets"},
	} {
		t.Run(fmt.Sprintf("%d bytes at a limit of %d", tc.bytes, tc.limit), func(t *testing.T) {
			p.SetLimit(tc.limit)
			before := p.Stats()
			linux.send(ether(tc.bytes, 0, byte(i)))
			linux.send(ether(60, 0, byte(i)))
			eventually(t, "both are counted", func() bool { return p.Stats().TxFrames() == before.TxFrames()+2 })
			after := p.Stats()
			eventually(t, "what was posted is visible", func() bool { return uint64(slots.count()) == after.TxPackets })
			got := map[string]uint64{"tx_packets": after.TxPackets - before.TxPackets, "tx_toolong": after.TxTooLong - before.TxTooLong}
			want := map[string]uint64{"tx_packets": 1, "tx_toolong": 0}
			want[tc.want]++
			assert.Equal(t, want, got)
			assert.Equal(t, ether(60, 0, byte(i)), slots.all()[slots.count()-1].frame, "the one behind it")
		})
	}
	assert.Zero(t, p.Stats().TapReadErrors)
}

// queued is a tap with frames to read, and then an error.
type queued struct {
	tap
	frames [][]byte
	err    error // EAGAIN unless told
	reads  int
}

func (q *queued) FD() int      { return -1 }
func (q *queued) Close() error { return nil }
func (q *queued) Read(b []byte) (int, error) {
	q.reads++
	if len(q.frames) == 0 {
		if q.err != nil {
			return -1, q.err
		}
		return -1, unix.EAGAIN
	}
	n := copy(b, q.frames[0]) // a longer frame is cut, as a TAP does
	q.frames = q.frames[1:]
	return n, nil
}

// idle is a poller of which nothing is asked.
type idle struct{ removed int }

func (*idle) add(int, int32) error      { return nil }
func (i *idle) remove(int) error        { i.removed++; return nil }
func (*idle) wait([]int32) (int, error) { return 0, nil }
func (*idle) interrupt() error          { return nil }
func (*idle) resume() error             { return nil }
func (*idle) close() error              { return nil }

// bare is a transmitter without a poller; its ports have the ids 1, 2, ...
func bare(slots Slots, ports ...*Port) *Transmitter {
	tr := &Transmitter{slots: slots, filter: passAll{}, clock: clock.NewReal(), log: slog.New(slog.NewTextHandler(discard{}, nil)),
		poll: &idle{}, ports: map[int32]*Port{}}
	for i, p := range ports {
		tr.ports[int32(i+1)] = p
	}
	return tr
}

// stepping is a clock on which the card works while the driver sleeps.
type stepping struct {
	sleeps []time.Duration
	during func()
}

func (c *stepping) Sleep(ctx context.Context, d time.Duration) error {
	c.sleeps = append(c.sleeps, d)
	if c.during != nil {
		c.during()
	}
	return ctx.Err()
}

// TestTransmitBursts: one doorbell for 32 frames, whoever they are from, and one
// look at the card's progress each; and ports take turns.
func TestTransmitBursts(t *testing.T) {
	frames := func(n int) [][]byte {
		var f [][]byte
		for i := range n {
			f = append(f, ether(60, 0, byte(i)))
		}
		return f
	}
	for _, tc := range []struct {
		name      string
		queued    []int
		doorbells int
		reaps     int
		largest   int
		left      []int
	}{
		{"nothing", []int{0}, 0, 1, 0, []int{0}},
		{"one frame", []int{1}, 1, 1, 1, []int{0}},
		{"a burst exactly", []int{32}, 1, 2, 32, []int{0}},
		{"more than a turn", []int{40}, 1, 2, 32, []int{8}},
		{"several ports share a doorbell", []int{10, 10, 10}, 1, 1, 30, []int{0, 0, 0}},
		{"a busy port does not starve the quiet one", []int{100, 1, 100}, 3, 3, 32, []int{68, 0, 68}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var ports []*Port
			var taps []*queued
			var ids []int32
			for i, n := range tc.queued {
				taps = append(taps, &queued{frames: frames(n)})
				ports = append(ports, newPort(Config{Port: board.ByIndex(i)}, taps[i], nil))
				ids = append(ids, int32(i+1))
			}
			slots := newSlots(255)
			tr := bare(slots, ports...)
			require.NoError(t, tr.round(context.Background(), ids))
			assert.Equal(t, tc.doorbells, slots.flushes)
			assert.EqualValues(t, tc.doorbells, tr.Stats().Bursts)
			assert.Equal(t, tc.reaps, slots.reaps)
			assert.Equal(t, tc.largest, slots.burst)
			assert.Equal(t, slots.committed, slots.visible, "nothing is left without a doorbell")
			for i := range taps {
				assert.Len(t, taps[i].frames, tc.left[i])
			}
		})
	}
}

// TestTransmitFull: when the card takes nothing, nothing is read and nothing
// dropped; the wait is bounded in its steps and goes on until the card moves.
func TestTransmitFull(t *testing.T) {
	var frames [][]byte
	for i := range 20 {
		frames = append(frames, ether(60, 0, byte(i)))
	}
	slots := newSlots(7)
	q := &queued{frames: append([][]byte(nil), frames...)}
	p := newPort(Config{Port: board.ByIndex(8)}, q, nil)
	c := &stepping{}
	c.during = func() {
		assert.Equal(t, slots.committed, slots.count(), "what was committed is visible while we wait")
		if len(c.sleeps)%8 == 0 {
			slots.take(slots.out)
		}
	}
	tr := bare(slots, p)
	tr.clock = c
	require.NoError(t, tr.round(context.Background(), []int32{1}))

	require.Len(t, slots.frames, 20)
	for i := range frames {
		assert.Equal(t, frames[i], slots.frames[i].frame)
	}
	assert.EqualValues(t, 20, p.counters.Stats().TxPackets)
	assert.Zero(t, p.counters.Stats().TxDrops)
	assert.EqualValues(t, 2, tr.Stats().FullWaits)
	us := time.Microsecond
	assert.Equal(t, []time.Duration{50 * us, 100 * us, 200 * us, 400 * us, 800 * us, 1000 * us, 1000 * us, 1000 * us}, c.sleeps[:8])
	assert.Len(t, c.sleeps, 16)

	t.Run("and ends with its context", func(t *testing.T) {
		q.frames = append([][]byte(nil), frames...)
		slots.out = slots.capacity
		ctx, cancel := context.WithCancel(context.Background())
		c.during = cancel
		require.ErrorIs(t, tr.round(ctx, []int32{1}), context.Canceled)
		assert.Len(t, q.frames, 20, "they stay where they were")
	})
}

// TestTransmitReadFails: a TAP that fails is not read again; the others go on.
func TestTransmitReadFails(t *testing.T) {
	for _, err := range []error{unix.EBADFD, unix.EIO, unix.EFAULT} {
		t.Run(err.Error(), func(t *testing.T) {
			bad := &queued{frames: [][]byte{ether(60, 0, 1)}, err: err}
			good := &queued{frames: [][]byte{ether(60, 0, 2), ether(60, 0, 3)}}
			slots := newSlots(255)
			p, q := newPort(Config{Port: board.ByIndex(0)}, bad, nil), newPort(Config{Port: board.ByIndex(1)}, good, nil)
			tr := bare(slots, p, q)
			var log strings.Builder
			tr.log = slog.New(slog.NewTextHandler(&log, nil))
			for range 3 {
				require.NoError(t, tr.round(context.Background(), []int32{1, 2}))
			}
			assert.Equal(t, 2, bad.reads)
			assert.Equal(t, 1, tr.poll.(*idle).removed)
			assert.EqualValues(t, 1, p.counters.Stats().TapReadErrors)
			assert.EqualValues(t, 1, p.counters.Stats().TxPackets)
			assert.EqualValues(t, 2, q.counters.Stats().TxPackets)
			assert.Equal(t, 1, strings.Count(log.String(), "tap has gone"))
		})
	}
}

// TestTransmitVanishes: an interface that somebody deletes costs one failed read
// and then no time at all.
func TestTransmitVanishes(t *testing.T) {
	ns := newNS(t)
	a, b := open(t, ns, "oxp1"), open(t, ns, "oxp2")
	slots := newSlots(255)
	slots.auto = true
	tr := transmit(t, slots, a, b)
	linux := listen(t, ns, b.Index())
	ip(t, ns, "link delete oxp1")
	eventually(t, "noticed", func() bool { return a.Stats().TapReadErrors == 1 })
	rounds := slots.rounds()
	time.Sleep(20 * time.Millisecond) // in which a spin would count thousands
	assert.LessOrEqual(t, slots.rounds(), rounds+1, "nothing is readable")
	assert.EqualValues(t, 1, a.Stats().TapReadErrors)
	linux.send(ether(60, 0, 0))
	eventually(t, "the other port goes on", func() bool { return slots.count() == 1 })

	// The port comes back as a new interface.
	require.NoError(t, a.Close())
	tr.Remove(a)
	again := open(t, ns, "oxp1")
	require.NoError(t, tr.Add(again))
	listen(t, ns, again.Index()).send(ether(60, 0, 0))
	eventually(t, "frames of the new interface", func() bool { return slots.count() == 2 })
}

// TestTransmitKernelQueue: frames wait in the TAP's queue while the card takes
// nothing; what does not fit there is the kernel's count, and nothing is missing.
func TestTransmitKernelQueue(t *testing.T) {
	const queue, capacity, total = 16, 4, 100
	ns := newNS(t)
	p := open(t, ns)
	ip(t, ns, fmt.Sprintf("link set oxp9 txqueuelen %d", queue))
	linux := listen(t, ns, p.Index())
	slots := newSlots(capacity)
	r := transmit(t, slots, p)

	for i := range capacity { // these go into the card's queue
		linux.send(ether(60, 0, byte(i)))
		eventually(t, "in the card's queue", func() bool { return slots.count() == i+1 })
	}
	for i := capacity; i < total; i++ {
		linux.send(ether(60, 0, byte(i)))
	}
	s := p.Stats()
	assert.EqualValues(t, total-capacity-queue, s.TapKernelDropped)
	assert.EqualValues(t, capacity, s.TxPackets)
	assert.NotZero(t, r.Stats().FullWaits)
	assert.Contains(t, ip(t, ns, "-s link show oxp9"), fmt.Sprint(s.TapKernelDropped), "ip shows the same number")

	eventually(t, "the card wakes up", func() bool {
		slots.take(1)
		return slots.count() == capacity+queue
	})
	s = p.Stats()
	assert.EqualValues(t, capacity+queue, s.TxPackets)
	assert.EqualValues(t, total, s.TxFrames()+s.TapKernelDropped, "every frame is in one counter")
	for i, f := range slots.all() {
		assert.Equal(t, ether(60, 0, byte(i)), f.frame, "in order")
	}
}

// TestTransmitSums: DM-1, A19. Ports at work on both sides at once, one too short
// queue, one too low limit: each frame sent is in exactly one counter.
func TestTransmitSums(t *testing.T) {
	const each = 3000
	ns := newNS(t)
	slots := newSlots(64)
	slots.keep = false
	var ports []*Port
	for _, name := range []string{"oxp1", "oxp2", "oxp3"} {
		ports = append(ports, open(t, ns, name))
	}
	ip(t, ns, "link set oxp2 txqueuelen 3")
	ports[2].SetLimit(100)
	r := transmit(t, slots, ports...)

	stop := make(chan struct{})
	card := make(chan struct{})
	go func() { // the card
		defer close(card)
		for {
			select {
			case <-stop:
				return
			default:
				slots.Lock()
				slots.finished = slots.out
				slots.Unlock()
				time.Sleep(20 * time.Microsecond)
			}
		}
	}()
	var wg sync.WaitGroup
	for _, p := range ports {
		linux := listen(t, ns, p.Index())
		wg.Add(1)
		go func() {
			defer wg.Done()
			small, large := ether(60, 0, 0), ether(200, 0, 0)
			for i := range each {
				b := small
				if i%2 == 1 {
					b = large
				}
				if _, err := unix.Write(linux.fd, b); err != nil && err != unix.ENOBUFS {
					t.Error(err)
				}
			}
		}()
	}
	wg.Wait()
	settled := func() bool {
		for _, p := range ports {
			if s := p.Stats(); s.TxFrames()+s.TapKernelDropped != each {
				return false
			}
		}
		return true
	}
	eventually(t, "every frame in one counter", settled)
	r.stop()
	close(stop)
	<-card
	var posted uint64
	for _, p := range ports {
		posted += p.Stats().TxPackets
	}
	assert.EqualValues(t, slots.committed, posted)
	assert.EqualValues(t, slots.visible, posted)
	assert.NotZero(t, ports[2].Stats().TxTooLong)
}

// TestTransmitAddRemove: ports come and go while frames flow.
func TestTransmitAddRemove(t *testing.T) {
	ns := newNS(t)
	slots := newSlots(255)
	slots.auto, slots.keep = true, false
	steady := open(t, ns, "oxp1")
	tr := transmit(t, slots, steady)
	linux := listen(t, ns, steady.Index())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range 2000 {
			unix.Write(linux.fd, ether(60, 0, 0))
		}
	}()
	var c Counters
	for range 20 {
		p, err := Open(Config{Port: board.ByIndex(1), NetNS: ns.Path(), Counters: &c})
		require.NoError(t, err)
		require.NoError(t, p.SetCarrier(true))
		require.NoError(t, p.SetUp(context.Background(), true))
		require.NoError(t, tr.Add(p))
		l := listen(t, ns, p.Index())
		for range 5 {
			l.send(ether(60, 0, 0))
		}
		before := c.Stats().TxPackets / 5 * 5
		eventually(t, "read", func() bool {
			return c.Stats().TxPackets >= before+5 || c.Stats().TxPackets%5 == 0 && c.Stats().TxPackets > 0
		})
		tr.Remove(p)
		require.NoError(t, p.Close())
		require.ErrorIs(t, tr.Add(p), ErrClosed)
	}
	<-ended
	eventually(t, "all of the steady port", func() bool { s := steady.Stats(); return s.TxFrames()+s.TapKernelDropped == 2000 })
	tr.Remove(steady)
	linux.send(ether(60, 0, 0))
	n := steady.Stats().TxPackets
	time.Sleep(10 * time.Millisecond)
	assert.Equal(t, n, steady.Stats().TxPackets, "a removed port is not read")
}

// TestTransmitRunsAgain: stop and start lose nothing.
func TestTransmitRunsAgain(t *testing.T) {
	ns := newNS(t)
	p := open(t, ns)
	linux := listen(t, ns, p.Index())
	slots := newSlots(255)
	slots.auto = true
	tr, err := NewTransmitter([]*Port{p}, slots, nil, clock.NewReal(), nil)
	require.NoError(t, err)
	defer tr.Close()
	for i := 1; i <= 3; i++ {
		linux.send(ether(60, 0, byte(i)))
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- tr.Run(ctx) }()
		eventually(t, "sent", func() bool { return slots.count() == i })
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, tr.Run(ended), context.Canceled)
}

func TestTransmitAllocatesNothing(t *testing.T) {
	ns := newNS(t)
	p := open(t, ns)
	linux := listen(t, ns, p.Index())
	slots := newSlots(255)
	slots.auto, slots.keep = true, false
	tr, err := NewTransmitter([]*Port{p}, slots, nil, clock.NewReal(), nil)
	require.NoError(t, err)
	defer tr.Close()
	ctx := context.Background()
	b := ether(1514, 0, 0)
	ids := make([]int32, 64)
	assert.Zero(t, testing.AllocsPerRun(200, func() {
		for range burst {
			if _, err := unix.Write(linux.fd, b); err != nil {
				panic(err)
			}
		}
		n, err := tr.poll.wait(ids)
		if err != nil || tr.round(ctx, ids[:n]) != nil {
			panic("round")
		}
	}))
	assert.EqualValues(t, 201*burst, p.Stats().TxPackets)
	assert.True(t, bytes.Equal(b, slots.slot[:len(b)]))
}

// watched counts how often its poller has something to say.
type watched struct {
	poller
	waits atomic.Int64
}

func (w *watched) wait(ids []int32) (int, error) {
	w.waits.Add(1)
	return w.poller.wait(ids)
}

// TestTransmitIdle: without frames the transmitter does not run, whether an
// interface is down, has been deleted or is no longer the transmitter's.
func TestTransmitIdle(t *testing.T) {
	ns := newNS(t)
	up, down, deleted, removed := open(t, ns, "oxp1"), open(t, ns, "oxp2"), open(t, ns, "oxp3"), open(t, ns, "oxp4")
	slots := newSlots(255)
	slots.auto = true
	tr, err := NewTransmitter([]*Port{up, down, deleted, removed}, slots, nil, clock.NewReal(), nil)
	require.NoError(t, err)
	defer tr.Close()
	w := &watched{poller: tr.poll}
	tr.poll = w
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- tr.Run(ctx) }()
	require.NoError(t, down.SetUp(context.Background(), false))
	ip(t, ns, "link delete oxp3")
	eventually(t, "noticed", func() bool { return deleted.Stats().TapReadErrors == 1 })
	tr.Remove(removed)
	listen(t, ns, removed.Index()).send(ether(60, 0, 0)) // stays where it is
	linux := listen(t, ns, up.Index())
	const frames = 20
	for i := range frames {
		linux.send(ether(60, 0, 0))
		eventually(t, "sent", func() bool { return slots.count() == i+1 })
	}
	time.Sleep(20 * time.Millisecond)
	// One for each frame and one after it, and a few for what happened to the interfaces.
	assert.LessOrEqual(t, w.waits.Load(), int64(2*frames+10))
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	assert.Zero(t, removed.Stats().TxFrames())
}

// deaf is the settings of an interface that takes everything.
type deaf struct{ link }

func (deaf) setUp(bool) error     { return nil }
func (deaf) state() (Link, error) { return Link{}, nil }
func (deaf) close() error         { return nil }

// TestTransmitClosedPort: a port that is closed before it is removed is not
// read: its descriptor may be somebody else's by then.
func TestTransmitClosedPort(t *testing.T) {
	q := &queued{frames: [][]byte{ether(60, 0, 0)}}
	p := newPort(Config{Port: board.ByIndex(0)}, q, deaf{})
	slots := newSlots(255)
	tr := bare(slots, p)
	require.NoError(t, p.Close())
	reads := q.reads // it emptied the queue
	require.NoError(t, tr.round(context.Background(), []int32{1}))
	assert.Equal(t, reads, q.reads)
	assert.EqualValues(t, 1, p.counters.Stats().TxClosed)
	tr.Remove(p)
	require.NoError(t, tr.round(context.Background(), []int32{1}))
	assert.Equal(t, reads, q.reads)
}

// TestCloseCountsTheQueue: A19. What Linux sent and nobody read is in a counter too,
// and so is what it sent without carrier.
func TestCloseCountsTheQueue(t *testing.T) {
	ns := newNS(t)
	p := open(t, ns)
	linux := listen(t, ns, p.Index())
	for range 5 {
		linux.send(ether(1514, 0, 0))
	}
	require.NoError(t, p.SetCarrier(false))
	eventually(t, "kernel's queue follows the carrier", func() bool {
		return !strings.Contains(ip(t, ns, "link show oxp9"), "state UP")
	})
	for range 3 {
		linux.send(ether(60, 0, 0))
	}
	require.NoError(t, p.Close())
	s := p.Stats()
	assert.EqualValues(t, 5, s.TxClosed)
	assert.EqualValues(t, 5, s.TxDrops)
	assert.EqualValues(t, 3, s.TapKernelDropped)
	assert.EqualValues(t, 8, s.TxFrames()+s.TapKernelDropped)
}

// TestDiscardCountsTheQueue: what waited while there was no card is thrown away, and
// the interface goes on.
func TestDiscardCountsTheQueue(t *testing.T) {
	ns := newNS(t)
	p := open(t, ns)
	linux := listen(t, ns, p.Index())
	for range 5 {
		linux.send(ether(1514, 0, 0))
	}
	require.NoError(t, p.Discard())
	require.NoError(t, p.Discard(), "of nothing")
	linux.send(ether(60, 0, 0))
	require.NoError(t, p.Close())
	require.ErrorIs(t, p.Discard(), ErrClosed)
	s := p.Stats()
	assert.EqualValues(t, 5, s.TxGone)
	assert.EqualValues(t, 1, s.TxClosed)
	assert.EqualValues(t, 6, s.TxDrops)
}
