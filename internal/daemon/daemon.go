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
	"oxpd/internal/fdstore"
	"oxpd/internal/port"
	"oxpd/lif"
	"oxpd/octep"
	"oxpd/ring"
)

// Options are what a daemon is given. Config and Open are required.
type Options struct {
	Config  config.Config
	Version string
	// Device is the name of the device that Open returns, "" when it is not known. A
	// store that has kept another one's interfaces, or its rings, is not gone on with.
	Device string
	// Open opens the card; it is the first stage of the bring-up. The daemon
	// closes what it returns.
	Open func(ctx context.Context) (octep.Device, error)
	// Store keeps interfaces, and a card that has descriptors, beyond the end of the
	// process; nil: nothing does.
	Store *fdstore.Store
	// OpenSwitch opens the way to the switch by the terminal at a path. booted is asked
	// before every byte: an error of it is why none may be sent now. nil: there is no way.
	OpenSwitch func(ctx context.Context, path string, booted func() error) (SwitchWay, error)

	Simulated bool         // for status only
	NetNS     string       // path of the namespace that interfaces are made in; empty: the process's own
	Logger    *slog.Logger // nil discards
	Clock     clock        // nil is the machine's
	// Task is called first by each goroutine that lives as long as the card does, in it, with
	// its name: worker 0, transmitter. A measurement binds them to threads. nil: nobody does.
	Task func(name string)
	// Yield is ring.Worker.SetYield of every worker, for those that Task binds; nil: not.
	Yield func()
}

// Daemon is one run of oxpd over one card. Run it once.
type Daemon struct {
	o     Options
	log   *slog.Logger
	clock clock
	began time.Duration
	cpu   *cpuMeter

	keep   *keeper
	track  *tracker
	fan    *fanout
	table  *reopener
	lifs   *lif.Manager
	owners [board.Ports]*owner
	sw     *switchState

	filters *filterService // outlives the card
	inspect *inspection    // likewise
	tcp     *statsService  // likewise

	ringCounts *ring.Counters // outlive rings
	ended      chan struct{}  // closed when the stop sequence is done

	saved    *octep.Saved // of the bring-up alone: what a reset takes out of config space
	stopOnce sync.Once
	stopAsk  chan struct{} // closed by the first request to stop
	teardown atomic.Bool

	mu        sync.Mutex
	cfg       config.Config // its maps are never changed
	state     client.State
	dev       octep.Device
	*life                              // the present one; each loss of the card begins another
	past      []*life                  // lost, and their memory is not released
	timesLost uint64                   // how often the card was lost
	taps      map[*port.Port]bool      // open interfaces
	adopted   [board.Ports]adoptedPort // those of the process before that no owner has yet
	warnings  []string
	handed    *handed // at the last reading of the card's counters; nil: there was none
	result    client.StopResult
	closed    bool // dev is closed
}

// New prepares a daemon; nothing is opened before Run.
func New(o Options) *Daemon {
	d := &Daemon{
		o: o, cfg: o.Config, log: o.Logger, clock: o.Clock, taps: map[*port.Port]bool{},
		ringCounts: ring.NewCounters(), life: newLife(), ended: make(chan struct{}), stopAsk: make(chan struct{}), state: client.StateBringUp,
		sw: newSwitchState(),
	}
	if d.log == nil {
		d.log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if d.clock == nil {
		d.clock = realclock.NewReal()
	}
	d.filters = newFilterService(d.log)
	d.fan = newFanout(d.filters.table, d.clock)
	d.inspect = newInspection(o.Config, o.NetNS, d.fan, d.clock, d.log)
	d.fan.inspector = d.inspect.in
	d.tcp = newStatsService(o.Config, o.NetNS, d.fan, d.clock, d.log)
	d.keep = &keeper{log: d.log}
	d.began = d.clock.Now()
	d.cpu = newCPUMeter(time.Now())
	d.track = newTracker(d.clock, d.log)
	d.table = &reopener{}
	d.lifs = lif.New(lif.Config{Table: d.table, Clock: d.clock, Logger: d.log})
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
// Errors: *PrivilegeError, *ListenError, *RunningError, *TakenError, *RecordError and
// *OtherCardError before anything was touched; otherwise that of the stage which failed, or of the stop
// sequence.
func (d *Daemon) Run(ctx context.Context) error {
	if err := mayMakeInterfaces(); err != nil {
		return err
	}
	if err := d.filters.boot(d.config().Filters); err != nil {
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
	if d.keep, err = newKeeper(d.o.Store, d.log); err != nil {
		return errors.Join(err, ports.release(), sock.release())
	}
	if err := d.keep.useCard(d.o.Device); err != nil {
		return errors.Join(err, ports.release(), sock.release())
	}
	defer d.o.Store.Leave()
	boot := d.config().Divert
	if err := d.inspect.start(&boot); err != nil {
		return errors.Join(err, ports.release(), sock.release())
	}
	if err := d.tcp.start(); err != nil {
		d.inspect.stop()
		return errors.Join(err, ports.release(), sock.release())
	}
	srv := newServer(d, d.log)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(limit(sock, maxClients)) }()
	d.log.Info("control socket listens", "socket", socket, "pid", os.Getpid())

	undo := d.watch()
	failed := d.serve(ctx)
	d.notify("STOPPING=1")
	err = errors.Join(failed, d.shutdown())
	d.tcp.stop()
	undo()
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

// watch keeps a service manager content that waits for signs of life, until the
// function that it returns is called.
func (d *Daemon) watch() (undo func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if limit := d.o.Store.Ping(); limit > 0 {
			(&watchdog{limit: limit, tell: d.o.Store.Notify, alive: d.alive, log: d.log}).run(ctx)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// notify tells the service manager something.
func (d *Daemon) notify(state string) {
	if err := d.o.Store.Notify(state); err != nil {
		d.log.Warn("the service manager does not hear", "err", err)
	}
}

// begin starts the bring-up of a life and returns its result.
func (d *Daemon) begin() <-chan error {
	up := make(chan error, 1)
	ctx := d.life.ctx // which ends before the stop sequence; Run's ctx only asks for that
	go func() { up <- d.bringUp(ctx) }()
	return up
}

// serve brings the card up, again after each loss, until the daemon is to end, and
// returns the reason, nil for one that was asked for. When it returns the bring-up has
// returned and nothing is begun any more; a handshake that had begun is finished.
func (d *Daemon) serve(ctx context.Context) error {
	up := d.begin()
	stop := func(why string) {
		d.setState(client.StateStopping)
		d.log.Info("stopping", "why", why)
		d.life.end(nil)
		if up != nil {
			<-up
		}
	}
	tick := time.NewTicker(cpuTick)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			d.cpu.sample(now)
			d.busy.sample(d.clock.Now())
		case <-ctx.Done():
			stop("signal")
			return nil
		case <-d.stopAsk:
			stop("asked on the control socket")
			return nil
		case err := <-up:
			up = nil
			switch {
			case err == nil:
				d.setState(client.StateRunning)
				d.laterSwitch()
				d.notify("READY=1")
				d.log.Info("running", "dev", d.dev.Name(), "workers", d.workers)
			case d.isLoss(err):
				up = d.renew(nil, err)
			default:
				stop("bring-up failed")
				return err
			}
		case err := <-d.life.lost:
			if d.isLoss(err) {
				up = d.renew(up, err)
				continue
			}
			if d.life.ctx.Err() == nil { // or another part has met the same, and it is said
				up = d.giveUp(up, err)
			}
		}
	}
}

// giveUp leaves the card alone because a part of oxpd cannot go on. What is left is to
// say so until somebody stops the daemon.
func (d *Daemon) giveUp(up <-chan error, why error) <-chan error {
	d.log.Error("card is not served any more", "err", why)
	d.warn("a part of oxpd cannot go on: " + why.Error() + "; stop oxpd and start it again")
	d.life.end(nil)
	if up != nil {
		<-up
	}
	d.quiet()
	d.fan.sendBy(nil)
	d.carrierOff()
	d.setState(client.StateFailed)
	return nil
}

// quiet waits until nobody uses the card: the tasks of a life that has been ended, and
// the control requests. It is false when a request is still inside after its bound.
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

// spawn runs a part of a life until run, its context, ends. An error of it is the loss of
// the card.
func (d *Daemon) spawn(run context.Context, name string, fn func(ctx context.Context) error) {
	d.tasks.Add(1)
	go func() {
		defer d.tasks.Done()
		if d.o.Task != nil {
			d.o.Task(name)
		}
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

// filtering implements control.
func (d *Daemon) filtering() filtering { return d.filters }

// diverting implements control.
func (d *Daemon) diverting() diverting { return d.inspect }

// statistics implements control.
func (d *Daemon) statistics() statistics { return d.tcp }
