// Package inetdiag is the host's TCP sockets as the kernel tells them by sock_diag(7):
// source=host of package tcpstats.
//
//	request   family, states, and a program for ports and prefixes: what the kernel leaves
//	          out is never visited
//	reply     datagrams of up to 32 KiB, each of whole messages: inet_diag_msg and attributes
//	record    filled from one message, without an allocation
//
// A dump is always read to its end, also when its reader has gone: else the next one on
// that socket is refused. It is no snapshot: sockets that come and go meanwhile may be in
// it twice or not at all, which the kernel says sometimes (NLM_F_DUMP_INTR).
//
// What it leaves out: MPTCP, sockets of other namespaces, TCP-MD5 keys.
package inetdiag
