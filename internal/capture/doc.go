// Package capture reads and writes captures of Ethernet frames: pcap and pcapng
// in, pcapng out.
//
//	pcap                                pcapng: blocks of type, length, body, length
//	 24  magic: byte order, us or ns     SHB  byte order of the section
//	     snap length, link type          IDB  link type, unit of time; one an interface
//	 16  time, bytes kept, bytes         EPB  interface, time, bytes kept, bytes
//	  n  the frame                        n   the frame, padded to 4; options:
//	                                          comment, direction
//
// A Reader takes every byte as somebody else's: a length is checked before it is
// used, memory grows with what the file really holds, and whatever cannot be is
// refused with its place in the file. A frame of which the capture kept only the
// beginning (a snap length) is a Record that says so; who replays must not send it.
//
// # Why not gopacket
//
// The tests read what is written here with gopacket v1.1.19's pcapgo, and the other
// way round. The program does not use it:
//
//   - Its readers believe the file. A length allocates up to 4 GiB before a byte of
//     it is there, an interface's unit of time of 2^-64 s panics (a division by
//     zero), lengths that do not fit their block are carried over into the next one,
//     and a block that the file ends in is the end of the file. A layer that checks
//     all that before pcapgo sees it is this reader.
//   - They do not tell what a replay must know or cannot take: the place of an
//     error, frames with FCS, a packet's own link type without an allocation.
//   - Units of time in powers of two, and whole seconds, become wrong times; a minor
//     version other than 0 is refused.
//   - Its writer would do for whole frames of one interface; it writes no comments
//     and no directions. And it comes with gopacket/layers, whose tables are
//     filled at the start of every command: 3.3 ms (GODEBUG=inittrace=1) where
//     `oxpd version` takes 6, and 1.6 MB of program, for three kinds of blocks.
//
// TestPcapgo keeps this list true: when one of these no longer holds, look again.
//
// Sources: draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng.
//
// Left out: link types other than Ethernet, frames with FCS (both are refused by
// name); in pcapng, name resolution, statistics and secrets (skipped), and when
// reading the flags and comments of packets. There is no compression.
package capture
