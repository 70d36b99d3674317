package daemon

import (
	"context"
	"errors"
	"fmt"

	"oxpd/internal/nwa"
	"oxpd/lif"
)

// errReadBack says that NetAgent took an address and reads another one.
var errReadBack = errors.New("read-back differs")

// card makes the card what is wanted, except for the MTU. What NetAgent cannot be
// asked is told once, and again when it may have forgotten it.
//
// On the way to L2 the LIF comes first and NetAgent's filter second, on the way
// back it is the other way round: frames to foreign addresses then never come to a
// LIF that drops them, and its counter of such frames counts none of ours.
func (o *owner) card(ctx context.Context) error {
	if o.want.promisc {
		if err := o.lifWant(ctx); err != nil {
			return err
		}
		return o.tell(ctx)
	}
	if err := o.tell(ctx); err != nil {
		return err
	}
	return o.lifWant(ctx)
}

// lifWant gives the LIF the mode that is wanted, and the address when putting it
// back has failed before. That the entry keeps them is lif.Manager's business.
func (o *owner) lifWant(ctx context.Context) error {
	have := o.lifs.State(o.port).Want
	if have.MAC != o.want.mac {
		if err := o.lifs.SetMAC(ctx, o.port, o.want.mac); err != nil {
			return err
		}
	}
	if have.Fwd != o.want.mode() {
		return o.lifs.SetMode(ctx, o.port, o.want.mode())
	}
	return nil
}

// tell brings NetAgent to what is wanted. A port that is lowered hears the rest when
// it is raised: what it keeps meanwhile is on no record.
func (o *owner) tell(ctx context.Context) error {
	tag, w, t := o.port.Tag, &o.want, &o.told
	all := !t.sure || t.up != w.up
	if all {
		t.sure = false
		if err := o.agent.SetState(ctx, tag, w.up); err != nil {
			return err
		}
		t.up = w.up
		if err := o.raised(w.up); err != nil {
			return err
		}
	}
	if !w.up {
		t.sure = true
		return nil
	}
	if all {
		if err := o.tellMAC(ctx, w.mac); err != nil {
			return err
		}
	}
	if all || t.promisc != w.promisc {
		if err := o.agent.SetPromisc(ctx, tag, w.promisc); err != nil {
			return err
		}
		t.promisc = w.promisc
	}
	if all || t.allMulti != w.allMulti {
		if err := o.agent.SetAllMulti(ctx, tag, w.allMulti); err != nil {
			return err
		}
		t.allMulti = w.allMulti
	}
	t.sure = true
	return nil
}

// raised notes that NetAgent raised or lowered the port. The link is gone with the
// latter at once; with the former it comes when the card says so.
func (o *owner) raised(up bool) error {
	o.update(func(v *view) {
		if v.lowered = !up; up {
			v.raisedAt = o.clock.Now()
		}
	})
	if up {
		return nil
	}
	return o.setLink(false)
}

// tellMAC names the port's address to NetAgent and reads it back. It opens the
// switch's address filter, so a switch port hears its own address too.
func (o *owner) tellMAC(ctx context.Context, mac [6]byte) error {
	if err := o.agent.SetMAC(ctx, o.port.Tag, mac); err != nil {
		return err
	}
	got, err := o.agent.MAC(ctx, o.port.Tag)
	if err != nil {
		return err
	}
	o.update(func(v *view) { v.agentMAC = got })
	if got != mac {
		return fmt.Errorf("NetAgent took address %s for %s and reads %s: %w", hwAddr(mac), o.port, hwAddr(got), errReadBack)
	}
	return nil
}

// cardMAC gives LIF and NetAgent another address, or neither. The LIF comes first:
// it knows the addresses of the other ports, and refuses before anything is sent.
// A port that is lowered names the address to NetAgent when it is raised.
func (o *owner) cardMAC(ctx context.Context, mac [6]byte) error {
	old := o.want.mac
	if err := o.lifs.SetMAC(ctx, o.port, mac); err != nil {
		return err
	}
	var err error
	if o.want.up {
		err = o.tellMAC(ctx, mac)
	}
	if err == nil {
		o.want.mac = mac
		return nil
	}
	// Which address NetAgent has now is not known.
	o.told.sure = false
	if back := errors.Join(o.lifs.SetMAC(ctx, o.port, old), o.tell(ctx)); back != nil {
		err = errors.Join(err, fmt.Errorf("put the address of %s back to %s, which is tried again: %w", o.port, hwAddr(old), back))
	}
	return err
}

// tookMAC notes that card and interface have the address that is wanted now.
func (o *owner) tookMAC(old [6]byte, by string) {
	o.pending.mac = [6]byte{}
	o.update(func(v *view) { v.endNotice(&v.macBack) })
	if o.want.mac != old {
		o.log.Info("address changed", "port", o.port.Name, "old", hwAddr(old), "address", hwAddr(o.want.mac), "by", by)
	}
}

// checkAgent asks NetAgent for the one thing that it can be asked. An address that
// is not the port's says that it has started anew, and forgotten everything else too.
func (o *owner) checkAgent(ctx context.Context) error {
	if !o.want.up || !o.told.sure {
		return nil // nothing to expect, or all of it will be told anyway
	}
	got, err := o.agent.MAC(ctx, o.port.Tag)
	if err != nil && !errors.Is(err, nwa.ErrNoMAC) {
		return fmt.Errorf("read the address of %s back: %w", o.port, err)
	}
	o.update(func(v *view) { v.agentMAC = got })
	if got != o.want.mac {
		o.forgotten("address", hwAddr(got))
	}
	return nil
}

// lookForLoss finds out whether the fast path has started anew: the LIF had been
// there and is absent, or was accepted, as err says, and is not there.
func (o *owner) lookForLoss(err error) {
	s := o.lifs.State(o.port)
	if s.Lost != o.losses || errors.Is(err, lif.ErrMismatch) && !s.Present {
		o.losses = s.Lost
		o.forgotten("lif", "absent")
	}
}

// forgotten makes card tell NetAgent everything again.
func (o *owner) forgotten(evidence, found string) {
	o.told.sure = false
	o.update(func(v *view) { v.forgot++ })
	o.lost()
	o.log.Warn("port is set up again: NetAgent may have forgotten it", "port", o.port.Name, "evidence", evidence, "found", found)
}

// reconcile reads the LIF back and repairs it, asks NetAgent whether it has
// forgotten the port, and looks at the interface after a missed event.
func (o *owner) reconcile(ctx context.Context) error {
	if !o.snapshot().up {
		return nil
	}
	changed, err := o.lifs.Reconcile(ctx, o.port)
	paused := isPaused(err)
	if paused {
		err = nil // nothing was sent
	}
	o.lookForLoss(err)
	if changed {
		o.update(func(v *view) { v.drift++ })
		o.log.Warn("lif repaired", "port", o.port.Name, "lif", uint32(o.port.LIF()), "err", err)
	}
	if err == nil && !paused {
		err = o.applyPending(ctx)
	}
	err = errors.Join(err, o.checkAgent(ctx), o.follow(ctx, !paused))
	if paused && err == nil {
		return nil // what went wrong before is still shown
	}
	o.update(func(v *view) { v.err = err })
	return err
}
