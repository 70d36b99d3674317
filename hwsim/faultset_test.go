package hwsim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/octep/csr"
	"oxpd/rpc/msg"
)

func TestSetFault(t *testing.T) {
	for _, c := range []struct {
		name, fault, arg string
		want             func(f *Faults)
	}{
		{"a switch", "Gone", "", func(f *Faults) { f.Gone = true }},
		{"in another case", "stopfetch", "true", func(f *Faults) { f.StopFetch = true }},
		{"a switch that is off", "EgressFull", "false", func(*Faults) {}},
		{"of the target", "HandshakeDeaf", "", func(f *Faults) { f.HandshakeDeaf = true }},
		{"all rings", "LoseMessages", "", func(f *Faults) { f.LoseMessages = AllRings }},
		{"all rings by name", "LoseMessages", "all", func(f *Faults) { f.LoseMessages = AllRings }},
		{"some rings", "LateTail", "0,3,63", func(f *Faults) { f.LateTail, f.LateBy = 1|1<<3|1<<63, lateByName }},
		{"a time", "LateBy", "250us", func(f *Faults) { f.LateBy = 250 * time.Microsecond }},
		{"a number", "WaitForCredit", "8", func(f *Faults) { f.WaitForCredit = 8 }},
		{"a register's value", "BarmapVersion", "0x10003", func(f *Faults) { f.BarmapVersion = 0x10003 }},
		{"a text", "Assembly", "AMDA0999-0001", func(f *Faults) { f.Assembly = "AMDA0999-0001" }},
		{"numbers for rings", "SkipEntries", "0:5,7:1", func(f *Faults) { f.SkipEntries[0], f.SkipEntries[7] = 5, 1 }},
		{"all of a ring's", "IgnoreBaddr", "2:-1", func(f *Faults) { f.IgnoreBaddr[2] = -1 }},
		{"a port of the switch", "SwitchNoStick", "10:2", func(f *Faults) { f.SwitchNoStick[10] = 2 }},
		{"of the switch", "switchid", "0x1760", func(f *Faults) { f.SwitchID = 0x1760 }},
		{"a port and its rc", "LIFRefuse", "F1:31,oxp2", func(f *Faults) { f.LIFRefuse = map[board.Tag]msg.RC{1: 31, 0x8200: 1} }},
		{"ports", "lif-not-stored", "PortF2", func(f *Faults) { f.LIFNotStored = map[board.Tag]bool{2: true} }},
		{"requests", "AgentRefuse", "1,4/3/F1", func(f *Faults) {
			sub, tag := msg.AttrMAC, board.Tag(1)
			f.AgentRefuse = []AgentRefusal{{Op: 1}, {Op: 4, Sub: &sub, Port: &tag}}
		}},
		{"with hyphens", "late-tail", "1", func(f *Faults) { f.LateTail, f.LateBy = 2, lateByName }},
		{"by the name of a row", "fast-path-wedged", "", func(f *Faults) { f.FastPathDead = true }},
		{"by the id of a row", "d15", "", func(f *Faults) { f.StuckResume = AllRings }},
		{"by a row's name, some rings", "message-edge-lost", "2,5", func(f *Faults) { f.LoseMessages = 1<<2 | 1<<5 }},
		{"by a row's name, with what it needs", "count-before-data", "1", func(f *Faults) { f.LateData, f.LateBy = 1<<1, 200*time.Microsecond }},
		{"facilities", "FacilityMissing", "2,3", func(f *Faults) { f.FacilityMissing[csr.FacNWA], f.FacilityMissing[csr.FacRPC] = true, true }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got, want Faults
			require.NoError(t, SetFault(&got, c.fault, c.arg))
			c.want(&want)
			assert.Equal(t, want, got)
		})
	}
	for _, c := range []struct{ name, fault, arg, want string }{
		{"no such fault", "Fire", "", `no fault "Fire": want the id or the name of a row`},
		{"no port", "LIFRefuse", "F9", `unknown port "F9"`},
		{"no rc", "LIFRefuse", "F1:0", `"0": want a number of 1 to 65535 behind the colon`},
		{"an rc where none goes", "LIFNotStored", "F1:1", `"1": nothing stands behind the port`},
		{"no request", "AgentRefuse", "", `"": want OP, OP/SUB or OP/SUB/PORT`},
		{"too much of a request", "AgentRefuse", "4/3/F1/2", "want OP, OP/SUB or OP/SUB/PORT"},
		{"no attribute", "AgentRefuse", "4/x", "want a number behind the stroke"},
		{"a row that is done at a moment", "F12", "", "fault F12 rlenss-zero is done at a moment, which only Card.Inject can"},
		{"a row that the host brings about", "F3", "", "fault F3 handshake-abandoned is not switched: no more stores"},
		{"a row's name, no such ring", "D1", "64", `message-edge-lost: hwsim: fault LoseMessages="64": "64": want numbers of 0 to 63`},
		{"no switch", "Gone", "maybe", `fault Gone="maybe": want nothing, true or false`},
		{"no such ring", "LateTail", "64", `fault LateTail="64": "64": want numbers of 0 to 63`},
		{"no ring", "LateTail", "0,", `"": want numbers of 0 to 63`},
		{"a number below 0", "WaitForCredit", "-3", `fault WaitForCredit="-3": want a number of 0 or more`},
		{"no time", "LateBy", "", "want a time, such as 10ms"},
		{"a time before now", "LateBy", "-1s", "want a time, such as 10ms"},
		{"no number", "WaitForCredit", "", "want a number"},
		{"no number of a ring", "SkipEntries", "3", `3:"": want a number behind the colon, for a ring or a port each, such as 3:1`},
		{"no such port of the switch", "SwitchNoStick", "11:1", `"11:1": want numbers of 0 to 10`},
		{"a watermark that no credit reaches", "Watermark", "99999999", `fault Watermark="99999999": want a number of 0 to 65535`},
		{"a frame limit of no mode", "SwitchUplink", "5", `fault SwitchUplink="5": want the frame bytes of a mode: 1522 or 2048`},
		{"more than 32 bits", "BarmapVersion", "0x100000000", "want a number of 32 bits"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var f Faults
			assert.ErrorContains(t, SetFault(&f, c.fault, c.arg), c.want)
			assert.Zero(t, f.Watermark, "what is refused changes nothing")
			assert.Zero(t, f.SwitchUplink, "what is refused changes nothing")
		})
	}
	t.Run("what a row needs besides keeps its value", func(t *testing.T) {
		var f Faults
		require.NoError(t, SetFault(&f, "LateBy", "1ms"))
		require.NoError(t, SetFault(&f, "D3", ""))
		assert.Equal(t, Faults{LateData: AllRings, LateBy: time.Millisecond}, f)
	})
	// Every fault of a form that a text can have has one that is taken.
	for _, name := range FaultNames() {
		taken := false
		for _, arg := range []string{"", "1", "1s", "0:1", "2048"} { // of what follows, each is some form's
			taken = taken || SetFault(new(Faults), name, arg) == nil
		}
		assert.True(t, taken, name)
	}
}
