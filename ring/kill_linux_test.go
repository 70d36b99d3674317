package ring

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/hwsim"
	"oxpd/internal/dma"
	"oxpd/internal/mmio"
	"oxpd/internal/simdev"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
	"oxpd/rpc/msg"
)

// kept is memory that outlives the rings: a driver's mapping, of which pages can be
// protected, and one of the card's own.
type kept struct {
	t       testing.TB
	card    *hwsim.Card
	next    uint64
	regions map[string]*dma.Region
	mine    map[string][]byte
	far     map[*dma.Region][]byte // the card's mappings
}

func newKept(t testing.TB, card *hwsim.Card) *kept {
	return &kept{t: t, card: card, next: 0x1_8000_0000, regions: map[string]*dma.Region{}, mine: map[string][]byte{}, far: map[*dma.Region][]byte{}}
}

func (m *kept) Alloc(name string, size, align int) (*dma.Region, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	defer func() { require.NoError(m.t, unix.Close(fd)) }()
	pages := (size + pageBytes - 1) &^ (pageBytes - 1)
	if err := unix.Ftruncate(fd, int64(pages)); err != nil {
		return nil, err
	}
	var maps [2][]byte
	for i := range maps {
		mem, err := unix.Mmap(fd, 0, pages, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return nil, err
		}
		m.t.Cleanup(func() { assert.NoError(m.t, unix.Munmap(mem)) })
		maps[i] = mem
	}
	bus := m.next
	m.next += uint64(pages) + 1<<20
	r := dma.NewRegion(name, maps[0][:size:size], dma.BusAddr(bus))
	m.regions[name], m.mine[name], m.far[r] = r, maps[0], maps[1]
	return r, m.card.MapDMA(bus, maps[1])
}

func (m *kept) Free(*dma.Region) error { return nil }
func (m *kept) Keeps() bool            { return true }
func (m *kept) Held(name string, size, _ int) (*dma.Region, error) {
	if r := m.regions[name]; r != nil && r.Size() == size {
		return r, nil
	}
	return nil, fmt.Errorf("find %s: %w", name, dma.ErrNotHeld)
}

const pageBytes = 4096

// pages are some of a region.
type pages struct {
	region      string
	first, last int
}

func (m *kept) protect(p pages, prot int) {
	require.NoError(m.t, unix.Mprotect(m.mine[p.region][p.first*pageBytes:(p.last+1)*pageBytes], prot))
}

// death is what a process is killed by.
type death struct{ where string }

// killer kills the driver at a step: at an access to a register, a verdict, a look at
// the clock or a frame handed on; or at the next store to some pages after one of
// them.
type killer struct {
	mem    *kept
	armed  bool
	counts func(where string) bool // which steps are counted; nil: all
	n, at  int
	pages  func() pages // nil: the step itself kills
	shut   *pages
	where  string
}

// dying by a store to protected pages works outside of the race detector alone: its
// stores are C's, and no panic finds its way out of there.
func (k *killer) onStore(t *testing.T, p func() pages) {
	if raceEnabled {
		t.Skip("the race detector's stores cannot be interrupted")
	}
	k.pages = p
}

// step is called ahead of whatever happens at where.
func (k *killer) step(where string) {
	if !k.armed {
		return
	}
	k.open()
	if k.counts != nil && !k.counts(where) {
		return
	}
	if k.n++; k.n != k.at {
		return
	}
	k.where = where
	if k.pages == nil {
		panic(death{where})
	}
	p := k.pages()
	k.shut = &p
	k.mem.protect(p, unix.PROT_READ)
}

func (k *killer) open() {
	if k.shut != nil {
		k.mem.protect(*k.shut, unix.PROT_READ|unix.PROT_WRITE)
		k.shut = nil
	}
}

// run runs a part of the driver's life and tells whether it died.
func (k *killer) run(f func()) (died bool) {
	before := debug.SetPanicOnFault(true)
	k.armed, k.n, k.where = true, 0, ""
	defer func() {
		k.armed = false
		debug.SetPanicOnFault(before)
		switch why := recover().(type) {
		case nil:
		case death:
			died = true
		case interface{ Addr() uintptr }:
			died = k.shut != nil
			if !died {
				panic(why)
			}
			k.where += ", then a store to " + k.shut.region
		default:
			panic(why)
		}
		k.open()
	}()
	f()
	return false
}

// killSpace is a BAR of a driver that may die.
type killSpace struct {
	mmio.Space
	k *killer
}

func (s killSpace) Load32(off uint32) uint32 {
	s.k.step("load " + csr.Name(off))
	return s.Space.Load32(off)
}
func (s killSpace) Load64(off uint32) uint64 {
	s.k.step("load " + csr.Name(off))
	return s.Space.Load64(off)
}
func (s killSpace) Store32(off uint32, v uint32) {
	s.k.step("store " + csr.Name(off))
	s.Space.Store32(off, v)
}
func (s killSpace) Store64(off uint32, v uint64) {
	s.k.step("store " + csr.Name(off))
	s.Space.Store64(off, v)
}

type killClock struct {
	Clock
	k *killer
}

func (c killClock) Now() time.Duration { c.k.step("clock"); return c.Clock.Now() }

// witness is what the frames of each flow came to: it outlives the drivers.
type witness struct {
	t        testing.TB
	k        *killer
	next     map[int]int // the highest number of a flow, and one
	at       map[int]int // the number that has to come, once this driver handed one on
	repeated int
	dropped  uint64 // by this driver, of the filtered flow
	inside   bool   // died in the middle of Deliver
	got      int
}

func (w *witness) Deliver(_ int, frames []Frame) {
	w.inside = true
	w.k.step("deliver")
	for _, f := range frames {
		b := f.Pieces[0]
		flow, seq := flowSeq(b)
		var mac [6]byte
		copy(mac[:], b)
		require.Equal(w.t, string(udp(mac, flow, seq, len(b))), string(b), "flow %d frame %d: bytes", flow, seq)
		if at, ok := w.at[flow]; ok {
			require.Equal(w.t, at, seq, "flow %d: order", flow)
		}
		require.LessOrEqual(w.t, seq, w.next[flow], "flow %d: nothing is lost", flow)
		require.NotEqual(w.t, filtered, flow, "dropped, and there again")
		w.at[flow] = seq + 1
		if seq < w.next[flow] {
			w.repeated++
		} else {
			w.next[flow]++
		}
		w.got++
		w.k.step("delivered one")
	}
	w.inside = false
	w.k.step("delivered")
}

// drop is a frame of the filtered flow: none is left out, and what is judged again is
// dropped again.
func (w *witness) drop(b []byte) {
	_, seq := flowSeq(b)
	require.LessOrEqual(w.t, seq, w.next[filtered], "a dropped frame is missing")
	if seq == w.next[filtered] {
		w.next[filtered]++
	}
	w.dropped++
}

// rig is a card, memory and a driver that dies now and then.
type rig struct {
	t      *testing.T
	card   *hwsim.Card
	dev    octep.Device
	mem    *kept
	k      *killer
	w      *witness
	cfg    Config
	rings  *Rings
	mac    [6]byte
	sent   map[int]int
	faulty bool // counts and packets come at different times
}

// filtered is the flow whose frames are dropped by the verdict.
const filtered = 7

func newRig(t *testing.T, change ...benchOption) *rig {
	t.Helper()
	ho := hwsim.Options{Seed: 1}
	cfg := Config{GatherFrames: 16, GatherLarge: 2}
	for _, f := range change {
		f(&ho, &cfg)
	}
	r := &rig{t: t, card: hwsim.New(ho), cfg: cfg, sent: map[int]int{}}
	r.dev = simdev.New(r.card)
	require.NoError(t, octep.SetBusMaster(r.dev, true))
	cmd, err := r.dev.ConfigRead(4, 2)
	require.NoError(t, err)
	require.NoError(t, r.dev.ConfigWrite(4, 2, cmd|6))
	r.mem = newKept(t, r.card)
	r.k = &killer{mem: r.mem}
	r.w = &witness{t: t, k: r.k, next: map[int]int{}, at: map[int]int{}}
	r.cfg.BAR0, r.cfg.DMA, r.cfg.Clock, r.cfg.Sink = killSpace{r.dev.BAR0(), r.k}, r.mem, killClock{r.card.Clock(), r.k}, r.w
	r.cfg.Judge = JudgeFunc(func(b []byte, _ int, _ uint16) Verdict {
		r.k.step("verdict")
		if b[11] == filtered {
			r.w.drop(b)
			return Drop
		}
		return Pass
	})
	r.rings, err = New(r.cfg)
	require.NoError(t, err)
	require.NoError(t, r.rings.Program(context.Background()))
	require.NoError(t, r.rings.SetClocks(800))
	r.card.Provision()
	l, ok := r.card.LIF(uint32(portF1.LIF()))
	require.True(t, ok)
	l.MTU, r.mac = 9000, l.MAC
	r.card.SetLIF(uint32(portF1.LIF()), &l)
	r.card.ResetAccesses()
	t.Cleanup(func() { assert.NoError(t, octep.SetBusMaster(r.dev, false)) })
	return r
}

// send puts frames of a flow on the wire.
func (r *rig) send(flow int, sizes ...int) {
	for _, n := range sizes {
		r.card.Wire(uint16(portF1.Tag)).Send(udp(r.mac, flow, r.sent[flow], n))
		r.sent[flow]++
	}
}

// adopt is the next process. It goes on until an adoption ends.
func (r *rig) adopt() Adoption {
	rings, found, err := Adopt(context.Background(), r.cfg)
	require.NoError(r.t, err, "died at %s", r.k.where)
	r.rings = rings
	r.w.at = map[int]int{} // each flow may go on some frames back
	r.w.dropped = 0
	return found
}

// drain visits every queue until nothing comes any more.
func (r *rig) drain() {
	for quiet := 0; quiet < 20; {
		n := 0
		for q := range wire.OQs {
			took, err := r.rings.OQ(q).Visit(VisitBound)
			require.NoError(r.t, err)
			n += took
		}
		if n > 0 {
			quiet = 0
			continue
		}
		quiet++
		r.card.Advance(100 * time.Microsecond)
	}
	r.rings.IQ().Settle()
}

// check holds a quiet driver against the card, whoever began what.
func (r *rig) check(found *Adoption) {
	t := r.t
	require.NoError(t, r.card.CheckConservation())
	require.Empty(t, r.card.Reports())
	s := r.rings.Stats()
	for q, st := range s.Queues {
		o, state := r.rings.OQ(q), r.card.RingState(q)
		require.Zero(t, state.Count, "invariant 1, ring %d", q)
		for i := range uint32(wire.OQEntries) {
			require.Equal(t, uint64(wire.Poison), o.word(i), "invariant 1, ring %d, entry %d", q, i)
		}
		require.Equal(t, st.Returned+st.Carry, st.Done+st.SpanBufs+st.Skipped, "invariant 2, ring %d", q)
		require.Equal(t, st.Done, st.Delivered+st.Untagged+st.Dropped+st.SpanNoBuf+st.Long, "invariant 4, ring %d", q)
		require.Equal(t, o.entries, o.returned, "ring %d", q)
		fetched := int64(o.grant) + int64(o.returned) - state.Credit
		require.EqualValues(t, o.entries, fetched-int64(state.Held), "invariant 3, ring %d", q)
		require.EqualValues(t, fetched%wire.OQEntries, state.At, "invariant 3, ring %d", q)
		require.Zero(t, st.Lapped+st.Behind+st.Skipped+st.Ghosts+st.Capped+st.SpanNoBuf, "invariant 8, ring %d", q)
		if !r.faulty {
			require.Zero(t, st.Unseen, "invariant 8, ring %d", q)
		}
		require.EqualValues(t, found.Queues[q].Repeated, st.AdoptDup)
		require.LessOrEqual(t, st.AdoptDup, uint64(passPackets), "no more than a pass")
	}
	require.Equal(t, r.w.dropped, s.Dropped, "each verdict of this driver is counted once")
	for flow, n := range r.sent {
		require.Equal(t, n, r.w.next[flow], "flow %d: everything came", flow)
	}
}

// untouched are the registers that nobody writes after the rings were programmed.
func (r *rig) untouched() {
	mayWrite := map[string]bool{"OUT_CNTS": true, "OUT_SLIST_DBELL": true, "OUT_INT_STATUS": true, "IN_INSTR_DBELL": true, "IN_CNTS": true}
	n := 0
	for name, a := range r.card.Accesses() {
		reg, _, _ := strings.Cut(name, "[")
		if n += int(a.Writes); a.Writes > 0 {
			assert.True(r.t, mayWrite[reg], "%s was written %d times", name, a.Writes)
		}
	}
	assert.Positive(r.t, n)
}

// byRing sends one frame of each flow and says which ring each takes.
func (r *rig) byRing(flows int) map[int][]int {
	rings := map[int][]int{}
	for flow := range flows {
		before := r.rings.Stats()
		r.send(flow, 60)
		r.drain()
		after := r.rings.Stats()
		for q := range after.Queues {
			if after.Queues[q].Done > before.Queues[q].Done {
				rings[q] = append(rings[q], flow)
			}
		}
	}
	return rings
}

// rxRound is one round of traffic in which the driver is killed, or lives on when it
// comes to no such step. busy is the ring that most frames take.
type rxRig struct {
	*rig
	ring   int
	flows  []int // of that ring, the filtered one first
	other  int   // a flow of another ring
	again  int   // at which store the adoption is killed as well
	tear   bool  // the record that is due was half written
	twice  bool  // the next process dies at the same step
	fill   bool  // the card uses every buffer that it has before somebody comes
	deaths map[string]int
}

func newRxRig(t *testing.T, change ...benchOption) *rxRig {
	r := &rxRig{rig: newRig(t, change...), deaths: map[string]int{}}
	rings := r.byRing(24)
	for q := range wire.OQs {
		flows := rings[q]
		if i := slices.Index(flows, filtered); i >= 0 {
			r.ring, r.flows = q, append([]int{filtered}, slices.Delete(flows, i, i+1)...)
		} else if len(flows) > 0 {
			r.other = flows[0]
		}
	}
	require.GreaterOrEqual(t, len(r.flows), 3, "flows of one ring")
	return r
}

func (r *rxRig) traffic() {
	for i := range 4 {
		r.send(r.flows[1], 60, 9014, 1514)
		r.send(r.flows[2], 9014, 9014, 60)
		if i%2 == 0 {
			r.send(r.flows[0], 1514)
		}
		r.send(r.other, 60)
	}
	r.send(r.flows[0], 60) // nothing is handed on behind the last batch
}

// round lets the driver work until it dies at the kill's step, has the next one take
// over under traffic, and checks everything. It tells whether there was such a step.
func (r *rxRig) round() (reached bool) {
	r.traffic()
	r.card.Advance(300 * time.Microsecond)
	r.w.repeated, r.w.inside = 0, false
	work := r.rings.Workers(1)[0]
	died := r.k.run(func() {
		_, _, err := work.Step(WakeBusy)
		require.NoError(r.t, err)
	})
	reached = r.k.n >= r.k.at
	if !died {
		r.drain()
		return reached
	}
	inside := r.w.inside
	if r.tear {
		o := r.rings.OQ(r.ring)
		next := recorder{mem: o.rec.mem, seq: o.rec.seq + 1}
		clear(next.next()[recRead : recRead+8*(r.k.at%5+1)])
	}
	r.deaths[r.k.where]++
	r.traffic() // it comes while nobody serves the rings, and while they are taken over
	r.card.Advance(30 * time.Microsecond)

	if r.fill {
		r.card.Advance(time.Millisecond)
		state := r.card.RingState(r.ring)
		for range state.Held + int(state.Credit-wire.Watermark)/wire.FetchBatch*wire.FetchBatch {
			r.send(r.flows[1], 60)
		}
		r.card.Advance(time.Millisecond)
		require.Zero(r.t, r.card.Counter(msg.CntTXDropQueueFull))
	}
	twice := r.killAdoption()
	found := r.adopt()
	if r.twice {
		twice = true
		work = r.rings.Workers(1)[0]
		if r.k.run(func() { _, _, _ = work.Step(WakeBusy) }) {
			found = r.adopt()
		}
	}
	r.drain()
	at := fmt.Sprintf("died at %s", r.k.where)
	switch {
	case twice: // what the process in between has counted died with it
		require.LessOrEqual(r.t, r.w.repeated, 2*passPackets, at)
	case inside:
		require.LessOrEqual(r.t, r.w.repeated, found.Repeated(), at)
	default:
		require.Equal(r.t, r.w.repeated, found.Repeated(), at)
	}
	r.check(&found)
	return reached
}

// killAdoption kills an adoption at one of its stores, a later one each time.
func (r *rxRig) killAdoption() (died bool) {
	if r.again == 0 {
		return false
	}
	k := *r.k
	r.k.counts = func(where string) bool { return strings.HasPrefix(where, "store") }
	r.k.at, r.k.pages = r.again, nil
	died = r.k.run(func() {
		_, _, err := Adopt(context.Background(), r.cfg)
		require.NoError(r.t, err, "died at %s", k.where)
	})
	r.k.counts, r.k.at, r.k.pages, r.k.where = k.counts, k.at, k.pages, k.where
	r.w.at = map[int]int{}
	if r.again++; !died {
		r.again = 1
	}
	return true
}

// A8: the process is killed at every step of a pass, and between any two of its
// stores that lie on pages of their own. Each time the next one goes on where it was.
func TestKilledAtEveryStepOfAPass(t *testing.T) {
	atPages := func(region string, first, last int) func() pages {
		return func() pages { return pages{region, first, last} }
	}
	for name, tc := range map[string]struct {
		set    func(r *rxRig)
		option func(o *hwsim.Options, c *Config)
		fault  func(f *hwsim.Faults)
	}{
		"itself":                         {},
		"mark":                           {set: func(r *rxRig) { r.k.onStore(r.t, atPages("records", 1, 1)) }},
		"record":                         {set: func(r *rxRig) { r.k.onStore(r.t, atPages("records", 0, 0)) }},
		"torn record":                    {set: func(r *rxRig) { r.tear = true }},
		"and adopting":                   {set: func(r *rxRig) { r.again = 1 }},
		"and once more in the next pass": {set: func(r *rxRig) { r.twice = true }},
		"and the ring fills up":          {set: func(r *rxRig) { r.fill = true }},
		"with few gather buffers":        {option: func(_ *hwsim.Options, c *Config) { c.GatherFrames = 3 }},
		"choice 1: one packet under the watermark": {option: func(o *hwsim.Options, _ *Config) { o.Choices.UnderWatermark = hwsim.DeliverOne }},
		"choice 2: descriptors fetched lazily":     {option: func(o *hwsim.Options, _ *Config) { o.Choices.LazyFetch = true }},
		"choice 23: length word before the tail":   {option: func(o *hwsim.Options, _ *Config) { o.Choices.LengthFirst = true }},
		"count before the packet is visible":       {fault: func(f *hwsim.Faults) { f.LateData, f.LateBy = hwsim.AllRings, 20*time.Microsecond }},
		"packet before the count":                  {fault: func(f *hwsim.Faults) { f.LateCount, f.LateBy = hwsim.AllRings, 20*time.Microsecond }},
		"tail of a span after the length word":     {fault: func(f *hwsim.Faults) { f.LateTail, f.LateBy = hwsim.AllRings, 20*time.Microsecond }},
	} {
		t.Run(name, func(t *testing.T) {
			if raceEnabled && (tc.option != nil || tc.fault != nil) {
				t.Skip("nothing here runs at the same time, and the race detector makes it ten times as long")
			}
			r := newRxRig(t, func(o *hwsim.Options, c *Config) {
				if tc.option != nil {
					tc.option(o, c)
				}
			})
			if tc.set != nil {
				tc.set(r)
			}
			if tc.fault != nil {
				r.faulty = true
				r.card.Faults(tc.fault)
			}
			rounds := 0
			for r.k.at = 1; r.round(); r.k.at++ {
				rounds++
			}
			r.untouched()
			assert.Greater(t, rounds, 80)
			t.Logf("%d steps, died at %v", rounds, r.deaths)
			for _, where := range []string{"load OUT_CNTS", "store OUT_SLIST_DBELL", "store OUT_CNTS", "deliver", "delivered one", "delivered", "verdict"} {
				if r.k.pages == nil {
					assert.NotZero(t, countPrefix(r.deaths, where), where)
				}
			}
			assert.NotEmpty(t, r.deaths)
		})
	}
}

func countPrefix(m map[string]int, prefix string) (n int) {
	for k, v := range m {
		if strings.HasPrefix(k, prefix) {
			n += v
		}
	}
	return n
}

// The process is killed while it poisons, before the first store to each page of the
// buffers of a pass.
func TestKilledAtEveryPageOfPoison(t *testing.T) {
	r := newRxRig(t)
	r.k.counts = func(where string) bool { return where == "delivered" }
	for r.k.at = 1; ; r.k.at++ {
		reached, died := false, 1
		for skip := 0; died > 0; skip++ {
			r.k.onStore(t, func() pages {
				o := r.rings.OQ(r.ring)
				first := int((uint32(o.entries)+uint32(skip))&oqMask) * wire.BufStride / pageBytes
				return pages{fmt.Sprintf("oq%d buffers", r.ring), first, first}
			})
			before := r.total()
			reached = r.round()
			died = r.total() - before
			if skip < 60 && reached {
				died = max(died, 1) // a page in the middle may hold no length word
			}
		}
		if !reached {
			break
		}
	}
	assert.Greater(t, r.total(), 20)
	t.Logf("died %d times", r.total())
	r.untouched()
}

func (r *rxRig) total() int { return countPrefix(r.deaths, "") }

// txRig posts bursts that nobody sees the end of.
type txRig struct {
	*rig
	seq       int // of the next frame
	committed int // of this burst: Commit was called
	wire      []int
	twice     bool // the next process dies at the same step
}

func newTxRig(t *testing.T) *txRig {
	r := &txRig{rig: newRig(t)}
	r.card.Wire(uint16(portF1.Tag)).SetReceiver(func(f []byte) {
		_, seq := flowSeq(f)
		require.Equal(t, string(r.frame(seq)), string(f), "frame %d: bytes", seq)
		r.wire = append(r.wire, seq)
	})
	return r
}

func (r *txRig) frame(seq int) []byte {
	return udp([6]byte{2}, 1, seq, []int{60, 9014, 1514, 61}[seq%4])
}

// burst posts n frames, or as many as there is room for.
func (r *txRig) burst(n int) {
	r.committed = 0
	q := r.rings.IQ()
	q.Lock()
	q.Reap()
	for range n {
		r.k.step("reserve")
		buf := q.Reserve()
		if buf == nil {
			break
		}
		length := copy(buf, r.frame(r.seq+r.committed))
		r.k.step("commit")
		r.committed++
		q.Commit(uint16(portF1.Tag), length)
	}
	r.k.step("flush")
	q.Flush()
	q.Unlock()
	r.seq += r.committed
}

// round is one burst after some that are still under way.
func (r *txRig) round() (reached, died bool) {
	r.burst(20)
	r.burst(50)
	r.card.Advance(3 * time.Microsecond)
	died = r.k.run(func() { r.burst(30) })
	reached = r.k.n >= r.k.at
	if !died {
		r.card.Advance(2 * time.Millisecond)
		return reached, false
	}
	found := r.adopt()
	r.settle(found)
	if r.twice && r.k.run(func() { r.burst(30) }) {
		found = r.adopt()
		r.settle(found)
	}
	r.burst(10)
	r.card.Advance(2 * time.Millisecond)
	require.Zero(r.t, r.rings.IQ().Settle())
	require.Equal(r.t, r.seq, len(r.wire), "died at %s, %d lost", r.k.where, found.TxLost)
	for i, seq := range r.wire {
		require.Equal(r.t, i, seq, "died at %s", r.k.where)
	}
	s := r.rings.Stats()
	require.EqualValues(r.t, found.TxLost, s.AdoptLost)
	require.Equal(r.t, s.TxPosted, s.TxFinished)
	require.NoError(r.t, r.card.CheckConservation())
	require.Empty(r.t, r.card.Reports())
	return reached, true
}

// settle takes the burst in which the driver died as announced or as lost.
func (r *txRig) settle(found Adoption) {
	if r.k.where == "commit, then a store to records" {
		r.committed-- // it died before it said so
	}
	if found.TxLost > 0 {
		require.Equal(r.t, r.committed, found.TxLost, "died at %s", r.k.where)
		return // their numbers are given again
	}
	r.seq += r.committed
}

// A8 for the input queue: the process is killed at every step of a burst.
func TestKilledAtEveryStepOfABurst(t *testing.T) {
	for name, set := range map[string]func(r *txRig){
		"itself": func(*txRig) {},
		"twice":  func(r *txRig) { r.twice = true },
		"mark":   func(r *txRig) { r.k.onStore(r.t, func() pages { return pages{"records", 1, 1} }) },
		"record": func(r *txRig) { r.k.onStore(r.t, func() pages { return pages{"records", 0, 0} }) },
		"instruction": func(r *txRig) {
			r.k.onStore(r.t, func() pages { return pages{"iq0 instructions", 0, wire.IQSlots*wire.InstrSize/pageBytes - 1} })
		},
		"slot": func(r *txRig) {
			r.k.onStore(r.t, func() pages {
				q := r.rings.iq
				first := (q.posted + q.pending) & iqMask / slotsPerRegion * slotsPerRegion
				return pages{fmt.Sprintf("iq0 slots from %d", first), 0, slotsPerRegion*wire.SlotStride/pageBytes - 1}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTxRig(t)
			set(r)
			rounds, deaths := 0, 0
			for r.k.at = 1; ; r.k.at++ {
				reached, died := r.round()
				if !reached {
					break
				}
				rounds++
				if died {
					deaths++
				}
			}
			r.untouched()
			assert.Greater(t, rounds, 60)
			assert.Positive(t, deaths)
			t.Logf("%d steps, died at %d of them", rounds, deaths)
		})
	}
}

// Three processes in a row die between the doorbell and the record of it.
func TestKilledBeforeTheRecordOfABurstAgainAndAgain(t *testing.T) {
	r := newTxRig(t)
	r.k.counts = func(where string) bool { return strings.HasPrefix(where, "store IN_INSTR_DBELL") }
	r.k.at = 1
	r.k.onStore(t, func() pages { return pages{"records", 0, 0} })
	for n := range 3 {
		require.True(t, r.k.run(func() { r.burst(30 + n) }))
		found := r.adopt()
		require.Zero(t, found.TxLost)
		r.settle(found)
	}
	r.card.Advance(2 * time.Millisecond)
	require.Equal(t, r.seq, len(r.wire))
}

// The card stands still while the process is killed and while the next one takes over:
// no slot is written that it has not read (rule 15).
func TestAdoptedSlotsAreTheCardsUntilItHasReadThem(t *testing.T) {
	for name, tc := range map[string]struct {
		fault      func(f *hwsim.Faults, on bool)
		unfinished int
	}{
		"nothing is fetched": {func(f *hwsim.Faults, on bool) { f.StopFetch = on }, 120},
		"read late": {func(f *hwsim.Faults, on bool) {
			f.ReadDelay = 0
			if on {
				f.ReadDelay = 300 * time.Microsecond
			}
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTxRig(t)
			r.burst(200)
			r.card.Advance(2 * time.Millisecond)
			require.Zero(t, r.rings.IQ().Settle())
			r.card.Faults(func(f *hwsim.Faults) { tc.fault(f, true) })
			r.burst(120) // around the end of the ring
			found := r.adopt()
			assert.Equal(t, tc.unfinished, found.TxUnfinished)
			r.burst(250)
			if tc.unfinished > 0 {
				assert.Equal(t, iqRoom-tc.unfinished, r.committed, "no more than there is room for")
			}
			r.card.Faults(func(f *hwsim.Faults) { tc.fault(f, false) })
			r.card.Advance(5 * time.Millisecond)
			require.Zero(t, r.rings.IQ().Settle())
			require.Equal(t, r.seq, len(r.wire))
			for i, seq := range r.wire {
				require.Equal(t, i, seq)
			}
			s := r.rings.Stats()
			assert.Equal(t, s.TxPosted, s.TxFinished, "those of the earlier process are not this one's")
			assert.Empty(t, r.card.Reports())
		})
	}
}

// The process dies in the middle of a repair (datapath.md 3.8), at each of its steps.
// Until it moves the read index, count and memory do not agree.
func TestKilledInARepair(t *testing.T) {
	for name, tc := range map[string]struct {
		breaks  func(r *rxRig)
		refused bool // before the read index moves
	}{
		"packets never counted": {func(r *rxRig) {
			r.card.Faults(func(f *hwsim.Faults) { f.LoseCounts[r.ring] = 3 })
			r.send(r.flows[1], 60, 9014, 60)
		}, true},
		"entries never written": {func(r *rxRig) {
			r.card.Faults(func(f *hwsim.Faults) { f.SkipEntries[r.ring] = 2 })
			r.send(r.flows[1], 60, 9014, 60)
		}, true},
		"a short that nothing counts": {func(r *rxRig) {
			r.card.Faults(func(f *hwsim.Faults) { f.LoseCounts[r.ring] = 1 })
			require.True(r.t, r.card.DeliverRaw(r.ring, uint16(portF1.Tag), make([]byte, 60), wire.LenOverhead))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			refused, adopted := 0, 0
			for at := 1; ; at++ {
				r := newRxRig(t)
				tc.breaks(r)
				r.card.Advance(time.Millisecond)
				o := r.rings.OQ(r.ring)
				_, err := o.Visit(VisitBound)
				require.NoError(t, err)
				r.card.Advance(twoTicks)
				r.k.at = at
				before := o.entries
				if !r.k.run(func() { _, _ = o.Visit(VisitBound) }) {
					break
				}
				m, seq := decodeMark(binary.LittleEndian.Uint64(o.rec.at[:]))
				moved := m.entries > 0 && seq == uint32(o.rec.seq) || o.entries > before // in the middle, or done with
				rings, _, err := Adopt(context.Background(), r.cfg)
				if tc.refused && !moved {
					var e *AdoptError
					require.ErrorAs(t, err, &e, "died at %s", r.k.where)
					require.Equal(t, r.ring, e.Ring)
					refused++
					continue
				}
				require.NoError(t, err, "died at %s", r.k.where)
				adopted++
				r.rings, r.w.at = rings, map[int]int{}
				r.send(r.flows[1], 60, 9014)
				r.card.Advance(time.Millisecond)
				r.drain()
				r.card.Advance(SweepPeriod)
				require.Equal(t, r.sent[r.flows[1]], r.w.next[r.flows[1]], "died at %s", r.k.where)
				require.Zero(t, r.card.RingState(r.ring).Count)
				if moved {
					require.Zero(t, r.rings.Stats().Resync, "the next process sees no gap, died at %s", r.k.where)
				}
				require.Empty(t, r.card.Reports())
			}
			t.Logf("%d refused, %d adopted", refused, adopted)
			assert.Equal(t, tc.refused, refused > 0)
			assert.GreaterOrEqual(t, adopted, 2)
		})
	}
}

// A packet whose count is still on its way does not pass for the count of one that
// was taken: what does not last is not believed.
func TestAdoptWaitsForCountsOnTheirWay(t *testing.T) {
	r := newRxRig(t)
	r.send(r.flows[1], 60)
	r.card.Advance(100 * time.Microsecond)
	r.k.at, r.k.counts = 1, func(where string) bool { return strings.HasPrefix(where, "store OUT_CNTS") }
	require.True(t, r.k.run(func() { _, _ = r.rings.OQ(r.ring).Visit(VisitBound) }))
	r.card.Faults(func(f *hwsim.Faults) { f.LateCount, f.LateBy = hwsim.AllRings, 500*time.Microsecond })
	r.send(r.flows[1], 60)
	r.card.Advance(100 * time.Microsecond)
	require.EqualValues(t, 1, r.card.RingState(r.ring).Count)
	found := r.adopt()
	assert.Equal(t, 1, found.Queues[r.ring].Settled)
	assert.Equal(t, 1, found.Queues[r.ring].Waiting)
	r.faulty = true
	r.drain()
	r.check(&found)
}

// Counts that come after their packets were taken, and after the process died, are
// acknowledged and let nothing else be taken.
func TestAdoptedDebtIsPaid(t *testing.T) {
	r := newRxRig(t)
	r.card.Faults(func(f *hwsim.Faults) { f.LateCount, f.LateBy = hwsim.AllRings, 3*time.Millisecond })
	r.send(r.flows[1], 60, 9014, 60)
	r.card.Advance(100 * time.Microsecond)
	o := r.rings.OQ(r.ring)
	for range 2 {
		_, err := o.Visit(VisitBound)
		require.NoError(t, err)
		r.card.Advance(twoTicks)
	}
	require.EqualValues(t, 3, r.rings.Stats().Behind)
	require.EqualValues(t, 3, r.card.RingState(r.ring).Count, "they are counted after all")
	found := r.adopt()
	assert.Equal(t, 3, found.Queues[r.ring].Settled)
	r.card.Faults(func(f *hwsim.Faults) { *f = hwsim.Faults{} })
	r.drain()
	r.check(&found)
}
