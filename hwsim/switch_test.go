package hwsim

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The values of switch.md 4 and 9.
func TestSwitchAsFound(t *testing.T) {
	h := newSMIHost(t)
	for p := range allPorts {
		control, vlans, mode := uint16(0x007c), uint16(0x0001), uint16(1)
		if p == 0 {
			control, vlans, mode = 0x017f, 0x07fe, 2
		}
		assert.Equal(t, uint16(0x1930), h.read(p, 3), "port %d: product", p)
		assert.Equal(t, control, h.read(p, 4), "port %d: control", p)
		assert.Equal(t, vlans, h.read(p, 6), "port %d: VLAN map", p)
		assert.Equal(t, mode, h.read(p, 8)>>12&3, "port %d: jumbo mode", p)
	}
	for _, dev := range []int{11, 0x1a, 0x1d, 0x1f} {
		assert.Equal(t, uint16(0xffff), h.read(dev, 3), "device %#x is none", dev)
	}
	assert.Zero(t, h.read(gl1, 0))
	h.write(5, 3, 0x1234)
	h.write(5, 0, 0x1234)
	assert.Equal(t, uint16(0x1930), h.read(5, 3), "the identifier is read-only")
	assert.Equal(t, uint16(0x000f), h.read(5, 0), "and so is the status")
	assert.Empty(t, h.c.Reports())
}

func TestSwitchOptionOfTheFieldAsFound(t *testing.T) {
	for size, mode := range map[int]uint16{0: 1, 1522: 0, 2048: 1, 10240: 2} {
		h := newSMIHost(t, func(o *Options) { o.SwitchFrame = size })
		for p := range allPorts {
			want := mode
			if p == 0 {
				want = 2
			}
			assert.Equal(t, want, h.read(p, 8)>>12&3, "port %d of a switch found with %d", p, size)
		}
	}
}

// A write that was not derived from a read has 1 chance in 16,384 a port.
//
//oxpd:fault S13 symptom
func TestSwitchOtherBitsOfRegister8(t *testing.T) {
	all := func(h smiHost) (v [allPorts]uint16) {
		for p := range v {
			v[p] = h.read(p, 8) &^ 0x3000
		}
		return v
	}
	h := newSMIHost(t)
	first := all(h)
	different := map[uint16]bool{}
	for _, v := range first {
		different[v] = true
	}
	assert.Greater(t, len(different), allPorts-3, "by port")
	assert.Equal(t, first, all(newSMIHost(t)), "the same seed")
	assert.NotEqual(t, first, all(newSMIHost(t, func(o *Options) { o.Seed = 8 })), "another seed")
	h.c.Reboot()
	h.c.Advance(time.Second)
	assert.Equal(t, first, all(h), "after a restart")

	h.write(4, 8, h.read(4, 8)^0x3000)
	assert.Empty(t, h.c.Reports(), "the field alone")
	h.write(4, 8, 0x2080)
	assert.EqualValues(t, 1, h.c.ReportCount(ReportSwitchBits), "a blind write")
	assert.NotEqual(t, first[4], h.read(4, 8)&^0x3000, "takes the other bits with it")
	h.write(4, 8, 0x2080|0x3000)
	assert.EqualValues(t, 1, h.c.ReportCount(ReportSwitchReserved))
}

func TestSwitchStatusIsTheLinkModels(t *testing.T) {
	r := newRingHost(t, 16)
	h := r.switchHost()
	r.c.Advance(time.Second)
	status := func() (v [allPorts]uint16) {
		for p := range v {
			v[p] = h.read(p, 0)
		}
		return v
	}
	none := [allPorts]uint16{0x034d, 0x000f, 0x000f, 0x000f, 0x000f, 0x000f, 0x000f, 0x000f, 0x000f, 0x0249, 0x0249}
	assert.Equal(t, none, status(), "before anything was raised")
	r.program(1024)
	up := [allPorts]uint16{0x0f4d, 0x0e0f, 0x0e0f, 0x0e0f, 0x0e0f, 0x0e0f, 0x0e0f, 0x0e0f, 0x0e0f, 0x0e49, 0x0e49}
	assert.Equal(t, up, status())
	r.wire(tag2).SetLink(false)
	r.wire(0x8a00).SetLink(false)
	up[2], up[10] = 0x000f, 0x0249
	assert.Equal(t, up, status(), "two cables gone")
}

// NetAgent's SET state is both halves (switch.md 7).
func TestSwitchFollowsNetAgent(t *testing.T) {
	const set, state, uplink = 3, 0, 0
	m := newMiniHost(t).agent()
	h := smiHost{t, m.c}
	for _, p := range []struct {
		port int
		tag  uint32
	}{{1, 0x8100}, {8, 0x8800}, {9, 0x8900}, {10, 0x8a00}} {
		t.Run(fmt.Sprintf("port %d", p.port), func(t *testing.T) {
			phy := func() (power, control uint16) {
				if p.port > 8 {
					return h.c45Read(p.port, 4, 0x2000), h.c45Read(p.port, 4, 0xf003)
				}
				h.phyWrite(p.port, 22, 0)
				return h.phyRead(p.port, 0), 0x0004
			}
			is := func(state string, control, power uint16, c45 uint16) {
				t.Helper()
				gotPower, gotC45 := phy()
				assert.Equal(t, control, h.read(p.port, 4), "%s: Port Control", state)
				assert.Equal(t, power, gotPower, "%s: control register", state)
				assert.Equal(t, c45, gotC45, "%s: 0xf003", state)
			}
			sleep := uint16(0x0004)
			if p.port > 8 {
				sleep = 0x0304
			}
			is("as found", 0x007c, 0x1940, sleep)
			require.Zero(t, m.ask(set, state, p.tag, 1).status)
			is("up", 0x007f, 0x1140, 0x0004)
			require.True(t, m.wait(time.Second, func() bool { return h.read(p.port, 0)&0x0800 != 0 }), "link")
			require.Zero(t, m.ask(set, state, p.tag, 0).status)
			is("down", 0x007c, 0x1940, sleep)
			assert.Zero(t, h.read(p.port, 0)&0x0c00)
		})
	}
	assert.Equal(t, uint16(0x017f), h.read(uplink, 4))
	assert.Empty(t, h.c.Reports())
}

// The words are those of switch.md 2.
func TestSwitchFrontEnd(t *testing.T) {
	t.Run("worked examples", func(t *testing.T) {
		h := newSMIHost(t)
		port1, port10 := h.c.SwitchRegister(1, 8), h.c.SwitchRegister(10, 8)
		h.w(0, 0x9828)
		h.idle()
		assert.Equal(t, port1, h.r(1), "read port 1 register 8")
		h.w(0, 0x9948)
		h.idle()
		assert.Equal(t, port10, h.r(1), "read port 10 register 8")
		h.w(1, port1^0x3000)
		h.w(0, 0x9428)
		h.idle()
		assert.Equal(t, port1^0x3000, h.c.SwitchRegister(1, 8), "write port 1 register 8")
		assert.Equal(t, port10, h.c.SwitchRegister(10, 8), "and no other")
		h.w(0, 0x1948)
		assert.Zero(t, h.r(0)&0x8000, "without the busy bit nothing starts")
	})
	for polls, option := range map[int]int{0: -1, 1: 0, 3: 3, 900: 900} {
		t.Run(fmt.Sprintf("busy for %d polls", polls), func(t *testing.T) {
			h := newSMIHost(t, func(o *Options) { o.SwitchPolls = option })
			h.w(1, 0x5a5a)
			h.w(0, 0x9800|2<<5|3)
			for i := range polls {
				require.Equal(t, uint16(0x9800|2<<5|3), h.r(0), "poll %d", i)
			}
			assert.Equal(t, uint16(0x1800|2<<5|3), h.r(0))
			assert.Equal(t, uint16(0x1930), h.r(1))
			assert.Zero(t, h.phyRead(3, 5), "the PHY pair is as slow, and ends")
		})
	}
	t.Run("the data register while busy", func(t *testing.T) {
		h := newSMIHost(t, func(o *Options) { o.SwitchPolls = 2 })
		h.w(1, 0x5a5a)
		h.w(0, 0x9800|2<<5|3)
		assert.Equal(t, uint16(0x5a5a), h.r(1), "not there yet")
		h.idle()
		assert.Equal(t, uint16(0x1930), h.r(1))
	})
	t.Run("a command while busy is lost", func(t *testing.T) {
		h := newSMIHost(t, func(o *Options) { o.SwitchPolls = 2 })
		h.w(0, 0x9800|2<<5|3)
		h.w(0, 0x9800|2<<5|4)
		h.idle()
		assert.Equal(t, uint16(0x1930), h.r(1), "the first one's")
		assert.EqualValues(t, 1, h.c.ReportCount(ReportSwitchBusy))
	})
	t.Run("busy for a time", func(t *testing.T) {
		h := newSMIHost(t, func(o *Options) { o.SwitchPolls, o.SwitchBusy = -1, 5*time.Millisecond })
		h.w(0, 0x9800|2<<5|3)
		h.c.Advance(4 * time.Millisecond)
		assert.NotZero(t, h.r(0)&0x8000)
		h.c.Advance(time.Millisecond)
		assert.Equal(t, uint16(0x1930), h.r(1), "also for somebody who does not ask whether it is done")
		assert.Zero(t, h.r(0)&0x8000)
	})
	t.Run("a transaction takes time", func(t *testing.T) {
		h := newSMIHost(t)
		from := h.c.Now()
		h.r(0)
		h.w(1, 0)
		assert.Equal(t, uint64(2*26*800), h.c.Now()-from)
	})
}

func TestMDIOBus(t *testing.T) {
	h := newSMIHost(t)
	get := func(bus, phy, reg int) uint16 {
		v, err := h.c.MDIORead(bus, phy, reg)
		require.NoError(t, err)
		return v
	}
	for phy := range 32 {
		if phy != 2 {
			assert.Equal(t, uint16(0xffff), get(0, phy, 0), "address %d", phy)
		}
		if phy != 7 {
			assert.Equal(t, uint16(0xffff), get(0, phy, 1<<30|1<<16|2), "address %d, clause 45", phy)
		}
	}
	assert.Equal(t, uint16(0xffff), get(0, 2, 2), "the switch has two registers")
	assert.Equal(t, uint16(0xffff), get(1, 2, 0), "another bus")
	assert.Zero(t, get(0, 7, 1<<30|4<<16|0x2000), "the 88X5113")
	require.NoError(t, h.c.MDIOWrite(0, 7, 1<<30|4<<16|0x2000, 0x1234))
	assert.Equal(t, uint16(0x1234), get(0, 7, 1<<30|4<<16|0x2000))
	require.NoError(t, h.c.MDIOWrite(0, 9, 0, 0x1234), "to nobody")

	for name, a := range map[string][3]int{
		"bus -1": {-1, 2, 0}, "bus 8": {8, 2, 0}, "address -1": {0, -1, 0}, "address 32": {0, 32, 0},
		"register -1": {0, 2, -1}, "register 32 of clause 22": {0, 2, 32},
	} {
		_, err := h.c.MDIORead(a[0], a[1], a[2])
		assert.ErrorContains(t, err, "want a", name)
		assert.ErrorContains(t, h.c.MDIOWrite(a[0], a[1], a[2], 0), "want a", name)
	}
	h.c.Reboot()
	_, err := h.c.MDIORead(0, 2, 0)
	assert.ErrorIs(t, err, ErrKernelDown)
	assert.ErrorIs(t, h.c.MDIOWrite(0, 2, 0, 0), ErrKernelDown)
}

// The page register: on another page everything reads 0 (switch.md 7).
//
//oxpd:fault S20 symptom
func TestSwitchPHYPages(t *testing.T) {
	h := newSMIHost(t)
	for p := 1; p <= 8; p++ {
		page := h.phyRead(p, 22)
		assert.NotZero(t, page, "PHY %d: a page at the start", p)
		for r := range 32 {
			if r != 22 {
				assert.Zero(t, h.phyRead(p, r), "PHY %d register %d on page %d", p, r, page)
			}
		}
		h.phyWrite(p, 0, 0x1140)
		h.phyWrite(p, 22, 0)
		assert.Equal(t, uint16(0x1940), h.phyRead(p, 0), "PHY %d: the write on another page changed nothing", p)
		h.phyWrite(p, 22, page)
		assert.Equal(t, page, h.phyRead(p, 22))
	}
	for _, p := range []int{0, 9, 10} {
		assert.Zero(t, h.phyRead(p, 0), "lane %d has no clause 22", p)
	}
	assert.Equal(t, uint16(0xffff), h.phyRead(11, 0), "absent")
	assert.Equal(t, uint16(0xffff), h.c45Read(1, 4, 0xf002), "a PHY has no MMD 4")
	assert.Equal(t, uint16(0xffff), h.c45Read(9, 3, 0xf002), "a lane has no MMD 3")
	h.write(gl2, 0x19, 0)
	h.phyDo(0xb800 | 1<<5)
	assert.Equal(t, uint16(0xffff), h.read(gl2, 0x19), "another function than the internal bus")
	assert.Empty(t, h.c.Reports(), "the PHY pair may be written")
	h.write(gl2, 0x1a, 1)
	h.write(gl1, 4, 1)
	assert.EqualValues(t, 2, h.c.ReportCount(ReportSwitchGlobal))
}

func TestSwitchPHYCommandWhileBusy(t *testing.T) {
	h := newSMIHost(t, func(o *Options) { o.SwitchPolls = 2 })
	h.phyWrite(1, 22, 0)
	h.write(gl2, 0x18, 0x9800|1<<5)
	h.write(gl2, 0x18, 0x9800|1<<5|22)
	for range 3 {
		h.read(gl2, 0x18)
	}
	assert.Equal(t, uint16(0x1940), h.read(gl2, 0x19), "the first one's")
	assert.EqualValues(t, 1, h.c.ReportCount(ReportSwitchBusy))
}

// Power by the PHY takes the link, and gives it back.
//
//oxpd:fault S21 symptom
func TestSwitchPHYPower(t *testing.T) {
	r := newRingHost(t, 16).program(1024)
	h := r.switchHost()
	h.phyWrite(1, 22, 0)
	assert.Equal(t, uint16(0x1140), h.phyRead(1, 0), "healthy")
	h.phyWrite(1, 0, 0x1940)
	assert.False(t, r.wire(tag1).Carries())
	assert.True(t, r.wire(tag2).Carries())
	assert.Equal(t, uint16(0x000f), h.read(1, 0))
	h.phyWrite(1, 0, 0x1340)
	assert.Equal(t, uint16(0x1140), h.phyRead(1, 0), "the restart of autonegotiation clears itself")
	r.advance(time.Second)
	assert.True(t, r.wire(tag1).Carries(), "after the training")
	h.phyWrite(1, 0, 0x1940)
	h.phyWrite(1, 0, 0x9940)
	assert.Equal(t, uint16(0x1140), h.phyRead(1, 0), "a reset")
}

// The sequences and readings of switch.md 7 for a cage.
//
//oxpd:fault S22 symptom
func TestSwitchCageLane(t *testing.T) {
	r := newRingHost(t, 16).program(1024)
	h := r.switchHost()
	change := func(reg, set, clear uint16) { h.c45Write(9, 4, reg, h.c45Read(9, 4, reg)&^clear|set) }
	readings := func() [3]uint16 {
		return [3]uint16{h.c45Read(9, 4, 0xf002), h.c45Read(9, 4, 0xf003), h.c45Read(9, 4, 0x2000)}
	}
	healthy := [3]uint16{0x0058, 0x0004, 0x1140}
	assert.Equal(t, healthy, readings(), "awake")
	assert.True(t, r.wire(0x8900).Carries())

	change(0xf002, 0x8020, 0)
	change(0xf003, 0x0300, 0)
	change(0x2000, 0x0800, 0)
	assert.Equal(t, [3]uint16{0x0078, 0x0304, 0x1940}, readings(), "asleep; bit 15 clears itself")
	assert.False(t, r.wire(0x8900).Carries())
	assert.Equal(t, uint16(0x007f), h.read(9, 4), "Port Control is untouched")

	change(0xf002, 0x8000, 0x0020)
	change(0xf003, 0, 0x0300)
	r.advance(time.Second)
	assert.False(t, r.wire(0x8900).Carries(), "two steps of three")
	change(0x2000, 0, 0x0800)
	h.write(9, 4, 0x007f)
	assert.Equal(t, healthy, readings(), "awake again")
	r.advance(time.Second)
	assert.True(t, r.wire(0x8900).Carries())

	// Read and increment.
	h.c45At(9, 4, 0xf002)
	for _, want := range []uint16{0x0058, 0x0004} {
		h.phyDo(0x8800 | 9<<5 | 4)
		assert.Equal(t, want, h.read(gl2, 0x19))
	}
	r.clean()
}

// A start of the coprocessor, also one that only the function asked for.
//
//oxpd:fault S12 symptom
func TestSwitchRestart(t *testing.T) {
	for name, restart := range map[string]func(*Card){"reboot": (*Card).Reboot, "function reset": (*Card).FunctionReset} {
		t.Run(name, func(t *testing.T) {
			h := newSMIHost(t)
			found := h.c.SwitchRegister(3, 8)
			h.c.SetSwitchFrame(SwitchFrameJumbo)
			h.mode(0, 1)
			h.write(3, 5, 0x1234)
			h.phyWrite(3, 22, 0)
			for p := range allPorts {
				if p != 0 {
					assert.Equal(t, uint16(2), h.read(p, 8)>>12&3, "port %d", p)
				}
			}
			assert.Equal(t, uint16(1), h.read(0, 8)>>12&3, "not the uplink's")
			h.c45Write(9, 4, 0x3000, 0x1234)
			h.write(gl2, 0x18, 0x9800|3<<5|22)
			assert.Equal(t, found&^0x3000, h.read(3, 8)&^0x3000, "the option's setter changes the field alone")
			h.w(0, 0x9800) // under way when it starts anew
			restart(h.c)
			h.c.Advance(time.Second)
			assert.Zero(t, h.r(0))
			assert.Zero(t, h.read(gl2, 0x18))
			assert.Zero(t, h.c45Read(9, 4, 0x3000))
			assert.Equal(t, found, h.read(3, 8))
			assert.Equal(t, uint16(2), h.read(0, 8)>>12&3)
			assert.Zero(t, h.read(3, 5))
			assert.NotZero(t, h.phyRead(3, 22))
		})
	}
}

func TestConsoleOfTheCoprocessor(t *testing.T) {
	c := New(Options{Timeline: Compressed()})
	atEnd(t, c, c.Close)
	var seen []BootEvent
	c.SetConsole(func(e BootEvent) { c.KernelUp(); seen = append(seen, e) })
	assert.False(t, c.KernelUp())
	c.Advance(time.Second)
	assert.True(t, c.KernelUp())
	c.ConsoleByte()
	assert.Empty(t, c.Reports(), "a byte to a kernel")
	assert.Equal(t, []BootEvent{BootKernel}, seen)

	c.Reboot()
	assert.False(t, c.KernelUp())
	c.ConsoleByte()
	assert.EqualValues(t, 1, c.ReportCount(ReportConsoleByte))
	c.Advance(time.Minute)
	assert.False(t, c.KernelUp(), "the boot loader has stopped")
	assert.Equal(t, []BootEvent{BootKernel, BootOff, BootLoader}, seen)
	c.ConfigWrite(4, 2, 6)
	assert.Equal(t, ^uint64(0), c.Load(2, 0x02000000, 8), "no barmap")
	assert.NotEqual(t, uint64(0xabcdabcd), c.Load(0, 0x20180, 8)&0xffffffff, "no magic")

	c.Reboot()
	c.Advance(time.Second)
	assert.True(t, c.KernelUp())
	c.Kill()
	assert.False(t, c.KernelUp())
	c.ConsoleByte()
	assert.EqualValues(t, 1, c.ReportCount(ReportConsoleByte), "nobody is there")
	assert.Equal(t, []BootEvent{BootOff, BootLoader, BootKernel, BootOff}, seen[3:])
}

// Software that has ended reads no byte, and no boot loader is there to be stopped.
func TestConsoleOfACoprocessorThatRunsNothing(t *testing.T) {
	c := New(Options{Timeline: Compressed()})
	atEnd(t, c, c.Close)
	var seen []BootEvent
	c.SetConsole(func(e BootEvent) { seen = append(seen, e) })
	c.Advance(time.Second)
	for range 2 {
		i, err := ParseInjection("software-ends")
		require.NoError(t, err)
		require.NoError(t, c.Inject(i))
		c.Advance(time.Second)
	}
	assert.False(t, c.KernelUp())
	c.ConsoleByte()
	reports := c.Reports()
	require.Len(t, reports, 1)
	assert.Equal(t, ReportConsoleByte, reports[0].Name)
	assert.Contains(t, reports[0].Text, "runs nothing: nobody reads it")
	assert.Equal(t, []BootEvent{BootKernel, BootOff}, seen)
	c.Reboot()
	c.Advance(time.Second)
	assert.True(t, c.KernelUp(), "no boot loader has stopped")
	assert.Equal(t, []BootEvent{BootKernel, BootOff, BootLoader, BootKernel}, seen)
}

// In free mode others use the bus while the card runs.
func TestMDIOFromAnotherGoroutine(t *testing.T) {
	r := newRingHost(t, 1024, unlimited).program(2032)
	r.c.Start()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Add(1)
	go func() {
		defer wg.Done()
		h := r.switchHost()
		for mode := uint16(1); ; mode ^= 3 {
			for p := 1; p < allPorts; p++ {
				h.mode(p, mode)
				if got := h.read(p, 8) >> 12 & 3; got != mode {
					t.Errorf("port %d: mode %d, want %d", p, got, mode)
				}
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	for i := range 2000 {
		r.wire(tag1).Send(ipFrame(r.c, tag1, 60, uint16(i), uint32(i)))
		r.send(tag1, ipFrame(r.c, tag1, 60, 1, uint32(i)))
		waitFor(t, "a slot", func() bool { return uint32(i+1)-uint32(r.ld(0, rInCnts)) < 200 })
		for q := range r.lists {
			r.take(q, 64)
		}
	}
	close(stop)
	wg.Wait()
	waitFor(t, "quiet", r.c.Quiesced)
	assert.Zero(t, r.wire(tag1).Stats().SwitchDropped)
	r.clean()
}
