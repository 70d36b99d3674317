package scene

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/simdev"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/ring"
	"oxpd/ring/wire"
)

// stage is a card with a driver, and both ends of every wire.
type stage struct {
	ctx    context.Context
	card   *hwsim.Card
	dev    octep.Device
	rings  *ring.Rings
	worker *ring.Worker
	why    ring.Wake
	nap    time.Duration // how long the worker wanted to sleep
	asleep time.Duration // until when it does
	irq    chan struct{}
	rng    *rand.Rand
	seq    uint32

	begin    uint64  // cycle of the scene's begin
	visible  uint64  // cycle since then at which the last length word is in memory; 0: none was written
	received []Frame // by the driver
	left     []Frame // by a wire
}

// Frame is what came to an end of the way.
type Frame struct {
	Tag   uint16
	Bytes []byte
}

// slice is how far the card goes before the driver looks whether a message came.
// A host that is woken has no time of its own here.
const slice = time.Microsecond

// cycle is the shortest time that holds one.
const cycle = 2 * time.Nanosecond

// open brings everything up to the moment at which a scene begins.
func open(ctx context.Context, seed int64, cfg ring.Config) (*stage, error) {
	s := &stage{
		ctx: ctx, irq: make(chan struct{}, 1), rng: rand.New(rand.NewPCG(uint64(seed), 0)),
		card: hwsim.New(hwsim.Options{Seed: seed, Timeline: hwsim.Compressed()}),
	}
	s.dev = simdev.New(s.card)
	if err := s.bringUp(ctx, cfg); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *stage) bringUp(ctx context.Context, cfg ring.Config) error {
	clock := s.card.Clock()
	ep, err := octep.Open(ctx, s.dev, octep.Config{Clock: clock})
	if err != nil {
		return err
	}
	if err := octep.SetBusMaster(s.dev, true); err != nil {
		return err
	}
	cfg.BAR0, cfg.DMA, cfg.Clock, cfg.Sink = s.dev.BAR0(), s.dev.DMA(), clock, s
	if s.rings, err = ring.New(cfg); err != nil {
		return err
	}
	if err := s.rings.Program(ctx); err != nil {
		return err
	}
	if err := ep.WaitReady(ctx); err != nil {
		return err
	}
	clocks, err := ep.NewHandshake(nil).Run(ctx)
	if err != nil {
		return err
	}
	if err := s.rings.SetClocks(clocks); err != nil {
		return err
	}
	for q := range wire.OQs {
		if err := s.dev.BindIRQ(csr.MSIXRingVector+q, s.rings.OQ(q).Handler(s.irq)); err != nil {
			return err
		}
	}
	s.worker = s.rings.Workers(1)[0]
	s.card.Provision()
	for _, p := range board.All() {
		tag := uint16(p.Tag)
		s.card.Wire(tag).SetReceiver(func(b []byte) { s.left = append(s.left, Frame{tag, append([]byte(nil), b...)}) })
	}
	return s.serve(time.Millisecond) // a first look at every ring; the next is due in 50 ms
}

// close ends the card's reach before the memory goes.
func (s *stage) close() error {
	err := octep.SetBusMaster(s.dev, false)
	err = errors.Join(err, s.dev.Close())
	s.card.Close()
	if s.rings != nil {
		err = errors.Join(err, s.rings.Free())
	}
	return err
}

// Deliver implements ring.Sink.
func (s *stage) Deliver(_ int, frames []ring.Frame) {
	for _, f := range frames {
		var b []byte
		for _, p := range f.Pieces {
			b = append(b, p...)
		}
		s.received = append(s.received, Frame{f.Tag, b})
	}
}

// serve is a driver at work for d of the card's time: its worker's turns, and in
// between sleep that a message ends. A sleep may outlast d, and goes on in the next
// call.
func (s *stage) serve(d time.Duration) error {
	clock := s.card.Clock()
	for end := clock.Now() + d; clock.Now() < end; {
		if err := s.ctx.Err(); err != nil {
			return err
		}
		if s.asleep > clock.Now() {
			switch ranOut := s.sleep(min(s.asleep, end)); {
			case !ranOut:
				s.wake()
			case clock.Now() >= s.asleep && s.nap == ring.SweepPeriod:
				s.why = ring.WakeSweep
			}
			continue
		}
		var err error
		if _, s.nap, err = s.worker.Step(s.why); err != nil {
			return err
		}
		s.why, s.asleep = ring.WakeBusy, clock.Now()+s.nap
	}
	return nil
}

// wake ends the worker's sleep, as a message of any ring does.
func (s *stage) wake() { s.asleep = 0 }

// sleep lets the card go on until a time or a message, and tells whether no message
// came.
func (s *stage) sleep(until time.Duration) (ranOut bool) {
	clock := s.card.Clock()
	for {
		select {
		case <-s.irq:
			return false
		default:
		}
		left := until - clock.Now()
		if left <= 0 {
			return true
		}
		s.card.Advance(max(min(left, slice), cycle))
	}
}

// hear notes what a scene waits for. It is called under the card's lock.
func (s *stage) hear(step *hwsim.Step) {
	if step.Unit == hwsim.UnitWrite && step.What == hwsim.WhatLength {
		s.visible = step.End
	}
}

// serveUntilVisible serves until a length word is in memory.
func (s *stage) serveUntilVisible() error {
	for range 1000 {
		if err := s.serve(slice); err != nil {
			return err
		}
		if s.visible != 0 && s.card.Now()-s.begin > s.visible {
			return nil
		}
	}
	return errors.New("the length word was not written in a millisecond")
}

// wait is time in which nobody serves the rings.
func (s *stage) wait(d time.Duration) { s.card.Advance(d) }

// settle serves until nothing is under way any more.
func (s *stage) settle() error {
	for range 1000 {
		if err := s.serve(10 * slice); err != nil {
			return err
		}
		if s.card.Quiesced() && s.waiting() == 0 {
			return nil
		}
	}
	return errors.New("frames are still under way after 10 ms")
}

// waiting is how many packets the card has written and nobody has acknowledged. It
// takes no time of the card.
func (s *stage) waiting() (n uint64) {
	for q := range wire.OQs {
		n += uint64(s.card.RingState(q).Count)
	}
	return n
}

// sendIn puts a frame on the wire of a port, from outside.
func (s *stage) sendIn(p board.Port, b []byte) { s.card.Wire(uint16(p.Tag)).Send(b) }

// sendOut gives frames to the driver for a port, with one doorbell.
func (s *stage) sendOut(p board.Port, frames ...[]byte) error {
	iq := s.rings.IQ()
	iq.Lock()
	defer iq.Unlock()
	for _, b := range frames {
		slot := iq.Reserve()
		if slot == nil {
			return errors.New("no slot is free")
		}
		copy(slot, b)
		iq.Commit(uint16(p.Tag), len(b))
	}
	iq.Flush()
	return nil
}

// setMTU changes a port's LIF as a completed command does, in no time.
func (s *stage) setMTU(p board.Port, mtu int) error {
	l, ok := s.card.LIF(uint32(p.LIF()))
	if !ok {
		return fmt.Errorf("%s has no LIF", p.Label)
	}
	l.MTU = uint16(mtu)
	s.card.SetLIF(uint32(p.LIF()), &l)
	return nil
}

// udp is a frame of n bytes to a port's own address: IPv4 and UDP of a flow, and a
// number and a pattern behind them. Frames of one flow take one ring.
func (s *stage) udp(p board.Port, flow, n int) []byte {
	f := make([]byte, max(n, udpHead+4))
	if l, ok := s.card.LIF(uint32(p.LIF())); ok {
		copy(f, l.MAC[:])
	}
	copy(f[6:], []byte{2, 0, 0, 0, 1, byte(flow)})
	binary.BigEndian.PutUint16(f[12:], 0x0800)
	ip := f[14:]
	ip[0], ip[8], ip[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(ip[2:], uint16(len(f)-14))
	copy(ip[12:], []byte{10, 0, byte(flow >> 8), byte(flow), 10, 0, 0, 1})
	binary.BigEndian.PutUint16(ip[20:], uint16(1024+flow))
	binary.BigEndian.PutUint16(ip[22:], 5001)
	binary.BigEndian.PutUint16(ip[24:], uint16(len(f)-34))
	binary.BigEndian.PutUint32(f[udpHead:], s.seq)
	for i := udpHead + 4; i < len(f); i++ {
		f[i] = byte(uint32(i)*7 + s.seq)
	}
	s.seq++
	return f[:n]
}

// udpHead is Ethernet, IPv4 and UDP.
const udpHead = 42
