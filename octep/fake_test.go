package octep

import (
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"oxpd/internal/board"
	"oxpd/internal/dma"
	"oxpd/internal/mmio"
	"oxpd/octep/csr"
)

// fakeClock is time that moves only while somebody sleeps, and the events that
// fall into it. One goroutine.
type fakeClock struct {
	now    time.Duration
	events []event
	err    error // what Sleep returns from now on
	slept  func()
}

type event struct {
	at time.Duration
	fn func()
}

func (c *fakeClock) Now() time.Duration { return c.now }

func (c *fakeClock) after(d time.Duration, fn func()) {
	c.events = append(c.events, event{c.now + d, fn})
	slices.SortStableFunc(c.events, func(a, b event) int { return int(a.at - b.at) })
}

func (c *fakeClock) Sleep(ctx context.Context, d time.Duration) error {
	if c.slept != nil {
		c.slept()
	}
	if c.err != nil {
		return c.err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	end := c.now + d
	for len(c.events) > 0 && c.events[0].at <= end {
		e := c.events[0]
		c.events = c.events[1:]
		c.now = max(c.now, e.at)
		e.fn()
	}
	c.now = end
	return ctx.Err()
}

// access is one load or store that reached the device.
type access struct {
	store bool
	off   uint32
	width int
	v     uint64
}

// fakeBAR is storage that logs what reaches it. Its hooks see an access first.
type fakeBAR struct {
	mu       sync.Mutex
	size     uint64
	mem      map[uint32]uint32
	fill     uint32 // value of words that were never set
	log      []access
	onLoad   func(off uint32)
	onStore  func(off uint32, v uint64) // before the store takes effect
	onStored func(off uint32, v uint64) // and after
}

func newFakeBAR(size uint64, fill uint32) *fakeBAR {
	return &fakeBAR{size: size, fill: fill, mem: map[uint32]uint32{}}
}

func (b *fakeBAR) Size() uint64 { return b.size }

func (b *fakeBAR) get32(off uint32) uint32 {
	if v, ok := b.mem[off]; ok {
		return v
	}
	return b.fill
}

func (b *fakeBAR) get(off uint32) uint64 {
	return uint64(b.get32(off)) | uint64(b.get32(off+4))<<32
}

func (b *fakeBAR) set(off uint32, v uint64) {
	b.mem[off], b.mem[off+4] = uint32(v), uint32(v>>32)
}

func (b *fakeBAR) Load32(off uint32) uint32 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.onLoad != nil {
		b.onLoad(off)
	}
	v := b.get32(off)
	b.log = append(b.log, access{false, off, 4, uint64(v)})
	return v
}

func (b *fakeBAR) Load64(off uint32) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.onLoad != nil {
		b.onLoad(off)
	}
	v := b.get(off)
	b.log = append(b.log, access{false, off, 8, v})
	return v
}

func (b *fakeBAR) Store32(off uint32, v uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.log = append(b.log, access{true, off, 4, uint64(v)})
	b.mem[off] = v
}

func (b *fakeBAR) Store64(off uint32, v uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.log = append(b.log, access{true, off, 8, v})
	if b.onStore != nil {
		b.onStore(off, v)
	}
	b.set(off, v)
	if b.onStored != nil {
		b.onStored(off, v)
	}
}

// fakeDevice is a card without a target: config space and two BARs.
type fakeDevice struct {
	cfg        map[int]uint32 // 16-bit words
	cfgErr     error
	stuck      uint32 // bits of the command register that do not change
	onCfgWrite func(off int, v uint32)
	bar0       *fakeBAR
	bar2       *fakeBAR
}

var _ Device = (*fakeDevice)(nil)

func newFakeDevice() *fakeDevice {
	d := &fakeDevice{
		cfg:  map[int]uint32{csr.CfgVendor: board.Vendor, csr.CfgDevice: board.DevicePF, csr.CfgCommand: 0},
		bar0: newFakeBAR(csr.BAR0Size, 0),
		bar2: newFakeBAR(csr.BAR2Size, ^uint32(0)),
	}
	d.bar0.set(uint32(csr.RInfo), csr.RInfoReset)
	return d
}

func (d *fakeDevice) Name() string { return "fake" }

func (d *fakeDevice) ConfigRead(off, width int) (uint32, error) {
	if d.cfgErr != nil {
		return 0, d.cfgErr
	}
	return d.cfg[off], nil
}

func (d *fakeDevice) ConfigWrite(off, width int, v uint32) error {
	if d.onCfgWrite != nil {
		d.onCfgWrite(off, v)
	}
	d.cfg[off] = d.cfg[off]&d.stuck | v&^d.stuck
	return nil
}

func (d *fakeDevice) BAR0() mmio.Space                   { return d.bar0 }
func (d *fakeDevice) BAR2() mmio.Space                   { return d.bar2 }
func (d *fakeDevice) DMA() dma.Provider                  { return nil }
func (d *fakeDevice) BindIRQ(int, func()) error          { return nil }
func (d *fakeDevice) Close() error                       { return nil }
func (d *fakeDevice) scratch(v uint64)                   { d.bar0.set(uint32(csr.SDPScratch), v) }
func (d *fakeDevice) gone()                              { d.cfg[csr.CfgVendor] = csr.CfgVendorNone }
func (d *fakeDevice) writeTable(at uint32, m csr.Barmap) { d.writeWindow(at, m.Append(nil)) }
func (d *fakeDevice) handshakeWord() uint64              { return d.bar0.get(uint32(csr.SLIScratch)) }
func (d *fakeDevice) setHandshakeWord(v uint64)          { d.bar0.set(uint32(csr.SLIScratch), v) }

func (d *fakeDevice) writeWindow(at uint32, b []byte) {
	for i := 0; i < len(b); i += 4 {
		d.bar2.mem[at+uint32(i)] = binary.LittleEndian.Uint32(b[i:])
	}
}

// measured is the barmap of endpoint.md 3.1.
func measured() csr.Barmap {
	return csr.Barmap{
		Version: 0x00000002,
		Facility: [csr.BarmapFacilities]csr.Facility{
			{Offset: 0x02000000, Size: 0x100000, Doorbell: 152, Doorbells: 1},
			{Offset: 0x02100000, Size: 0x100000, Doorbell: 153, Doorbells: 1},
			{Offset: 0x02200000, Size: 0x100000, Doorbell: 154, Doorbells: 1},
			{Offset: 0x02300000, Size: 0x100000, Doorbell: 155, Doorbells: 5},
			{},
		},
		GICD: 0x03c00040,
	}
}

const measuredScratch = 0x02000000abcdabcd

// readyDevice is a fake card whose target has written the measured barmap.
func readyDevice() *fakeDevice {
	d := newFakeDevice()
	d.scratch(measuredScratch)
	d.writeTable(0x02000000, measured())
	return d
}

// fakeTarget is the coprocessor's side of the handshake (endpoint.md 4.3): it
// looks once a period, then spins twice without a time-out. While it spins it
// reacts to a store of the host after latency.
type fakeTarget struct {
	d       *fakeDevice
	clk     *fakeClock
	period  time.Duration
	latency time.Duration
	reply   uint64
	deaf    bool // stops looking while it spins: it crashed
	phase   int  // 0 polls, 1 first wait, 2 second wait, 3 done
	info    uint64
	marked  bool // saw the exact COMPLETED
	asked   int
}

func newFakeTarget(d *fakeDevice, clk *fakeClock, first time.Duration) *fakeTarget {
	t := &fakeTarget{d: d, clk: clk, period: time.Second, latency: time.Millisecond, reply: 0xdeadde0320}
	clk.after(first, t.poll)
	d.bar0.onStored = func(off uint32, _ uint64) {
		if off == uint32(csr.SLIScratch) {
			t.wake()
		}
	}
	return t
}

func (t *fakeTarget) poll() {
	if t.phase == 0 && t.d.handshakeWord() == csr.HostLoaded {
		t.ask()
		return
	}
	t.clk.after(t.period, t.poll)
}

func (t *fakeTarget) ask() {
	t.asked++
	t.phase = 1
	t.d.setHandshakeWord(csr.GetHostInfo)
}

func (t *fakeTarget) wake() {
	if t.phase == 1 || t.phase == 2 {
		t.clk.after(t.latency, t.spin)
	}
}

func (t *fakeTarget) spin() {
	v := t.d.handshakeWord()
	switch {
	case t.deaf:
	case t.phase == 1 && v != csr.GetHostInfo:
		t.info, t.phase = v, 2
		t.d.setHandshakeWord(t.reply)
	case t.phase == 2 && v>>16 != 0xdeadde:
		t.marked, t.phase = v == csr.HandshakeCompleted, 3
		t.d.setHandshakeWord(0)
	}
}

func (t *fakeTarget) spinning() bool { return t.phase == 1 || t.phase == 2 }
