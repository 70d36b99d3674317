// Package ring runs the packet rings of the endpoint: one input queue (TX) and
// eight output queues (RX), in memory that the card and the CPU share.
//
//	input queue, ring 0                     output queue q, 0 to 7
//	256 instructions x 64 B                 1,024 list entries x 16 B
//	   | dptr                                  | buffer address, fixed for life
//	256 slots, stride 9,344 B               1,024 buffers, stride 1,664 B
//	   66 B private header | frame             82 B prefix | frame ... (span: the
//	                                           next buffers are all frame)
//	IN_INSTR_DBELL: frames announced        OUT_SLIST_DBELL: credit, in buffers
//	IN_CNTS: frames finished                OUT_CNTS: packets written
//
// One pass over an output queue (datapath.md 3.8):
//
//	clear status -> read count -> take up to count packets from the read index
//	   each: length word once -> verdict on the first buffer -> gather a span, unless
//	         it is to be diverted
//	-> deliver -> poison every buffer -> barrier, credit -> acknowledge -> record
//
// A pass that finds a count but no packet, or a packet that nothing counts,
// waits two ticks before it moves the read index: memory may lag the count, and
// the count may lag memory.
//
//	         count > 0, entry empty or short        2 ms
//	normal ------------------------------> gap ------------> resync, or one step
//	   |     count = 0, entry holds packet            2 ms
//	   +---------------------------------> uncounted ------> taken, not acknowledged
//
// A packet is not a buffer: counts are packets, credit is buffers, and both
// advance by what the length word means.
//
// The memory of the rings belongs to the card from Program until the
// coprocessor reboots or bus mastering is off, whatever happens to the process.
// A record of each ring's position (Record) lies in the same memory, and beside it
// a mark of how far the pass has come since:
//
//	step of a pass         a later process finds        and goes on
//	walk                   record                       at the record
//	mark, sink             the batch in the mark        at the batch, which is handed on again
//	sink, mark, poison     mark behind the batch        behind it: poison, credit, acknowledge
//	credit                 doorbell moved               acknowledges
//	acknowledge            OUT_CNTS is what lies there  writes the record
//	record                 record
//
// Adopt takes live rings over by them, and by the registers. Packets of the batch that
// goes on there are judged again: what was dropped is dropped again by the same rules,
// and no record says what the verdict was.
//
// The package knows neither ports nor filters: it asks a Judge and hands
// frames to a Sink. It leaves out gather lists on transmit.
package ring
