package octep

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"oxpd/internal/mmio"
	"oxpd/octep/csr"
)

// Refusal is an access to BAR2 that the allow-list stopped.
type Refusal struct {
	Store bool
	Off   uint32 // in BAR2
	Width int    // bytes
}

func (r Refusal) String() string {
	op := "load"
	if r.Store {
		op = "store"
	}
	return fmt.Sprintf("%s of %d bytes at BAR2+%#x", op, r.Width, r.Off)
}

// allowed is one state of the allow-list. It is never changed, only replaced.
type allowed struct {
	table   span
	windows [csr.BarmapFacilities]csr.Facility // size 0: nothing
	gicd    uint32
}

func (a *allowed) load(at span) bool { return a.table.holds(at) || a.window(at) }

func (a *allowed) store(at span) bool { return a.window(at) && !a.table.overlaps(at) }

func (a *allowed) window(at span) bool {
	for _, f := range a.windows {
		if window(f).holds(at) {
			return true
		}
	}
	return false
}

func (a *allowed) bell(spi uint32) bool {
	for _, f := range a.windows {
		if f.Size != 0 && doorbells(f).holds(span{uint64(spi), uint64(spi) + 1}) {
			return true
		}
	}
	return false
}

// guard is BAR2 behind its allow-list (design.md, rule 9): loads of the barmap,
// loads and stores of advertised windows, and single stores of an advertised
// interrupt number to the doorbell word, which nothing reads. It implements
// mmio.Space. A refused load returns all ones and a refused store does nothing.
type guard struct {
	raw mmio.Space
	log *slog.Logger
	ok  atomic.Pointer[allowed]

	mu    sync.Mutex
	count uint64
	last  Refusal
}

func newGuard(raw mmio.Space, log *slog.Logger) *guard {
	g := &guard{raw: raw, log: log}
	g.ok.Store(&allowed{})
	return g
}

// allowTable adds loads of a barmap at a checked pointer.
func (g *guard) allowTable(at uint32) {
	a := *g.ok.Load()
	a.table = span{uint64(at), uint64(at) + csr.BarmapSize}
	g.ok.Store(&a)
}

// allow replaces the list by what a checked barmap advertises.
func (g *guard) allow(at uint32, m *csr.Barmap) {
	g.ok.Store(&allowed{
		table:   span{uint64(at), uint64(at) + csr.BarmapSize},
		windows: m.Facility,
		gicd:    m.GICD,
	})
}

func (g *guard) refuse(store bool, off uint32, width int) {
	r := Refusal{Store: store, Off: off, Width: width}
	g.mu.Lock()
	g.count++
	first := g.count == 1
	g.last = r
	g.mu.Unlock()
	if first {
		g.log.Error("refused access outside the advertised windows", "bar", 2, "access", r.String())
	}
}

func (g *guard) refusals() (uint64, Refusal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.count, g.last
}

func (g *guard) may(store bool, off uint32, width int) bool {
	a := g.ok.Load()
	at := span{uint64(off), uint64(off) + uint64(width)}
	if off%uint32(width) == 0 && (store && a.store(at) || !store && a.load(at)) {
		return true
	}
	g.refuse(store, off, width)
	return false
}

// Size returns the bytes of BAR2.
func (g *guard) Size() uint64 { return g.raw.Size() }

// Load32 implements mmio.Space.
func (g *guard) Load32(off uint32) uint32 {
	if !g.may(false, off, 4) {
		return ^uint32(0)
	}
	return g.raw.Load32(off)
}

// Load64 implements mmio.Space.
func (g *guard) Load64(off uint32) uint64 {
	if !g.may(false, off, 8) {
		return csr.AllOnes
	}
	return g.raw.Load64(off)
}

// Store32 implements mmio.Space.
func (g *guard) Store32(off uint32, v uint32) {
	if g.may(true, off, 4) {
		g.raw.Store32(off, v)
	}
}

// Store64 implements mmio.Space.
func (g *guard) Store64(off uint32, v uint64) {
	if g.may(true, off, 8) {
		g.raw.Store64(off, v)
	}
}

// ring stores an interrupt number to the doorbell word, if it is advertised now.
func (g *guard) ring(spi uint32) bool {
	a := g.ok.Load()
	if !a.bell(spi) {
		g.refuse(true, a.gicd, 4)
		return false
	}
	mmio.Barrier()
	g.raw.Store32(a.gicd, spi)
	return true
}

// DoorbellError is a doorbell that the barmap does not give to the facility.
type DoorbellError struct {
	Facility string
	Index    int    // asked for
	First    uint32 // interrupt number of index 0
	Count    uint32 // doorbells that the facility has
}

func (e *DoorbellError) Error() string {
	if e.Index >= 0 && uint64(e.Index) < uint64(e.Count) {
		return fmt.Sprintf("octep: ring doorbell %d of %s: interrupt %d is no longer advertised", e.Index, e.Facility, uint64(e.First)+uint64(e.Index))
	}
	return fmt.Sprintf("octep: ring doorbell %d of %s: it has %d, from interrupt %d", e.Index, e.Facility, e.Count, e.First)
}

// Facility is one advertised window as an mmio.Space of its own: offsets count
// from the window's start and end at its size. An access outside, or after the
// barmap has ceased to advertise the window, is refused as BAR2's are: loads read
// all ones. Safe for concurrent use; who talks when is up to the protocol inside.
type Facility struct {
	guard *guard
	name  string
	rec   csr.Facility
}

var _ mmio.Space = (*Facility)(nil)

// Name is the facility's name in the barmap's order: "rpc", "nw_agent".
func (f *Facility) Name() string { return f.name }

// Size returns the window's bytes.
func (f *Facility) Size() uint64 { return uint64(f.rec.Size) }

func (f *Facility) in(store bool, off uint32, width int) bool {
	if uint64(off)+uint64(width) <= uint64(f.rec.Size) {
		return true
	}
	f.guard.refuse(store, f.rec.Offset+off, width)
	return false
}

// Load32 implements mmio.Space.
func (f *Facility) Load32(off uint32) uint32 {
	if !f.in(false, off, 4) {
		return ^uint32(0)
	}
	return f.guard.Load32(f.rec.Offset + off)
}

// Load64 implements mmio.Space.
func (f *Facility) Load64(off uint32) uint64 {
	if !f.in(false, off, 8) {
		return csr.AllOnes
	}
	return f.guard.Load64(f.rec.Offset + off)
}

// Store32 implements mmio.Space.
func (f *Facility) Store32(off uint32, v uint32) {
	if f.in(true, off, 4) {
		f.guard.Store32(f.rec.Offset+off, v)
	}
}

// Store64 implements mmio.Space.
func (f *Facility) Store64(off uint32, v uint64) {
	if f.in(true, off, 8) {
		f.guard.Store64(f.rec.Offset+off, v)
	}
}

// Ring rings the facility's doorbell index (not the interrupt number). What was
// written to DMA memory and to the window before is visible to the target first.
//
// Error: *DoorbellError; nothing was stored then.
func (f *Facility) Ring(index int) error {
	if index < 0 || uint64(index) >= uint64(f.rec.Doorbells) || !f.guard.ring(f.rec.Doorbell+uint32(index)) {
		return &DoorbellError{Facility: f.name, Index: index, First: f.rec.Doorbell, Count: f.rec.Doorbells}
	}
	return nil
}
