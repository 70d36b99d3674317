// Package witness runs a driver that this project has not written on the simulated card:
// testpmd of Debian 12's DPDK, which has one for the chip's virtual function. Tests only.
//
//	feed ──FIFO──▶ pcap port ┐  testpmd,   ┌ octeon_ep port ◀─ traps ─▶ hwsim, one VF
//	check ◀─FIFO── pcap port ┘  "fwd io"   └ 177d:a303, hugepages       what is sent comes back
//
// Every frame is made here, goes through that driver to the card, comes back from the card
// through that driver, and is compared here byte for byte, in order. Beside that the
// program's statistics, the card's registers and the card's own books must agree.
//
// Fetch gets the program, as Debian packages, unpacked below the user's cache directory;
// it runs through its own dynamic loader. Reserve sees to hugepages, and puts the number
// back whatever becomes of this process.
package witness
