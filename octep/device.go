package octep

import (
	"errors"
	"fmt"

	"oxpd/internal/dma"
	"oxpd/internal/mmio"
	"oxpd/octep/csr"
)

// Device is the card as oxpd reaches it: config space, two BARs, memory that it
// may touch, and interrupts. A simulated card, a PCI function under vfio and a
// vfio-user socket are each one Device.
//
// All methods are safe for concurrent use. After Close no other method may be
// called, and nothing of a BAR may be touched.
type Device interface {
	// Name is how logs and output call the card: "sim", "0000:01:00.0".
	Name() string
	// ConfigRead reads width bytes (1, 2 or 4) at off, aligned to width. It is
	// safe when the card is held in reset and then reads all ones.
	ConfigRead(off, width int) (uint32, error)
	// ConfigWrite writes width bytes (1, 2 or 4) at off, aligned to width.
	ConfigWrite(off, width int, v uint32) error
	// BAR0 is the registers of octep/csr.
	BAR0() mmio.Space
	// BAR2 is the facility window without any guard. Only Endpoint uses it,
	// behind its allow-list: a load at or above csr.BAR2Interrupt can hang the
	// host until a power cycle.
	BAR2() mmio.Space
	// DMA provides the memory that the card may be told about.
	DMA() dma.Provider
	// BindIRQ has fn called after every interrupt of an MSI-X vector. Interrupts
	// that come before it is called are one call; none is lost. fn runs on any
	// goroutine, not twice at once for one vector, and must not block. The vector
	// is unmasked; nil masks and unbinds it. A card that is reached in a way that has
	// no interrupts binds none (ErrNoInterrupts): its rings are polled.
	BindIRQ(vector int, fn func()) error
	// Close gives the card back. It neither disables rings nor clears bus
	// mastering: whether memory outlives this process is not its business.
	Close() error
}

// ErrNoInterrupts says that no interrupt of the card reaches this process.
var ErrNoInterrupts = errors.New("octep: no interrupts this way")

// Alive tells whether the card answers config space, the only question that is
// safe while it may be in reset (endpoint.md 1, liveness rule). It touches no
// BAR and is cheap enough to be asked many times a second.
func Alive(d Device) bool {
	v, err := d.ConfigRead(csr.CfgVendor, 2)
	return err == nil && v != csr.CfgVendorNone
}

// Reachable is Alive of a card that has been opened: it also decodes memory still.
// One that does not was reset, though it answers, or somebody turned the decoding off;
// nothing behind its BARs answers.
func Reachable(d Device) bool {
	if !Alive(d) {
		return false
	}
	v, err := d.ConfigRead(csr.CfgCommand, 2)
	return err == nil && v != csr.CfgVendorNone && v&csr.CfgCommandMemory != 0
}

// SetBusMaster lets the card reach host memory, or stops it. On before the
// first ring is programmed; off before memory that the card was told about is
// released, when that memory cannot be kept. Once it is off, rings latched by
// the coprocessor are of no use until it reboots.
func SetBusMaster(d Device, on bool) error {
	return setCommand(d, csr.CfgCommandBusMaster, on)
}

// MuteINTx keeps a card whose interrupts nobody takes from raising the legacy one, on a
// line that others may share: the kernel would turn the line off after a while. A
// function without that interrupt may ignore the bit, so it is not read back.
func MuteINTx(d Device) error {
	v, err := d.ConfigRead(csr.CfgCommand, 2)
	if err != nil {
		return fmt.Errorf("octep: read command register of %s: %w", d.Name(), err)
	}
	if v == csr.CfgVendorNone {
		return fmt.Errorf("octep: read command register of %s: %w", d.Name(), mmio.ErrGone)
	}
	if v&csr.CfgCommandNoINTx != 0 {
		return nil
	}
	if err := d.ConfigWrite(csr.CfgCommand, 2, v|csr.CfgCommandNoINTx); err != nil {
		return fmt.Errorf("octep: write command register of %s: %w", d.Name(), err)
	}
	return nil
}

// setCommand sets or clears bits of the command register and reads them back.
func setCommand(d Device, bits uint32, on bool) error {
	v, err := d.ConfigRead(csr.CfgCommand, 2)
	if err != nil {
		return fmt.Errorf("octep: read command register of %s: %w", d.Name(), err)
	}
	if v == csr.CfgVendorNone {
		return fmt.Errorf("octep: read command register of %s: %w", d.Name(), mmio.ErrGone)
	}
	want := v | bits
	if !on {
		want = v &^ bits
	}
	if want == v {
		return nil
	}
	if err := d.ConfigWrite(csr.CfgCommand, 2, want); err != nil {
		return fmt.Errorf("octep: write command register of %s: %w", d.Name(), err)
	}
	got, err := d.ConfigRead(csr.CfgCommand, 2)
	if err != nil {
		return fmt.Errorf("octep: read command register of %s back: %w", d.Name(), err)
	}
	if got&bits != want&bits {
		return fmt.Errorf("octep: set command register of %s: wrote 0x%04x, reads 0x%04x", d.Name(), want, got)
	}
	return nil
}
