package hwsim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func powered(t *testing.T, change ...func(*Options)) *Card {
	o := Options{Timeline: Compressed()}
	for _, f := range change {
		f(&o)
	}
	c := New(o)
	t.Cleanup(c.Close)
	c.ConfigWrite(0x04, 2, 0x0006)
	return c
}

func TestResetValues(t *testing.T) {
	// endpoint.md 1, 5.1, 5.2, transcribed.
	global := map[uint64]uint64{0x20180: 0, 0x20190: 0x400000, 0x28100: 0, 0x20140: 0, 0x2c050: 0}
	ring := map[int]uint64{
		0x000: 0x14000000, 0x010: 0, 0x020: 0, 0x030: 0, 0x040: 0, 0x060: 0, 0x080: 0, 0x090: 0,
		0x100: 0x2000000000000000, 0x110: 0, 0x120: 0, 0x130: 16, 0x140: 0, 0x150: 0x1000000000, 0x160: 0, 0x170: 0, 0x180: 0, 0x190: 0,
		0x500: 0,
	}
	c := powered(t)
	for off, want := range global {
		assert.Equal(t, want, c.Load(0, off, 8), "BAR0+%#x", off)
	}
	for q := 0; q < 64; q++ {
		for off, want := range ring {
			assert.Equal(t, want, c.Load(0, ringReg(q, off), 8), "ring %d +%#x", q, off)
		}
	}
	assert.Empty(t, c.Reports())
}

func TestConfigSpace(t *testing.T) {
	c := New(Options{Timeline: Compressed()})
	defer c.Close()
	assert.EqualValues(t, 0xa300177d, c.ConfigRead(0, 4))
	assert.EqualValues(t, 0x0b800001, c.ConfigRead(8, 4))
	assert.EqualValues(t, 0x40, c.ConfigRead(0x34, 1))
	assert.EqualValues(t, 0x7001, c.ConfigRead(0x40, 2), "power management, then PCI Express where the record has it")

	t.Run("bars answer sizing and keep their kind", func(t *testing.T) {
		for bar, size := range map[int]uint64{0: 8 << 20, 2: 64 << 20, 4: 1 << 20} {
			off := 0x10 + 4*bar
			was := c.ConfigRead(off, 4)
			c.ConfigWrite(off, 4, 0xffffffff)
			c.ConfigWrite(off+4, 4, 0xffffffff)
			mask := uint64(c.ConfigRead(off+4, 4))<<32 | uint64(c.ConfigRead(off, 4)&^0xf)
			assert.Equal(t, size, -mask, "BAR%d", bar)
			assert.EqualValues(t, 4, c.ConfigRead(off, 4)&0xf, "BAR%d is 64 bits wide", bar)
			c.ConfigWrite(off, 4, was)
			c.ConfigWrite(off+4, 4, 0)
			assert.Equal(t, was, c.ConfigRead(off, 4))
		}
	})
	t.Run("capabilities", func(t *testing.T) {
		msix := 0
		for p := c.ConfigRead(0x34, 1); p != 0; p = c.ConfigRead(int(p)+1, 1) {
			if c.ConfigRead(int(p), 1) == 0x11 {
				msix = int(p)
			}
		}
		require.NotZero(t, msix)
		assert.EqualValues(t, 79, c.ConfigRead(msix+2, 2)&0x7ff, "80 vectors")
		assert.EqualValues(t, 0, c.ConfigRead(msix+4, 4), "table in BAR0 at 0")
		assert.EqualValues(t, 0x4000, c.ConfigRead(msix+8, 4))
		assert.NotZero(t, c.ConfigRead(0x74, 4)&(1<<28), "function level reset")
	})
	t.Run("ids are read-only", func(t *testing.T) {
		c.ConfigWrite(0, 4, 0)
		assert.EqualValues(t, 0xa300177d, c.ConfigRead(0, 4))
	})
	t.Run("command has memory and bus master bits only where they belong", func(t *testing.T) {
		c.ConfigWrite(4, 2, 0xffff)
		assert.EqualValues(t, 0x0546, c.ConfigRead(4, 2))
	})
	t.Run("unaligned access is reported", func(t *testing.T) {
		assert.EqualValues(t, 0xffffffff, c.ConfigRead(1, 2))
		assert.EqualValues(t, 1, c.ReportCount(ReportBadWidth))
	})
}

func TestDecodingOff(t *testing.T) {
	c := New(Options{Timeline: Compressed()})
	defer c.Close()
	assert.Equal(t, ^uint64(0), c.Load(0, 0x20190, 8))
	assert.EqualValues(t, 1, c.ReportCount(ReportDecodeOff))
	c.ConfigWrite(4, 2, 2)
	assert.EqualValues(t, 0x400000, c.Load(0, 0x20190, 8))
}

func TestRegisterWrites(t *testing.T) {
	type step struct {
		off   uint64
		width int
		v     uint64
	}
	w := func(off uint64, v uint64) step { return step{off, 8, v} }
	r := func(q, off int) uint64 { return ringReg(q, off) }
	tests := map[string]struct {
		do     []step
		read   uint64
		want   uint64
		report string
	}{
		"IDLE is read-only":                        {do: []step{w(r(3, rInControl), 0x07000002)}, read: r(3, rInControl), want: 0x17000002},
		"output IDLE is read-only":                 {do: []step{w(r(3, rOutControl), 0x04000642)}, read: r(3, rOutControl), want: 0x1004000642},
		"RSIZE 0 reads 16":                         {do: []step{w(r(0, rOutRsize), 1024), w(r(0, rOutRsize), 0)}, read: r(0, rOutRsize), want: 16},
		"RSIZE not a multiple of 16":               {do: []step{w(r(0, rOutRsize), 1000)}, read: r(0, rOutRsize), want: 992, report: ReportRsize},
		"doorbell of a disabled IN ring adds":      {do: []step{{r(0, rInDBell), 4, 5}, {r(0, rInDBell), 4, 7}}, read: r(0, rInDBell), want: 12, report: ReportINOverrun},
		"doorbell of a disabled IN ring drains":    {do: []step{{r(0, rInDBell), 4, 5}, {r(0, rInDBell), 4, 0xffffffff}}, read: r(0, rInDBell), want: 0, report: ReportINOverrun},
		"credit of a disabled OUT ring adds":       {do: []step{{r(0, rOutDBell), 4, 5}, w(r(0, rOutDBell), 7)}, read: r(0, rOutDBell), want: 12},
		"credit of a disabled OUT ring drains":     {do: []step{{r(0, rOutDBell), 4, 5}, {r(0, rOutDBell), 4, 0xffffffff}}, read: r(0, rOutDBell), want: 0},
		"count never goes below 0":                 {do: []step{{r(0, rOutCnts), 4, 9}}, read: r(0, rOutCnts), want: 0x2000000000000000, report: ReportAckAbove},
		"SDP_SCRATCH is storage":                   {do: []step{w(0x20180, 0x11223344)}, read: 0x20180, want: 0x11223344, report: ReportScratch},
		"RINFO: RPVF and NVFS only":                {do: []step{w(0x20190, ^uint64(0))}, read: 0x20190, want: 0x007f001f00400000},
		"RINFO: bits can go":                       {do: []step{w(0x20190, 0x0008000100400000), w(0x20190, 0x400000)}, read: 0x20190, want: 0x400000},
		"W1S sets the status":                      {do: []step{w(0x20150, 6)}, read: 0x20140, want: 6},
		"W1C clears what is written":               {do: []step{w(0x20150, 6), w(0x20140, 2)}, read: 0x20140, want: 4},
		"enables":                                  {do: []step{w(0x28550, 0xff), w(0x28540, 0x0f)}, read: 0x28550, want: 0xf0},
		"enables of another group stay":            {do: []step{w(0x28550, 0xff)}, read: 0x28430, want: 0},
		"32-bit store to half a register":          {do: []step{w(r(1, rInBaddr), 0x1_2345_0000), {r(1, rInBaddr) + 4, 4, 7}}, read: r(1, rInBaddr), want: 0x7_2345_0000, report: ReportNarrowStore},
		"BADDR of an enabled ring":                 {do: []step{w(r(1, rOutEnable), 1), w(r(1, rOutBaddr), 4096)}, read: r(1, rOutBaddr), want: 4096, report: ReportBaddrEnabled},
		"RSIZE of an enabled IN ring":              {do: []step{w(r(1, rInEnable), 1), w(r(1, rInRsize), 512)}, read: r(1, rInRsize), want: 512, report: ReportRsizeEnabled},
		"RSIZE of an enabled OUT ring":             {do: []step{w(r(1, rOutEnable), 1), w(r(1, rOutRsize), 512)}, read: r(1, rOutRsize), want: 512, report: ReportRsizeEnabled},
		"RSIZE of a disabled ring":                 {do: []step{w(r(1, rOutRsize), 512), w(r(1, rInRsize), 512)}, read: r(1, rOutRsize), want: 512},
		"window registers in halves":               {do: []step{{0x2c000, 4, 1}, {0x2c004, 4, 2}}, read: 0x2c000, want: 0x2_0000_0001},
		"read-only register":                       {do: []step{w(0x2c050, 9)}, read: 0x2c050, want: 0, report: ReportReadOnly},
		"no register there":                        {do: []step{w(0x20040, 9)}, read: 0x20190, want: 0x400000, report: ReportUnmappedBAR},
		"PKT_CNT ignores a value that is not 0":    {do: []step{w(r(0, rOutPkt), 9)}, read: r(0, rOutPkt), want: 0},
		"drain value to an enabled ring is credit": {do: []step{w(r(1, rOutEnable), 1), {r(1, rOutDBell), 4, 0xffffffff}}, read: r(1, rOutDBell), want: 0xffffffff, report: ReportDrainEnabled},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := powered(t)
			for _, s := range tc.do {
				c.Store(0, s.off, s.width, s.v)
			}
			assert.Equal(t, tc.want, c.Load(0, tc.read, 8))
			if tc.report == "" {
				assert.Empty(t, c.Reports())
			} else {
				assert.NotZero(t, c.ReportCount(tc.report), "%v", c.Reports())
			}
		})
	}
}

func TestChoicesOfRegisters(t *testing.T) {
	t.Run("4: drain value to an enabled ring as a huge grant", func(t *testing.T) {
		h := newRingHost(t, 1024, func(o *Options) { o.Choices.DrainIsGrant = true })
		h.programOut(0)
		h.st32(0, rOutDBell, 0xffffffff)
		assert.Greater(t, h.c.RingState(0).Credit, int64(1<<31))
	})
	t.Run("9: RINFO bits can only be added", func(t *testing.T) {
		c := powered(t, func(o *Options) { o.Choices.RInfoSetOnly = true })
		c.Store(0, 0x20190, 8, 0x0008000100400000)
		c.Store(0, 0x20190, 8, 0)
		assert.EqualValues(t, 0x0008000100400000, c.Load(0, 0x20190, 8))
	})
	t.Run("17: a function reset boots the coprocessor", func(t *testing.T) {
		c := powered(t)
		c.Store(0, ringReg(0, rOutRsize), 8, 1024)
		c.ConfigWrite(0x78, 2, 1<<15)
		assert.Zero(t, c.ConfigRead(4, 2), "bus mastering and decoding are off")
		c.ConfigWrite(4, 2, 6)
		assert.EqualValues(t, 16, c.Load(0, ringReg(0, rOutRsize), 8))
	})
	t.Run("17: or keeps the rings", func(t *testing.T) {
		c := powered(t, func(o *Options) { o.Choices.FLRKeepsRings = true })
		c.Store(0, ringReg(0, rOutRsize), 8, 1024)
		c.ConfigWrite(0x78, 2, 1<<15)
		c.ConfigWrite(4, 2, 6)
		assert.EqualValues(t, 1024, c.Load(0, ringReg(0, rOutRsize), 8))
	})
}

func TestWidths(t *testing.T) {
	c := powered(t)
	for name, do := range map[string]func(){
		"one byte":        func() { assert.Equal(t, ^uint64(0), c.Load(0, 0x20190, 1)) },
		"two bytes":       func() { c.Store(0, 0x20180, 2, 1) },
		"unaligned":       func() { c.Load(0, 0x20192, 4) },
		"past the end":    func() { c.Load(0, 8<<20, 8) },
		"no such BAR":     func() { c.Load(1, 0, 4) },
		"BAR2, one byte":  func() { c.Load(2, 0x02000000, 1) },
		"crossing a word": func() { c.Load(0, 0x20194, 8) },
	} {
		t.Run(name, func(t *testing.T) {
			c.ResetReports()
			do()
			assert.EqualValues(t, 1, c.ReportCount(ReportBadWidth))
		})
	}
	assert.EqualValues(t, 0x00400000, c.Load(0, 0x20190, 4), "lower half")
	assert.EqualValues(t, 0, c.Load(0, 0x20194, 4), "upper half")
}

func TestBAR2(t *testing.T) {
	c := powered(t, func(o *Options) { o.Timeline.Kernel = time.Hour })
	assert.Equal(t, ^uint64(0), c.Load(2, 0, 8), "entry 0")
	assert.Equal(t, ^uint64(0), c.Load(2, 0x01fffff8, 8), "entry 7")
	assert.Equal(t, ^uint64(0), c.Load(2, 0x02000000, 8), "a window before the target has mapped it")
	assert.Empty(t, c.Reports())
	for name, off := range map[string]uint64{"entry 9": 0x02400000, "entry 14": 0x03bffff8, "doorbell": 0x03c00040, "last word": 0x03fffff8} {
		c.ResetReports()
		assert.Equal(t, ^uint64(0), c.Load(2, off, 8), name)
		assert.EqualValues(t, 1, c.ReportCount(ReportForbiddenRead), name)
	}
	c.ResetReports()
	c.Store(2, 0x03c00040, 4, 155)
	c.Store(2, 0x03c00040, 4, 155)
	c.Store(2, 0x03c00040, 4, 154)
	assert.Empty(t, c.Reports())
	assert.Equal(t, map[uint32]uint64{155: 2, 154: 1}, c.Doorbells())
	c.Store(2, 0x03c00044, 4, 155)
	c.Store(2, 0x03c00040, 8, 155)
	assert.EqualValues(t, 2, c.ReportCount(ReportForbiddenPut))
}

func TestForbiddenReadCanStall(t *testing.T) {
	c := powered(t, func(o *Options) { o.Choices.StallForbidden = true })
	done := make(chan struct{})
	go func() {
		c.Load(2, 0x03c00040, 4)
		close(done)
	}()
	for c.ReportCount(ReportForbiddenRead) == 0 {
		time.Sleep(time.Millisecond)
	}
	select {
	case <-done:
		t.Fatal("the read completed")
	default:
	}
	c.Close()
	<-done
}

func TestGone(t *testing.T) {
	for name, lose := range map[string]func(c *Card){
		"killed": (*Card).Kill,
		"fault":  func(c *Card) { c.Faults(func(f *Faults) { f.Gone = true }) },
	} {
		t.Run(name, func(t *testing.T) {
			c := powered(t)
			lose(c)
			assert.EqualValues(t, 0xffff, c.ConfigRead(0, 2)&0xffff)
			assert.Equal(t, ^uint64(0), c.Load(0, 0x20190, 8))
			assert.EqualValues(t, 0xffffffff, c.Load(2, 0x02000000, 4))
			c.Store(0, 0x20180, 8, 1)
			assert.Empty(t, c.Reports())
			c.Faults(func(f *Faults) { f.Gone = false })
			c.Reboot()
			assert.EqualValues(t, 0xa300177d, c.ConfigRead(0, 4))
		})
	}
}

func TestAccessCounts(t *testing.T) {
	c := powered(t)
	c.ResetAccesses()
	c.Load(0, ringReg(5, rOutCnts), 8)
	c.Load(0, ringReg(5, rOutCnts), 4)
	c.Store(0, ringReg(5, rOutCnts), 4, 0)
	c.Load(0, 0x20180, 8)
	c.Load(2, 0x02300000, 8)
	c.Store(0, 0, 4, 0)
	assert.Equal(t, map[string]AccessCount{
		"OUT_CNTS[5]": {Reads: 2, Reads32: 1, Writes: 1, Writes32: 1},
		"SDP_SCRATCH": {Reads: 1},
		"BAR2_RPC":    {Reads: 1},
		"MSIX_TABLE":  {Writes: 1, Writes32: 1},
	}, c.Accesses())
}

func TestAccessesTakeTime(t *testing.T) {
	c := powered(t)
	k := c.Clock()
	at := k.Now()
	c.Load(0, 0x20190, 8)
	// Link, register, link; 24 and 28 bytes at 9.846 a cycle are three cycles each.
	assert.Equal(t, (250+200+250)*time.Nanosecond+durationOf(6), k.Now()-at)
	at = k.Now()
	c.Store(0, 0x20180, 8, 0)
	assert.Equal(t, 100*time.Nanosecond, k.Now()-at)
}

func TestBaddrFaults(t *testing.T) {
	c := powered(t)
	c.Faults(func(f *Faults) { f.IgnoreBaddr[5] = 3; f.NeverIdle = 1 << 6 })
	for i := 0; i < 3; i++ {
		c.Store(0, ringReg(5, rOutBaddr), 8, 4096)
		assert.Zero(t, c.Load(0, ringReg(5, rOutBaddr), 8))
	}
	c.Store(0, ringReg(5, rOutBaddr), 8, 4096)
	assert.EqualValues(t, 4096, c.Load(0, ringReg(5, rOutBaddr), 8))
	assert.Zero(t, c.Load(0, ringReg(6, rInControl), 8)&(1<<28))
	c.Store(0, ringReg(6, rInBaddr), 8, 4096)
	assert.Zero(t, c.Load(0, ringReg(6, rInBaddr), 8), "ignored while not idle")
	assert.EqualValues(t, 1, c.ReportCount(ReportBaddrBusy))
}
