// Package divert is the inspection queue: frames that an engine behind a port decides
// about before they go on.
//
//	Offer --> Queue (bounded, own memory) --Take--> engine --Settle--> Outlet
//	    \---- full, absent, stalled: passed at once, or dropped and counted
//
// A Queue knows no engine: what takes frames from it and settles them is a listener's
// socket (Listener), or a pair of TAPs with an unmodified engine between them (Pair).
// An Inspector is the queues of all ports. Each frame that was offered is in exactly
// one of the counters of Counts.
package divert
