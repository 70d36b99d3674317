package octep

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/mmio"
	"oxpd/octep/csr"
)

func TestOpenIdentity(t *testing.T) {
	tests := []struct {
		name           string
		vendor, device uint32
		want           string // "" is accepted
	}{
		{"the endpoint", 0x177d, 0xa300, ""},
		{"its virtual function", 0x177d, 0xa303, "octep: fake is 177d:a303, a virtual function of the CN83XX endpoint; oxpd drives 177d:a300"},
		{"another Cavium device", 0x177d, 0xb200, "octep: fake is 177d:b200, another device of the same vendor; oxpd drives 177d:a300"},
		{"another vendor's a300", 0x8086, 0xa300, "octep: fake is 8086:a300, not a CN83XX endpoint; oxpd drives 177d:a300"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := newFakeDevice()
			d.cfg[csr.CfgVendor], d.cfg[csr.CfgDevice] = tt.vendor, tt.device
			_, err := Open(context.Background(), d, Config{})
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			var ie *IdentityError
			require.ErrorAs(t, err, &ie)
			assert.EqualError(t, err, tt.want)
			assert.Zero(t, d.cfg[csr.CfgCommand], "a foreign device is not touched")
			assert.Empty(t, d.bar0.log)
		})
	}
	t.Run("in reset: gone without touching a BAR", func(t *testing.T) {
		d := newFakeDevice()
		d.gone()
		_, err := Open(context.Background(), d, Config{})
		require.ErrorIs(t, err, mmio.ErrGone)
		assert.Empty(t, d.bar0.log)
	})
	t.Run("config space cannot be read", func(t *testing.T) {
		d := newFakeDevice()
		d.cfgErr = errors.New("no such device")
		_, err := Open(context.Background(), d, Config{})
		require.ErrorIs(t, err, d.cfgErr)
	})
	t.Run("context has ended", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err := Open(ctx, newFakeDevice(), Config{})
		require.ErrorIs(t, err, context.Canceled)
	})
}

func TestOpenTurnsDecodingOnAndMasteringNot(t *testing.T) {
	d := newFakeDevice()
	d.cfg[csr.CfgCommand] = 0x0400 // interrupts disabled: none of our business
	_, err := Open(context.Background(), d, Config{})
	require.NoError(t, err)
	assert.EqualValues(t, 0x0402, d.cfg[csr.CfgCommand])
}

func TestPutBack(t *testing.T) {
	for _, tc := range []struct {
		name          string
		found, behind uint16
	}{
		{"decoding was off", 0x0400, 0x0400},
		{"decoding was on", 0x0402, 0x0402},
		{"bus mastering is somebody else's", 0x0004, 0x0004},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newFakeDevice()
			d.cfg[csr.CfgCommand] = uint32(tc.found)
			e, err := Open(context.Background(), d, Config{})
			require.NoError(t, err)
			for range 2 {
				require.NoError(t, e.PutBack())
				assert.EqualValues(t, tc.behind, d.cfg[csr.CfgCommand])
			}
		})
	}
	t.Run("gone", func(t *testing.T) {
		d := newFakeDevice()
		e, err := Open(context.Background(), d, Config{})
		require.NoError(t, err)
		d.cfg[csr.CfgCommand] = csr.CfgVendorNone
		require.NoError(t, e.PutBack())
	})
}

func TestOpenRingInfo(t *testing.T) {
	tests := []struct {
		name   string
		rinfo  uint64
		reason string // "" is accepted
	}{
		{"reset value", 0x0000000000400000, ""},
		{"as few rings as are used", 0x0000000000080000, ""},
		{"no rings (CTL-10)", 0, "no rings"},
		{"eight VFs of one ring (CTL-11)", 0x0008000100400000, "virtual functions own the first rings"},
		{"rings per VF left set", 0x0000000100400000, "virtual functions own the first rings"},
		{"VFs without rings", 0x0001000000400000, "virtual functions own the first rings"},
		{"rings from 8", 0x0000000000400008, "do not start at 0"},
		{"seven rings", 0x0000000000070000, "fewer than the 8 rings"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := newFakeDevice()
			d.bar0.set(0x20190, tt.rinfo)
			for range 100 {
				_, err := Open(context.Background(), d, Config{})
				if tt.reason == "" {
					require.NoError(t, err)
					continue
				}
				var re *RingInfoError
				require.ErrorAs(t, err, &re)
				require.ErrorContains(t, err, tt.reason)
				require.ErrorContains(t, err, "SDP_EPF_RINFO[0x20190]")
				require.Zero(t, d.cfg[csr.CfgCommand], "put back, bus master bit 0")
			}
		})
	}
	t.Run("fields (CTL-11)", func(t *testing.T) {
		assert.Equal(t, RingInfo{SRN: 0, TRS: 64, RPVF: 1, NVFS: 8}, DecodeRingInfo(0x0008000100400000))
	})
	t.Run("kept", func(t *testing.T) {
		e, err := Open(context.Background(), newFakeDevice(), Config{})
		require.NoError(t, err)
		assert.Equal(t, RingInfo{TRS: 64}, e.RingInfo())
	})
	t.Run("all ones: gone", func(t *testing.T) {
		d := newFakeDevice()
		d.bar0.set(0x20190, csr.AllOnes)
		_, err := Open(context.Background(), d, Config{})
		require.ErrorIs(t, err, mmio.ErrGone)
		assert.ErrorContains(t, err, "SDP_EPF_RINFO[0x20190]")
	})
	t.Run("refused, but decoding was on before: left on", func(t *testing.T) {
		d := newFakeDevice()
		d.cfg[csr.CfgCommand] = csr.CfgCommandMemory
		d.bar0.set(0x20190, 0)
		_, err := Open(context.Background(), d, Config{})
		require.Error(t, err)
		assert.EqualValues(t, csr.CfgCommandMemory, d.cfg[csr.CfgCommand])
	})
}

func TestSetBusMaster(t *testing.T) {
	d := newFakeDevice()
	d.cfg[csr.CfgCommand] = 0x0402
	writes := 0
	d.onCfgWrite = func(int, uint32) { writes++ }
	require.NoError(t, SetBusMaster(d, true))
	assert.EqualValues(t, 0x0406, d.cfg[csr.CfgCommand])
	require.NoError(t, SetBusMaster(d, true))
	assert.Equal(t, 1, writes, "nothing to change, nothing written")
	require.NoError(t, SetBusMaster(d, false))
	assert.EqualValues(t, 0x0402, d.cfg[csr.CfgCommand])

	t.Run("bit does not stick", func(t *testing.T) {
		d := newFakeDevice()
		d.stuck = csr.CfgCommandBusMaster
		require.ErrorContains(t, SetBusMaster(d, true), "wrote 0x0004, reads 0x0000")
	})
	t.Run("gone: all ones are not written back", func(t *testing.T) {
		d := newFakeDevice()
		d.cfg[csr.CfgCommand] = 0xffff
		d.onCfgWrite = func(int, uint32) { t.Error("written") }
		require.ErrorIs(t, SetBusMaster(d, false), mmio.ErrGone)
	})
	t.Run("config space cannot be read", func(t *testing.T) {
		d := newFakeDevice()
		d.cfgErr = errors.New("no such device")
		require.ErrorIs(t, SetBusMaster(d, true), d.cfgErr)
	})
}

func TestMuteINTx(t *testing.T) {
	for _, tc := range []struct {
		name          string
		before, stuck uint32
		after         uint32
		writes        int
		is            error
	}{
		{"raised by the card", 0x0006, 0, 0x0406, 1, nil},
		{"muted already", 0x0406, 0, 0x0406, 0, nil},
		{"a function without one", 0x0006, csr.CfgCommandNoINTx, 0x0006, 1, nil},
		{"gone: all ones are not written back", 0xffff, 0, 0xffff, 0, mmio.ErrGone},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newFakeDevice()
			d.cfg[csr.CfgCommand], d.stuck = tc.before, tc.stuck
			writes := 0
			d.onCfgWrite = func(int, uint32) { writes++ }
			require.ErrorIs(t, MuteINTx(d), tc.is)
			assert.Equal(t, tc.after, d.cfg[csr.CfgCommand])
			assert.Equal(t, tc.writes, writes)
		})
	}
	t.Run("config space cannot be read", func(t *testing.T) {
		d := newFakeDevice()
		d.cfgErr = errors.New("no such device")
		require.ErrorIs(t, MuteINTx(d), d.cfgErr)
	})
}

func TestAliveAndWatch(t *testing.T) {
	decoding := func() *fakeDevice {
		d := newFakeDevice()
		d.cfg[csr.CfgCommand] = csr.CfgCommandMemory
		return d
	}
	for _, tc := range []struct {
		name  string
		lose  func(d *fakeDevice)
		alive bool
		want  string
	}{
		{"it leaves config space", (*fakeDevice).gone, false, "vendor id of fake"},
		{"a reset between two looks", func(d *fakeDevice) { d.cfg[csr.CfgCommand] = 0 }, true, "it was reset"},
		{"config space cannot be read", func(d *fakeDevice) { d.cfgErr = errors.New("no such device") }, false, "vendor id of fake"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, clk := decoding(), &fakeClock{}
			assert.True(t, Alive(d))
			assert.True(t, Reachable(d))
			clk.after(10*time.Second, func() { tc.lose(d) })
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			clk.after(time.Minute, cancel) // it was not noticed
			err := Watch(ctx, d, clk, 250*time.Millisecond)
			require.ErrorIs(t, err, mmio.ErrGone)
			require.ErrorContains(t, err, tc.want)
			assert.InDelta(t, 10, clk.now.Seconds(), 0.3)
			assert.Equal(t, tc.alive, Alive(d))
			assert.False(t, Reachable(d))
			assert.Empty(t, d.bar0.log, "config space only")
			assert.Empty(t, d.bar2.log)
		})
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, Watch(ctx, decoding(), &fakeClock{}, time.Second), context.Canceled)
}

// TestFence: a fence that is shut hides the card, and no other one.
func TestFence(t *testing.T) {
	d := newFakeDevice()
	old, next := NewFence(d), NewFence(d)
	bars := []mmio.Space{old.BAR0(), old.BAR2()}
	under := []*fakeBAR{d.bar0, d.bar2}
	touch := func(b mmio.Space) (uint32, uint64) {
		b.Store32(0x40, 5)
		b.Store64(0x48, 6)
		return b.Load32(0x40), b.Load64(0x48)
	}
	for i, b := range bars {
		a, c := touch(b)
		assert.EqualValues(t, 5, a)
		assert.EqualValues(t, 6, c)
		assert.Len(t, under[i].log, 4)
		assert.Equal(t, under[i].Size(), b.Size())
	}
	old.Shut()
	for i, b := range append(bars, old.BAR0(), old.BAR2()) {
		a, c := touch(b)
		assert.Equal(t, ^uint32(0), a)
		assert.Equal(t, ^uint64(0), c)
		assert.Len(t, under[i%2].log, 4, "the card sees neither loads nor stores")
	}
	assert.True(t, Alive(old), "config space is the device's")
	a, _ := touch(next.BAR0())
	assert.EqualValues(t, 5, a)
}

// SDP_SCRATCH (endpoint.md 2.1, CTL-2).
func TestDecodeScratch(t *testing.T) {
	tests := []struct {
		name  string
		value uint64
		want  Scratch
		at    uint32
	}{
		{"live value", 0x02000000abcdabcd, ScratchReady, 0x02000000},
		{"magic, pointer 0", 0xabcdabcd, ScratchReady, 0},
		{"magic, pointer all ones", 0xffffffffabcdabcd, ScratchReady, 0xffffffff},
		{"reset", 0, ScratchBooting, 0},
		{"half of the magic", 0x0000abcd, ScratchBooting, 0},
		{"magic less one", 0x02000000abcdabcc, ScratchBooting, 0},
		{"1", 1, ScratchBooting, 0},
		{"2", 2, ScratchBooting, 0},
		{"magic in the upper half", 0xabcdabcd00000000, ScratchBooting, 0},
		{"low half all ones", 0x02000000ffffffff, ScratchBooting, 0},
		{"vendor's note", 0x11223344, ScratchOverwritten, 0},
		{"all ones", csr.AllOnes, ScratchGone, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			state, at := DecodeScratch(tt.value)
			assert.Equal(t, tt.want, state)
			assert.Equal(t, tt.at, at)
			assert.NotEmpty(t, state.String())
		})
	}
}

func TestWaitReadyNotReady(t *testing.T) {
	tests := []struct {
		name     string
		scratch  uint64
		awaiting string
	}{
		{"booting", 0, "magic in SDP_SCRATCH"},
		{"half of the magic", 0x0000abcd, "magic in SDP_SCRATCH"},
		{"magic less one", 0xabcdabcc, "magic in SDP_SCRATCH"},
		{"1", 1, "magic in SDP_SCRATCH"},
		{"vendor's note", 0x11223344, "coprocessor reboot"},
		{"pointer 0 reads all ones (CTL-2)", 0x00000000abcdabcd, "the barmap at BAR2+0x0 (reads all ones)"},
		{"barmap not written", 0x02100000abcdabcd, "the barmap at BAR2+0x2100000 (reads all ones)"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := readyDevice()
			d.scratch(tt.scratch)
			clk := &fakeClock{}
			var stages []string
			e, err := Open(context.Background(), d, Config{Clock: clk, Progress: func(s, a string) { stages = append(stages, s+": "+a) }})
			require.NoError(t, err)
			err = e.WaitReady(context.Background())
			require.ErrorIs(t, err, ErrTimeout)
			var we *WaitError
			require.ErrorAs(t, err, &we)
			assert.Equal(t, StageReady, we.Stage)
			assert.Contains(t, we.Awaiting, tt.awaiting)
			assert.InDelta(t, 120, clk.now.Seconds(), 0.5)
			require.Len(t, stages, 2, "a wait is reported once, not once a look")
			assert.Contains(t, stages[1], tt.awaiting)
			_, err = e.Facility(csr.FacRPC)
			assert.ErrorIs(t, err, ErrNotReady)
		})
	}
}

func TestWaitReadyRefusesAtOnce(t *testing.T) {
	version := func(v uint32) func(d *fakeDevice) {
		return func(d *fakeDevice) { d.bar2.mem[0x02000000] = v }
	}
	scratch := func(v uint64) func(d *fakeDevice) { return func(d *fakeDevice) { d.scratch(v) } }
	tests := []struct {
		name   string
		change func(d *fakeDevice)
		check  func(t *testing.T, err error)
		reads  bool // BAR2 was read at all
	}{
		{"version 3 (CTL-10)", version(3), isVersion(3), true},
		{"version 0", version(0), isVersion(0), true},
		{"version 1.2", version(0x10002), isVersion(0x10002), true},
		{"pointer to the interrupt controller", scratch(0x03c00000abcdabcd), isPointer(0x03c00000), false},
		{"pointer to the last word", scratch(0x03fffffcabcdabcd), isPointer(0x03fffffc), false},
		{"pointer past BAR2", scratch(0x04000000abcdabcd), isPointer(0x04000000), false},
		{"pointer to coprocessor RAM", scratch(0x02800000abcdabcd), isPointer(0x02800000), false},
		{"all ones", scratch(csr.AllOnes), func(t *testing.T, err error) { require.ErrorIs(t, err, mmio.ErrGone) }, false},
		{"config space empty", (*fakeDevice).gone, func(t *testing.T, err error) { require.ErrorIs(t, err, mmio.ErrGone) }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := readyDevice()
			clk := &fakeClock{}
			e, err := Open(context.Background(), d, Config{Clock: clk})
			require.NoError(t, err)
			tt.change(d)
			err = e.WaitReady(context.Background())
			tt.check(t, err)
			assert.Zero(t, clk.now)
			assert.Equal(t, tt.reads, len(d.bar2.log) > 0)
		})
	}
}

func isVersion(v uint32) func(*testing.T, error) {
	return func(t *testing.T, err error) {
		var ve *VersionError
		require.ErrorAs(t, err, &ve)
		assert.Equal(t, v, ve.Version)
	}
}

func isPointer(at uint64) func(*testing.T, error) {
	return func(t *testing.T, err error) {
		var be *BarmapError
		require.ErrorAs(t, err, &be)
		assert.Equal(t, "pointer", be.Field)
		assert.Equal(t, at, be.Value)
	}
}

func TestWaitReadyLate(t *testing.T) {
	d := newFakeDevice()
	clk := &fakeClock{}
	clk.after(30*time.Second, func() { d.scratch(measuredScratch) })
	clk.after(31*time.Second, func() { // half a record: size before offset
		m := measured()
		m.Facility[csr.FacRPC].Offset = 0x03f00000
		d.writeTable(0x02000000, m)
	})
	clk.after(32*time.Second, func() { d.writeTable(0x02000000, measured()) })
	var stages []string
	e, err := Open(context.Background(), d, Config{Clock: clk, Progress: func(s, a string) { stages = append(stages, a) }})
	require.NoError(t, err)
	require.NoError(t, e.WaitReady(context.Background()))
	assert.InDelta(t, 32, clk.now.Seconds(), 0.2)
	require.Len(t, stages, 4)
	assert.Contains(t, stages[1], "magic")
	assert.Contains(t, stages[2], "the barmap at BAR2+0x2000000")
	assert.Contains(t, stages[3], "a sound barmap (rpc size 0x100000")
	assert.Equal(t, measured(), e.Barmap())
	for _, a := range d.bar2.log {
		require.True(t, !a.store && a.off >= 0x02000000 && a.off < 0x0200005c, "%+v", a)
	}
}

func TestWaitReadyBadRecordStays(t *testing.T) {
	d := readyDevice()
	m := measured()
	m.Facility[csr.FacRPC].Offset = 0x03f00000
	d.writeTable(0x02000000, m)
	clk := &fakeClock{}
	e, err := Open(context.Background(), d, Config{Clock: clk})
	require.NoError(t, err)
	err = e.WaitReady(context.Background())
	var be *BarmapError
	require.ErrorAs(t, err, &be)
	assert.Equal(t, "rpc", be.Facility)
	assert.InDelta(t, 2, clk.now.Seconds(), 0.2)
	assert.False(t, e.guard.ok.Load().bell(155), "a refused table allows nothing")
}

func TestBarmapChangesWhileItIsRead(t *testing.T) {
	d := readyDevice()
	n := 0
	d.bar2.onLoad = func(off uint32) {
		if off == 0x02000040 { // rpc's doorbell count
			n++
			d.bar2.mem[off] = uint32(min(n, 5)) // each is possible, 5 is the last
		}
	}
	clk := &fakeClock{}
	e, err := Open(context.Background(), d, Config{Clock: clk})
	require.NoError(t, err)
	require.NoError(t, e.WaitReady(context.Background()))
	assert.EqualValues(t, 5, e.Barmap().Facility[csr.FacRPC].Doorbells)
}

func TestWaitReadyCancelled(t *testing.T) {
	d := newFakeDevice()
	clk := &fakeClock{}
	ctx, cancel := context.WithCancel(context.Background())
	clk.after(time.Second, cancel)
	e, err := Open(ctx, d, Config{Clock: clk})
	require.NoError(t, err)
	err = e.WaitReady(ctx)
	require.ErrorIs(t, err, context.Canceled)
	assert.ErrorContains(t, err, "magic in SDP_SCRATCH", "says what was awaited")
	assert.InDelta(t, 1, clk.now.Seconds(), 0.2)
}

func TestFacilityAppearsLate(t *testing.T) {
	d := readyDevice()
	m := measured()
	m.Facility[csr.FacRPC] = csr.Facility{}
	d.writeTable(0x02000000, m)
	clk := &fakeClock{}
	e := readyEndpoint(t, d, Config{Clock: clk})
	for _, n := range []int{csr.FacRPC, csr.FacUnused, -1, 5} {
		_, err := e.Facility(n)
		require.ErrorIs(t, err, ErrFacilityAbsent, "%d", n)
	}
	clk.after(90*time.Second, func() { d.writeTable(0x02000000, measured()) })
	f, err := e.WaitFacility(context.Background(), csr.FacRPC)
	require.NoError(t, err)
	assert.InDelta(t, 90, clk.now.Seconds(), 0.5)
	require.NoError(t, f.Ring(4))
}

func TestWaitFacilityEnds(t *testing.T) {
	tests := []struct {
		name   string
		change func(d *fakeDevice)
		want   error
		within float64
	}{
		{"never advertised", func(d *fakeDevice) {}, ErrTimeout, 300.5},
		{"target gone, barmap all ones", func(d *fakeDevice) { d.bar2.mem = map[uint32]uint32{} }, ErrTimeout, 300.5},
		{"record mad for good", func(d *fakeDevice) { d.bar2.mem[0x02000044] = 4; d.bar2.mem[0x02000048] = 4 }, ErrTimeout, 300.5},
		{"config space empty", (*fakeDevice).gone, mmio.ErrGone, 0.1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := readyDevice()
			clk := &fakeClock{}
			e := readyEndpoint(t, d, Config{Clock: clk})
			tt.change(d)
			_, err := e.WaitFacility(context.Background(), csr.FacUnused)
			require.ErrorIs(t, err, tt.want)
			assert.LessOrEqual(t, clk.now.Seconds(), tt.within)
		})
	}
	t.Run("no such facility: at once", func(t *testing.T) {
		clk := &fakeClock{}
		e := readyEndpoint(t, readyDevice(), Config{Clock: clk})
		_, err := e.WaitFacility(context.Background(), 5)
		require.ErrorIs(t, err, ErrFacilityAbsent)
		assert.Zero(t, clk.now)
	})
	t.Run("version changes under us: refused", func(t *testing.T) {
		d := readyDevice()
		e := readyEndpoint(t, d, Config{})
		d.bar2.mem[0x02000000] = 3
		_, err := e.WaitFacility(context.Background(), csr.FacRPC)
		isVersion(3)(t, err)
	})
	t.Run("cancelled", func(t *testing.T) {
		clk := &fakeClock{}
		e := readyEndpoint(t, readyDevice(), Config{Clock: clk})
		ctx, cancel := context.WithCancel(context.Background())
		clk.after(time.Second, cancel)
		_, err := e.WaitFacility(ctx, csr.FacUnused)
		require.ErrorIs(t, err, context.Canceled)
	})
}

func TestZeroConfigWorks(t *testing.T) {
	e := readyEndpoint(t, readyDevice(), Config{})
	_, err := e.Facility(csr.FacNWA)
	require.NoError(t, err)
	e, err = Open(context.Background(), readyDevice(), Config{})
	require.NoError(t, err)
	require.NoError(t, e.WaitReady(context.Background()))
}

func ExampleHandshakeError_Hint() {
	err := error(&HandshakeError{Err: ErrHandshakeInFlight, Value: 0xbeefdeed})
	var he *HandshakeError
	if errors.As(err, &he) {
		fmt.Println(err)
		fmt.Println("hint:", he.Hint())
	}
	// Output:
	// octep: handshake: SLI_EPF_SCRATCH[0x28100]=0x00000000beefdeed: an exchange that another program began is in flight
	// hint: stop the other program; if there is none, its exchange is lost and a coprocessor core spins: reboot the coprocessor
}
