package daemon

import (
	"errors"
	"fmt"

	"oxpd/internal/daemon/client"
	"oxpd/internal/dma"
	"oxpd/internal/mmio"
	"oxpd/internal/port"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/ring"
	"oxpd/ring/wire"
)

// shutdown is the one stop sequence. It runs after run has ended and the bring-up
// has returned, so any handshake is finished.
func (d *Daemon) shutdown() error {
	quiet := d.quiet() // nobody posts, nobody takes frames, nobody sends a command

	// Nothing else changes these any more; readers on the control socket go on.
	d.mu.Lock()
	dev, rings, tx := d.dev, d.rings, d.tx
	armed, gone, master := d.armed, d.gone, d.master
	regions := d.regions
	d.mu.Unlock()

	var errs []error
	result := client.StopResult{Schema: client.Schema, Warnings: []string{}}
	note := func(text string) {
		result.Warnings = append(result.Warnings, text)
		d.log.Warn(text)
	}
	if dev != nil && !octep.Alive(dev) {
		gone = true // since the last look
	}
	errs = append(errs, d.closePorts())
	if tx != nil {
		errs = append(errs, tx.Close())
	}
	if rings != nil {
		rings.Stop()
		result.RingsEnabled = armed && !gone
	}
	if rings != nil && armed && !gone {
		d.logLeft(rings)
	}
	if rings != nil && !gone {
		for q := range wire.OQs {
			errs = append(errs, dev.BindIRQ(csr.MSIXRingVector+q, nil))
		}
		if d.teardown.Load() {
			err := rings.Teardown()
			if errors.Is(err, mmio.ErrGone) {
				gone = true
			}
			errs = append(errs, err)
			result.RingsEnabled = false
			result.RebootNeeded = armed
		}
	}
	if dev != nil {
		released, err := d.release(dev, regions, armed, master, quiet)
		errs = append(errs, err)
		result.MemoryKept = !released
		result.RebootNeeded = result.RebootNeeded || armed && !dev.DMA().Keeps()
	}
	if dev != nil && quiet {
		d.mu.Lock()
		d.closed = true
		d.mu.Unlock()
		errs = append(errs, dev.Close())
	}
	if card, ok := dev.(fleeting); ok && card.EndsOnClose() {
		result.RebootNeeded = false // nobody meets what it knows
	}
	if result.RebootNeeded {
		note("reboot the coprocessor before the next start: it knows ring memory that no longer exists, or rings that are disabled")
	}
	if gone {
		note("the card was gone when oxpd ended")
	}
	d.mu.Lock()
	d.result = result
	d.mu.Unlock()
	return errors.Join(errs...)
}

// logLeft names what is under way when the end comes: nobody waits for it.
func (d *Daemon) logLeft(rings *ring.Rings) {
	tx, rx, err := rings.Left()
	switch {
	case err != nil:
		d.log.Warn("what is left in the rings is not known", "err", err)
	case tx > 0 || rx > 0:
		d.log.Warn("left in the rings", "frames", tx, "packets", rx)
	}
}

// fleeting is a card that is gone once its device is closed.
type fleeting interface{ EndsOnClose() bool }

// release decides about the memory that the card knows (design.md, rule 7): kept
// when its provider keeps it; otherwise bus mastering is cleared before it goes;
// and when that cannot be proven, or somebody of this process may still use it, it
// is left to the end of the process. It tells whether memory was released.
func (d *Daemon) release(dev octep.Device, regions []*dma.Region, armed, master, quiet bool) (bool, error) {
	if armed && dev.DMA().Keeps() {
		return false, nil
	}
	if master || armed {
		if err := octep.SetBusMaster(dev, false); err != nil {
			d.log.Warn("memory is not released: the card may still reach it", "err", err)
			if errors.Is(err, mmio.ErrGone) {
				err = nil // said already, and not a failure of the stop
			}
			return false, err
		}
	}
	if !quiet {
		return false, errors.New("a request on the control socket does not come back from the card: memory is not released")
	}
	var errs []error
	if rings := d.rings; rings != nil {
		errs = append(errs, rings.Free())
	}
	for _, r := range regions {
		if err := dev.DMA().Free(r); err != nil {
			errs = append(errs, fmt.Errorf("free %s: %w", r.Name(), err))
		}
	}
	return true, errors.Join(errs...)
}

// closePorts removes the interfaces.
func (d *Daemon) closePorts() error {
	d.mu.Lock()
	taps := d.taps
	d.taps = map[*port.Port]bool{}
	d.mu.Unlock()
	var errs []error
	for p := range taps {
		d.fan.leave(p)
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// carrierOff tells the kernel that no port has a link: nothing carries frames.
func (d *Daemon) carrierOff() {
	for _, o := range d.allOwners() {
		if err := o.setLink(false); err != nil {
			d.log.Warn("carrier stays", "port", o.port.Name, "err", err)
		}
	}
}

func (d *Daemon) allOwners() []*owner {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []*owner
	for _, o := range d.owners {
		if o != nil {
			out = append(out, o)
		}
	}
	return out
}
