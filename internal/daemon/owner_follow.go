package daemon

import (
	"context"
	"errors"
	"fmt"

	"oxpd/internal/port"
	"oxpd/lif"
)

// isPaused tells whether the LIF sent nothing because the port was refused lately.
func isPaused(err error) bool { return errors.Is(err, lif.ErrPaused) }

// follow looks at the interface, after news of it or to find what came without
// news, and makes the card what the interface is. An MTU or an address that the card
// refuses is put back. The rest stands and is tried again: a bridge does not take
// promiscuity back, and an interface that is set down by a card that did not answer
// would surprise whoever has just set it up. again tries also what failed before.
func (o *owner) follow(ctx context.Context, again bool) error {
	v := o.snapshot()
	if !v.up || ctx.Err() != nil {
		return nil
	}
	ctx, cancel := through(ctx)
	defer cancel()
	now, err := v.iface.Link()
	if errors.Is(err, port.ErrRemoved) {
		o.ifaceGone()
		return nil
	}
	if err != nil {
		return fmt.Errorf("read interface of %s: %w", o.port, err)
	}
	o.setKernel(v.iface, now)
	changed := o.heedLink(now)
	err = o.followMAC(ctx, v.iface, now.MAC)
	if changed || again {
		if e := o.card(ctx); e != nil {
			err = errors.Join(err, fmt.Errorf("set up %s as its interface is, which is tried again: %w", o.port, e))
		}
	}
	return errors.Join(err, o.followMTU(ctx, v.iface, now.MTU))
}

// heedUp takes the administrative state of the interface; a change is a request.
func (o *owner) heedUp(up bool) {
	if up != o.ifUp {
		o.ifUp, o.want.up, o.pending.up = up, up, nil
	}
}

// heedLink takes what is wanted from the interface, and tells whether that is
// another thing than before. Of the administrative state only a change is a request:
// a new interface is down, and its port is raised. One that was set up and down again
// before anybody looked has changed.
func (o *owner) heedLink(now port.Link) (changed bool) {
	before := o.want
	if o.wasUp {
		o.heedUp(true)
		o.wasUp = false
	}
	o.heedUp(now.Up)
	o.want.promisc = now.Promisc || now.Bridge != ""
	o.want.allMulti = now.AllMulti
	if o.want == before {
		return false
	}
	o.log.Info("port follows its interface", "port", o.port.Name, "up", o.want.up, "promisc", o.want.promisc, "allmulti", o.want.allMulti, "bridge", now.Bridge)
	return true
}

// followMAC makes the card's address that of the interface, or puts the interface
// back.
func (o *owner) followMAC(ctx context.Context, i iface, now [6]byte) error {
	old := o.want.mac
	if now == old {
		return nil
	}
	err := o.cardMAC(ctx, now)
	if err == nil {
		o.tookMAC(old, "netlink")
		return nil
	}
	o.log.Warn("address of the interface is put back", "port", o.port.Name, "asked", hwAddr(now), "address", hwAddr(old), "err", err)
	err = fmt.Errorf("address %s, set at the interface of %s, was put back to %s: %w", hwAddr(now), o.port, hwAddr(old), err)
	o.update(func(v *view) { v.putBack, v.macBack = v.putBack+1, err.Error() })
	if back := i.SetMAC(old); back != nil {
		return errors.Join(err, fmt.Errorf("put the address of %s back to %s: %w", o.port, hwAddr(old), back))
	}
	return err
}
