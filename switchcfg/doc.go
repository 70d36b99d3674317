// Package switchcfg reads and sets the 88E6193X switch that stands before ten of the
// twelve front ports: which frames it passes, above all (hardware/switch.md).
//
//	front port -> port 1 to 10 -> port 0 (uplink) -> coprocessor
//
// The switch can be reached from the coprocessor alone, over its MDIO bus 0, where it
// answers at one address with two registers (SMI). Everything else is behind them:
//
//	MDIO       two registers at one address; one transaction a call
//	  SMI        Registers of ports and of Global1, Global2: command, busy bit, data
//	    PHYs       the PHYs and SERDES lanes behind Global2: a busy bit of their own, and pages
//	    Switch     what oxpd does: Show, Jumbo, single registers
//
// A program on the coprocessor (package switchcfg/mvsw) is a Registers just as SMI is.
//
// # What makes a value one that may be written back
//
// One access is two to four transactions, and the coprocessor's own programs use the
// same two registers at any time: a value may be that of somebody else's access, and a
// write may carry somebody else's data. A controller that is polled badly gave every
// second value wrong, and a port was taken down by writing one of them back. So
//
//   - nothing is written before all eleven ports have been read, twice and equal, with
//     the port's identifier read as it must be in between, and with few misses in all;
//   - a port is read again straight before it is written, and must read as it did;
//   - only the two bits of the frame size differ between what was read and what is written;
//   - the other fourteen must be those that were read first in this boot of the coprocessor:
//     a port whose are not was written by somebody else, and is left to the operator;
//   - after a write all sixteen bits are read back, twice; what reads otherwise is written
//     again, the same value, a few times, and is an error then;
//   - the size that the silicon reserves is never written.
//
// # What it leaves out
//
// Resets, VLANs, the address filter (NetAgent's), link settings. The order of switch and
// LIF is the caller's, as is keeping NetAgent away meanwhile.
package switchcfg
