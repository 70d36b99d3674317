// Package capture reads and writes captures of Ethernet frames: pcap and pcapng
// in, pcapng out.
//
//	pcap                                pcapng: blocks of type, length, body, length
//	 24  magic: byte order, us or ns     SHB  byte order of the section
//	     snap length, link type          IDB  link type, unit of time; one an interface
//	 16  time, bytes kept, bytes         EPB  interface, time, bytes kept, bytes
//	  n  the frame                        n   the frame, padded to 4; options
//
// A Reader takes every byte as somebody else's: a length is checked before it is
// used, memory grows with what the file really holds, and whatever cannot be is
// refused with its place in the file. A frame of which the capture kept only the
// beginning (a snap length) is a Record that says so; who replays must not send it.
//
// Sources: draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng.
//
// Left out: link types other than Ethernet, frames with FCS (both are refused by
// name); in pcapng, name resolution, statistics, comments and secrets (skipped),
// and the flags and comments of packets. There is no compression.
package capture
