package daemon

import (
	"context"
	"fmt"
	"time"

	"oxpd/internal/board"
	"oxpd/rpc/msg"
)

const (
	// flowPause is the time between two looks at the card's counters. It is far above
	// what a frame needs from its doorbell to RX_KN: there and back it is 0.2 ms
	// (endpoint.md 15).
	flowPause = 2 * time.Second
	// deafFrames is how many frames the card must have left uncounted before it is said.
	// Each moves RX_KN by one when all is well (datapath.md 5.4).
	deafFrames = 4
	// unboundLooks is how many looks in a row must find frames dropped for want of a
	// binding before it is said: after the first the tags are bound anew.
	unboundLooks = 2
	// boundEvery is the pause, in looks, between later tries: what goes on in spite of
	// the first is not cured by them.
	boundEvery = 30
)

// flowLook is one look at what the card counts, and at what it was given.
type flowLook struct {
	at      time.Duration
	fromKN  uint64 // RX_KN: frames that the fast path took from the host
	unbound uint64 // FROM_WIRE_DROP_LIF_INDEX_INVALID: the tag leads to no interface
	posted  uint64 // tx_posted, read after the counters
	whole   bool   // every port was up, so every tag was bound
}

// flow judges by the card's counters whether frames pass it. The zero value has seen
// nothing. Not safe for concurrent use.
type flow struct {
	looks   int
	last    flowLook
	moved   flowLook // the first look at the present RX_KN
	waiting uint64   // frames given to the card since moved, a look ago or longer
	dropped uint64   // frames dropped for want of a binding, between the last two looks
	unbound int      // looks in a row that found some
}

// look takes one, and tells whether the tags are in doubt: a frame was dropped because
// its tag leads to no interface, and all had been bound. No command reads that map
// back; this counter is what a host can see of it (rpc-lif.md 5.4).
func (f *flow) look(now flowLook) (doubt bool) {
	before := f.last
	f.waiting, f.dropped = 0, 0
	if f.looks == 0 || now.fromKN != before.fromKN || now.posted < before.posted {
		f.moved = now
	} else {
		// What was posted since the look before may be on its way; the rest is not.
		f.waiting = before.posted - f.moved.posted
	}
	if f.looks > 0 && before.whole && now.whole && now.unbound > before.unbound {
		f.dropped = now.unbound - before.unbound
		f.unbound++
	} else {
		f.unbound = 0
	}
	f.looks, f.last = f.looks+1, now
	return f.dropped > 0 && (f.unbound <= unboundLooks || f.unbound%boundEvery == 0)
}

// deaf tells whether the fast path takes nothing from the host (endpoint.md 15, F28).
// A card that is given nothing is not called so.
func (f *flow) deaf() bool { return f.waiting >= deafFrames }

// warnings are what an operator ought to know.
func (f *flow) warnings() (out []string) {
	if f.deaf() {
		out = append(out, fmt.Sprintf("no frame leaves by any port: in %v the card has taken none of %d that were given to it (RX_KN stays at %d), and it answers "+
			"commands; its fast path stands still, and most likely nothing comes in either: only a reboot of the coprocessor helps",
			(f.last.at-f.moved.at).Round(time.Second), f.waiting, f.last.fromKN))
	}
	if f.unbound >= unboundLooks {
		out = append(out, fmt.Sprintf("frames from the ports are lost: the card dropped %d in the last %v because their tag leads to no interface "+
			"(FROM_WIRE_DROP_LIF_INDEX_INVALID), although the tags of all ports were bound, and have been bound anew",
			f.dropped, flowPause))
	}
	return out
}

// watchFlow looks at the card's counters, for ever, and has tags that are in doubt bound
// anew.
func (d *Daemon) watchFlow(ctx context.Context) error {
	for {
		if err := d.clock.Sleep(ctx, flowPause); err != nil {
			return nil
		}
		if err := gone(d.lookAtFlow(ctx)); err != nil {
			return err
		}
	}
}

// lookAtFlow takes a look. One that the card does not answer is none: the owners say so.
func (d *Daemon) lookAtFlow(ctx context.Context) error {
	whole := d.allUp() // before the counters: what is bound later has lost frames before
	var sys [msg.CountersSys]uint64
	if err := d.table.sysCounters(ctx, &sys); err != nil {
		return err
	}
	now := flowLook{
		at: d.clock.Now(), fromKN: sys[msg.CntRXKN], unbound: sys[msg.CntDropLIFIndexInvalid],
		posted: d.ringCounts.Stats().TxPosted, whole: whole,
	}
	d.mu.Lock()
	was := d.flow.deaf()
	doubt := d.flow.look(now)
	f := d.flow
	d.mu.Unlock()
	if f.deaf() != was {
		d.log.Warn("fast path", "takes_frames", was, "rx_kn", now.fromKN, "waiting", f.waiting)
	}
	if doubt {
		if f.unbound == 1 {
			d.log.Warn("tags are bound again: the card drops frames whose tag leads to no interface", "frames", f.dropped)
		}
		d.lifs.DoubtTags()
		d.lookAtAll()
	}
	return nil
}

// allUp tells whether every port is.
func (d *Daemon) allUp() bool {
	up := 0
	for _, o := range d.allOwners() {
		if o.snapshot().up {
			up++
		}
	}
	return up == board.Ports
}
