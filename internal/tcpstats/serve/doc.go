// Package serve answers questions about TCP connections for many clients at once, and
// keeps each of them from hurting the host.
//
//	client -> socket -> Open -> Read -> cursor of a source -> chunks -> client
//
// An open is a connection: it has a filter, and reads, several at a time. What limits them
// is settable at any time:
//
//	max_open_fds            opens; one more is refused, EMFILE
//	max_concurrent_readers  reads under way in all opens; one more is refused, EBUSY
//	max_read_duration_ms    a read ends there with what it has, ETIMEDOUT; 0: no bound
//	min_read_interval_ms    between the beginnings of two reads of an open, EBUSY; 0: none
//
// A profile is a filter with a name. An open copies it, so a change reaches later opens,
// and nobody waits for anybody when it is removed.
//
// After every read, whatever ended it, visited = emitted + skipped + aborted. Emitted is
// what the client's socket took whole.
//
// What it leaves out: who may connect, which is the socket file's mode and group.
package serve
