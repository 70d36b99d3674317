// Package worlds is a test of the whole data path by random schedules, and nothing
// else. One seed makes one world: the simulated card in stepped time, the driver's
// own code on it, and everybody who acts in it on one goroutine, so that the same seed
// always gives the same world.
//
//	wires: frames of 60 to 9,018 bytes,     octep, ring, rpc, lif       sink and verdict:
//	at up to twelve ports, both ways   -->  on the card (simdev)   -->  what the host sees
//	                 |                                                        |
//	                 +-------------->  the books (books_test.go)  <----------+
//	                                    judge_test.go at the end
//
// What differs from world to world: the card's latencies, bandwidths and depths, the
// open points of the hardware pages (hwsim.Choices), the watermark, the host's levels,
// gather pool and style of serving, the flows and their lengths, and what happens
// meanwhile: bursts larger than a ring, MTU changes by the control channel, cables out,
// interfaces gone, credit capped, servers away, statistics messages and stray tags,
// length words of no packet, the LIF table wiped, faults for a while and by chance. In
// every other world pfil's table judges, both ways, by filters whose rules are drawn and
// which are replaced, taken out and put in again under way.
//
// # The books
//
// They know what was put on wires and into the port side and what came out, and the
// laws of the hardware pages as sums of their own; while a world runs they read neither
// a counter nor a field of driver or model. A world ends at the first rule that it
// breaks:
//
//	once, order, bytes, tag, ring   what comes out was sent, comes once, in its flow's
//	                                order, unchanged, by one ring
//	a loss has a cause              a frame that came nowhere met something that may
//	                                stop it: its length above the LIF's MTU in that
//	                                time, its ring or queue full by what was in it, ...
//	what must stop a frame does     and none came through what stops it for certain
//	a counter has a cause           the lost frames can be given their causes so that
//	                                each counter is used exactly as often as it counted
//	                                (Hall's theorem); counters of what did not happen
//	                                are 0
//	sum                             every other counter of card and driver is the sum
//	                                that the books give
//	filter                          each verdict is that of the first rule which the books,
//	                                who know what was sent, say is about the frame; what
//	                                is dropped comes nowhere, and each rule has counted it
//	inspection                      what the filters divert, or all, waits for an engine as
//	                                the bounds and policies say; it gets each frame as it was
//	                                sent, also when the ring has gone round, and each leaves
//	                                as, and in the order in which, was decided
//	full                            tx_iq_full only at 255 frames under way
//	credit, rest, memory            at the end the credit is back at the grant, no buffer
//	                                looks like a packet, and a burst that a whole ring
//	                                just takes is taken
//	no report, the card's own sums  the card saw no misuse and no access outside memory
//	drains, ends, panic             it comes to an end
//
// TestWorlds runs 2,000 fixed seeds, `make soak` fresh ones. A failure prints the
// command that runs its world again, which also shows what is left of the world when
// all events are dropped that the failure does not need:
//
//	go test ./internal/worlds -run 'TestWorld$' -seed=N
//
// # Seen red
//
// Of worlds 1 to 200, so many broke a rule when the driver was broken so, one line at
// a time:
//
//	N off by one                      25    short step missing                 20
//	credit per packet                127    gap check off                      36
//	acknowledge before poison        123    gap moves the read index at once   10
//	later buffers not poisoned       166    behind check off                   10
//	read index + 1                   133    carry dropped                      12
//	rule 5 dropped                    58    one doorbell in 32 short           28
//	tag byte order                   182    an MTU one too large               16
//	slot freed by the doorbell         9    status never cleared              185
//
// the judge and the filters:
//
//	a dropped span credits one buffer   11    the second filter of a chain not asked    38
//	dropped spans are delivered         12    each way by the rules of one way          73
//	head of the frame before             7    rules lose their counters when replaced   15
//	head left behind by a delivery       1    unlinked, and still asked                 50
//	the first buffer's length alone    133    bytes of the first buffer counted         40
//
// inspection, of all 2,000:
//
//	one frame's pieces over another's  379    the last piece not cut               402
//	the first piece alone is queued    392    an entry's bytes without its head    648
//
// and the model:
//
//	credit per packet                136    MTU off by one                     48
//	a batch refused early             20    egress queues half as deep         42
//	a refusal that nothing counts     23    a cable that is out carries         6
//
// Credit before poison is not seen here: in stepped time the host's own work between
// the two takes none. A test of ring looks at the order.
//
// Left out: NetAgent (ports are up from the start), the switch's console, TAPs and the
// rest of the host's kernel, which internal/loadtest has, and everything that ends with
// a reboot of the coprocessor.
package worlds
