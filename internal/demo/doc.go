// Package demo is `oxpd demo`: the proof, on any Linux machine and with the
// kernel's own TCP/IP on both sides, that oxpd carries frames.
//
//	namespace "host"                           namespace "far"
//	 Linux TCP/IP                               Linux TCP/IP
//	   | oxp1 ... oxp12                           | Port1 ... PortF4
//	   |                                          |   TAPs, MTU 9,200
//	 +-+--------------- oxpd run --sim ----------+-+
//	 |  driver  <- BARs, DMA, interrupts ->  card  |
//	 +---------------------------------------------+
//
// Port2 is in a third namespace, "apart", where it reaches Port1 through a bridge of
// the host's and in no other way.
//
// The daemon is the real program, started as a child; the demo speaks to it as
// every client does. The wires' TAPs keep an MTU above 9,000, so that frames
// that are too long do arrive at the card and it is the LIF that refuses them.
//
// Exact counters decide the exit status. Rates depend on the machine and are
// shown beside those of the card, as information.
//
// Namespaces and files have no names (internal/netlab), and the kernel kills the
// child with this process: nothing is left behind, however it ends. A user who is
// not root gets all of it in a user namespace (internal/rootless).
//
// Neighbours are known for good once each port has carried a ping, so that from
// then on every frame is one that the demo sends, and "+0" can be said of counters
// of the whole card.
//
// Pings that a filter drops end on the ring, and are in the sums; so are those that an
// engine blocks, or nobody inspects.
//
// Captures are replayed on a card of their own (internal/replay), which the sums do
// not know.
//
// The switch is raised by the coprocessor's console, whose shell is busybox; without
// it that part is left out, and says so.
//
// Left out: VLAN tags and IPv6 other than in captures.
package demo
