// Package hwsim is the card as a driver meets it: the PCIe endpoint of the
// OCTEON TX CN8365, its packet rings, the fast path between them and the twelve
// front ports, and the software on the coprocessor that brings all of it up.
// It is written from the hardware pages; with the driver it shares layouts and
// nothing else. Addresses, indices, credit and lengths are its own arithmetic
// on raw bytes, so that it cannot agree with a driver's mistake.
//
// # Memory map
//
//	config   177d:a300, class 0b8000; PCIe capability 0x70, MSI-X (80 vectors,
//	         table and pending bits in BAR0), SR-IOV shown and not modelled
//	BAR0     8 MiB   0x00000 MSI-X table   0x04000 pending bits
//	                 0x10000 + n*0x20000   ring n
//	                 0x20000 SDP, 0x28100 SLI, 0x2c000 window registers
//	BAR2     64 MiB  entries 0-7   all-ones
//	                 entry 8       facility windows, all-ones until mapped
//	                 entries 9-14  forbidden: all-ones and a Report
//	                 entry 15      write one word (doorbell); a read is forbidden
//	BAR4     1 MiB   unused
//
// A virtual function (Options.Function) is 177d:a303 and has no BAR but BAR0, its
// own rings from 0 up in it and no other register, no interrupts, no coprocessor to
// boot. What it sends comes back on the same ring:
//
//	read at dptr, tlen - 28 bytes:    frame
//	written to the list's buffers:    length word | response word | frame
//
// Loads and stores are 4 or 8 bytes, aligned; anything else is reported. The
// card reaches host memory by bus address alone, inside what MapDMA registered,
// while bus mastering is on; anything else is reported and does not happen.
//
// # The way of a frame
//
//	host -> wire                             wire -> host
//	doorbell adds to "posted"                Wire.Send: link, length, switch limits
//	fetch engine, rings in turn (PCIe)       MAC at line rate
//	data read later             (PCIe)       the switch has it whole, uplink of 10G
//	IN_CNTS: slot is free                    seventeen workers
//	seventeen workers                        address filter, then RX_WIRE
//	RX_KN, classification                    LIF gate: one drop counter, or why
//	FROM_KN_TO_WIRE                          it is handed over; TX_KN
//	egress queue, or QUEUE_FULL              ring = crc32c(tuple) mod 8
//	TX_WIRE at the server's rate             admitted to the ring, or QUEUE_FULL
//	switch limits, link                      list entries, sixteen at a time (PCIe)
//	the switch has it whole                  N buffers, length word last (PCIe)
//	Wire receiver                            count, level or timer: message (PCIe)
//
// Each line that takes time is a unit with a queue of stated depth, a stage or a
// server. Constants lists every number of the model's timing with its value and
// source: fit on a measured row, derived, or an estimate; what is an estimate is not
// cycle-accurate, and nobody should rely on it. Latencies, Rates and Queues replace
// them. The ten switch ports leave through one server of 1,018 Mbit/s that takes their
// queues in turn, each 10G cage has its own.
//
// The switch in front of ten ports is reached as on the board, by transactions on
// the coprocessor's MDIO bus; switch.go has a picture. What its registers say is
// what frames meet: the jumbo field of the port and of the uplink, Port Control,
// VLAN maps, the power of PHYs and lanes.
//
// An output ring:
//
//	disabled --enable--> armed --first credit--> holds a batch of 16
//	   ^                                           |  packet: take N entries
//	   |                                           v
//	 disable               credit >= watermark: next batch, credit - 16
//	                       credit <  watermark and batch empty: refuse, until
//	                       credit comes back; too much credit laps the ring
//
// Whether a ring has entries for a packet is decided when the packet comes, by the
// credit and less what was promised to packets before it; it is then written whole,
// and IDLE is clear until it is.
//
// # Time
//
// The model counts cycles of 800 MHz. In stepped mode, which New starts with,
// time moves in Advance, in Clock().Sleep and by the cost of register accesses;
// one goroutine does everything and the same seed gives the same trace. After
// Start the wall clock moves it: one goroutine runs the card, sleeps while
// nothing is due and lets data path steps run up to Latencies.FreeAhead early.
// Receivers and interrupt functions are called without the lock, in order.
// Methods marked functional look or set without taking time.
//
// The PCIe link is a server each way, of stated rate; requests, packets, length
// words and messages pass it in the order of asking, and data is in host memory one
// way after its last byte. What the card reads of host memory is looked at when the
// completion comes. In stepped mode a driver's load crosses the link, and its value
// comes back behind what the card wrote before: whoever reads a count finds its
// packets, and no message overtakes what it announces. A store acts on its register at
// once, which no load can tell from later, and what follows of it begins one way
// later. In free mode accesses take no time, each unit has the link for itself, so
// that one that runs ahead does not make another late, and a count waits for its
// packet.
// SetTracer tells of every step of every unit, for `oxpd sim trace`.
//
// # Open points and faults
//
// Choices has one field for each row of the project's list of open points,
// Faults one for each way of misbehaving. What a driver must not do is not
// stopped but shown in Reports, by name. CheckConservation closes the sums:
// every frame ends on a wire, in a host ring or in exactly one counter.
//
// # Left out
//
// Virtual functions beside the physical one, which is shown alone, as is a virtual
// one: VF enable changes no register and is reported; the mailbox between them (storage);
// the management link beyond what a host that looks sees (device type, TARGET_STATUS); interrupts of input rings (IN_INT_LEVELS and IN_INT_STATUS
// are storage); the info-pointer mode of output rings (IMODE, ISIZE); the error and OEI sources (their registers are storage); IPsec,
// flow offload, QoS and DoS; flow control credits, acknowledgements and retries of the
// PCIe link; the
// switch's address tables, VLANs, statistics and module presence of its cages, and
// the laser-off bits in the CPLD;
// statistics messages of the fast path's own accord (DeliverRaw writes any);
// priorities between the seventeen workers of the fast path, which take frames in
// turn, each for the same time; the line rate of a switch port on the way out, which
// the measured 1,013 to 1,023 Mbit/s of frames are above. A batch of list entries never straddles the end
// of a list, because sizes are multiples of 16.
package hwsim
