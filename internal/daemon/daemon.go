package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"oxpd/internal/board"
	realclock "oxpd/internal/clock"
	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/internal/dma"
	"oxpd/internal/mmio"
	"oxpd/internal/port"
	"oxpd/lif"
	"oxpd/octep"
	"oxpd/ring"
	"oxpd/rpc"
	"oxpd/rpc/msg"
)

// Options are what a daemon is given. Config and Open are required.
type Options struct {
	Config  config.Config
	Version string
	// Open opens the card; it is the first stage of the bring-up. The daemon
	// closes what it returns.
	Open      func(ctx context.Context) (octep.Device, error)
	Simulated bool         // for status only
	NetNS     string       // path of the namespace that interfaces are made in; empty: the process's own
	Logger    *slog.Logger // nil discards
	Clock     clock        // nil is the machine's
}

// Daemon is one run of oxpd over one card. Run it once.
type Daemon struct {
	o     Options
	log   *slog.Logger
	clock clock
	began time.Duration

	track  *tracker
	fan    *fanout
	counts [board.Ports]*port.Counters // outlive interfaces
	table  *reopener
	lifs   *lif.Manager
	owners [board.Ports]*owner

	tasks sync.WaitGroup // everything that runs while the card is up
	rush  atomic.Bool    // all ports are being looked at, because one was found lost
	visit *gate          // control requests that use the card beside the tasks
	lost  chan error     // capacity 1: the card has gone, or something that cannot go on
	ended chan struct{}  // closed when the stop sequence is done

	stopOnce sync.Once
	stopAsk  chan struct{} // closed by the first request to stop
	teardown atomic.Bool

	mu       sync.Mutex
	cfg      config.Config // its maps are never changed
	state    client.State
	dev      octep.Device
	ep       *octep.Endpoint
	rings    *ring.Rings
	tx       *port.Transmitter
	agent    agent
	channel  *rpc.Channel
	platform msg.Platform
	clocks   uint64
	workers  int
	uplink   error               // of the last attempt to raise the switch uplink
	regions  []*dma.Region       // of the rpc channel
	taps     map[*port.Port]bool // open interfaces
	warnings []string
	result   client.StopResult
	master   bool // this daemon turned bus mastering on
	armed    bool // the card was told about rings
	closed   bool // dev is closed
	gone     bool // the card read all ones: no BAR is touched any more
}

// New prepares a daemon; nothing is opened before Run.
func New(o Options) *Daemon {
	d := &Daemon{
		o: o, cfg: o.Config, log: o.Logger, clock: o.Clock, fan: newFanout(), taps: map[*port.Port]bool{},
		visit: newGate(), lost: make(chan error, 1), ended: make(chan struct{}), stopAsk: make(chan struct{}), state: client.StateBringUp,
	}
	if d.log == nil {
		d.log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if d.clock == nil {
		d.clock = realclock.NewReal()
	}
	d.began = d.clock.Now()
	d.track = newTracker(d.clock, d.log)
	d.table = &reopener{}
	d.lifs = lif.New(lif.Config{Table: d.table, Clock: d.clock, Logger: d.log})
	for i := range d.owners {
		d.counts[i] = new(port.Counters)
	}
	return d
}

// config is the configuration that is in force.
func (d *Daemon) config() config.Config {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cfg
}

const answerLimit = 3 * time.Second // wall clock, for answers in progress when the daemon ends

// Run is the daemon's life: it listens, brings the card up, and serves until ctx
// ends, a client asks for the end, or the bring-up meets what waiting does not
// cure. Then it runs the stop sequence and returns when no goroutine of it is
// left. The result is nil for a stop that was asked for.
//
// Errors: *PrivilegeError, *ListenError, *RunningError and *TakenError before
// anything was touched; otherwise that of the stage which failed, or of the stop
// sequence.
func (d *Daemon) Run(ctx context.Context) error {
	if err := mayMakeInterfaces(); err != nil {
		return err
	}
	socket := d.config().Socket
	sock, err := listen(socket)
	if err != nil {
		return err
	}
	ports, err := claimPorts(d.o.NetNS, socket, d.log)
	if err != nil {
		return errors.Join(err, sock.release())
	}
	srv := newServer(d, d.log)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(limit(sock, maxClients)) }()
	d.log.Info("control socket listens", "socket", socket, "pid", os.Getpid())

	// Everything of the card runs under run, which ends before the stop sequence;
	// the caller's ctx only asks for it.
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	up := make(chan error, 1)
	go func() { up <- d.bringUp(run) }()

	failed := d.serve(ctx, up, cancel)
	err = errors.Join(failed, d.shutdown())
	close(d.ended)

	end, stop := context.WithTimeout(context.WithoutCancel(ctx), answerLimit)
	defer stop()
	if srv.Shutdown(end) != nil {
		_ = srv.Close() // a client that does not read its answer loses it
	}
	if e := <-served; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, fmt.Errorf("serve the control socket: %w", e))
	}
	// Ports before the socket: a stop that was asked for is over when the socket's
	// lock is free, and the next daemon may start.
	err = errors.Join(err, ports.release())
	if e := sock.release(); e != nil {
		err = errors.Join(err, fmt.Errorf("release the control socket: %w", e))
	}
	return err
}

// serve waits for the end of the daemon's life and returns its reason, nil for
// one that was asked for. When it returns the bring-up has returned and run has
// ended; a handshake that had begun is finished.
func (d *Daemon) serve(ctx context.Context, up <-chan error, cancel context.CancelFunc) error {
	reason := func(why string) {
		d.setState(client.StateStopping)
		d.log.Info("stopping", "why", why)
		cancel()
		if up != nil {
			<-up
		}
	}
	lost := false
	for {
		select {
		case <-ctx.Done():
			reason("signal")
			return nil
		case <-d.stopAsk:
			reason("asked on the control socket")
			return nil
		case err := <-up:
			up = nil
			if err != nil {
				reason("bring-up failed")
				return err
			}
			d.setState(client.StateRunning)
			d.log.Info("running", "dev", d.dev.Name(), "workers", d.workers)
		case err := <-d.lost:
			// Nothing touches the card from here on. What is left is to say so until
			// somebody stops the daemon.
			why := "a part of oxpd cannot go on: " + err.Error() + "; stop oxpd and start it again"
			if errors.Is(err, mmio.ErrGone) {
				why = "the card is lost: " + err.Error() + "; stop oxpd, reboot the coprocessor, start oxpd again"
				d.mu.Lock()
				d.gone = true
				d.mu.Unlock()
			}
			if lost {
				continue // another part has met the same, and it is said
			}
			lost = true
			d.log.Error("card is not served any more", "err", err)
			d.warn(why)
			cancel()
			if up != nil {
				<-up
				up = nil
			}
			d.quiet()
			d.carrierOff()
			d.setState(client.StateFailed)
		}
	}
}

// quiet waits until nobody uses the card: the tasks, once run has ended, and the
// control requests. It is false when a request is still inside after its bound.
func (d *Daemon) quiet() bool {
	out := d.visit.close(visitLimit)
	d.tasks.Wait()
	return out
}

// lose reports that the card has gone; only the first report counts.
func (d *Daemon) lose(err error) {
	select {
	case d.lost <- err:
	default:
	}
}

// spawn runs a part of the daemon until run ends. An error of it is the loss of
// the card.
func (d *Daemon) spawn(run context.Context, name string, fn func(ctx context.Context) error) {
	d.tasks.Add(1)
	go func() {
		defer d.tasks.Done()
		if err := fn(run); err != nil && run.Err() == nil {
			d.lose(fmt.Errorf("%s: %w", name, err))
		}
	}()
}

func (d *Daemon) setState(s client.State) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state = s
}

// warn adds a warning to the status, once.
func (d *Daemon) warn(text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range d.warnings {
		if w == text {
			return
		}
	}
	d.warnings = append(d.warnings, text)
}

// stop implements control: it asks for the end and waits for it.
func (d *Daemon) stop(ctx context.Context, teardown bool) (client.StopResult, error) {
	if teardown {
		d.teardown.Store(true)
	}
	d.stopOnce.Do(func() { close(d.stopAsk) })
	select {
	case <-d.ended:
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.result, nil
	case <-ctx.Done():
		return client.StopResult{}, fmt.Errorf("wait for the stop sequence: %w", ctx.Err())
	}
}
