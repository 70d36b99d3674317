// Package vfiouser shows a simulated card as a PCI device on a unix socket, to
// QEMU or to a driver in another process. It is one of the front ends of the one
// model: it translates messages (internal/vfu) into what hwsim has methods for, and
// adds no behaviour of a card.
//
//	region 0   BAR0    8 MiB   by message, each access one, in order
//	region 2   BAR2   64 MiB   up to 0x02400000 mapped by the client: entries 0 to 7, all-ones,
//	                           and the facility windows; above by message
//	region 4   BAR4    1 MiB   by message
//	region 7   config  4 KiB   by message: capabilities, write masks, sizes of the BARs
//	irq 2      MSI-X   80      by eventfd; who has one is unmasked (hwsim.Options.HostVectors)
//
// A virtual function (hwsim.VF) has regions 0 and 7 alone, and no interrupts.
//
// Nothing of BAR2 that hangs a real host lies in mapped memory: a load there is a
// report. Bus mastering and memory decoding are the model's to check.
//
// # A client's life
//
//	connect ──▶ VERSION ──▶ commands, one after the other ──▶ end of the connection
//	   │                                                          │
//	   └─ somebody else is connected: closed at once              └─ maps and eventfds are
//	                                                                 taken back, the card goes on
//
// The card is not the client's: one process is one boot of the coprocessor, whoever
// connects, and the next client finds it as the last one left it. Only RESET boots
// it again, and the faults ResetOnOpen and BusResetOnClose, for which a client is who
// opens and closes it. What a client has mapped of BAR2 does not go to sleep (D3hot).
//
// # What a client may do
//
// A client is not trusted. Every size is checked against what was negotiated before
// anything is allocated; descriptors that nobody asked for are closed; memory that
// a client takes away again costs a report. A message that cannot be understood is
// answered with an error, and one after which the next cannot be found ends the
// connection. A command of the model that never ends (Choices.StallForbidden) holds
// its client for as long.
//
// # DMA
//
// A map with a descriptor is memory of the client, mapped here. One without is
// remembered, and the card cannot reach it (hwsim.ReportDMANoMemory): asking the
// client for each access by message would wait for a client that may itself be
// waiting for this answer. UNMAP takes what lies whole in its range; the card
// is done with the memory when it is answered.
//
// Left out: that, and what internal/vfu leaves out; interrupts other than MSI-X.
package vfiouser
