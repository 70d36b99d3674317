// Package tcpstats says what is known of TCP connections, for the question why a
// transfer is slow: the filter language, records of sockets and of flows, and what a
// record's numbers allow to conclude.
//
// # Where records come from
//
//	inetdiag  sockets of this host, by the kernel's INET_DIAG      source=host
//	flows     TCP flows seen at the ports, by their headers        source=flow
//
// A source gives them by a Cursor, in chunks that are records as they go to a client:
//
//	source -> Cursor.Next(buffer) -> chunk -> socket -> client
//	           family, state, ports, addresses, via: first miss decides
//
// # Records
//
// A record is a header and blocks, one a group (fields=), in the order of the groups'
// bits. Each block begins with a word that says which of its fields are there: a field
// that its source cannot give is absent, and no zero.
//
//	full     every block, at offsets that are always the same: FullSize bytes
//	compact  the blocks that were asked for and have a field, and nothing between them
//
// Little endian, but for addresses. What a reader does not know it can step over: the
// header has the size.
//
// What it leaves out: sockets of other namespaces than the ports'; names.
package tcpstats
