package daemon

import (
	"context"
	"errors"
	"fmt"

	"oxpd/internal/daemon/client"
	"oxpd/rpc/msg"
)

// wanted is what a port shall be, in the card and at its interface.
type wanted struct {
	up       bool    // the card's port, by NetAgent; a new interface is down all the same
	mac      [6]byte // of NetAgent, LIF and interface
	mtu      int     // of LIF and interface
	promisc  bool    // all unicast is for the host: LIF in L2 mode, NetAgent promiscuous
	allMulti bool    // all multicast is for the host
}

// mode is the LIF's forwarding mode.
func (w *wanted) mode() uint8 {
	if w.promisc {
		return msg.FwdL2
	}
	return msg.FwdL3
}

// told is what NetAgent was told of that which it cannot be asked.
type told struct {
	sure                  bool // it took everything, and nothing says that it has forgotten it
	up, promisc, allMulti bool
}

// portSettings are those of a port that a configuration may hold. A zero field
// leaves things as they are.
type portSettings struct {
	mtu     int
	up      *bool
	mac     [6]byte
	promisc *bool
}

// String is the same for the same settings.
func (s portSettings) String() string {
	flag := func(b *bool) string {
		if b == nil {
			return "-"
		}
		return onOff(*b)
	}
	return fmt.Sprintf("mtu %d up %s mac %s promisc %s", s.mtu, flag(s.up), hwAddr(s.mac), flag(s.promisc))
}

// over lays settings over others.
func (s portSettings) over(below portSettings) portSettings {
	if s.mtu == 0 {
		s.mtu = below.mtu
	}
	if s.up == nil {
		s.up = below.up
	}
	if s.mac == [6]byte{} {
		s.mac = below.mac
	}
	if s.promisc == nil {
		s.promisc = below.promisc
	}
	return s
}

// apply makes settings of a configuration true: the card first, then the
// interface. It is a request: ask for it. What fails, or comes before the port is
// up, stays pending: it is tried again at each reconcile until it succeeds or
// somebody sets it otherwise.
//
// Errors: errNotUp; otherwise those of the settings that failed, joined.
func (o *owner) apply(ctx context.Context, s portSettings) error {
	o.settings, o.pending = s, s.over(o.pending)
	if _, err := o.serving(); err != nil {
		return fmt.Errorf("%w; the settings are applied when it is up", err)
	}
	return o.applyPending(ctx)
}

// forNewInterface makes pending again what the configuration asks of an interface and
// the kernel gives no new one, unless somebody has set it otherwise since. Address
// and MTU stay wanted anyway.
func (o *owner) forNewInterface() {
	s, p := &o.settings, &o.pending
	if s.up != nil && *s.up && o.want.up {
		p.up = s.up
	}
	if s.promisc != nil && *s.promisc && o.want.promisc {
		p.promisc = s.promisc
	}
}

// applyPending does what is to be done still. The interface comes up last: the
// kernel derives addresses from its MAC then.
func (o *owner) applyPending(ctx context.Context) error {
	p := o.pending
	var errs []error
	try := func(what string, value any, set func() error) {
		if ctx.Err() != nil {
			return
		}
		if err := set(); err != nil {
			o.log.Warn("setting is tried again", "port", o.port.Name, "setting", what, "value", value, "err", err)
			errs = append(errs, err)
		}
	}
	if p.mac != [6]byte{} {
		try("address", hwAddr(p.mac), func() error { return o.setMAC(ctx, p.mac) })
	}
	if p.mtu != 0 {
		try("mtu", p.mtu, func() error { return o.setMTU(ctx, p.mtu, false) })
	}
	if p.promisc != nil {
		try("promisc", *p.promisc, func() error { return o.setPromisc(ctx, *p.promisc) })
	}
	if p.up != nil {
		try("up", *p.up, func() error { return o.setUp(ctx, *p.up) })
	}
	return errors.Join(errs...)
}

// serving is the view of a port that is up. Errors: errNotUp, with what is awaited.
func (o *owner) serving() (view, error) {
	v := o.snapshot()
	if !v.up {
		return v, &refusal{fmt.Errorf("%s: %w: it waits for %s", o.port, errNotUp, v.awaiting), client.CodeNotReady}
	}
	return v, nil
}

// setUp raises or lowers the port in the card and sets its interface up or down, or
// neither.
func (o *owner) setUp(ctx context.Context, up bool) error {
	v, err := o.serving()
	if err != nil {
		return err
	}
	ctx, cancel := through(ctx)
	defer cancel()
	was := o.want.up
	o.want.up = up
	if err := o.tell(ctx); err != nil {
		o.want.up = was
		return err
	}
	if err := v.iface.SetUp(ctx, up); err != nil {
		o.want.up = was
		err = fmt.Errorf("the card did and the interface did not: %w", err)
		if back := o.tell(ctx); back != nil {
			err = errors.Join(err, fmt.Errorf("put the card's port back, which is tried again: %w", back))
		}
		return &refusal{err, client.CodeRefused}
	}
	o.ifUp, o.pending.up = up, nil
	if was != up {
		o.log.Info("port was set "+upDown(up), "port", o.port.Name)
	}
	return nil
}

// setMAC gives card and interface another address, or neither.
func (o *owner) setMAC(ctx context.Context, mac [6]byte) error {
	v, err := o.serving()
	if err != nil {
		return err
	}
	ctx, cancel := through(ctx)
	defer cancel()
	old := o.want.mac
	if err := o.cardMAC(ctx, mac); err != nil {
		return fmt.Errorf("set address %s: %w", hwAddr(mac), err)
	}
	if err := v.iface.SetMAC(mac); err != nil {
		err = fmt.Errorf("set address of %s to %s, %s stands: the card took it and the interface did not: %w", o.port, hwAddr(mac), hwAddr(old), err)
		return &refusal{errors.Join(err, o.cardMAC(ctx, old)), client.CodeRefused}
	}
	o.tookMAC(old, "request")
	return nil
}

// setPromisc sets the interface's own flag; the card follows it as when somebody
// else has done so. A bridge or a capture keeps the port promiscuous without it.
func (o *owner) setPromisc(ctx context.Context, on bool) error {
	v, err := o.serving()
	if err != nil {
		return err
	}
	ctx, cancel := through(ctx)
	defer cancel()
	if err := v.iface.SetPromisc(ctx, on); err != nil {
		return fmt.Errorf("set promisc %s of %s: %w", onOff(on), o.port, err)
	}
	o.pending.promisc = nil
	return o.follow(ctx, false)
}

func upDown(up bool) string {
	if up {
		return "up"
	}
	return "down"
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
