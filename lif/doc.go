// Package lif owns the logical interfaces: the coprocessor's table entries behind
// the front ports, without which it drops every frame of a port, and which own
// the MTU (hardware/rpc-lif.md 5, hardware/datapath.md 5.3). Frames and commands
// are in rpc/msg; the commands are sent through the Table that the caller hands in.
//
// # Want and have
//
// For each port the manager keeps what it wants and what it last read. A result
// code of 0 is no proof, the read-back is:
//
//	+---------------------> read <--------------------+
//	|                        |                         |
//	|        absent          | differs       equal     |
//	|  create, mask 0xff     | update, mask = fields   |
//	|  then bind the tag     |                 |       |
//	|          +-------------+                 v       |
//	|          v                             done      |
//	+---- read again: equal is done; else an error,    |
//	      and Reconcile starts over after a pause -----+
//
// Creation is not idempotent. Mask 0xff is refused for a live entry and any other
// mask for an empty one, so the table is always read first.
//
// An entry that is live when a port is provisioned for the first time was left by
// an earlier oxpd or by the vendor. Its MTU, mode, representor and DF bit are adopted;
// its MAC and flags are put right when they differ. Who wants another mode sets it.
//
// # One field at a time
//
// SetMTU, SetMAC and SetMode are the only ways to change a field: one
// LIF_ADD_UPDATE with its bit alone (0x0002, 0x0001, 0x0004), then a read. When
// either fails the old value stays wanted, so Reconcile restores whatever a
// half-heard command may have done.
//
// # A fast path that restarted
//
// An entry that had been there and is read absent is counted in State.Lost. The
// fast path empties its table when it starts, so all other entries are gone, too:
// who sees the count rise looks at every port at once.
//
// Ten ports are behind a switch that drops long frames without a counter.
// SwitchLimit is what is known of it, and what that means for an MTU; who asks for
// a change asks it first.
//
// # Refusals
//
// A refused port is tried again for ever, with pauses that grow from 2 s to 60 s,
// and ReconcileAll starts each round at another port, so that ports which refuse
// do not starve those behind them. Each refusal is counted and logged.
//
// # What it leaves out
//
//   - LIF_DELETE: its layout is unknown. A port is silenced with admin_disabled.
//   - VLAN interfaces: only the untagged LIF (vlan 0) of each port is used.
//   - The tag map cannot be read back. It is written after each creation and once
//     per port in a process's life.
//   - DF is compared like everything else, but has no bit in the update mask. A
//     difference is logged once, counted, and shown in State.DFDiffers; the port is
//     ready all the same, and nothing is sent to repair it: whether the DF byte of
//     an update for another field has an effect is not on record, and deleting the
//     entry is not an option.
package lif
