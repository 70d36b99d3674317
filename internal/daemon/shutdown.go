package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"oxpd/internal/daemon/client"
	"oxpd/internal/dma"
	"oxpd/internal/mmio"
	"oxpd/internal/port"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/ring"
	"oxpd/ring/wire"
)

// A full input queue takes the card 18 ms, 255 frames of 9,014 bytes to the switch
// (datapath.md 6.2): one that takes longer has stopped.
const (
	settleLimit = time.Second
	settlePoll  = time.Millisecond
)

// shutdown is the one stop sequence. It runs after run has ended and the bring-up
// has returned, so any handshake is finished. What a service manager keeps stays as it
// is, for the next process, unless it was asked to stop on the control socket: then that
// is taken back first, and goes.
func (d *Daemon) shutdown() error {
	quiet := d.quiet() // nobody takes frames, nobody sends a command
	d.inspect.stop()   // what was with engines is on its way, or dropped
	d.fan.sendBy(nil)  // nobody posts

	// Nothing else changes these any more; readers on the control socket go on.
	d.mu.Lock()
	dev, rings, tx, ep := d.dev, d.rings, d.tx, d.ep
	lives := append(d.past, d.life)
	d.mu.Unlock()
	armed, gone, knows := d.armed, dev != nil && !octep.Alive(dev), d.master
	told := false // the card knows memory of this process
	for _, l := range lives {
		told = told || l.armed
		quiet = quiet && !l.stuck
	}
	knows = knows || told

	var errs []error
	result := client.StopResult{Schema: client.Schema, Warnings: []string{}}
	note := func(text string) {
		result.Warnings = append(result.Warnings, text)
		d.log.Warn(text)
	}
	if d.asked() {
		errs = append(errs, d.keep.end())
	}
	kept := told && dev.DMA().Keeps()
	goesOn := kept && d.goesOn(dev)
	if rings != nil && armed && !gone && !goesOn {
		d.settle(dev, rings)
	}
	errs = append(errs, d.closePorts())
	if tx != nil {
		errs = append(errs, tx.Close())
	}
	if rings != nil {
		rings.Stop()
		result.RingsEnabled = armed && !gone
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
		off, err := d.cutOff(dev, !kept && knows)
		errs = append(errs, err)
		if told && !goesOn {
			// Nothing comes into memory that goes: these are the last numbers.
			result.TXUnfinished, result.RXLeft = d.left(rings, gone)
			for _, l := range lives {
				result.TXUnfinished += l.unknown
			}
			if n := result.TXUnfinished; n > 0 {
				note(fmt.Sprintf("%d frames were posted and the card has not finished them: whether they left is not known", n))
			}
			if n := result.RXLeft; n > 0 {
				note(fmt.Sprintf("%d packets of the card wait in the output rings, and no interface got them", n))
			}
		}
		result.MemoryKept = kept || !off || !quiet
		result.RebootNeeded = result.RebootNeeded || told && !kept
		switch {
		case !quiet:
			errs = append(errs, errors.New("a request on the control socket does not come back from the card: memory is not released"))
		case !result.MemoryKept:
			for _, l := range lives {
				errs = append(errs, l.release())
			}
		}
	}
	if dev != nil && quiet {
		d.mu.Lock()
		d.closed = true
		d.mu.Unlock()
		if ep != nil && !armed {
			errs = append(errs, ep.PutBack())
		}
		all := devices(lives)
		if !slices.Contains(all, dev) { // opened, and lost before it was used
			all = append(all, dev)
		}
		for _, dev := range all {
			errs = append(errs, dev.Close())
		}
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

// asked tells whether the end was asked for on the control socket.
func (d *Daemon) asked() bool {
	select {
	case <-d.stopAsk:
		return true
	default:
		return false
	}
}

// goesOn tells whether a next process can go on with rings in memory that is kept: then
// nothing that is under way in them is lost.
func (d *Daemon) goesOn(dev octep.Device) bool {
	_, held := dev.DMA().(dma.Holder)
	return held && d.keep.why() == "" && !d.teardown.Load()
}

// settle gives the card a moment to finish what was posted.
func (d *Daemon) settle(dev octep.Device, rings *ring.Rings) {
	deadline := d.clock.Now() + settleLimit
	for rings.IQ().Settle() > 0 && octep.Alive(dev) && d.clock.Now() < deadline {
		if d.clock.Sleep(context.Background(), settlePoll) != nil {
			return
		}
	}
}

// left counts what nobody finishes any more: frames posted, and packets in output
// rings. Of a card that has gone only the former are known. Without rings there are
// none.
func (d *Daemon) left(rings *ring.Rings, gone bool) (tx, rx int) {
	if rings == nil {
		return 0, 0
	}
	if !gone {
		tx, rx, err := rings.Left()
		if err == nil {
			return tx, rx
		}
		d.log.Warn("packets in the output rings are not known", "err", err)
	}
	s := rings.Stats()
	return int(s.TxPosted - s.TxFinished - s.TxUnknown), 0
}

// fleeting is a card that is gone once its device is closed.
type fleeting interface{ EndsOnClose() bool }

// cutOff clears bus mastering before memory that the card knows goes (design.md,
// rule 7), if there is any; it tells whether the card can reach none now. When
// that cannot be proven, memory is left to the end of the process.
func (d *Daemon) cutOff(dev octep.Device, knows bool) (bool, error) {
	if !knows {
		return true, nil
	}
	err := octep.SetBusMaster(dev, false)
	if err == nil {
		return true, nil
	}
	d.log.Warn("memory is not released: the card may still reach it", "err", err)
	if errors.Is(err, mmio.ErrGone) {
		err = nil // said already, and not a failure of the stop
	}
	return false, err
}

// closePorts removes the interfaces, or leaves them to the next process. It does so with
// all of them at once: the kernel waits for others before each is gone, 50 ms or more.
func (d *Daemon) closePorts() error {
	end := (*port.Port).Close
	if d.keep.why() == "" {
		end = (*port.Port).Keep
	}
	d.mu.Lock()
	taps := d.taps
	d.taps = map[*port.Port]bool{}
	d.mu.Unlock()
	errs := make(chan error, len(taps))
	for p := range taps {
		d.fan.leave(p)
		go func() { errs <- end(p) }()
	}
	var all []error
	for range taps {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

// carrierOff tells the kernel that no port has a link: nothing carries frames. Who calls
// it says why, once for all ports.
func (d *Daemon) carrierOff() {
	for _, o := range d.allOwners() {
		if _, _, err := o.carry(false); err != nil {
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
