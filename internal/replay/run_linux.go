package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"oxpd/hwsim"
	"oxpd/internal/capture"
	"oxpd/internal/daemon"
	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/internal/daemon/simcard"
	"oxpd/internal/netlab"
	"oxpd/octep"
)

const (
	bringUpLimit = 30 * time.Second
	askLimit     = 10 * time.Second
	poll         = 10 * time.Millisecond

	// window is how many frames PaceHost has under way: of the longest, six buffers
	// each, they fill less than half of a ring.
	window = 64
	// wireBacklog is how many frames PaceWire has waiting at the wire.
	wireBacklog = 512
	lookAgain   = 100 * time.Microsecond

	// stillLimit is how long nothing may have moved before frames that are not
	// accounted for are given up.
	stillLimit = 3 * time.Second
)

const socketName = "oxpd.sock"

// bench is the card, the daemon that drives it and the namespace of its interfaces.
type bench struct {
	o       Options
	ns      *netlab.NS
	scratch *netlab.Scratch
	card    *simcard.Device
	client  *client.Client
	stop    context.CancelFunc
	ended   chan error // of the daemon, once
}

func run(ctx context.Context, o Options, reports []*Report) (err error) {
	b := &bench{o: o}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.start(ctx); err != nil {
		return err
	}
	mtu, err := b.bringUp(ctx)
	if err != nil {
		return err
	}
	for _, r := range reports {
		r.MTU = mtu
		if err := b.replay(ctx, r); err != nil {
			return fmt.Errorf("%s: %w", r.File, err)
		}
	}
	return nil
}

// replay sends one capture and fills in its report.
func (b *bench) replay(ctx context.Context, r *Report) error {
	before, err := b.account(ctx)
	if err != nil {
		return err
	}
	w, err := b.watch(ctx)
	if err != nil {
		return err
	}
	begin := time.Now()
	after, err := b.send(ctx, r, w, before)
	if err != nil {
		return errors.Join(err, w.close())
	}
	r.Seconds = time.Since(begin).Seconds()
	r.Ends = append(r.Ends, after.ends()...)
	r.Reached = after.reached()
	if err := w.finish(ctx, r); err != nil {
		return err
	}
	r.close()
	return nil
}

// start makes the namespace and the daemon in it.
func (b *bench) start(ctx context.Context) (err error) {
	if b.ns, err = netlab.New(); err != nil {
		return err
	}
	for _, which := range []string{"all", "default"} {
		err := b.ns.Sysctl("ipv6/conf/"+which+"/disable_ipv6", "1")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if b.scratch, err = netlab.NewScratch(); err != nil {
		return err
	}
	cfg := config.Default()
	cfg.Socket = b.scratch.Path(socketName)
	opened := make(chan *simcard.Device, 1)
	d := daemon.New(daemon.Options{
		Config: cfg, Version: "replay", Simulated: true, Logger: b.o.Logger, NetNS: netlab.FDPath(int(b.ns.File().Fd())),
		Open: func(context.Context) (octep.Device, error) {
			dev, err := simcard.Open(cfg.Sim, b.o.Logger)
			if err != nil {
				return nil, err
			}
			opened <- dev
			return dev, nil
		},
	})
	// The daemon ends by stop, after the last look at its counters.
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	b.stop, b.ended = stop, make(chan error, 1)
	go func() { b.ended <- d.Run(run) }()
	b.client = client.New(cfg.Socket)
	select {
	case b.card = <-opened:
		return nil
	case err := <-b.ended:
		b.ended <- nil // for close
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// close ends the daemon and lets go of everything else.
func (b *bench) close() error {
	var errs []error
	if b.stop != nil {
		b.stop()
		errs = append(errs, <-b.ended)
	}
	if b.scratch != nil {
		errs = append(errs, b.scratch.Close())
	}
	if b.ns != nil {
		errs = append(errs, b.ns.Close())
	}
	return errors.Join(errs...)
}

func (b *bench) wire() *hwsim.Wire { return b.card.Card.Wire(uint16(b.o.Port.Tag)) }

// bringUp waits for the port, gives it its MTU and sets it up. It returns the MTU.
func (b *bench) bringUp(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, bringUpLimit)
	defer cancel()
	err := b.await(ctx, func() (bool, string, error) {
		s, err := b.client.Status(ctx)
		if errors.Is(err, client.ErrNoDaemon) {
			return false, "the daemon does not answer", nil
		}
		if err != nil {
			return false, "", err
		}
		what := "the bring-up"
		for _, st := range s.Stages {
			if st.State == client.StageActive {
				what = fmt.Sprintf("stage %s waits for %s", st.Name, st.Awaiting)
			}
		}
		if s.State == client.StateFailed {
			return false, "", fmt.Errorf("bring the card up: %s", what)
		}
		return s.State == client.StateRunning, what, nil
	})
	if err != nil {
		return 0, err
	}
	if b.o.MTU != 0 {
		if _, err := b.client.SetMTU(ctx, b.o.Port.Name, b.o.MTU); err != nil {
			return 0, err
		}
	}
	if err := b.ns.SetUp(b.o.Port.Name, true); err != nil {
		return 0, err
	}
	mtu := 0
	err = b.await(ctx, func() (bool, string, error) {
		p, err := b.client.Ports(ctx)
		if err != nil {
			return false, "", err
		}
		q, _ := p.Find(b.o.Port.Name)
		mtu = q.MTU
		return q.State == client.PortUp && q.OperState == client.OperUp && b.wire().Carries(), fmt.Sprintf("%s is %s, link %s", b.o.Port, q.State, q.Link), nil
	})
	return mtu, err
}

// await asks until the answer is yes. what says what is missing.
func (b *bench) await(ctx context.Context, ask func() (ok bool, what string, err error)) error {
	for {
		ok, what, err := ask()
		if ok || err != nil {
			return err
		}
		select {
		case <-time.After(poll):
		case err := <-b.ended:
			b.ended <- nil // for close
			return fmt.Errorf("the daemon has ended: %w", err)
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, ctx.Err())
		}
	}
}

// send puts the capture on the wire and waits until every frame has ended. It
// returns the account of what has moved since before.
func (b *bench) send(ctx context.Context, r *Report, w *watcher, before *account) (*account, error) {
	in, err := capture.Open(ctx, r.File)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	lif, _ := b.card.Card.LIF(uint32(b.o.Port.LIF()))
	var pace capture.Pacer
	var cut, free uint64 // free: frames that may be sent without a look
	for {
		rec, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if rec.Cut() {
			cut++
			continue
		}
		if b.o.RewriteMAC {
			capture.Readdress(rec.Frame, lif.MAC)
		}
		switch b.o.Pace {
		case PaceHost:
			if free == 0 {
				if free, err = b.room(ctx, before, r.Sent); err != nil {
					return nil, err
				}
			}
			free--
		case PaceCapture:
			err = sleep(ctx, pace.Wait(rec.Time, time.Now()))
		case PaceWire:
			for err == nil && b.wire().Backlog() >= wireBacklog {
				err = sleep(ctx, lookAgain)
			}
		}
		if err != nil {
			return nil, err
		}
		w.expect(rec.Frame)
		b.wire().Send(rec.Frame)
		r.Sent++
	}
	if cut > 0 {
		r.Ends = append(r.Ends, End{InCapture, "cut", cut, "kept only in part by the capture's snap length, not sent"})
	}
	after, _, err := b.settle(ctx, before, r.Sent, 0)
	return after, err
}

// room waits until PaceHost may send and returns how many frames. When nothing
// moves any more, frames are lost without a trace; the sum will say so.
func (b *bench) room(ctx context.Context, before *account, sent uint64) (uint64, error) {
	_, under, err := b.settle(ctx, before, sent, window/2)
	if under >= window {
		return 1, err
	}
	return window - under, err
}

// settle waits until at most under frames have not ended, or nothing moves any
// more. It returns the account since before and how many they are.
func (b *bench) settle(ctx context.Context, before *account, sent, most uint64) (*account, uint64, error) {
	var last uint64
	moved := time.Now()
	for {
		now, err := b.account(ctx)
		if err != nil {
			return nil, 0, err
		}
		now.since(before)
		ended := now.sum()
		if ended != last {
			last, moved = ended, time.Now()
		}
		under := sent - min(ended, sent)
		if under <= most || time.Since(moved) > stillLimit {
			return now, under, nil
		}
		if err := sleep(ctx, lookAgain); err != nil {
			return nil, 0, err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
