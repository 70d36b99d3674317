package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"

	"oxpd/internal/board"
	"oxpd/internal/dma"
	"oxpd/internal/port"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/ring"
)

// adoption is what this process took over from the one before.
type adoption struct {
	rings *ring.Rings
	found ring.Adoption
}

// ready tells whether the rings were all that they can be: the handshake is over, and
// their levels are set.
func (a *adoption) ready() bool {
	return a != nil && a.found.ClocksPerUS != 0 && a.found.Handshake == 0
}

// progress is how far the process before had come with the handshake.
func (a *adoption) progress() octep.Progress {
	if a == nil {
		return octep.Progress{}
	}
	return octep.Progress{State: octep.HandshakeState(a.found.Handshake), ClocksPerUS: a.found.ClocksPerUS}
}

// errMasterOff says that live rings cannot be gone on with: what the card was to write
// meanwhile is lost, and its counts say otherwise.
var errMasterOff = errors.New("bus mastering was turned off since: the card could not reach the memory of the rings")

// adoptRings goes on with the rings of the process before. nil without an error: its
// memory is not there, or there was none, and what is to be done stays to be judged.
func (d *Daemon) adoptRings(ctx context.Context, command uint32) (*adoption, error) {
	cfg := d.ringConfig()
	rings, found, err := ring.Adopt(ctx, cfg)
	switch {
	case errors.Is(err, dma.ErrNotHeld), errors.Is(err, ring.ErrNotLive):
		return nil, nil
	case err != nil:
		return nil, err
	case command&csr.CfgCommandBusMaster == 0:
		return nil, errMasterOff
	}
	return &adoption{rings, found}, nil
}

// ringConfig is that of rings which are made, or adopted, in this life.
func (d *Daemon) ringConfig() ring.Config {
	return ring.Config{
		BAR0: d.card.BAR0(), DMA: d.memory(), Clock: d.clock, Log: d.log, Sink: d.fan, Judge: d.fan, Watermark: d.config().Watermark,
		Counters: d.ringCounts,
	}
}

// adoptPorts takes over the interfaces of the process before. On live rings they are in
// the data path at once, as they were; a card that has started anew is not there yet,
// and they have no carrier until it is.
func (d *Daemon) adoptPorts(live bool) {
	for _, b := range board.All() {
		fd, rec, ok := d.keep.takePort(b)
		if !ok {
			continue
		}
		p, err := d.adoptPort(b, fd, rec.Index, live)
		if err != nil {
			d.log.Warn("interface of the process before is not gone on with, and made anew", "port", b.Name, "err", err)
			d.keep.dropPort(b)
			continue
		}
		d.mu.Lock()
		d.taps[p] = true
		d.adopted[b.Index] = adoptedPort{p, rec}
		d.mu.Unlock()
	}
}

// adoptedPort is an interface of the process before, until its owner has it.
type adoptedPort struct {
	port *port.Port
	rec  portRecord
}

func (d *Daemon) adoptPort(b board.Port, fd, index int, live bool) (*port.Port, error) {
	p, err := port.Adopt(d.portConfig(b), fd, index)
	if err != nil {
		return nil, err
	}
	if live {
		err = d.tx.Add(p)
	} else {
		err = p.SetCarrier(false)
	}
	if err != nil {
		return nil, errors.Join(err, p.Keep())
	}
	if live {
		d.fan.join(p)
	}
	return p, nil
}

// handOver gives an owner what the process before left of its port, if it left something.
func (d *Daemon) handOver(o *owner, a adoptedPort) {
	if a.port == nil {
		return
	}
	if err := o.inherit(a.port, a.rec); err != nil {
		d.log.Warn("interface of the process before is not gone on with, and made anew", "port", o.port.Name, "err", err)
		d.detach(o.port, a.port)
	}
}

// inherit gives an owner what the process before left of its port: the interface as it
// is, and what is wanted of the card. An interface that was set up or down since is a
// request, as it is while somebody looks.
func (o *owner) inherit(i iface, r portRecord) error {
	l, err := i.Link()
	if err != nil {
		return fmt.Errorf("read interface of %s: %w", o.port, err)
	}
	own, err := net.ParseMAC(r.Own)
	if err != nil || len(own) != len(o.own) {
		return fmt.Errorf("the card's address of %s is recorded as %q", o.port, r.Own)
	}
	copy(o.own[:], own)
	o.want.mac, o.want.up, o.ifUp = l.MAC, r.Up, l.Up
	if r.Settings == o.settings.String() {
		o.pending = portSettings{} // in force, and perhaps changed by hand since
	}
	if r.Iface != "" {
		o.ifUp = r.Iface == upDown(true)
		o.heedUp(l.Up)
	}
	o.update(func(v *view) { v.iface, v.own, v.want, v.haveMAC = i, o.own, o.want, true })
	return nil
}

// Final tells whether an error of Run is one that starting again does not cure, and
// may make worse: live rings that could not be taken over, somebody else's, or those of
// another card than is asked for.
func Final(err error) bool {
	var (
		rings  *ring.AdoptError
		record *RecordError
		other  *OtherCardError
	)
	return errors.As(err, &rings) || errors.As(err, &record) || errors.As(err, &other) || errors.Is(err, errMasterOff) || errors.Is(err, octep.ErrHandshakeStuck) || known(err)
}
