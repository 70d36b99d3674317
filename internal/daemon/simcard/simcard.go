// Package simcard is the card of `oxpd run --sim`: a simulated one inside the
// process, running at wall time, with TAP interfaces at the front ports that the
// configuration names. It is the one place beside tests where a driver program
// makes an hwsim card; the daemon sees an octep.Device like any other.
//
// Left out: a card in another process, recordings of what crosses the wires.
package simcard

import (
	"errors"
	"fmt"

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
	Card *hwsim.Card // for tests
	stop []func()    // takes the wires away
}

// Open makes the card, switches it on and hangs the wires at it. The interfaces
// of the wires exist until Close.
func Open(cfg config.Sim) (*Device, error) {
	o := hwsim.Options{Seed: int64(cfg.Seed), Timeline: hwsim.Compressed()}
	if cfg.Timeline == config.TimelineReal {
		o.Timeline = hwsim.Real()
	}
	card := hwsim.New(o)
	d := &Device{Device: simdev.New(card), Card: card}
	for _, p := range board.All() {
		if err := d.attach(cfg, p); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	card.Start()
	return d, nil
}

// attach hangs the configured TAP at a front port.
func (d *Device) attach(cfg config.Sim, p board.Port) error {
	for name, text := range cfg.Wires {
		if q, err := board.Parse(name); err != nil {
			return fmt.Errorf("simcard: %w", err)
		} else if q.Index != p.Index {
			continue
		}
		w, err := config.ParseWire(text)
		if err != nil {
			return fmt.Errorf("simcard: wire of %s: %w", p, err)
		}
		tap, err := port.OpenWire(w.TAP, w.NetNS, WireMTU)
		if err != nil {
			return fmt.Errorf("simcard: wire of %s: %w", p, err)
		}
		d.stop = append(d.stop, d.Card.Wire(uint16(p.Tag)).Attach(tap))
	}
	return nil
}

// WireStats are the counters of every front port's wire.
func (d *Device) WireStats() []client.WireStats {
	var all []client.WireStats
	for _, p := range board.All() {
		s := d.Card.Wire(uint16(p.Tag)).Stats()
		all = append(all, client.WireStats{IfName: p.Name, Label: p.Label, Counters: map[string]uint64{
			"in": s.In, "link_down": s.LinkDown, "runt": s.Runt, "oversize": s.Oversize, "switch_dropped": s.SwitchDropped,
			"overrun": s.Overrun, "filtered": s.Filtered, "no_fast_path": s.NoFastPath, "passed": s.Passed,
			"out": s.Out, "out_link_down": s.OutLinkDown, "out_switch_dropped": s.OutSwitchDropped,
		}})
	}
	return all
}

// Close takes the wires away and switches the card off.
func (d *Device) Close() error {
	for _, stop := range d.stop {
		stop()
	}
	err := d.Device.Close()
	d.Card.Close()
	return err
}
