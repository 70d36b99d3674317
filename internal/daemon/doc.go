// Package daemon is oxpd as a process: it wires the parts together, brings the
// card up, keeps what it wants and what the card has the same, and answers on
// the control socket (package client has its documents).
//
// # Bring-up
//
//	device            open, ids, BARs decoded
//	bus-master        nothing of an earlier run is in the card; it may reach memory
//	rings             memory, addresses, enables, first credit: before the handshake
//	ready             the target's endpoint driver and its barmap
//	handshake         once per coprocessor boot; a finished one is refused
//	interrupt-levels  time part, now that the clock is known
//	rpc               facility and configuration: minutes after the handshake
//	platform          assembly text; another board is refused
//	netagent          cookie, answers, port table
//	uplinks           uplink, PortF1 and PortF2 raised
//	switch            read, and set as configured, when there is a console: before MTUs are raised
//	ports             F1, F2, then the switch's: MAC, LIF with read-back, interface
//	links             one look at each link
//
// A stage that may come true by waiting is tried again for ever and says in
// `oxpd status` what it waits for. What waiting does not cure (another board, a
// barmap of another version, rings that somebody else programmed) ends the
// daemon with its reason, and with nothing left that was not there before.
//
// # Who owns what while running
//
//	worker  x n   output queues -> verdict -> sink -> TAP        data path
//	                                          \-> inspection queue
//	transmitter   TAPs -> verdict -> input queue                 data path
//	                        \-> inspection queue
//	                what passes the filters -> table of TCP flows, when there is one
//	owner   x 12  one queue of requests per port: provisioning, settings, read-back
//	link poller   one link a tick -> carrier
//	reconciler    one port a period -> owner; all of them after a loss; waiting ports
//	rpc channel   opened anew when a command was lost
//	link watcher  netlink -> owner
//	switch        what it passes, every switch.watch -> limits of the MTUs
//	liveness      config space; all ones ends every other one of these
//
// and, for as long as the daemon lives, whatever the card does:
//
//	inspection queue   what gets no verdict in time -> policy
//	listener           a queue -> the engine at its socket -> outlet -> TAP, input queue
//	tap-pair           a queue -> two interfaces -> outlet
//	TCP statistics     the host's sockets, and the table of flows -> clients at a socket
//
// What a port shall be has one owner (design.md, rule 11), and three sources: the
// configuration, the control socket, and the interface as `ip link` leaves it. A
// change is a request in the owner's queue: the card first, read back where it can
// be read, then the interface; or everything is as it was before. Of a change that
// the interface has already, what the card refuses is put back, or stands and is
// tried again (owner.follow). oxpd's own changes are recognised by their value.
//
// What the switch passes has one too (switch.go): one run at a time, with NetAgent kept
// away, and in the order of design.md, rule 12. A run opens the way to it, and closes it
// at its end.
//
// A configuration that was read again (Reload) is such requests, one for each port,
// and what the loops look up at each turn; what would need another bring-up is named
// and left.
//
// # Stop
//
// One sequence, whatever asks for it and how often: the handshake is finished,
// everything above ends and is waited for, control requests that use the card
// too. Engines go next, and what they had goes by the policy for that. The card
// gets a second to finish what was posted; what it has not finished then, and
// packets that nobody takes any more, are named. The interfaces are removed. Rings
// stay enabled and their memory stays with the card when the provider of the
// memory keeps it. If not, bus mastering is cleared before memory is released,
// and the log says that the coprocessor must reboot. Only a teardown disables
// rings.
//
// # What it leaves out
//
// Metrics.
package daemon
