package hwsim

import (
	"time"

	"oxpd/internal/board"
	"oxpd/octep/csr"
	"oxpd/rpc/msg"
)

// TargetFaults are the faults of the software on the coprocessor; the zero value
// is a card without any. Each takes effect at once and ends when it is cleared.
type TargetFaults struct {
	HandshakeDeaf bool // HOST_LOADED is never answered
	HandshakeMute bool // the info word, and all after it, is never answered

	BarmapVersion   uint32 // instead of 0.2, when not 0
	BarmapAllOnes   bool   // the table reads all-ones
	BarmapNoSizes   bool   // every size reads 0, as after a crash
	FacilityMissing [csr.BarmapFacilities]bool
	RInfoNoRings    bool // SDP_EPF_RINFO reads TRS 0
	RPCOneDoorbell  bool // the rpc facility has one doorbell: the livelock of rpc-lif.md 3.1 for a channel without a high ring

	RPCSilent    bool          // doorbells of rpc are lost; commands stay on the ring
	RPCDelay     time.Duration // added to every command
	RPCError     msg.RC        // every command is answered so and not run, when not 0
	RPCLongReply bool          // the length of every reply says 65,535
	Assembly     string        // instead of board.Assembly in PLATFORM_READ, when not empty

	LIFRefuse    map[board.Tag]msg.RC // LIF_ADD_UPDATE for that port is answered so and not run
	LIFNotStored map[board.Tag]bool   // LIF_ADD_UPDATE for that port is answered rc 0 and not run

	AgentSilent bool           // NetAgent sees no request
	AgentDelay  time.Duration  // added to every answer
	AgentRefuse []AgentRefusal // requests that are answered with status 1
	AgentBody   uint32         // the next NetAgent that starts publishes this body offset instead of 0x34, when not 0
	AgentMarker uint32         // the first word of every reply instead of 0x14, when not 0
}

// AgentRefusal names requests of NetAgent. A nil Sub or Port means any.
type AgentRefusal struct {
	Op   uint32
	Sub  *msg.Attr
	Port *board.Tag
}

func (f *TargetFaults) refuses(r *msg.NWARequestMsg) bool {
	for _, x := range f.AgentRefuse {
		if x.Op == r.Op && (x.Sub == nil || uint32(*x.Sub) == r.Sub) && (x.Port == nil || uint32(*x.Port) == r.Port) {
			return true
		}
	}
	return false
}
