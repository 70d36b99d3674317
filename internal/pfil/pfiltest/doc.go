// Package pfiltest is for the tests of internal/pfil: frames of every kind that a
// filter may meet, and two others that run classic BPF over them, the kernel and
// tcpdump.
//
//	Frames   captures, made by hand, cut, with lying lengths, random
//	Kernel   a Unix datagram socket with a program: it sees a datagram's payload from
//	         offset 0 and keeps of it as many bytes as the program returns
//	TAP      a packet socket on a TAP interface: what the program sees is a frame that
//	         has gone through eth_type_trans, with ancillary data
//	Compile, Judge  tcpdump: an expression's program; which frames of a capture file an
//	         expression takes, where a frame may be shorter than it was on the wire
//
// A packet filter has two lengths, that of the bytes at hand and that on the wire. A
// socket's has one: Kernel therefore puts the other into the program's loads of `len`.
package pfiltest
