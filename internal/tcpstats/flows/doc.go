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
// So what a flood of SYNs, or of other segments with made-up addresses, can push out is
// other flows of that kind. A table that is full leaves new flows in the ring, and counts.
//
// Each flow keeps its record as it goes to a reader, so that a read is a copy. A reader
// holds the lock of a part for at most lockRun flows.
//
// What the headers cannot tell: a retransmission that got lost before this host is a
// segment that fills a gap; one that comes later than a round trip counts as sent again,
// one that comes sooner as out of order. Flows that were under way already have no
// handshake, thus no window scale and no windows.
//
// What it leaves out: fragments; TCP in tunnels; options of segments without SYN.
package flows
