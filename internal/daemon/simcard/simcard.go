// Package simcard is the card of `oxpd run --sim`: a simulated one inside the
// process, running at wall time, with what the configuration hangs at its front
// ports: TAP interfaces, captures that are replayed and recorded, cables from one
// port to another. It is the one place beside tests where a driver program makes
// an hwsim card; the daemon sees an octep.Device like any other.
//
//	tap:NAME       Wire <-> TAP interface
//	pcap:IN,OUT    Wire <-- replay <-- IN        Wire --> Recorder --> OUT
//	loop:PORT      Wire <-> Wire of PORT
//
// Left out: a card in another process.
package simcard

import (
	"errors"
	"fmt"
	"io"
	"log/slog"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/internal/port"
	"oxpd/internal/simdev"
	"oxpd/octep"
)

// WireMTU is the MTU of a TAP at a front port. It never changes, so that frames
// that are too long for a LIF really arrive at the card.
const WireMTU = 9200

// Device is a simulated card with its wires.
type Device struct {
	octep.Device
	Card *hwsim.Card // for tests and for `oxpd sim`

	log   *slog.Logger
	stop  []func() error // takes the wires away
	pcaps [board.Ports]*pcapWire
}

// Open makes the card, switches it on and hangs the wires at it. The interfaces
// of the wires exist until Close. A capture that is damaged is refused here,
// before anything is on a wire. A nil logger discards.
func Open(cfg config.Sim, log *slog.Logger) (*Device, error) {
	if log == nil {
		log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	o := hwsim.Options{Seed: int64(cfg.Seed), Timeline: hwsim.Compressed()}
	if cfg.Timeline == config.TimelineReal {
		o.Timeline = hwsim.Real()
	}
	card := hwsim.New(o)
	d := &Device{Device: simdev.New(card), Card: card, log: log}
	for name, text := range cfg.Wires {
		if err := d.attach(name, text); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	card.Start()
	return d, nil
}

// attach hangs a wire at a front port.
func (d *Device) attach(name, text string) error {
	p, err := board.Parse(name)
	if err != nil {
		return fmt.Errorf("simcard: %w", err)
	}
	spec, err := config.ParseWire(text)
	if err == nil {
		switch spec.Kind {
		case config.WireTAP:
			err = d.attachTAP(p, spec)
		case config.WirePcap:
			err = d.attachPcap(p, spec)
		case config.WireLoop:
			// The mirror image may be in the configuration too: the later one joins
			// what is joined.
			unplug := d.wire(p).Loop(d.wire(spec.Peer))
			d.stop = append(d.stop, func() error { unplug(); return nil })
		}
	}
	if err != nil {
		return fmt.Errorf("simcard: wire of %s: %w", p, err)
	}
	return nil
}

func (d *Device) wire(p board.Port) *hwsim.Wire { return d.Card.Wire(uint16(p.Tag)) }

func (d *Device) attachTAP(p board.Port, spec config.Wire) error {
	tap, err := port.OpenWire(spec.TAP, spec.NetNS, WireMTU)
	if err != nil {
		return err
	}
	stop := d.wire(p).Attach(tap)
	d.stop = append(d.stop, func() error { stop(); return nil })
	return nil
}

// WireStats are the counters of every front port's wire.
func (d *Device) WireStats() []client.WireStats {
	var all []client.WireStats
	for _, p := range board.All() {
		s := d.wire(p).Stats()
		w := client.WireStats{IfName: p.Name, Label: p.Label, Counters: map[string]uint64{
			"in": s.In, "link_down": s.LinkDown, "runt": s.Runt, "oversize": s.Oversize, "switch_dropped": s.SwitchDropped,
			"overrun": s.Overrun, "filtered": s.Filtered, "no_fast_path": s.NoFastPath, "passed": s.Passed,
			"out": s.Out, "out_link_down": s.OutLinkDown, "out_switch_dropped": s.OutSwitchDropped, "out_refused": s.OutRefused,
		}}
		if r := d.pcaps[p.Index]; r != nil {
			r.count(w.Counters)
		}
		all = append(all, w)
	}
	return all
}

// EndsOnClose tells that the next start meets another card, which knows nothing of
// this one.
func (d *Device) EndsOnClose() bool { return true }

// Close takes the wires away, with every recording in its file, and switches the
// card off.
func (d *Device) Close() error {
	var errs []error
	for _, stop := range d.stop {
		errs = append(errs, stop())
	}
	errs = append(errs, d.Device.Close())
	d.Card.Close()
	return errors.Join(errs...)
}
