// Package staged makes a simulated card and stops its time at a moment of its
// life, so that a look at it can be had for every stage of a boot without waiting
// for one: the model runs in stepped time, and what a host did before the moment
// is done by the driver's own code.
//
//	reset ── Host does its part, in card time ──▶ After passes ──▶ the moment
//
// Only looking at the card lets its time go on, by the 700 ns that a load takes.
//
// Left out: traffic, and what a host does behind the handshake (rpc, NetAgent).
package staged

import (
	"context"
	"errors"
	"fmt"
	"time"

	"oxpd/hwsim"
	"oxpd/internal/mmio"
	"oxpd/internal/simdev"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/ring"
)

// Host is how far a host had come with the card.
type Host string

// Hosts. Each has done what the ones before it did, except that an offer comes
// without rings.
const (
	HostAbsent    Host = "absent"    // nobody touched it: memory decoding is off
	HostFirmware  Host = "firmware"  // memory decoding is on
	HostOffer     Host = "offer"     // it offered itself in the handshake, and died
	HostRings     Host = "rings"     // bus mastering is on and the rings are programmed
	HostHandshake Host = "handshake" // it finished the handshake, and died
)

// Hosts lists them in that order.
func Hosts() []Host { return []Host{HostAbsent, HostFirmware, HostOffer, HostRings, HostHandshake} }

// MaxAfter is the longest After: nothing happens by itself later than minutes
// after the handshake.
const MaxAfter = time.Hour

// Moment is when a card's time stands still.
type Moment struct {
	Timeline hwsim.Timeline
	Host     Host
	After    time.Duration // since the host's part was done; since the reset where it did none
}

// Card is a simulated card at its moment.
type Card struct {
	octep.Device
	Card *hwsim.Card // for tests

	rings *ring.Rings
}

// Open makes the card. Errors are of a Moment that makes no sense, and the
// driver's.
func Open(ctx context.Context, m Moment) (*Card, error) {
	if m.After < 0 || m.After > MaxAfter {
		return nil, fmt.Errorf("staged: %v after: want 0 to %v", m.After, MaxAfter)
	}
	c := &Card{Card: hwsim.New(hwsim.Options{Seed: 1, Timeline: m.Timeline})}
	c.Device = simdev.New(c.Card)
	if err := c.host(ctx, m.Host); err != nil {
		return nil, errors.Join(fmt.Errorf("staged: host %s: %w", m.Host, err), c.Close())
	}
	c.Card.Advance(m.After)
	return c, nil
}

func (c *Card) host(ctx context.Context, h Host) error {
	switch h {
	case HostAbsent:
		return nil
	case HostFirmware, HostOffer, HostRings, HostHandshake:
	default:
		return fmt.Errorf("want one of %v", Hosts())
	}
	clock := c.Card.Clock()
	ep, err := octep.Open(ctx, c, octep.Config{Clock: clock})
	if err != nil || h == HostFirmware {
		return err
	}
	if h == HostOffer {
		mmio.Store64(c.BAR0(), csr.SLIScratch, csr.HostLoaded)
		return nil
	}
	if err := octep.SetBusMaster(c, true); err != nil {
		return err
	}
	if c.rings, err = ring.New(ring.Config{BAR0: c.BAR0(), DMA: c.DMA(), Clock: clock, Sink: nobody{}}); err != nil {
		return err
	}
	if err := c.rings.Program(ctx); err != nil || h == HostRings {
		return err
	}
	if err := ep.WaitReady(ctx); err != nil {
		return err
	}
	clocks, err := ep.NewHandshake(nil).Run(ctx)
	if err != nil {
		return err
	}
	return c.rings.SetClocks(clocks)
}

// nobody takes frames that no test sends.
type nobody struct{}

func (nobody) Deliver(int, []ring.Frame) {}

// Close ends the card, then its memory.
func (c *Card) Close() error {
	err := c.Device.Close()
	c.Card.Close()
	if c.rings != nil {
		err = errors.Join(err, c.rings.Free())
	}
	return err
}
