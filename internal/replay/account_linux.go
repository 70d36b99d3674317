package replay

import (
	"context"

	"oxpd/rpc/msg"
)

// account is every counter that a frame from the port's wire can end in.
type account struct{ n []End }

// What the counters mean; those of the fast path have their vendor's names.
var whyNot = map[string]string{
	"link_down":      "the port had no link",
	"runt":           "shorter than an Ethernet header",
	"oversize":       "longer than the port's MAC takes",
	"switch_dropped": "longer than the switch in front of the port takes, 2,048 bytes with FCS",
	"overrun":        "more frames at once than wait on a wire",
	"filtered":       "its destination is not the port's address; --rewrite-mac makes it so",
	"no_fast_path":   "the coprocessor's fast path was not running",

	msg.CounterNames[msg.CntDropMTUExceeded]: "longer than the LIF's MTU + 14, with 4 more for each VLAN tag; --mtu raises it",
	msg.CounterNames[msg.CntTXDropQueueFull]: "the host's ring was full; --pace host waits for it",

	"rx_untagged":   "its tag is of no port",
	"pfil_dropped":  "dropped by a verdict",
	"rx_long":       "a length that cannot be",
	"rx_span_nobuf": "no gather buffer was free",
	"rx_malformed":  "shorter than an Ethernet header",
	"rx_toolong":    "longer than the interface's MTU + 14, with 4 more for each VLAN tag",
	"tap_down":      "the interface was down",
	"rx_nobuf":      "the kernel had no memory for it",
	"tap_err":       "the kernel refused it",
	reached:         "on the interface",
}

// reached is the counter of frames that the interface took.
const reached = "rx_packets"

var (
	wireEnds = []string{"link_down", "runt", "oversize", "switch_dropped", "overrun", "filtered", "no_fast_path"}
	ringEnds = []string{"rx_untagged", "pfil_dropped", "rx_long", "rx_span_nobuf"}
	portEnds = []string{"rx_malformed", "rx_toolong", "rx_nobuf", "tap_down", "tap_err"}
)

// account reads the counters in the order of the way: no frame is counted twice,
// and one that moves on while they are read is counted at most once.
func (b *bench) account(ctx context.Context) (*account, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	s, err := b.client.Stats(ctx, "")
	if err != nil {
		return nil, err
	}
	a := &account{}
	add := func(place Place, counter string, n uint64) {
		a.n = append(a.n, End{place, counter, n, whyNot[counter]})
	}
	wire, _ := s.Wire(b.o.Port.Name)
	port, _ := s.Port(b.o.Port.Name)
	for _, c := range wireEnds {
		add(OnWire, c, wire.Counters[c])
	}
	card := b.card.Card
	for i := msg.CntDropLIFIndexInvalid; i <= msg.CntDropIGErr; i++ {
		add(InFastPath, msg.CounterNames[i], card.Counter(i))
	}
	// The counter of full queues has those towards the wires too.
	toWire := card.Counter(msg.CntFromKNToWire) - card.Counter(msg.CntTXWire) - card.Counter(msg.CntTXWireErr)
	full := card.Counter(msg.CntTXDropQueueFull)
	add(AtRing, msg.CounterNames[msg.CntTXDropQueueFull], full-min(toWire, full))
	for _, c := range ringEnds {
		add(InOxpd, c, s.Device[c])
	}
	for _, c := range portEnds {
		add(InOxpd, c, port.Counters[c])
	}
	add(AtInterface, reached, port.Counters[reached])
	return a, nil
}

// since takes away what there was before.
func (a *account) since(before *account) {
	for i := range a.n {
		a.n[i].Frames -= before.n[i].Frames
	}
}

func (a *account) sum() (n uint64) {
	for _, e := range a.n {
		n += e.Frames
	}
	return n
}

// ends are those in which frames ended.
func (a *account) ends() (out []End) {
	for _, e := range a.n {
		if e.Frames != 0 {
			out = append(out, e)
		}
	}
	return out
}

func (a *account) reached() uint64 { return a.n[len(a.n)-1].Frames }
