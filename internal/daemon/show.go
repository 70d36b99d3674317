package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/divert"
	"oxpd/internal/dma"
	"oxpd/internal/pfil"
	"oxpd/internal/port"
	"oxpd/octep"
	"oxpd/ring"
	"oxpd/ring/wire"
	"oxpd/rpc/msg"
)

// status implements control. It reads config space and nothing else of the card.
func (d *Daemon) status() client.Status {
	d.mu.Lock()
	s := client.Status{
		Schema:     client.Schema,
		Version:    d.o.Version,
		PID:        os.Getpid(),
		Uptime:     (d.clock.Now() - d.began).Seconds(),
		State:      d.state,
		Rings:      wire.OQs,
		Workers:    d.workers,
		CPU:        d.cpu.show(),
		Busy:       d.busy.show(),
		PortsTotal: board.Ports,
		Filters:    d.filters.linkedNames(),
		Warnings:   append([]string{}, d.warnings...),
		Device:     client.Device{Simulated: d.o.Simulated, Platform: d.platform.Platform, Assembly: d.platform.Assembly, ClockMHz: d.clocks},
	}
	if d.uplink != nil {
		s.Warnings = append(s.Warnings, d.uplink.Error())
	}
	s.Device.Lost = d.timesLost
	if d.state == client.StateGone {
		s.Warnings = append(s.Warnings, "the card is lost, and waited for: the ports have no carrier, and what is set is refused until it is back; nothing has to be done on this side")
	}
	if d.dev != nil {
		s.Device.Name = d.dev.Name()
		s.Device.Alive = !d.closed && octep.Alive(d.dev)
	}
	s.Restart = d.restart()
	s.Warnings = append(s.Warnings, d.flow.warnings()...)
	d.mu.Unlock()
	s.Engines = d.inspect.brief()
	if cost := d.inspect.restartCost(s.Engines); cost != "" {
		s.Restart.Costs, s.Restart.Seamless = append(s.Restart.Costs, cost), false
	}
	s.Warnings = append(s.Warnings, d.inspect.view(nil).Warnings...)
	s.Stages = d.track.snapshot()
	if sw := &s.Stages[stageSwitch]; sw.State == client.StageDone {
		sw.Detail = d.switchLine()
	}
	s.Warnings = append(s.Warnings, d.track.overdue()...)
	s.Warnings = append(s.Warnings, d.switchTroubles()...)
	for _, o := range d.allOwners() {
		v := o.snapshot()
		if v.up {
			s.PortsUp++
			limit, _ := d.switchLimit(o.port)
			if mtu := int(d.lifs.State(o.port).Have.MTU); limit.Check(o.port, mtu) != nil {
				s.Warnings = append(s.Warnings, limit.Warning(o.port, mtu))
			}
		}
		s.Warnings = append(s.Warnings, o.warnings(&v)...)
	}
	return s
}

// restart is what the next start would cost. Held: d.mu.
func (d *Daemon) restart() client.Restart {
	costs := []string{}
	why := d.keep.why()
	if why != "" {
		costs = append(costs, "the interfaces, with their addresses and routes ("+why+")")
	}
	if d.armed && !d.closed {
		if lost := d.cardLoses(why); lost != "" {
			costs = append(costs, lost)
		}
	}
	return client.Restart{Seamless: len(costs) == 0, Costs: costs}
}

// cardLoses is what becomes of a card that was told about memory, "" when the next
// process goes on with it. why is the reason that nothing is kept. Held: d.mu.
func (d *Daemon) cardLoses(why string) string {
	const reboot = "a reboot of the coprocessor: "
	if card, ok := d.dev.(fleeting); ok && card.EndsOnClose() {
		return "the simulated card, which ends with oxpd"
	}
	_, held := d.dev.DMA().(dma.Holder)
	switch {
	case !held:
		return reboot + "memory of this kind of access is not found again"
	case d.dev.DMA().Keeps():
		return ""
	}
	ends := reboot + "its memory ends with oxpd"
	if l, ok := d.dev.(lasting); ok && l.Stays() != nil {
		ends += ", and the kernel may reset the card when nobody has it open"
	}
	if why != "" {
		ends += " (" + why + ")"
	}
	return ends
}

// ports implements control.
func (d *Daemon) ports() client.Ports {
	out := client.Ports{Schema: client.Schema}
	for _, p := range board.All() {
		q := client.Port{
			IfName: p.Name, Label: p.Label, Tag: p.Tag.String(), SpeedMbps: p.SpeedMbps, OperState: client.OperDown, Admin: client.OperDown,
			Link: client.LinkUnknown, State: client.PortWaiting, Awaiting: "bring-up", LIF: d.showLIF(p),
		}
		if o := d.owner(p); o != nil {
			v := o.snapshot()
			q.Awaiting = v.awaiting
			if v.err != nil && !v.up {
				q.Awaiting += ": " + v.err.Error()
			}
			if v.haveMAC {
				q.Address = hwAddr(v.want.mac)
				if v.want.mac != v.own {
					q.CardAddress = hwAddr(v.own)
				}
			}
			if v.linkErr == nil {
				q.Link = v.link
			}
			if v.admin {
				q.Admin = client.OperUp
				if v.linkUp() {
					q.OperState = client.OperUp
				}
			}
			q.IfIndex, q.MTU = kernel(v.iface)
			switch {
			case v.up && q.IfIndex != 0:
				q.State = client.PortUp
			case v.up:
				q.Awaiting = interfaceGone
			}
			q.KernelName = v.foreignName(p)
			if mac := v.inKernel().MAC; v.haveMAC && mac != v.want.mac && mac != [6]byte{} {
				q.KernelAddress = hwAddr(mac)
			}
		}
		out.Ports = append(out.Ports, q)
	}
	return out
}

// interfaceGone is what a port waits for whose interface somebody has removed, until its
// owner has heard of it.
const interfaceGone = "its interface, which is gone, to be made again"

// kernel reads an interface's index and MTU; zeros while there is none.
func kernel(i iface) (index, mtu int) {
	if i == nil {
		return 0, 0
	}
	l, err := i.Link()
	if err != nil {
		return 0, 0 // closed or removed since
	}
	return l.Index, l.MTU
}

func (d *Daemon) owner(p board.Port) *owner {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.owners[p.Index]
}

var lifModes = [...]string{msg.FwdFree: "free", msg.FwdL2: "L2", msg.FwdL3: "L3", msg.FwdBoth: "both"}

func (d *Daemon) showLIF(p board.Port) client.LIF {
	s := d.lifs.State(p)
	l := client.LIF{Index: uint32(p.LIF()), Present: s.Present}
	if s.Present {
		l.Address = net.HardwareAddr(s.Have.MAC[:]).String()
		l.MTU, l.Mode, l.AdminDisabled = int(s.Have.MTU), lifModes[s.Have.Fwd&msg.FlagFwdMask], s.Have.AdminDisabled
	}
	if s.Err != nil {
		l.Error = s.Err.Error()
	}
	return l
}

// mtu implements control.
func (d *Daemon) mtu(p board.Port) client.MTU {
	m := client.MTU{Schema: client.Schema, IfName: p.Name, Label: p.Label, Switch: client.SwitchNone}
	if s := d.lifs.State(p); s.Present {
		m.LIF = int(s.Have.MTU)
	}
	if o := d.owner(p); o != nil {
		_, m.Interface = kernel(o.snapshot().iface)
	}
	m.Effective = min(m.LIF, m.Interface)
	if !p.BehindSwitch() {
		return m
	}
	limit, from := d.switchLimit(p)
	m.Switch, m.Note = from, limit.Warning(p, m.Effective)
	if most, known := limit.MTU(p); known {
		m.SwitchMTU, m.SwitchFrame, m.UplinkFrame = most, limit.Panel, limit.Uplink
		m.Effective = min(m.Effective, most)
	}
	return m
}

// served is the owner of a port that takes requests. Errors have a code and a hint.
func (d *Daemon) served(p board.Port) (*owner, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch o := d.owners[p.Index]; {
	case d.state == client.StateGone:
		return nil, &hinted{errCardGone, goneHint}
	case d.state == client.StateStopping, d.state == client.StateFailed:
		return nil, &refusal{fmt.Errorf("the daemon is %s", d.state), client.CodeNotReady}
	case o == nil || d.state == client.StateBringUp && !o.serves():
		return nil, &hinted{
			&refusal{fmt.Errorf("%w: the bring-up has not come to the ports", errNotUp), client.CodeNotReady},
			"see oxpd status for what it waits for",
		}
	default:
		return o, nil
	}
}

// goneHint is what can be done about a card that has gone.
const goneHint = "it is waited for, and the ports come back by themselves; oxpd status says what is awaited"

// setMTU implements control.
func (d *Daemon) setMTU(ctx context.Context, p board.Port, in client.SetMTU) (client.MTU, error) {
	mtu := in.MTU
	if err := board.CheckMTU(mtu); err != nil {
		return client.MTU{}, err
	}
	o, err := d.served(p)
	if err != nil {
		return client.MTU{}, fmt.Errorf("set mtu of %s: %w", p, err)
	}
	// An owner that waits for NetAgent, which is kept away while the switch is used, would
	// say the same later.
	if limit, _ := d.switchLimit(p); !in.Force && !in.Switch && o.snapshot().up && mtu != o.snapshot().want.mtu {
		if err := limit.Check(p, mtu); err != nil {
			return client.MTU{}, fmt.Errorf("set mtu: %w", err)
		}
	}
	if in.Switch {
		if err := d.raiseFor(ctx, p, mtu); err != nil {
			return client.MTU{}, fmt.Errorf("mtu of %s stays as it is: %w", p, err)
		}
	}
	was := d.mtu(p)
	if err := o.ask(ctx, func(ctx context.Context) error { return o.setMTU(ctx, mtu, in.Force) }); err != nil {
		return client.MTU{}, err
	}
	m := d.mtu(p)
	if m.Note != "" && mtu != was.LIF {
		m.Warnings, m.Note = append(m.Warnings, m.Note), ""
	}
	if mtu < was.LIF {
		m.Warnings = append(m.Warnings, fmt.Sprintf("peers of open connections go on sending frames for an MTU of %d until they probe or learn better; "+
			"the LIF refuses each and counts it as FROM_WIRE_DROP_MTU_EXCEEDED", was.LIF))
	}
	m.Warnings = append(m.Warnings, ipv6Warning(p.Name, mtu)...)
	return m, nil
}

// counters implements control: the one reading request that asks the card.
func (d *Daemon) counters(ctx context.Context) (client.Counters, error) {
	var (
		sys   [msg.CountersSys]uint64
		ports [msg.CountersPort][msg.CountersPortStride]uint64
	)
	d.mu.Lock()
	gate, away := d.visit, d.state == client.StateGone
	d.mu.Unlock()
	ended := func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.state == client.StateGone {
			return &hinted{fmt.Errorf("read counters: %w", errCardGone), goneHint}
		}
		return &refusal{fmt.Errorf("read counters: the daemon is %s", d.state), client.CodeNotReady}
	}
	if away {
		return client.Counters{}, ended()
	}
	visit, leave, ok := gate.enter(ctx)
	if !ok {
		return client.Counters{}, ended()
	}
	err := d.table.counters(visit, &sys, &ports)
	leave()
	switch {
	case err != nil && ctx.Err() == nil && errors.Is(err, context.Canceled):
		return client.Counters{}, ended()
	case err != nil:
		return client.Counters{}, fmt.Errorf("read counters: %w", err)
	}
	out := client.Counters{Schema: client.Schema}
	for i, v := range sys {
		out.Counters = append(out.Counters, client.Counter{Index: i, Name: msg.CounterNames[i], Value: v})
	}
	for i := range ports[0] {
		p := client.FastPathPort{
			Port: i, Name: fastPathName(i),
			RX: ports[msg.CounterPortRX][i], TX: ports[msg.CounterPortTX][i], TXDropQueueFull: ports[msg.CounterPortTXQueueFull][i],
		}
		if i <= lastNamedPort || p.RX|p.TX|p.TXDropQueueFull != 0 {
			out.Ports = append(out.Ports, p)
		}
	}
	if w := d.starved(&sys, &ports); w != "" {
		out.Warnings = append(out.Warnings, w)
	}
	return out, nil
}

// lastNamedPort is the fast path's port of PortF2; those above face the host
// (rpc-lif.md 6.2).
const lastNamedPort = 2

func fastPathName(i int) string {
	if i == 0 {
		return "uplink"
	}
	for _, p := range board.All() {
		if p.FastPath == i {
			return p.Label
		}
	}
	return "host"
}

// stats implements control. It touches neither the card nor a lock that a
// command to it holds.
func (d *Daemon) stats(only *board.Port) client.Stats {
	d.mu.Lock()
	rings := d.rings
	d.mu.Unlock()
	if rings != nil {
		rings.Census() // before the counters: what belongs together is read in as short a time as can be
	}
	dev, ports, quiet := d.read()
	sum := sums(dev, ports, quiet)
	for try := 0; !(sum.Quiet && sum.Accounted) && try < sumTries; try++ {
		dev, ports, quiet = d.read()
		sum = sums(dev, ports, quiet)
	}
	out := client.Stats{Schema: client.Schema, Device: flatten(dev), Sums: sum}
	for i := range ports {
		out.Device["quiesce_waits"] += ports[i].QuiesceWaits
		out.Device["quiesce_longest_us"] = max(out.Device["quiesce_longest_us"], ports[i].QuiesceLongest)
	}
	for _, q := range dev.Queues {
		out.Rings = append(out.Rings, client.RingStats{Ring: q.Ring, Counters: flatten(q)})
	}
	for i, s := range ports {
		p := board.ByIndex(i)
		if only != nil && only.Index != i {
			continue
		}
		out.Ports = append(out.Ports, portStats(p, s))
	}
	d.mu.Lock()
	card, simulated := d.dev.(wired)
	d.mu.Unlock()
	if simulated {
		for _, w := range card.WireStats() {
			if only == nil || only.Name == w.IfName {
				out.Wires = append(out.Wires, w)
			}
		}
	}
	return out
}

// instruments implements control.
func (d *Daemon) instruments() client.Instruments {
	out := client.Instruments{Schema: client.Schema, Rings: []client.RingInstruments{}}
	for _, in := range d.ringCounts.Instruments() {
		out.PrefixSeq += in.PrefixSeq
		out.Rings = append(out.Rings, client.RingInstruments{
			Ring: in.Ring, PrefixSeq: in.PrefixSeq,
			LastPrefix: in.Last.Prefix, LastFrameHead: in.Last.Head,
			LastUntaggedPrefix: in.Untagged.Prefix, LastUntaggedHead: in.Untagged.Head,
			LastSpanPrefix: in.Span.Prefix, LastSpanHead: in.Span.Head,
		})
	}
	return out
}

// wired is a simulated card, which knows what happens on its wires.
type wired interface{ WireStats() []client.WireStats }

// sumTries bounds how often the counters are read in the hope of a moment in
// which no packet arrives.
const sumTries = 3

// portCounts are a port's counters, with what never reached it.
type portCounts struct {
	port.Stats
	filtered  pfil.Drops                       // by filters, in the rings
	inspected [divert.Directions]divert.Counts // by engines, or the policies in their place
}

// read takes all counters. quiet says that no packet was being taken meanwhile, and none
// let go on by an engine, so that they belong together (ring.Rings.Walks,
// divert.Inspector.Census).
func (d *Daemon) read() (dev ring.Stats, ports [board.Ports]portCounts, quiet bool) {
	d.mu.Lock()
	rings := d.rings
	taps := make(map[int]*port.Port, len(d.taps))
	for p := range d.taps {
		taps[p.Board().Index] = p
	}
	d.mu.Unlock()
	before, open := d.ringCounts.Walks()
	inspected, still := d.inspect.in.Census()
	if rings != nil {
		dev = rings.Stats()
	} else {
		dev = d.ringCounts.Stats()
	}
	filtered := d.filters.table.DroppedByPort(pfil.In)
	for i := range ports {
		if p := taps[i]; p != nil {
			ports[i].Stats = p.Stats()
		} else {
			ports[i].Stats = d.fan.counts[i].Stats()
		}
		ports[i].filtered, ports[i].inspected = filtered[i], inspected[i]
	}
	again, stillStill := d.inspect.in.Census()
	after, _ := d.ringCounts.Walks()
	return dev, ports, !open && before == after && still && stillStill && inspected == again
}

// flatten gives the numbers of ring counters, all or one queue's, under the names
// that they carry.
func flatten[S ring.Stats | ring.OQStats](s S) map[string]uint64 {
	b, err := json.Marshal(s)
	var all map[string]any
	if err == nil {
		dec := json.NewDecoder(bytes.NewReader(b))
		dec.UseNumber()
		err = dec.Decode(&all)
	}
	if err != nil {
		panic("daemon: ring counters do not encode: " + err.Error()) // they are numbers
	}
	delete(all, "ring") // which one it is
	out := make(map[string]uint64, len(all))
	for name, v := range all {
		n, ok := v.(json.Number)
		if !ok {
			continue
		}
		if u, err := strconv.ParseUint(n.String(), 10, 64); err == nil {
			out[name] = u
		}
	}
	return out
}

// portStats gives a port's counters under both sets of names. In those of `ip`
// what the card sent is RX; errors and drops stay on their own side.
func portStats(p board.Port, s portCounts) client.PortStats {
	in, sent := &s.inspected[divert.In], &s.inspected[divert.Out]
	s.TxDrops += sent.Lost()
	out := client.PortStats{
		IfName: p.Name, Label: p.Label, Counters: map[string]uint64{},
		Stats64: client.Stats64{
			RX: client.LinkStats{Bytes: s.RxBytes, Packets: s.RxPackets, Errors: s.RxMalformed + s.TapErr, Dropped: s.RxTooLong + s.RxNoBuf + s.TapDown + s.filtered.Frames + in.Lost()},
			TX: client.LinkStats{Bytes: s.TxBytes, Packets: s.TxPackets, Errors: s.TapReadErrors, Dropped: s.TxDrops + s.TapKernelDropped},
		},
	}
	s.Each(func(name string, value uint64) { out.Counters[name] = value })
	out.Counters["pfil_dropped"], out.Counters["pfil_dropped_bytes"] = s.filtered.Frames, s.filtered.Bytes
	both := *in
	both.Add(sent)
	both.Each(func(name string, value uint64) { out.Counters[name] = value })
	out.Counters["rx_divert_lost"], out.Counters["rx_divert_queued"] = in.Lost(), in.Queued
	out.Counters["tx_divert_lost"], out.Counters["tx_divert_queued"] = sent.Lost(), sent.Queued
	return out
}

// sums checks invariant 4 of datapath.md 4: each packet that was taken from a
// ring is in exactly one disposition. What filters dropped is taken from the ports, so
// that it closes only if that is what the rings dropped. A frame that waits for its verdict
// is in one too; those that engines have made are in the dispositions, and were never taken.
func sums(dev ring.Stats, ports [board.Ports]portCounts, quiet bool) client.Sums {
	add := map[string]uint64{
		"rx_untagged": dev.Untagged, "rx_span_nobuf": dev.SpanNoBuf, "rx_long": dev.Long,
	}
	var made uint64
	for i := range ports {
		s := &ports[i]
		add["rx_packets"] += s.RxPackets
		add["rx_malformed"] += s.RxMalformed
		add["rx_toolong"] += s.RxTooLong
		add["rx_nobuf"] += s.RxNoBuf
		add["tap_down"] += s.TapDown
		add["tap_err"] += s.TapErr
		add["pfil_dropped"] += s.filtered.Frames
		in := &s.inspected[divert.In]
		add["rx_divert_lost"] += in.Lost()
		add["rx_divert_queued"] += in.Queued
		made += in.Injected
	}
	out := client.Sums{Quiet: quiet, Taken: dev.Done, Injected: made, Addends: add}
	var total uint64
	for _, v := range add {
		total += v
	}
	out.Difference = int64(dev.Done + made - total)
	out.Accounted = out.Difference == 0
	return out
}
