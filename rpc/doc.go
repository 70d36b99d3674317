// Package rpc is the command channel to the coprocessor's fast path: a ring of
// descriptors in a window of BAR2, one command buffer in host memory, and a
// doorbell (hardware/rpc-lif.md 2 to 6). Layouts are in rpc/msg.
//
// # One command
//
//	host memory        window (BAR2)              doorbell
//	-----------        -------------              --------
//	1 request,
//	  rest poisoned
//	                   2 descriptor[n & 7]
//	                   3 posted = n+1
//	                                              4 ring 0
//	                   5 done = n+1  (polled)
//	6 reply: rc, done byte, length, payload
//
// A barrier stands between each two of the steps 1 to 4. Flags are always
// NO_AGG_DMA: POST means that nothing is written back, so that a refusal
// could not be seen.
//
// # State
//
//	          Configure       no answer in 2 s, or done without a reply
//	closed ---------------> open ----------------------> stalled
//	                         ^                              |
//	                         +---------- Reopen ------------+
//
// After a time-out the descriptor is still on the ring and the buffer is still
// the card's: a wiped buffer reads as command 0, which throws away every
// offloaded flow. So the channel never touches that buffer again, keeps the
// region (see Abandoned) and refuses commands with ErrStalled until Reopen has
// taken another buffer and configured the ring anew.
//
// # Buffers of earlier processes
//
// A process that is killed leaves its buffer in memory that the card knows, and perhaps a
// command on the ring. Behind each buffer stands a mark, which the card is not told
// about: the command that the buffer is lent for, and the configuration. The next process
// holds it against the ring, before that is declared anew:
//
//	no mark                                       the buffer is free
//	the command was never posted                  free
//	posted under the configuration in force       rung for again and waited for, 2 s at
//	                                              most; free when it has its reply
//	anything else                                 the card's, until a reply has come
//
// A reply is the last that the target does with a buffer. So each life goes on with the
// buffer of the one before, and only a command without an end costs one.
//
// The lost command may end while the ring is being configured anew and leave its
// count there; so a configuration counts only when the ring then says that
// nothing is done, and is repeated otherwise.
//
// # What it leaves out
//
//   - The done-magic behind a reply is derived from the seed by an algorithm
//     that nobody knows. It is not verified; done and the reply's own done byte
//     are enough.
//   - High-priority rings. None is declared, doorbells 1 to 4 are never rung,
//     and a facility with a single doorbell is refused: there, the target's
//     handler of an undeclared high ring spins for ever (rpc-lif.md 3.1).
//   - Commands beyond the reads and the three that provisioning needs. They are
//     refused by number before anything is written.
//   - The widest bus address that the target takes is unknown (33 bits were
//     used, the sister board stops at 36). The region comes from the caller.
package rpc
