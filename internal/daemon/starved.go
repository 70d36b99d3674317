package daemon

import (
	"fmt"

	"oxpd/ring/wire"
	"oxpd/rpc/msg"
)

// handed is what of the packets for the host the card refused and what was taken, at
// one reading of its counters.
type handed struct {
	refused uint64 // by the host's rings, for want of credit
	taken   uint64 // rx_done
}

// handedBy takes the refusals out of the card's counters: those of TX_DROP_QUEUE_FULL
// that were not towards a wire (hardware/ERRATA.md).
func handedBy(sys *[msg.CountersSys]uint64, ports *[msg.CountersPort][msg.CountersPortStride]uint64, taken uint64) handed {
	refused := sys[msg.CntTXDropQueueFull]
	for p := range lastNamedPort + 1 {
		refused -= min(refused, ports[msg.CounterPortTXQueueFull][p])
	}
	return handed{refused, taken}
}

// starved compares the card's counters with what has arrived since the last reading,
// and remembers both. Of the first reading nothing is known: a process before may have
// seen all of it.
func (d *Daemon) starved(sys *[msg.CountersSys]uint64, ports *[msg.CountersPort][msg.CountersPortStride]uint64) string {
	dev, _, _ := d.read()
	now := handedBy(sys, ports, dev.Done)
	d.mu.Lock()
	before := d.handed
	d.handed = &now
	d.mu.Unlock()
	if before == nil {
		return ""
	}
	return now.starved(*before, dev.Seen, d.config().Watermark)
}

// starvedRefused is how many refusals it takes for a warning.
const starvedRefused = 64

// starved is a warning when the card refuses packets although its rings here are
// empty: credit that oxpd has returned does not work (datapath.md 7, row 12). A ring
// that was served would have given about 1,000 packets before the first refusal; one
// with a watermark above its grant gives a batch, and then nothing. waiting is what
// stands in the rings, read after the counters. "" where all is well.
func (now handed) starved(before handed, waiting uint64, watermark int) string {
	if now.refused < before.refused || now.taken < before.taken {
		before = handed{} // another boot of the card
	}
	refused, taken := now.refused-before.refused, now.taken-before.taken
	if waiting > 0 || refused < starvedRefused || taken > wire.OQs*wire.FetchBatch {
		return ""
	}
	return fmt.Sprintf("since the last look the card refused %d packets for want of credit, %d arrived, and its rings here are empty: "+
		"its watermark may be above what it is granted for (watermark: %d in the configuration)", refused, taken, watermark)
}
