// Package nwa talks to NetAgent, the coprocessor's agent for links, MAC
// addresses and admin state of the front ports, through a mailbox in a window of
// BAR2 (hardware/rpc-lif.md 7). Layouts are in rpc/msg.
//
// # One transaction
//
//	host                                   NetAgent
//	STATUS != 0? TURN = 2, bell       -->  STATUS = 0     a reply was stranded
//	body, length, TURN = 1, bell      -->
//	                                  <--  reply, length, STATUS = 1
//	length, marker, status, payload
//	TURN = 2, bell                    -->
//	                                  <--  STATUS = 0     20 us, or one tick of 10 ms
//
// The window holds one transaction, and each of its waits sleeps. One lock covers
// all of it; waiting for the lock ends with the context, a transaction does not,
// because a reply that nobody acknowledges wedges the mailbox for everybody.
// Replies belong to the caller. The agent remembers the last one for diagnostics
// and never as a source of data: the answer of one port, left over in front of
// another port's refusal, once gave a port its neighbour's address.
//
// A reply does not say what it answers. So after a request that got none, later
// requests are refused with ErrUnanswered until the late reply has come and was
// thrown away, or until 30 s are over, the longest that the vendor waits. A NetAgent
// that starts anew makes the mailbox anew: TURN, which it never writes otherwise, does
// not ask any more, the request is gone, and nobody waits for its reply
// (ErrRestarted). The
// request may also be that of a process that was killed: an agent that finds TURN
// asking at its first transaction treats it as its own.
//
// # What it leaves out
//
//   - STATUS is the target's and never written; TURN is the host's, read while a
//     request is under way and never waited on.
//   - Attribute 0x0b (FEC) kills NetAgent until the coprocessor restarts. It is
//     refused by number, to set and to get, as is every operation but 0x01, 0x03,
//     0x04 and 0x45. Attributes are never swept.
//   - The event area is unused on this board. Words 2 to 4 of a port record of the
//     discover reply, and what follows the records, are not decoded.
package nwa
