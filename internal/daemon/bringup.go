package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"oxpd/internal/board"
	"oxpd/internal/dma"
	"oxpd/internal/mmio"
	"oxpd/internal/nwa"
	"oxpd/internal/port"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/ring"
	"oxpd/rpc"
	"oxpd/rpc/msg"
)

const (
	retryPause   = time.Second // between attempts of a stage
	agentPause   = 500 * time.Millisecond
	livenessTick = 100 * time.Millisecond
)

// bringUp runs the stages. An error other than the context's is one that waiting
// does not cure; the stage shows it.
func (d *Daemon) bringUp(ctx context.Context) error {
	var current atomic.Int32 // stage that progress of octep belongs to
	for _, s := range []struct {
		stage    stage
		awaiting string
		do       func(ctx context.Context) (detail string, err error)
	}{
		{stageDevice, "the card to answer", func(ctx context.Context) (string, error) {
			return d.openDevice(ctx, func(_, awaiting string) { d.track.await(stage(current.Load()), awaiting) })
		}},
		{stageBusMaster, "the command register", d.busMaster},
		{stageRings, "memory and idle rings", d.startRings},
		{stageReady, "the target's endpoint driver", d.waitReady},
		{stageHandshake, "the coprocessor's answer", d.handshake},
		{stageLevels, "the interrupt levels", d.levels},
		{stageRPC, "the rpc facility", d.openRPC},
		{stagePlatform, "the platform record", d.checkPlatform},
		{stageNetAgent, "the NetAgent mailbox", d.openAgent},
		{stageUplinks, "the uplinks", d.raiseUplinks},
		{stageSwitch, "the coprocessor's console", d.firstSwitch},
		{stagePorts, "the ports", d.provisionPorts},
		{stageLinks, "the links", d.firstLinks},
	} {
		current.Store(int32(s.stage))
		d.track.begin(s.stage, s.awaiting)
		detail, err := s.do(ctx)
		if err != nil {
			d.track.fail(s.stage, err)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("stage %s: %w", s.stage, err)
		}
		d.track.done(s.stage, detail)
	}
	return nil
}

// again repeats a stage's attempt until it succeeds, ctx ends, or passes says
// that waiting does not help.
func (d *Daemon) again(ctx context.Context, s stage, pause time.Duration, passes func(error) bool, try func() error) error {
	for {
		err := try()
		if err == nil || ctx.Err() != nil || !passes(err) {
			return err
		}
		d.track.refused(s, err)
		if err := d.clock.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// anyOf makes a predicate of sentinels.
func anyOf(sentinels ...error) func(error) bool {
	return func(err error) bool {
		for _, s := range sentinels {
			if errors.Is(err, s) {
				return true
			}
		}
		return false
	}
}

// openDevice opens the card, or waits for one that was lost.
func (d *Daemon) openDevice(ctx context.Context, progress func(stage, awaiting string)) (string, error) {
	if d.dev == nil {
		dev, err := d.o.Open(ctx)
		if err != nil {
			return "", err
		}
		d.mu.Lock()
		d.dev = dev
		d.mu.Unlock()
		d.keep.keepCard(dev)
	} else if err := d.awaitCard(ctx); err != nil {
		return "", err
	}
	if err := d.restore(); err != nil {
		return "", err
	}
	card := octep.NewFence(d.dev)
	d.mu.Lock()
	d.life.dev, d.card = d.dev, card
	d.mu.Unlock()
	ep, err := octep.Open(ctx, card, octep.Config{Clock: d.clock, Logger: d.log, Progress: progress})
	if err != nil {
		return "", err
	}
	if d.saved == nil {
		if d.saved, err = octep.Save(card); err != nil {
			return "", err
		}
	}
	d.mu.Lock()
	d.ep = ep
	d.mu.Unlock()
	d.spawn(ctx, "liveness", func(ctx context.Context) error { return octep.Watch(ctx, card, d.clock, livenessTick) })
	return fmt.Sprintf("%s, %d rings", card.Name(), ep.RingInfo().TRS), nil
}

// known tells whether the coprocessor knows a host already.
func known(err error) bool {
	return errors.Is(err, octep.ErrEarlierRun) || errors.Is(err, octep.ErrHandshakeInFlight) || errors.Is(err, octep.ErrHandshakeForeign)
}

// reclaimer is a provider of memory that outlives its process: what an earlier one
// left is given back once the card is known to know nothing of it.
type reclaimer interface{ Reclaim() error }

// busMaster lets the card reach memory, and remembers whether it could before:
// a start that is refused leaves it as it was found. A card that knows an earlier
// run's memory is gone on with when that memory is still there, and refused otherwise:
// what lies there now may be somebody else's.
//
// One that was lost and is back as it was, because only the way to it was gone, knows
// the memory of before the loss, which is kept: it is waited for until it was reset.
func (d *Daemon) busMaster(ctx context.Context) (string, error) {
	before, err := d.dev.ConfigRead(csr.CfgCommand, 2)
	if err != nil {
		return "", fmt.Errorf("read command register: %w", err)
	}
	ours := slices.ContainsFunc(d.past, func(l *life) bool { return l.armed })
	err = d.again(ctx, stageBusMaster, retryPause, func(err error) bool { return ours && known(err) }, func() error {
		if !octep.Reachable(d.dev) { // config space first: it may be in its reset now
			return fmt.Errorf("look for an earlier run: %w", errCardGone)
		}
		err := d.ep.CheckFresh()
		if ours && known(err) {
			d.track.await(stageBusMaster, "a reset of the coprocessor, which has come back as it was before it was lost")
		}
		return err
	})
	if known(err) && d.timesLost == 0 {
		a, e := d.adoptRings(ctx, before)
		if a != nil {
			d.mu.Lock()
			d.taken, d.rings, d.armed = a, a.rings, true
			d.mu.Unlock()
			return "was on, for the process before", nil
		}
		err = cmp.Or(e, err)
	}
	if err != nil {
		if before&csr.CfgCommandBusMaster != 0 {
			d.log.Warn("bus mastering is on, as it was found: the card can reach memory", "dev", d.dev.Name())
		}
		return "", err
	}
	if err := d.releasePast(); err != nil {
		return "", err
	}
	if m, ok := d.dev.DMA().(reclaimer); ok && len(d.past) == 0 { // it does not tell this process's from others'
		if err := m.Reclaim(); err != nil {
			return "", err
		}
	}
	if before&csr.CfgCommandBusMaster != 0 && !ours {
		return "was on", nil
	}
	d.mu.Lock()
	d.master = true // also when the read-back fails: the stop sequence clears it
	d.mu.Unlock()
	return "on", octep.SetBusMaster(d.dev, true)
}

// programRings gives the card its rings. Interrupts come at the packet level alone
// until the clock is known.
func (d *Daemon) programRings(ctx context.Context) error {
	rings, err := ring.New(d.ringConfig())
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.rings, d.armed = rings, true // a programming that fails half-way has told the card addresses
	d.mu.Unlock()
	if err := rings.Program(ctx); err != nil {
		if errors.Is(err, ring.ErrLive) {
			d.mu.Lock()
			d.armed = false // nothing was written: the rings are somebody else's
			d.mu.Unlock()
		}
		return err
	}
	return nil
}

// startRings programs the rings, unless they are the process before's, and starts what
// serves them.
func (d *Daemon) startRings(ctx context.Context) (string, error) {
	if d.taken == nil {
		if err := d.programRings(ctx); err != nil {
			return "", err
		}
	}
	rings := d.rings
	tx, err := port.NewTransmitter(nil, rings.IQ(), &outward{fanout: d.fan}, d.clock, d.log)
	if err != nil {
		return "", err
	}
	d.mu.Lock()
	d.tx = tx
	d.mu.Unlock()
	d.fan.sendBy(tx)
	d.adoptPorts(d.taken != nil)
	d.spawn(ctx, "transmitter", tx.Run)

	workers := rings.Workers(d.config().WorkerCount())
	d.mu.Lock()
	d.workers = len(workers)
	d.mu.Unlock()
	polled := false
	for i, w := range workers {
		irq, err := d.bind(rings, w.Queues())
		if err != nil {
			return "", err
		}
		polled = irq == nil
		w.SetBeat(d.pulse.join())
		if d.o.Yield != nil {
			w.SetYield(d.o.Yield)
		}
		d.busy.watch(w.Queues(), w.Slept, d.clock.Now())
		d.spawn(ctx, fmt.Sprintf("worker %d", i), func(ctx context.Context) error { return w.Run(ctx, irq) })
	}
	detail := fmt.Sprintf("%d workers", len(workers))
	if polled {
		detail += ", no interrupts: they poll"
	}
	if d.taken != nil {
		detail += ", rings of the process before"
	}
	return detail, nil
}

// bind has the interrupts of rings sent to one channel. nil: none comes, and the card
// raises none that nobody takes.
func (d *Daemon) bind(rings *ring.Rings, queues []int) (<-chan struct{}, error) {
	irq := make(chan struct{}, 1)
	for _, q := range queues {
		err := d.dev.BindIRQ(csr.MSIXRingVector+q, rings.OQ(q).Handler(irq))
		if errors.Is(err, octep.ErrNoInterrupts) {
			return nil, octep.MuteINTx(d.dev)
		}
		if err != nil {
			return nil, fmt.Errorf("bind interrupt of ring %d: %w", q, err)
		}
	}
	return irq, nil
}

func (d *Daemon) waitReady(ctx context.Context) (string, error) {
	err := d.again(ctx, stageReady, retryPause, anyOf(octep.ErrTimeout), func() error { return d.ep.WaitReady(ctx) })
	return "barmap read", err
}

// handshake tells the coprocessor about its host. One that was done already was
// about rings of somebody else, who came between the look before bus mastering
// and this offer: the coprocessor may hold those addresses and never these
// (design.md, rules 6 and 8). Once the coprocessor has answered, Run finishes
// whatever happens to ctx. Each step is written down with the rings: one in which this
// process is killed is ended by the next.
func (d *Daemon) handshake(ctx context.Context) (string, error) {
	if d.taken.ready() {
		d.mu.Lock()
		d.clocks = d.taken.found.ClocksPerUS
		d.mu.Unlock()
		return fmt.Sprintf("%d MHz, by the process before", d.clocks), nil
	}
	h := d.ep.NewHandshake(nil)
	h.Resume(d.taken.progress(), func(p octep.Progress) { d.rings.NoteHandshake(uint8(p.State), p.ClocksPerUS) })
	detail := ""
	err := d.again(ctx, stageHandshake, retryPause, anyOf(octep.ErrHandshakeSilent), func() error {
		clocks, err := h.Run(ctx)
		detail = fmt.Sprintf("%d MHz", clocks)
		if errors.Is(err, octep.ErrHandshakeDone) {
			return &octep.EarlierRunError{Witness: octep.ErrHandshakeDone.Error()}
		}
		d.mu.Lock()
		d.clocks = clocks
		d.mu.Unlock()
		return err
	})
	return detail, err
}

func (d *Daemon) levels(context.Context) (string, error) {
	if d.taken.ready() {
		return "as they were", nil
	}
	return "", d.rings.SetClocks(d.clocks)
}

// openRPC waits for the rpc facility and configures it. It is published late and
// nothing announces it.
func (d *Daemon) openRPC(ctx context.Context) (string, error) {
	passes := anyOf(octep.ErrTimeout, octep.ErrFacilityAbsent, rpc.ErrNotReady, rpc.ErrPending, rpc.ErrTimeout, rpc.ErrStalled, rpc.ErrMalformed)
	err := d.again(ctx, stageRPC, retryPause, passes, func() error {
		if d.channel == nil {
			f, err := d.ep.WaitFacility(ctx, csr.FacRPC)
			if err != nil {
				return err
			}
			left, err := d.leftBuffers()
			if err != nil {
				return err
			}
			c := rpc.New(f, f, nil, d.clock, d.log, rpc.Config{
				Doorbells: int(d.ep.Barmap().Facility[csr.FacRPC].Doorbells), Alloc: d.rpcBuffer, Left: left,
			})
			d.mu.Lock()
			d.channel = c
			d.mu.Unlock()
			d.table.use(c)
		}
		d.track.await(stageRPC, "the target to take the configuration")
		return d.channel.Configure(ctx)
	})
	return "configured", err
}

// memory is where everything comes from that the card is told about.
func (d *Daemon) memory() dma.Provider { return dma.Limit(d.dev.DMA(), d.config().DMABits) }

// Needs is the memory that the card is told about, in the order in which it is asked
// for; rpc takes a second buffer when it has to open its channel anew.
func Needs() []dma.Need {
	command := dma.Need{Size: rpc.BufferBytes, Align: msg.BufferAlign}
	return append(ring.Needs(), command, command)
}

// bufferName is that of all command buffers, by which the next process finds them.
const bufferName = "rpc command"

// leftBuffers are the command buffers of earlier processes.
func (d *Daemon) leftBuffers() ([]*dma.Region, error) {
	left, err := dma.HeldAll(d.memory(), bufferName, rpc.BufferBytes, msg.BufferAlign)
	if err != nil {
		return nil, fmt.Errorf("find rpc buffers: %w", err)
	}
	return left, d.addBuffers(left...)
}

// rpcBuffer allocates a command buffer.
func (d *Daemon) rpcBuffer() (*dma.Region, error) {
	r, err := d.memory().Alloc(bufferName, rpc.BufferBytes, msg.BufferAlign)
	if err != nil {
		return nil, fmt.Errorf("allocate rpc buffer: %w", err)
	}
	return r, d.addBuffers(r)
}

// addBuffers notes command buffers; all of them are kept until the card can no longer
// reach them.
func (d *Daemon) addBuffers(buffers ...*dma.Region) error {
	d.mu.Lock()
	d.regions = append(d.regions, buffers...)
	d.mu.Unlock()
	for _, r := range buffers {
		if err := r.Check(); err != nil {
			return fmt.Errorf("check rpc buffer: %w", err)
		}
	}
	return nil
}

// checkPlatform refuses a board that the port table is not for.
func (d *Daemon) checkPlatform(ctx context.Context) (string, error) {
	var p msg.Platform
	err := d.again(ctx, stagePlatform, retryPause, anyOf(rpc.ErrTimeout, rpc.ErrStalled, rpc.ErrNotReady, rpc.ErrPending), func() (err error) {
		if _, err := d.table.heal(ctx); err != nil {
			return err
		}
		p, err = d.channel.Platform(ctx)
		return d.table.saw(err)
	})
	if err != nil {
		return "", err
	}
	d.mu.Lock()
	d.platform = p
	d.mu.Unlock()
	return fmt.Sprintf("%s, %s", p.Platform, p.Assembly), rpc.CheckBoard(p)
}

// openAgent waits for NetAgent's mailbox, for an answer, and reads its port table.
func (d *Daemon) openAgent(ctx context.Context) (string, error) {
	var f *octep.Facility
	err := d.again(ctx, stageNetAgent, retryPause, anyOf(octep.ErrTimeout, octep.ErrFacilityAbsent), func() (err error) {
		f, err = d.ep.WaitFacility(ctx, csr.FacNWA)
		return err
	})
	if err != nil {
		return "", err
	}
	a := nwa.New(f, f, d.clock, d.log)
	passes := anyOf(nwa.ErrNotReady, nwa.ErrRestarted, nwa.ErrTimeout, nwa.ErrUnanswered, nwa.ErrRefused, nwa.ErrMalformed)
	var ports []msg.NWAPort
	d.track.await(stageNetAgent, "NetAgent to answer")
	err = d.again(ctx, stageNetAgent, agentPause, passes, func() (err error) {
		// The reference's probe: PortF2's address, which may still be zero.
		if _, err = a.MAC(ctx, board.ByIndex(probePort).Tag); err != nil && !errors.Is(err, nwa.ErrNoMAC) {
			return err
		}
		ports, err = a.Discover(ctx)
		return err
	})
	if err != nil {
		return "", err
	}
	d.mu.Lock()
	d.agent = a
	d.mu.Unlock()
	d.checkPorts(ports)
	return fmt.Sprintf("%d ports", len(ports)), nil
}

// probePort is PortF2 in the board table.
const probePort = 9

// checkPorts compares NetAgent's table with the board's.
func (d *Daemon) checkPorts(found []msg.NWAPort) {
	have := map[board.Tag]bool{}
	for _, p := range found {
		have[board.Tag(p.Tag)] = true
	}
	var missing []string
	for _, p := range board.All() {
		if !have[p.Tag] {
			missing = append(missing, p.String())
		}
	}
	if len(missing) > 0 {
		d.warn("NetAgent's port table lacks " + strings.Join(missing, ", "))
	}
}

// raiseUplinks raises the switch's uplink. PortF1 and PortF2 follow, first of
// all ports, in the stage of the ports: each is raised by its owner. A refusal
// is no reason to leave the other ports down; the reconcile loop goes on.
func (d *Daemon) raiseUplinks(ctx context.Context) (string, error) {
	err := d.raiseUplink(ctx)
	switch {
	case err == nil:
		return "raised", nil
	case ctx.Err() != nil, errors.Is(err, mmio.ErrGone):
		return "", err
	}
	return "refused, tried again: " + err.Error(), nil
}

func (d *Daemon) raiseUplink(ctx context.Context) error {
	err := d.agent.SetState(ctx, board.TagUplink, true)
	if err != nil {
		err = fmt.Errorf("raise the switch uplink: %w", err)
		d.log.Warn("uplink is waiting", "err", err)
	}
	d.mu.Lock()
	d.uplink = err
	d.mu.Unlock()
	return err
}

// order is that of provisioning: the cages of the coprocessor, then the switch's
// ports (rpc-lif.md 8).
func order() []board.Port {
	var first, then []board.Port
	for _, p := range board.All() {
		if p.BehindSwitch() {
			then = append(then, p)
		} else {
			first = append(first, p)
		}
	}
	return append(first, then...)
}

// provisionPorts gives each port one attempt. One that is refused waits, and its
// owner goes on trying; it holds up no other.
func (d *Daemon) provisionPorts(ctx context.Context) (string, error) {
	d.mu.Lock()
	for _, p := range board.All() {
		if o := d.owners[p.Index]; o != nil {
			o.cardBack(d.agent)
			continue
		}
		d.owners[p.Index] = newOwner(ownerConfig{
			port: p, agent: d.agent, lifs: d.lifs, clock: d.clock, log: d.log, settings: settingsOf(d.cfg.Port(p)), limit: d.limitOf(p),
			attach: d.attach, rejoin: d.rejoin, detach: d.detach, lost: d.foundLost, note: func(r portRecord) { d.keep.notePort(p, r) },
		})
	}
	adopted := d.adopted
	d.adopted = [board.Ports]adoptedPort{}
	d.mu.Unlock()
	for i, a := range adopted {
		d.handOver(d.owners[i], a)
	}
	for _, o := range d.owners {
		d.spawn(ctx, o.port.Name, func(ctx context.Context) error { o.run(ctx); return nil })
	}
	d.spawn(ctx, "link watcher", d.watchLinks)
	d.spawn(ctx, "rpc channel", d.keepChannel)
	up := 0
	for _, p := range order() {
		d.track.await(stagePorts, p.String())
		o := d.owners[p.Index]
		err := o.ask(ctx, o.provision)
		switch {
		case err == nil:
			up++
		case ctx.Err() != nil, errors.Is(err, mmio.ErrGone):
			return "", err
		}
	}
	d.spawn(ctx, "reconciler", d.reconcile)
	d.spawn(ctx, "flow watcher", d.watchFlow)
	return fmt.Sprintf("%d of %d up", up, board.Ports), nil
}

// firstLinks looks at each link once, so that no carrier waits for its turn in
// the poll.
func (d *Daemon) firstLinks(ctx context.Context) (string, error) {
	up := 0
	for _, o := range d.owners {
		d.track.await(stageLinks, o.port.String())
		if err := d.look(ctx, o); errors.Is(err, mmio.ErrGone) || ctx.Err() != nil {
			return "", err
		}
		if o.snapshot().linkUp() {
			up++
		}
	}
	d.spawn(ctx, "link poller", d.pollLinks)
	return fmt.Sprintf("%d up", up), nil
}

// attach makes a port's interface and puts it into the data path.
func (d *Daemon) attach(ctx context.Context, b board.Port, mac [6]byte, mtu int) (iface, error) {
	p, err := port.Open(d.portConfig(b))
	if err != nil {
		return nil, err
	}
	err = p.SetMAC(mac)
	if err == nil && mtu != board.DefaultMTU {
		err = p.SetMTU(ctx, mtu)
	}
	if err == nil {
		err = d.tx.Add(p)
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	d.mu.Lock()
	d.taps[p] = true
	d.mu.Unlock()
	d.fan.join(p)
	d.keep.keepPort(b, p.Index(), p.Descriptor())
	return p, nil
}

// rejoin puts an interface that outlived the loss of the card back into the data path,
// unless it is there: that of the process before, on rings that were live.
// Error: port.ErrRemoved when it has not outlived it.
func (d *Daemon) rejoin(i iface) error {
	p := i.(*port.Port)
	if _, err := p.Link(); err != nil || d.fan.has(p) {
		return err
	}
	if err := p.Discard(); err != nil { // what was sent without carrier, before the kernel heeded it
		return err
	}
	if err := d.tx.Add(p); err != nil {
		return err
	}
	d.fan.join(p)
	return nil
}

// portConfig is how a port is made, or gone on with.
func (d *Daemon) portConfig(b board.Port) port.Config {
	return port.Config{Port: b, NetNS: d.o.NetNS, Counters: d.fan.counts[b.Index]}
}

// detach takes a port's interface out of the data path and closes it.
func (d *Daemon) detach(b board.Port, i iface) {
	p := i.(*port.Port)
	d.fan.leave(p)
	d.tx.Remove(p)
	d.mu.Lock()
	delete(d.taps, p)
	d.mu.Unlock()
	d.keep.dropPort(b)
	if err := p.Close(); err != nil {
		d.log.Warn("close interface", "port", b.Name, "err", err)
	}
}
