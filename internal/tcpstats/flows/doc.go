// Package flows is a table of the TCP flows that were seen at the ports: source=flow of
// package tcpstats.
//
// A flow is a connection at a port. Local is its end that is reached by way of this host,
// remote the one at the port's wire: a frame that comes in is the remote end's. What is
// forwarded from one port to another is two flows, one at each.
//
//	frame -> Observe -> part of the table (by hash) -> flow -> its record
//	                                                    |
//	half-open, or one direction only:  a ring of its own, the oldest makes room
//	both directions, sequence numbers that fit:  the table proper, until idle or closed
//
// A flow stays in the slot where it was begun; the ring is of numbers of slots. A read goes
// through the slots, and comes by each flow once.
//
// So what a flood of SYNs, or of other segments with made-up addresses, can push out is
// other flows of that kind. A table that is full leaves new flows in the ring, and counts.
//
// Each flow keeps its record as it goes to a reader, so that a read is a copy. A reader
// holds the lock of a part for at most lockRun flows.
//
// A segment whose numbers are far from those of the flow between its ends is a stray, and
// counted as one: whoever does not see the traffic cannot end a flow, nor begin it anew. A
// SYN that strays is kept until the other end answers it, which it does only when it has
// forgotten the flow. A stray that the other end acknowledges was none.
//
// What the headers cannot tell: a retransmission that got lost before this host is a
// segment that fills a gap; one that comes later than a round trip counts as sent again,
// one that comes sooner as out of order. Flows that were under way already have no
// handshake, thus no window scale and no windows.
//
// Bytes acked and received are what the ends acknowledged to each other, as the kernel
// counts them; of a flow that is seen in one direction only they are absent.
//
// What it leaves out: fragments; TCP in tunnels; options of segments without SYN.
package flows
