// Package mvsw reaches the registers of the switch by a program that runs on
// the coprocessor, the only place from which the switch can be reached
// (hardware/switch.md 1, 8).
//
//	switchcfg -> Helper -> Runner (a console) -> shell on the coprocessor
//	                                               mvsw 0 2 read 1 8
//	                                                 -> /dev/mvmdio-uio -> MDIO -> switch
//
// # The program
//
// helper/mvsw.c is one file of C without a library; helper/build makes 5.6 KB of
// static aarch64 from it, the same bytes from the same compiler. The bytes, their
// checksum and the compiler's version are in this repository (`make helper`
// writes all three) and in oxpd. It speaks the text protocol of switch.md 8.1, so
// that either program serves in the place of the other, and differs from the
// original in what it refuses and says more about:
//
//   - a number that does not parse or does not fit is refused with the usage
//     text, status 2; the original takes it for -1;
//   - up and down are for ports 1 to 8, sup and sdown for 9 and 10. On port 0 they
//     would take the uplink's DSA tags away;
//   - an error line may go on after a colon: "mdio read failed: two reads in a
//     row differ", "switch command register stayed busy: nothing answers at bus 0
//     address 2", which is a chip that reads all-ones;
//   - what is written back was read twice, the same each time; a PHY's page is put
//     back after errors, too;
//   - dump says learning and blocking beside forwarding and disabled, and reads
//     PHYs of the ports that have one: phy0 is 0x0000 on 0, 9 and 10.
//
// Each wait for a busy bit is at most 1,000 looks.
//
// # The way there
//
// Prepare looks for the program where an earlier run put it, and believes size and
// SHA-256 alone. Else a mvsw that is installed serves, if it answers `id`.
// Else the program is uploaded: pieces of 192 bytes as base64 into a folder beside
// the place it is meant for, put together there, checked, and moved. The Runner sees to it that
// a line arrives as it was sent, or does nothing. A file system in RAM loses the program with a
// restart of the coprocessor; a command that does not find it any more looks
// and uploads again.
//
// # What comes back
//
// Other lines, of the kernel or of anybody who writes to the console, may stand
// between those of the program. One line that is the answer is an answer; none, or
// two, is ErrOutput and never a guess. Each error line of the program has a
// sentinel. That a write was taken does not mean that the value stuck: who
// writes reads back.
//
// # What it leaves out
//
// PHYs, SERDES and the busy bits of Global2 are package switchcfg's, by way of
// Read and Write. Of the program's commands only id, read and write are used
// from here; the others are for a person at the console. xgs-mdio, the vendor's
// own program, is no fallback: its output is not on record.
package mvsw
