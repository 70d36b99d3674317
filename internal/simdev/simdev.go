// Package simdev shows a simulated card (hwsim) as an octep.Device: one method of
// the one for each method of the other, and nothing in between. It holds no state
// but the card, and no opinion: what a driver does wrong reaches the model, which
// reports it.
//
// DMA regions are anonymous pages of this process under bus addresses of their
// own (dma.InProcess). They end with the process, so Provider.Keeps is false.
//
// Left out: making, starting and ending the card, which whoever made it does.
package simdev

import (
	"fmt"

	"oxpd/hwsim"
	"oxpd/internal/dma"
	"oxpd/internal/mmio"
	"oxpd/octep"
	"oxpd/octep/csr"
)

// Name is how logs and output call the card.
const Name = "sim"

type device struct {
	card *hwsim.Card
	dma  *dma.InProcess
}

// New returns the card as a device. The card stays the caller's: Close does not
// close it. All methods are safe for concurrent use.
func New(card *hwsim.Card) octep.Device {
	return &device{card: card, dma: dma.NewInProcess(card, card.TopDMA())}
}

func (d *device) Name() string      { return Name }
func (d *device) BAR0() mmio.Space  { return bar{d.card, 0, csr.BAR0Size} }
func (d *device) BAR2() mmio.Space  { return bar{d.card, 2, csr.BAR2Size} }
func (d *device) DMA() dma.Provider { return d.dma }

func badWidth(width int) bool { return width != 1 && width != 2 && width != 4 }

// ConfigRead implements octep.Device. A card that is gone reads all ones of the
// width that was asked for.
func (d *device) ConfigRead(off, width int) (uint32, error) {
	if badWidth(width) {
		return 0, fmt.Errorf("simdev: read config space: width %d", width)
	}
	return d.card.ConfigRead(off, width) & (^uint32(0) >> (32 - 8*width)), nil
}

// ConfigWrite implements octep.Device.
func (d *device) ConfigWrite(off, width int, v uint32) error {
	if badWidth(width) {
		return fmt.Errorf("simdev: write config space: width %d", width)
	}
	d.card.ConfigWrite(off, width, v)
	return nil
}

// BindIRQ implements octep.Device. The model unmasks the vector, as a kernel does.
func (d *device) BindIRQ(vector int, fn func()) error {
	if vector < 0 || vector >= csr.MSIXVectors {
		return fmt.Errorf("simdev: bind vector %d: the card has %d", vector, csr.MSIXVectors)
	}
	d.card.OnIRQ(vector, fn)
	return nil
}

// Close implements octep.Device: no vector is bound any more.
func (d *device) Close() error {
	for v := range csr.MSIXVectors {
		d.card.OnIRQ(v, nil)
	}
	return nil
}

// bar is one BAR of the model. Accesses happen in program order: each takes the
// card's lock, which also orders the memory writes before a doorbell.
type bar struct {
	card *hwsim.Card
	n    int
	size uint64
}

func (b bar) Size() uint64                 { return b.size }
func (b bar) Load32(off uint32) uint32     { return uint32(b.card.Load(b.n, uint64(off), 4)) }
func (b bar) Load64(off uint32) uint64     { return b.card.Load(b.n, uint64(off), 8) }
func (b bar) Store32(off uint32, v uint32) { b.card.Store(b.n, uint64(off), 4, uint64(v)) }
func (b bar) Store64(off uint32, v uint64) { b.card.Store(b.n, uint64(off), 8, v) }
