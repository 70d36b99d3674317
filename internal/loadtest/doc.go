// Package loadtest holds tests of the whole driver under load, and nothing else:
// a daemon in the test's process, the simulated card at wall time, and two
// network namespaces whose kernels make and judge the traffic.
//
//	host namespace                                        far namespace
//	oxp1 .. oxp12 -- daemon, rings -- simulated card -- Port1 .. PortF2
//
// Each test ends with the books: every frame that a kernel says it sent is in
// exactly one counter of what became of it. Latencies and rates are logged for
// people; no test depends on them but the measurements of make bench.
//
//	mtu        A3: the MTU changed under TCP and UDP on every port
//	fairness   A7: one port or one ring flooded, the others pinged
//	memory     A8: jumbo frames at full rate through bounded memory
//	port       ports taken down and up while frames arrive or wait
//	filter     a flood that a rule drops on the ring, to the frame; links changed under it
//	filtercost what that costs, beside the kernel's own filter: make bench
//	slow       a stream behind an engine with 20 verdicts a second; copies while it stalls
//	burst      the same behind one that rests now and then, on a long wire
//	engine     engines that misbehave, are killed, stopped and started again
//	kill       oxpd killed a hundred times, as a process beside the card's
//
// `make soak` runs the first for a minute instead of seconds.
//
// Left out: bridges and captures, which have tests of their own.
package loadtest
