// Package simcard is the card of `oxpd run --sim`: a simulated one inside the
// process, running at wall time, with what the configuration hangs at its front
// ports: TAP interfaces, captures that are replayed and recorded, cables from one
// port to another. It is the one place beside tests where a driver program makes
// an hwsim card; the daemon sees an octep.Device like any other.
//
//	tap:NAME       Wire <-> TAP interface
//	pcap:IN,OUT    Wire <-- replay <-- IN        Wire --> Recorder --> OUT
//	unix:PATH      Wire <-> process that has connected to PATH
//	loop:PORT      Wire <-> Wire of PORT
//
// Its serial console is a pseudo terminal (hwsim/console).
//
// A Board is also what `oxpd sim serve` shows to another process.
package simcard

import (
	"errors"
	"fmt"
	"io"
	"log/slog"

	"oxpd/hwsim"
	"oxpd/hwsim/console"
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

// Board is a simulated card with its wires.
type Board struct {
	Card *hwsim.Card // for tests and for `oxpd sim`

	log   *slog.Logger
	stop  []func() error // takes the wires away
	pcaps [board.Ports]*pcapWire

	console *console.Console // nil: none
}

// NewBoard makes a card and hangs the wires at it; Start switches it on. The
// interfaces of the wires exist until Close. A capture that is damaged is refused
// here, before anything is on a wire. change may change what kind of card it is. A
// nil logger discards.
func NewBoard(cfg config.Sim, log *slog.Logger, change ...func(*hwsim.Options)) (*Board, error) {
	if log == nil {
		log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	o := hwsim.Options{Seed: int64(cfg.Seed), Timeline: hwsim.Compressed()}
	if cfg.Timeline == config.TimelineReal {
		o.Timeline = hwsim.Real()
	}
	for _, f := range change {
		f(&o)
	}
	d := &Board{Card: hwsim.New(o), log: log}
	for name, text := range cfg.Wires {
		if err := d.attach(name, text); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	return d, nil
}

// Misuse is the message of the log for what the card had to report, each kind once, with
// its name as what.
const Misuse = "misuse of the card"

// Close takes the wires away, with every recording in its file, switches the card off,
// and logs what it had to report.
func (d *Board) Close() error {
	var errs []error
	for _, stop := range d.stop {
		errs = append(errs, stop())
	}
	d.Card.Close()
	said := map[string]bool{}
	for _, r := range d.Card.Reports() {
		if !said[r.Name] {
			said[r.Name] = true
			d.log.Warn(Misuse, "what", r.Name, "times", d.Card.ReportCount(r.Name), "cycle", r.Cycle, "first", r.Text)
		}
	}
	return errors.Join(errs...)
}

// Device is a board as the daemon sees it.
type Device struct {
	octep.Device
	*Board
}

// Name is that of each Device.
const Name = simdev.Name

// Open is NewBoard for the daemon, and switches it on, with its faults from the
// start.
func Open(cfg config.Sim, log *slog.Logger, faults ...hwsim.Injection) (*Device, error) {
	b, err := NewBoard(cfg, log)
	if err != nil {
		return nil, err
	}
	if err := b.Card.Inject(faults...); err != nil {
		return nil, errors.Join(fmt.Errorf("simcard: %w", err), b.Close())
	}
	if err := b.OpenConsole(cfg.Console); err != nil {
		if cfg.Console != "" {
			return nil, errors.Join(err, b.Close())
		}
		b.log.Warn("the simulated coprocessor has no console", "err", err)
	}
	b.Card.Start()
	return &Device{simdev.New(b.Card), b}, nil
}

// EndsOnClose tells that the next start meets another card, which knows nothing of
// this one.
func (d *Device) EndsOnClose() bool { return true }

// Close unbinds the device and ends the board.
func (d *Device) Close() error { return errors.Join(d.Device.Close(), d.Board.Close()) }

// attach hangs a wire at a front port.
func (d *Board) attach(name, text string) error {
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
		case config.WireUnix:
			err = d.attachUnix(p, spec)
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

func (d *Board) wire(p board.Port) *hwsim.Wire { return d.Card.Wire(uint16(p.Tag)) }

func (d *Board) attachTAP(p board.Port, spec config.Wire) error {
	tap, err := port.OpenWire(spec.TAP, spec.NetNS, WireMTU)
	if err != nil {
		return err
	}
	stop := d.wire(p).Attach(tap)
	d.stop = append(d.stop, func() error { stop(); return nil })
	return nil
}

// WireStats are the counters of every front port's wire.
func (d *Board) WireStats() []client.WireStats {
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
