// Package octep is the coprocessor's PCIe endpoint as the host reaches it:
// identity and decoding, the readiness word, the barmap and the facility windows
// that it advertises, doorbells, and the handshake that starts the packet
// program (hardware/endpoint.md 1 to 4).
//
// # Memory map
//
//	BAR0, 8 MiB          registers, octep/csr. The rings use Device.BAR0 directly.
//	BAR2, 64 MiB         16 entries of 4 MiB; only what is listed here is let through:
//	  0x02000000  load   barmap, 0x5c bytes, where SDP_SCRATCH 63:32 points
//	  0x02000000  both   control window    ┐
//	  0x02100000  both   mgmt_netdev       │ where the barmap advertises them;
//	  0x02200000  both   nw_agent          │ addresses shown are the measured ones
//	  0x02300000  both   rpc               ┘
//	  0x03c00040  store  doorbell word: one advertised SPI number, 32 bits
//	BAR4                 not used
//
// Everything else in BAR2 is refused before it becomes an access: a load at the
// interrupt controller (entry 15) hangs the host until a power cycle. The guard
// in window.go is the only code that touches Device.BAR2; what it refuses is
// counted and logged, loads then return all ones and stores vanish.
//
// # Bring-up
//
// Open checks the ids, turns memory decoding on and checks the ring split.
// CheckFresh refuses a coprocessor boot that has known a host before. Then, by
// the caller: SetBusMaster on, program the rings, WaitReady for the target's
// driver and the barmap, and only then Handshake.Run. Facilities appear late and
// nothing announces them: Facility reads the barmap again each time, WaitFacility
// polls it.
//
// # Handshake
//
// One register, SLI_EPF_SCRATCH, carries both directions (endpoint.md 4):
//
//	    0 ──────────── write HOST_LOADED ─────────▶ offering
//	    ▲                                            │    │
//	    └── 5 s without an answer, or ctx ends: ─────┘    │ GET_HOST_INFO
//	        write 0, look on for a moment                 ▼
//	                                             answering: write info word
//	from here to the end ctx is not looked at             │
//	                                                      │ 0xdeadde‖clocks
//	       2 s without a reply: write COMPLETED ────┐     ▼
//	                                                └─▶ completing: write COMPLETED
//	                                                      │ 0, or started ports
//	                                                      ▼
//	                                                     done
//
// The target spins without a time-out in the two states in the middle, and a
// second handshake in one coprocessor boot gets no answer and destroys the bitmap
// of started ports. So Run returns only when nothing spins: a cancelled context
// withdraws an offer, but an exchange that has begun is finished first (at most
// 4 s). Run also recognises a handshake that an earlier process has finished, and
// takes over an offer whose process died, unless the target had answered it before
// CheckFresh looked.
//
// The register does not tell whose exchange it shows, and after the end it says neither
// that there was one nor the clock rate. So who may die in it writes each step down
// before the register shows it (Resume): a next process on the same rings ends the
// exchange from wherever it stands.
//
// # Left out
//
// SR-IOV: a card with virtual functions is refused. The SLI window registers.
// Target-raised events (OEI): every facility is polled. Function reset: its effect
// on a running coprocessor is unknown. The control window's contents: on this part
// there is no heartbeat in it, only the barmap.
package octep
