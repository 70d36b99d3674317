package lif

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/rpc/msg"
)

var bg = context.Background()

var refused = (&msg.RCError{RC: msg.RCRefused})

// table is the coprocessor's LIF table and tag map with the rules of
// rpc-lif.md 5.2, and switches to break them.
type table struct {
	mu      sync.Mutex
	lifs    map[uint32]msg.LIF
	tags    map[uint16]uint8
	updates []msg.LIFUpdateReq
	reads   []uint32
	binds   []msg.PPort
	log     []string // "read 0", "update 0 0xff", "bind 0x8100"

	refuse func(index uint32) error // instead of the rules
	lose   bool                     // rc 0 and nothing done
	bend   func(*msg.LIF)           // what is kept of an update
	fail   error                    // the channel's own error
	busy   chan struct{}            // when set, each update of LIF 0 waits for it
	inside map[uint32]int           // updates running per LIF
}

func newTable() *table {
	return &table{lifs: map[uint32]msg.LIF{}, tags: map[uint16]uint8{}, inside: map[uint32]int{}}
}

func (f *table) LIFRead(_ context.Context, index uint32) (msg.LIF, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads = append(f.reads, index)
	f.log = append(f.log, "read")
	if f.fail != nil {
		return msg.LIF{}, false, f.fail
	}
	l, ok := f.lifs[index]
	return l, ok, nil
}

func (f *table) LIFUpdate(_ context.Context, r msg.LIFUpdateReq) error {
	f.mu.Lock()
	f.inside[r.Index]++
	if f.inside[r.Index] > 1 {
		panic("two commands for one LIF at once")
	}
	f.mu.Unlock()
	if f.busy != nil && r.Index == 0 {
		<-f.busy
	}
	runtime.Gosched() // whoever may come in does
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inside[r.Index]--
	f.updates = append(f.updates, r)
	f.log = append(f.log, "update")
	if f.fail != nil {
		return f.fail
	}
	if f.refuse != nil {
		if err := f.refuse(r.Index); err != nil {
			return err
		}
	}
	have, live := f.lifs[r.Index]
	if live == (r.Mask == msg.MaskCreate) {
		return refused
	}
	if f.lose {
		return nil
	}
	if !live {
		have = r.LIF
	}
	set := func(bit msg.LIFMask, do func()) {
		if r.Mask&bit != 0 {
			do()
		}
	}
	set(msg.MaskMAC, func() { have.MAC = r.LIF.MAC })
	set(msg.MaskMTU, func() { have.MTU = r.LIF.MTU })
	set(msg.MaskFwd, func() { have.Fwd = r.LIF.Fwd })
	set(msg.MaskAdmin, func() { have.AdminDisabled = r.LIF.AdminDisabled })
	set(msg.MaskOffload, func() { have.OffloadDisabled = r.LIF.OffloadDisabled })
	set(msg.MaskRepresentor, func() { have.Representor = r.LIF.Representor })
	if f.bend != nil {
		f.bend(&have)
	}
	f.lifs[r.Index] = have
	return nil
}

func (f *table) PPort(_ context.Context, p msg.PPort) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.binds = append(f.binds, p)
	f.log = append(f.log, "bind")
	if f.refuse != nil {
		if err := f.refuse(uint32(p.Iface) << 12); err != nil {
			return err
		}
	}
	f.tags[p.Tag] = p.Iface
	return nil
}

// waitInside waits until an update of a LIF is running.
func (f *table) waitInside(index uint32) {
	for {
		f.mu.Lock()
		in := f.inside[index]
		f.mu.Unlock()
		if in == 1 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func (f *table) forget() {
	f.updates, f.reads, f.binds, f.log = nil, nil, nil, nil
}

type handClock struct {
	mu  sync.Mutex
	now time.Duration
}

func (c *handClock) Now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *handClock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += d
}

type rig struct {
	*table
	*Manager
	clock *handClock
	lines *bytes.Buffer
}

func newRig() *rig {
	r := &rig{table: newTable(), clock: &handClock{}, lines: &bytes.Buffer{}}
	r.Manager = New(Config{Table: r.table, Clock: r.clock, Logger: slog.New(slog.NewTextHandler(r.lines, nil))})
	return r
}

func mac(p board.Port) [6]byte { return [6]byte{2, 0, 0, 0, 0, byte(p.Index + 2)} }

func wanted(p board.Port) msg.LIF {
	return msg.LIF{MAC: mac(p), MTU: 1500, Fwd: msg.FwdL3}
}

func allPorts() []board.Port {
	all := board.All()
	return all[:]
}

var port1, f1 = board.ByIndex(0), board.ByIndex(8)

func provisioned(t *testing.T, ports ...board.Port) *rig {
	t.Helper()
	r := newRig()
	for _, p := range ports {
		require.NoError(t, r.Provision(bg, p, mac(p)))
	}
	r.forget()
	return r
}

func TestProvisionCreatesThenBindsThenReads(t *testing.T) {
	r := newRig()
	for _, p := range board.All() {
		r.forget()
		require.NoError(t, r.Provision(bg, p, mac(p)))
		require.Equal(t, []string{"read", "update", "bind", "read"}, r.table.log)
		require.Equal(t, []msg.LIFUpdateReq{{Index: uint32(p.LIF()), LIF: wanted(p), Mask: msg.MaskCreate}}, r.updates)
		require.Equal(t, []msg.PPort{{Iface: p.Iface, Tag: uint16(p.Tag)}}, r.binds)
		require.Equal(t, []uint32{uint32(p.LIF()), uint32(p.LIF())}, r.reads)
		s := r.State(p)
		require.True(t, s.Ready())
		require.Equal(t, State{Provisioned: true, Want: wanted(p), Have: wanted(p), Present: true, Bound: true}, s)
	}
	require.Len(t, r.lifs, 12)
	require.Equal(t, Stats{Created: 12, Bound: 12}, r.Stats())
}

// Row CTL-7: creation is not idempotent.
func TestRestartOnALiveTableChangesNothing(t *testing.T) {
	old := provisioned(t, allPorts()...)
	require.NoError(t, old.SetMTU(bg, f1, 9000))
	require.NoError(t, old.SetMode(bg, f1, msg.FwdL2))
	entry := old.lifs[0]
	entry.Representor, entry.DF = 4095, true // as the vendor leaves iface 0
	old.lifs[0] = entry
	before := maps.Clone(old.lifs)
	old.forget()

	m := New(Config{Table: old.table, Clock: old.clock, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	for _, p := range board.All() {
		require.NoError(t, m.Provision(bg, p, mac(p)))
	}
	require.Empty(t, old.updates, "no mask 0xff to a live entry, and nothing else either")
	require.Len(t, old.binds, 12, "the tag map cannot be read, so it is written once")
	require.Equal(t, before, old.lifs)
	require.Equal(t, uint16(9000), m.State(f1).Want.MTU, "a live entry's MTU is adopted")
	require.Equal(t, uint8(msg.FwdL2), m.State(f1).Want.Fwd, "and its mode")

	t.Run("an entry removed behind oxpd's back is created", func(t *testing.T) {
		delete(old.lifs, 4096)
		old.forget()
		changed, err := m.Reconcile(bg, board.ByIndex(1))
		require.NoError(t, err)
		require.True(t, changed)
		require.Equal(t, []string{"read", "update", "bind", "read"}, old.table.log)
		require.Equal(t, msg.MaskCreate, old.updates[0].Mask)
		require.Equal(t, before, old.lifs)
	})
	t.Run("and a 9,000 one comes back with 9,000", func(t *testing.T) {
		delete(old.lifs, uint32(f1.LIF()))
		_, err := m.Reconcile(bg, f1)
		require.NoError(t, err)
		require.Equal(t, before, old.lifs)
	})
}

func TestMTUOfALiveEntryIsAdoptedOnlyInRange(t *testing.T) {
	for _, tc := range []struct {
		name     string
		mtu, out uint16
	}{
		{"least", 72, 72}, {"most", 9000, 9000}, {"below", 71, 1500}, {"above", 9001, 1500}, {"zero", 0, 1500},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig()
			l := wanted(f1)
			l.MTU = tc.mtu
			r.lifs[uint32(f1.LIF())] = l
			require.NoError(t, r.Provision(bg, f1, mac(f1)))
			require.Equal(t, tc.out, r.lifs[uint32(f1.LIF())].MTU)
			require.Equal(t, tc.out, r.State(f1).Want.MTU)
		})
	}
}

func TestOnlyDifferingFieldsAreUpdated(t *testing.T) {
	for _, tc := range []struct {
		name string
		bend func(*msg.LIF)
		mask msg.LIFMask
	}{
		{"mac", func(l *msg.LIF) { l.MAC[5] ^= 1 }, msg.MaskMAC},
		{"mtu", func(l *msg.LIF) { l.MTU = 1400 }, msg.MaskMTU},
		{"mode", func(l *msg.LIF) { l.Fwd = msg.FwdL2 }, msg.MaskFwd},
		{"admin", func(l *msg.LIF) { l.AdminDisabled = true }, msg.MaskAdmin},
		{"offload", func(l *msg.LIF) { l.OffloadDisabled = true }, msg.MaskOffload},
		{"representor", func(l *msg.LIF) { l.Representor = 7 }, msg.MaskRepresentor},
		{"two at once", func(l *msg.LIF) { l.MTU, l.Fwd = 1400, msg.FwdBoth }, msg.MaskMTU | msg.MaskFwd},
		{"all", func(l *msg.LIF) {
			*l = msg.LIF{MAC: [6]byte{9}, MTU: 1, Fwd: 1, AdminDisabled: true, OffloadDisabled: true, Representor: 9}
		}, 0x3f},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := provisioned(t, port1)
			l := r.lifs[0]
			tc.bend(&l)
			r.lifs[0] = l
			changed, err := r.Reconcile(bg, port1)
			require.NoError(t, err)
			require.True(t, changed)
			require.Equal(t, []msg.LIFUpdateReq{{Index: 0, LIF: wanted(port1), Mask: tc.mask}}, r.updates)
			require.Empty(t, r.binds)
			require.Equal(t, []string{"read", "update", "read"}, r.table.log)

			r.forget()
			changed, err = r.Reconcile(bg, port1)
			require.NoError(t, err)
			require.False(t, changed)
			require.Equal(t, []string{"read"}, r.table.log, "equal: nothing")
		})
	}
}

//oxpd:fault R24 behaviour
func TestProvisionRefusesAddresses(t *testing.T) {
	r := provisioned(t, port1)
	require.ErrorIs(t, r.Provision(bg, f1, [6]byte{}), ErrBadMAC)
	require.ErrorIs(t, r.Provision(bg, f1, [6]byte{3, 1, 1, 1, 1, 1}), ErrBadMAC)
	err := r.Provision(bg, f1, mac(port1))
	require.ErrorIs(t, err, ErrMACInUse)
	require.ErrorContains(t, err, "oxp1 (Port1)")
	require.Empty(t, r.table.log)
	require.False(t, r.State(f1).Provisioned)
}

func TestANewAddressIsAnUpdate(t *testing.T) {
	r := provisioned(t, port1)
	next := [6]byte{2, 0, 0, 0, 0, 0x77}
	require.NoError(t, r.Provision(bg, port1, next))
	require.Equal(t, msg.MaskMAC, r.updates[0].Mask)
	require.Equal(t, next, r.lifs[0].MAC)
}

func TestRCZeroIsNoProof(t *testing.T) {
	r := newRig()
	r.lose = true // the target clears its table after the answer
	err := r.Provision(bg, port1, mac(port1))
	require.ErrorIs(t, err, ErrMismatch)
	require.EqualError(t, err, "lif: read back of oxp1 (Port1), LIF 0: read-back differs: the entry is absent")
	require.False(t, r.State(port1).Ready())
	require.ErrorIs(t, r.State(port1).Err, ErrMismatch)
	require.Equal(t, uint64(1), r.Stats().Mismatches)

	r.lose = false
	r.clock.add(2 * time.Second)
	r.forget()
	changed, err := r.Reconcile(bg, port1)
	require.NoError(t, err)
	require.True(t, changed)
	require.Equal(t, []string{"read", "update", "bind", "read"}, r.table.log)
	require.True(t, r.State(port1).Ready())

	t.Run("each field is compared", func(t *testing.T) {
		r := newRig()
		r.bend = func(l *msg.LIF) { l.OffloadDisabled = true }
		err := r.Provision(bg, port1, mac(port1))
		require.ErrorIs(t, err, ErrMismatch)
		require.ErrorContains(t, err, "offload_disabled is true, want false")
	})
}

func TestMismatchIsTriedEveryTwoSecondsThenSlowly(t *testing.T) {
	r := newRig()
	r.lose = true
	require.ErrorIs(t, r.Provision(bg, port1, mac(port1)), ErrMismatch)
	for i := 2; i <= quickTries; i++ {
		require.Equal(t, 2*time.Second, r.State(port1).RetryAt-r.clock.Now(), "try %d", i)
		r.clock.add(2 * time.Second)
		_, err := r.Reconcile(bg, port1)
		require.ErrorIs(t, err, ErrMismatch)
	}
	r.clock.add(2 * time.Second)
	_, err := r.Reconcile(bg, port1)
	require.ErrorIs(t, err, ErrMismatch)
	require.Equal(t, time.Minute, r.State(port1).RetryAt-r.clock.Now())
}

func TestBindIsTriedAgain(t *testing.T) {
	r := newRig()
	binds := 0
	r.refuse = func(uint32) error {
		if len(r.binds) == 1 && binds == 0 {
			binds++
			return refused
		}
		return nil
	}
	err := r.Provision(bg, port1, mac(port1))
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorContains(t, err, "lif: bind tag of oxp1 (Port1)")
	require.False(t, r.State(port1).Bound)
	r.clock.add(time.Minute)
	r.forget()
	changed, err := r.Reconcile(bg, port1)
	require.NoError(t, err)
	require.True(t, changed)
	require.Equal(t, []string{"read", "bind", "read"}, r.table.log)
	require.True(t, r.State(port1).Ready())
}

// Nobody can read a tag back: one that is in doubt is bound anew, once.
func TestTagInDoubtIsBoundAnew(t *testing.T) {
	r := provisioned(t, port1, f1)
	delete(r.tags, uint16(f1.Tag))
	r.DoubtTags()
	require.True(t, r.State(f1).Ready(), "nothing is sent before its turn")
	for range 2 {
		for _, p := range []board.Port{port1, f1} {
			_, err := r.Reconcile(bg, p)
			require.NoError(t, err)
		}
	}
	require.Equal(t, []msg.PPort{{Iface: port1.Iface, Tag: uint16(port1.Tag)}, {Iface: f1.Iface, Tag: uint16(f1.Tag)}}, r.binds)
	require.Empty(t, r.updates)
	require.Equal(t, f1.Iface, r.tags[uint16(f1.Tag)])
	require.True(t, r.State(f1).Ready())
}

func TestRefusalsAreCountedAndLogged(t *testing.T) {
	r := newRig()
	r.refuse = func(uint32) error { return refused }
	err := r.Provision(bg, port1, mac(port1))
	require.ErrorIs(t, err, ErrRefused)
	require.EqualError(t, err, "lif: create of oxp1 (Port1), LIF 0: refused by the fast path: rc 1: refused")
	for range 3 {
		r.clock.add(time.Hour)
		_, err := r.Reconcile(bg, port1)
		require.ErrorIs(t, err, ErrRefused)
	}
	require.Equal(t, uint64(4), r.Stats().Refused)
	require.Equal(t, uint64(4), r.State(port1).Refusals)
	require.Equal(t, 4, strings.Count(r.lines.String(), "rc 1"))
	require.Equal(t, 4, strings.Count(r.lines.String(), "level=WARN"))

	t.Run("also of an MTU", func(t *testing.T) {
		r := provisioned(t, port1)
		r.refuse = func(uint32) error { return refused }
		require.ErrorIs(t, r.SetMTU(bg, port1, 9000), ErrRefused)
		require.Equal(t, uint64(1), r.Stats().Refused)
		require.Equal(t, 1, strings.Count(r.lines.String(), "rc 1"))
	})
}

func TestPausesGrow(t *testing.T) {
	r := newRig()
	r.refuse = func(uint32) error { return refused }
	require.ErrorIs(t, r.Provision(bg, port1, mac(port1)), ErrRefused)
	for _, want := range []time.Duration{2, 4, 8, 16, 32, 60, 60, 60} {
		require.Equal(t, want*time.Second, r.State(port1).RetryAt-r.clock.Now())
		r.forget()
		r.clock.add(want*time.Second - 1)
		for range 5 {
			_, err := r.Reconcile(bg, port1)
			require.ErrorIs(t, err, ErrPaused)
			require.ErrorIs(t, err, ErrRefused, "the cause is shown")
			require.ErrorIs(t, r.Provision(bg, port1, mac(port1)), ErrPaused)
		}
		require.Empty(t, r.table.log)
		r.clock.add(1)
		_, err := r.Reconcile(bg, port1)
		require.ErrorIs(t, err, ErrRefused)
	}
	r.refuse = nil
	r.clock.add(time.Minute)
	_, err := r.Reconcile(bg, port1)
	require.NoError(t, err)
	require.Equal(t, State{Provisioned: true, Want: wanted(port1), Have: wanted(port1), Present: true, Bound: true, Refusals: 9}, r.State(port1))

	t.Run("another address starts over", func(t *testing.T) {
		r := newRig()
		r.refuse = func(uint32) error { return refused }
		require.ErrorIs(t, r.Provision(bg, port1, mac(port1)), ErrRefused)
		require.ErrorIs(t, r.Provision(bg, port1, [6]byte{2, 9}), ErrRefused)
		require.Equal(t, 2*time.Second, r.State(port1).RetryAt)
	})
}

// Row CTL-8: eight ports refuse every command.
func TestRefusingPortsDoNotStarveTheOthers(t *testing.T) {
	const period = 5 * time.Second
	r := newRig()
	bad := func(index uint32) bool { return index < 8<<12 }
	r.refuse = func(index uint32) error {
		if bad(index) {
			return refused
		}
		return nil
	}
	for _, p := range board.All() {
		_ = r.Provision(bg, p, mac(p)) // eight of them fail
	}
	good := []board.Port{board.ByIndex(8), board.ByIndex(9), board.ByIndex(10), board.ByIndex(11)}
	for _, p := range good {
		require.True(t, r.State(p).Ready(), "%s", p)
		require.NoError(t, r.SetMTU(bg, p, 9000))
	}
	clear(r.lifs) // the fast path restarts
	_, err := r.ReconcileAll(bg)
	require.NoError(t, err)
	for _, p := range good {
		require.True(t, r.State(p).Ready(), "%s", p)
		require.Equal(t, uint16(9000), r.lifs[uint32(p.LIF())].MTU)
	}

	tries := func(rounds int) int {
		r.forget()
		for range rounds {
			r.clock.add(period)
			_, err := r.ReconcileAll(bg)
			require.NoError(t, err)
		}
		n := 0
		for _, u := range r.updates {
			if bad(u.Index) {
				n++
			}
		}
		return n
	}
	require.Greater(t, tries(12), 8, "tried again")
	require.LessOrEqual(t, tries(120), 8*11, "at most once a minute")
	require.GreaterOrEqual(t, tries(120), 8*9, "for ever")
	r.refuse = nil
	tries(14)
	for _, p := range board.All() {
		require.True(t, r.State(p).Ready(), "%s", p)
	}
}

func TestReconcileAllRotates(t *testing.T) {
	r := provisioned(t, allPorts()...)
	for round := range 13 {
		r.forget()
		_, err := r.ReconcileAll(bg)
		require.NoError(t, err)
		require.Len(t, r.reads, 12)
		require.Equal(t, uint32(board.ByIndex(round%12).LIF()), r.reads[0])
	}
}

// The update mask has no bit for DF: the difference is told once and nothing is
// sent for it, however often it is read.
func TestDFThatDiffersIsToldOnce(t *testing.T) {
	r := provisioned(t, f1)
	set := func(df bool) {
		l := r.lifs[40960]
		l.DF = df
		r.lifs[40960] = l
	}
	for round := 1; round <= 2; round++ {
		set(true)
		for range 5 {
			changed, err := r.Reconcile(bg, f1)
			require.NoError(t, err)
			require.False(t, changed)
			require.True(t, r.State(f1).DFDiffers)
			require.True(t, r.State(f1).Ready())
		}
		require.Equal(t, uint64(round), r.Stats().DFDiffers)
		set(false)
		_, err := r.Reconcile(bg, f1)
		require.NoError(t, err)
		require.False(t, r.State(f1).DFDiffers)
	}
	require.Empty(t, r.updates)

	t.Run("after a repair of something else", func(t *testing.T) {
		l := r.lifs[40960]
		l.DF, l.Fwd = true, msg.FwdL2
		r.lifs[40960] = l
		changed, err := r.Reconcile(bg, f1)
		require.NoError(t, err, "a bit that cannot be set is no mismatch")
		require.True(t, changed)
		require.Len(t, r.updates, 1)
		require.Equal(t, msg.MaskFwd, r.updates[0].Mask)
		require.True(t, r.State(f1).DFDiffers)
	})
	t.Run("in words", func(t *testing.T) {
		require.Equal(t, "df is true, want false", difference(msg.LIF{}, msg.LIF{DF: true}, true))
	})
	t.Run("an adopted one does not differ", func(t *testing.T) {
		m := New(Config{Table: r.table, Clock: r.clock})
		require.NoError(t, m.Provision(bg, f1, mac(f1)))
		require.True(t, m.State(f1).Want.DF)
		require.False(t, m.State(f1).DFDiffers)
		require.Zero(t, m.Stats().DFDiffers)
	})
}

func TestReconcileAllSkipsWhatIsNotProvisioned(t *testing.T) {
	r := provisioned(t, f1)
	delete(r.lifs, uint32(f1.LIF()))
	changed, err := r.ReconcileAll(bg)
	require.NoError(t, err)
	require.Equal(t, 1, changed)
	require.Equal(t, []uint32{40960, 40960}, r.reads)
}

func TestAnErrorOfTheChannelEndsTheRoundWithoutAPause(t *testing.T) {
	r := provisioned(t, allPorts()...)
	r.table.fail = errors.New("no answer in time")
	_, err := r.ReconcileAll(bg)
	require.ErrorIs(t, err, r.table.fail)
	require.Len(t, r.reads, 1, "one time-out a round, not twelve")
	_, err = r.ReconcileAll(bg)
	require.ErrorIs(t, err, r.table.fail)
	require.Equal(t, []uint32{0, 4096}, r.reads, "and the next round starts elsewhere")
	require.Equal(t, uint64(2), r.Stats().Failed)
	r.table.fail = nil
	_, err = r.ReconcileAll(bg)
	require.NoError(t, err)
	for _, p := range board.All() {
		require.True(t, r.State(p).Ready(), "%s", p)
	}
}

// A port that pauses when the channel fails is left to its turn: nobody asks it four
// times a second because its pause is over.
func TestAnErrorOfTheChannelEndsAPause(t *testing.T) {
	r := provisioned(t, f1)
	delete(r.lifs, uint32(f1.LIF()))
	r.table.refuse = func(uint32) error { return refused }
	_, err := r.Reconcile(bg, f1)
	require.ErrorIs(t, err, ErrRefused)
	require.NotZero(t, r.State(f1).RetryAt)
	r.clock.add(r.State(f1).RetryAt - r.clock.Now())
	r.table.fail = errors.New("no answer in time")
	_, err = r.Reconcile(bg, f1)
	require.ErrorIs(t, err, r.table.fail)
	require.Zero(t, r.State(f1).RetryAt)
}

// Rule 11: exactly one update of 18 bytes with mask 0x0002 alone, then a read.
func TestSetMTU(t *testing.T) {
	for _, mtu := range []int{72, 1499, 1501, 9000} {
		r := provisioned(t, f1)
		require.NoError(t, r.SetMTU(bg, f1, mtu))
		want := wanted(f1)
		want.MTU = uint16(mtu)
		require.Equal(t, []msg.LIFUpdateReq{{Index: 40960, LIF: want, Mask: 0x0002}}, r.updates)
		require.Len(t, r.updates[0].Append(nil), 18)
		require.Equal(t, []string{"update", "read"}, r.table.log)
		require.Equal(t, want, r.State(f1).Want)
		require.Equal(t, want, r.State(f1).Have)
		require.True(t, r.State(f1).Ready())
		require.Equal(t, uint64(1), r.Stats().MTUChanges)
	}
}

func TestSetMTUThatIsNoChangeIsARead(t *testing.T) {
	r := provisioned(t, f1)
	require.NoError(t, r.SetMTU(bg, f1, 1500))
	require.Equal(t, []string{"read"}, r.table.log)

	t.Run("unless the entry reads otherwise", func(t *testing.T) {
		l := r.lifs[40960]
		l.MTU = 1400
		r.lifs[40960] = l
		r.forget()
		require.NoError(t, r.SetMTU(bg, f1, 1500))
		require.Equal(t, []string{"read", "update", "read"}, r.table.log)
		require.Equal(t, msg.MaskMTU, r.updates[0].Mask)
		require.Equal(t, uint16(1500), r.lifs[40960].MTU)
	})
}

func TestSetMTURefusesBeforeAnythingIsSent(t *testing.T) {
	r := provisioned(t, f1)
	for _, mtu := range []int{-1, 0, 71, 9001, 65536 + 1500, 1 << 40} {
		var e *board.MTURangeError
		require.ErrorAs(t, r.SetMTU(bg, f1, mtu), &e, "%d", mtu)
	}
	require.ErrorIs(t, r.SetMTU(bg, port1, 9000), ErrNotProvisioned)
	_, err := r.Reconcile(bg, port1)
	require.ErrorIs(t, err, ErrNotProvisioned)
	require.Empty(t, r.table.log)
}

func TestSetMTUThatFailsLeavesTheOldOne(t *testing.T) {
	gone := errors.New("card is gone")
	for _, tc := range []struct {
		name string
		prep func(*rig)
		want error
		text string
		log  []string
		hint string
	}{
		{"refused", func(r *rig) { r.refuse = func(uint32) error { return refused } }, ErrRefused,
			"lif: set mtu of oxp9 (PortF1), LIF 40960: refused by the fast path: rc 1: refused; the mtu stays 1500",
			[]string{"update"}, "the coprocessor refused it and says no more"},
		{"the entry is gone", func(r *rig) { clear(r.lifs) }, ErrRefused, "the mtu stays 1500", []string{"update"}, ""},
		{"accepted and not done", func(r *rig) { r.lose = true }, ErrMismatch,
			"lif: set mtu: read back of oxp9 (PortF1), LIF 40960: read-back differs: mtu is 1500, want 9000; the mtu stays 1500",
			[]string{"update", "read"}, "kept another value"},
		{"accepted and something else done", func(r *rig) { r.bend = func(l *msg.LIF) { l.MTU = 8999 } }, ErrMismatch,
			"mtu is 8999, want 9000; the mtu stays 1500", []string{"update", "read"}, "kept another value"},
		{"accepted and vanished", func(r *rig) { r.bend = func(l *msg.LIF) { r.bend = nil; *l = msg.LIF{} } }, ErrMismatch,
			"mtu is 0, want 9000", []string{"update", "read"}, ""},
		{"the channel fails", func(r *rig) { r.table.fail = gone }, gone, "card is gone; the mtu stays 1500", []string{"update"}, "command channel failed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := provisioned(t, f1)
			tc.prep(r)
			err := r.SetMTU(bg, f1, 9000)
			require.ErrorIs(t, err, tc.want)
			require.ErrorContains(t, err, tc.text)
			var e *Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, f1, e.Port)
			require.Equal(t, msg.MaskMTU, e.Field)
			require.Equal(t, uint16(1500), e.Stays.MTU)
			require.Contains(t, e.Hint(), tc.hint)
			require.Equal(t, tc.log, r.table.log)
			require.Equal(t, uint16(1500), r.State(f1).Want.MTU)
			require.Zero(t, r.Stats().MTUChanges)

			r.refuse, r.lose, r.bend, r.table.fail = nil, false, nil, nil
			_, err = r.Reconcile(bg, f1)
			require.NoError(t, err)
			require.Equal(t, wanted(f1), r.lifs[40960], "the old one is restored")
		})
	}
	t.Run("hint for a missing entry", func(t *testing.T) {
		require.Contains(t, (&Error{Err: ErrRefused}).Hint(), "missing")
	})
}

// SetMAC and SetMode share SetMTU's way; what differs is the bit and the field.
func TestOneFieldAlone(t *testing.T) {
	next := [6]byte{2, 0, 0, 0, 0, 0x77}
	fields := []struct {
		name   string
		mask   msg.LIFMask
		set    func(*rig) error // to another value
		same   func(*rig) error // to the one that it has
		value  func(*msg.LIF)
		count  func(Stats) uint64
		differ string // of a read-back
		stays  string
	}{
		{"mac", 0x01,
			func(r *rig) error { return r.SetMAC(bg, f1, next) }, func(r *rig) error { return r.SetMAC(bg, f1, mac(f1)) },
			func(l *msg.LIF) { l.MAC = next }, func(s Stats) uint64 { return s.MACChanges },
			"mac is 02000000000a, want 020000000077", "the mac stays 02000000000a"},
		{"mode", 0x04,
			func(r *rig) error { return r.SetMode(bg, f1, msg.FwdL2) }, func(r *rig) error { return r.SetMode(bg, f1, msg.FwdL3) },
			func(l *msg.LIF) { l.Fwd = msg.FwdL2 }, func(s Stats) uint64 { return s.ModeChanges },
			"mode is L3, want L2", "the mode stays L3"},
	}
	channel := errors.New("card is gone")
	for _, f := range fields {
		want := wanted(f1)
		f.value(&want)
		t.Run(f.name+", one command and a read", func(t *testing.T) {
			r := provisioned(t, f1)
			require.NoError(t, f.set(r))
			require.Equal(t, []msg.LIFUpdateReq{{Index: 40960, LIF: want, Mask: f.mask}}, r.updates)
			require.Equal(t, []string{"update", "read"}, r.table.log)
			require.Equal(t, want, r.lifs[40960])
			require.Equal(t, want, r.State(f1).Want)
			require.True(t, r.State(f1).Ready())
			require.Equal(t, uint64(1), f.count(r.Stats()))
			require.Zero(t, r.Stats().MTUChanges)

			clear(r.lifs) // and the value is what Reconcile restores
			_, err := r.Reconcile(bg, f1)
			require.NoError(t, err)
			require.Equal(t, want, r.lifs[40960])
		})
		t.Run(f.name+" that reads so is left alone", func(t *testing.T) {
			r := provisioned(t, f1)
			require.NoError(t, f.same(r))
			require.Equal(t, []string{"read"}, r.table.log)

			l := r.lifs[40960]
			f.value(&l)
			r.lifs[40960] = l
			r.forget()
			require.NoError(t, f.same(r))
			require.Equal(t, []string{"read", "update", "read"}, r.table.log)
			require.Equal(t, wanted(f1), r.lifs[40960])
		})
		t.Run(f.name+" of a port that is not provisioned", func(t *testing.T) {
			r := newRig()
			require.ErrorIs(t, f.set(r), ErrNotProvisioned)
			require.Empty(t, r.table.log)
		})
		for _, tc := range []struct {
			name string
			prep func(*rig)
			want error
			text string
		}{
			{"refused", func(r *rig) { r.refuse = func(uint32) error { return refused } }, ErrRefused,
				"lif: set " + f.name + " of oxp9 (PortF1), LIF 40960: refused by the fast path: rc 1: refused; " + f.stays},
			{"accepted and not done", func(r *rig) { r.lose = true }, ErrMismatch,
				"lif: set " + f.name + ": read back of oxp9 (PortF1), LIF 40960: read-back differs: " + f.differ + "; " + f.stays},
			{"the channel fails", func(r *rig) { r.table.fail = channel }, channel,
				"lif: set " + f.name + " of oxp9 (PortF1), LIF 40960: card is gone; " + f.stays},
		} {
			t.Run(f.name+", "+tc.name, func(t *testing.T) {
				r := provisioned(t, f1)
				tc.prep(r)
				err := f.set(r)
				require.ErrorIs(t, err, tc.want)
				require.EqualError(t, err, tc.text)
				var e *Error
				require.ErrorAs(t, err, &e)
				require.Equal(t, f.mask, e.Field)
				require.Equal(t, wanted(f1), e.Stays)
				require.Equal(t, wanted(f1), r.State(f1).Want)
				require.Zero(t, f.count(r.Stats()))
				require.Equal(t, 1, strings.Count(r.lines.String(), "level=WARN"))
			})
		}
	}
}

func TestSetModeTakesL2AndL3Alone(t *testing.T) {
	r := provisioned(t, f1)
	for _, mode := range []uint8{msg.FwdFree, msg.FwdBoth, 4, 255} {
		require.ErrorIs(t, r.SetMode(bg, f1, mode), ErrBadMode, "%d", mode)
	}
	require.Empty(t, r.table.log)
}

func TestSetMACRefusesAddresses(t *testing.T) {
	r := provisioned(t, port1, f1)
	require.ErrorIs(t, r.SetMAC(bg, f1, [6]byte{}), ErrBadMAC)
	require.ErrorIs(t, r.SetMAC(bg, f1, [6]byte{3, 1, 1, 1, 1, 1}), ErrBadMAC)
	require.EqualError(t, r.SetMAC(bg, f1, mac(port1)),
		"lif: set mac of oxp9 (PortF1): another port has that MAC address: 020000000002 is wanted by oxp1 (Port1)")
	require.Empty(t, r.table.log)

	next := [6]byte{2, 0, 0, 0, 0, 0x77}
	require.NoError(t, r.SetMAC(bg, port1, next))
	require.NoError(t, r.SetMAC(bg, f1, mac(port1)), "an address that was given up is free")
	r.refuse = func(uint32) error { return refused }
	require.ErrorIs(t, r.SetMAC(bg, port1, [6]byte{2, 9}), ErrRefused)
	r.refuse = nil
	require.ErrorIs(t, r.SetMAC(bg, f1, next), ErrMACInUse, "the old one stays, so it is kept")
	require.NoError(t, r.SetMAC(bg, f1, [6]byte{2, 9}), "and the new one is not")
}

// While one port is on its way to an address, no other gets it.
func TestAnAddressOnItsWayIsTaken(t *testing.T) {
	r := provisioned(t, port1, f1)
	next := [6]byte{2, 0, 0, 0, 0, 0x77}
	r.busy = make(chan struct{})
	first := make(chan error)
	go func() { first <- r.SetMAC(bg, port1, next) }()
	r.waitInside(0)
	require.ErrorIs(t, r.SetMAC(bg, f1, next), ErrMACInUse)
	require.ErrorIs(t, r.Provision(bg, f1, next), ErrMACInUse)
	r.busy <- struct{}{}
	require.NoError(t, <-first)
}

// A port that is provisioned again gets the address, and keeps what was set.
func TestProvisionKeepsModeAndMTU(t *testing.T) {
	r := provisioned(t, f1)
	require.NoError(t, r.SetMode(bg, f1, msg.FwdL2))
	require.NoError(t, r.SetMTU(bg, f1, 9000))
	next := [6]byte{2, 0, 0, 0, 0, 0x77}
	clear(r.lifs)
	require.NoError(t, r.Provision(bg, f1, next))
	require.Equal(t, msg.LIF{MAC: next, MTU: 9000, Fwd: msg.FwdL2}, r.lifs[40960])
	require.Equal(t, r.lifs[40960], r.State(f1).Want)
}

// An entry that had been there and is absent tells that the fast path restarted.
func TestLostEntriesAreCounted(t *testing.T) {
	r := provisioned(t, f1)
	require.Zero(t, r.State(f1).Lost, "a first creation is no loss")
	for n := uint64(1); n <= 3; n++ {
		clear(r.lifs)
		changed, err := r.Reconcile(bg, f1)
		require.NoError(t, err)
		require.True(t, changed)
		require.Equal(t, n, r.State(f1).Lost)
		_, err = r.Reconcile(bg, f1)
		require.NoError(t, err)
		require.Equal(t, n, r.State(f1).Lost)
	}
	t.Run("once, however long it stays away", func(t *testing.T) {
		r := provisioned(t, f1)
		clear(r.lifs)
		r.lose = true
		for range 3 {
			_, err := r.Reconcile(bg, f1)
			require.ErrorIs(t, err, ErrMismatch)
			r.clock.add(time.Minute)
		}
		require.Equal(t, uint64(1), r.State(f1).Lost)
	})
	t.Run("also when a change finds it", func(t *testing.T) {
		r := provisioned(t, f1)
		clear(r.lifs)
		require.ErrorIs(t, r.SetMTU(bg, f1, 1500), ErrRefused)
		require.Equal(t, uint64(1), r.State(f1).Lost)
	})
}

func TestFieldsOutsideTheMaskCarryWhatTheEntryHolds(t *testing.T) {
	r := provisioned(t, f1)
	l := r.lifs[40960]
	l.Representor = 4095
	r.lifs[40960] = l
	m := New(Config{Table: r.table, Clock: r.clock})
	require.NoError(t, m.Provision(bg, f1, mac(f1)))
	require.NoError(t, m.SetMTU(bg, f1, 2000))
	l.MTU = 2000
	require.Equal(t, l, r.updates[len(r.updates)-1].LIF)

	l.DF = true // which is not wanted, and nobody can set
	r.lifs[40960] = l
	_, err := m.Reconcile(bg, f1)
	require.NoError(t, err)
	require.NoError(t, m.SetMTU(bg, f1, 3000))
	l.MTU = 3000
	require.Equal(t, l, r.updates[len(r.updates)-1].LIF)
}

func TestContextEndsTheWaitForAPort(t *testing.T) {
	r := provisioned(t, port1, f1)
	r.busy = make(chan struct{})
	first := make(chan error)
	go func() { first <- r.SetMTU(bg, port1, 9000) }()
	r.waitInside(0)
	ctx, cancel := context.WithCancel(bg)
	second := make(chan error)
	go func() { second <- r.SetMTU(ctx, port1, 2000) }()
	require.Equal(t, uint16(1500), r.State(port1).Want.MTU, "State does not wait")
	cancel()
	require.ErrorIs(t, <-second, context.Canceled)
	require.ErrorIs(t, r.Provision(ctx, port1, mac(port1)), context.Canceled)
	r.busy <- struct{}{}
	require.NoError(t, <-first)
	require.Len(t, r.updates, 1)
}

func TestConcurrentUse(t *testing.T) {
	r := provisioned(t, allPorts()...)
	var wg sync.WaitGroup
	run := func(f func(i int)) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range 200 {
				f(i)
			}
		}()
	}
	for _, p := range board.All() {
		run(func(i int) { _ = r.SetMTU(bg, p, 1400+i) })
		run(func(i int) { _ = r.SetMTU(bg, p, 1400+i) })
		run(func(i int) { _ = r.SetMode(bg, p, msg.FwdL3-uint8(i%2)) })
		run(func(i int) { _ = r.SetMAC(bg, p, [6]byte{2, 1, 0, 0, 0, byte(i)}) })
		run(func(int) { r.State(p).Ready() })
	}
	run(func(int) { _, _ = r.ReconcileAll(bg); r.Stats() })
	run(func(i int) { p := board.ByIndex(i % 12); _ = r.Provision(bg, p, mac(p)) })
	wg.Wait()
	for _, p := range board.All() {
		require.Equal(t, uint16(1599), r.lifs[uint32(p.LIF())].MTU)
		require.Equal(t, uint16(1599), r.State(p).Want.MTU)
	}
	require.Len(t, r.lifs, board.Ports)
}
