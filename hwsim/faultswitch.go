package hwsim

import "time"

// faultID numbers what can be switched: the fields of Faults.
type faultID uint8

const (
	fltGone faultID = iota
	fltResetStalls
	fltLoseAddresses
	fltResetOnOpen
	fltBusResetOnClose
	fltWakeResets
	fltLoseMessages
	fltStatusStops
	fltLateData
	fltLateLength
	fltLateTail
	fltLateCount
	fltLateBy
	fltSkipEntries
	fltLoseCounts
	fltShortLength
	fltLongLength
	fltHoldCredit
	fltStuckResume
	fltWatermark
	fltFetchDelay
	fltStopFetch
	fltReadDelay
	fltEgressFull
	fltFastPathDead
	fltIgnoreDisable
	fltWaitForCredit
	fltIgnoreBaddr
	fltNeverIdle
	fltNoDrain

	fltHandshakeDeaf
	fltHandshakeMute
	fltBarmapVersion
	fltBarmapAllOnes
	fltBarmapNoSizes
	fltFacilityMissing
	fltRInfoNoRings
	fltRPCOneDoorbell
	fltRPCSilent
	fltRPCDelay
	fltRPCError
	fltRPCLongReply
	fltAssembly
	fltLIFRefuse
	fltLIFNotStored
	fltAgentSilent
	fltAgentDelay
	fltAgentRefuse
	fltAgentBody
	fltAgentMarker

	fltSwitchSilent
	fltSwitchStuckBusy
	fltSwitchPHYStuck
	fltSwitchWrongReads
	fltSwitchForeignData
	fltSwitchForeignRead
	fltSwitchForeignBusy
	fltSwitchNoStick
	fltSwitchID
	fltSwitchRewrite
	fltSwitchUplink

	fltConsoleSilent
	fltConsoleDead
	fltConsoleCutAfter
	fltConsoleByteTime
	fltConsoleNoise
	fltConsoleLoseOut
	fltConsoleLoseIn
	fltConsoleLocalEcho
	fltConsoleSecondReader
	fltConsoleLogout
	fltConsoleLoseFiles

	faultIDs
)

// opportunity is a kind of thing that happens to the card, at which a fault with a
// probability may begin.
type opportunity uint8

const (
	perSite    opportunity = iota // the fault's own place in the model draws, each time
	perAccess                     // a register access of the host
	perFrame                      // a frame that the fast path looks at
	perCommand                    // a command of rpc or a request to NetAgent
	opportunities

	never opportunity = 0xff // a number that others use: it has no opportunity
)

// faultSwitch is a field of Faults as something that is switched.
type faultSwitch struct {
	field string
	when  string // what an opportunity is, for people
	// per is perSite where each opportunity is drawn by itself. Other kinds are of
	// states of the card: one opportunity brings the state about, and it stays.
	per opportunity
	// begins says that it acts by being on, at no place of the model in particular: it
	// is counted when it begins.
	begins bool
}

var faultSwitches = [faultIDs]faultSwitch{
	fltGone:            {"Gone", "a register access", perAccess, false},
	fltResetStalls:     {"ResetStalls", "a register access", perAccess, false},
	fltLoseAddresses:   {"LoseAddresses", "a reboot", perSite, false},
	fltResetOnOpen:     {"ResetOnOpen", "somebody opens the function", perSite, false},
	fltBusResetOnClose: {"BusResetOnClose", "the last one closes the function", perSite, false},
	fltWakeResets:      {"WakeResets", "a register access", perAccess, false},
	fltLoseMessages:    {"LoseMessages", "a message", perSite, false},
	fltStatusStops:     {"StatusStops", "a packet for a ring whose status is latched", perSite, false},
	fltLateData:        {"LateData", "a packet", perSite, false},
	fltLateLength:      {"LateLength", "a packet", perSite, false},
	fltLateTail:        {"LateTail", "a packet", perSite, false},
	fltLateCount:       {"LateCount", "a packet", perSite, false},
	fltLateBy:          {"LateBy", "", never, false},
	fltSkipEntries:     {"SkipEntries", "a packet", perSite, false},
	fltLoseCounts:      {"LoseCounts", "a packet", perSite, false},
	fltShortLength:     {"ShortLength", "a packet", perSite, false},
	fltLongLength:      {"LongLength", "a packet", perSite, false},
	fltHoldCredit:      {"HoldCredit", "a doorbell write of credit", perSite, false},
	fltStuckResume:     {"StuckResume", "a look at a ring under the watermark", perSite, false},
	fltWatermark:       {"Watermark", "a register access", perAccess, true},
	fltFetchDelay:      {"FetchDelay", "an instruction", perSite, false},
	fltStopFetch:       {"StopFetch", "a register access", perAccess, false},
	fltReadDelay:       {"ReadDelay", "an instruction", perSite, false},
	fltEgressFull:      {"EgressFull", "a frame for a wire", perSite, false},
	fltFastPathDead:    {"FastPathDead", "a frame at the fast path", perFrame, false},
	fltIgnoreDisable:   {"IgnoreDisable", "a register access", perAccess, false},
	fltWaitForCredit:   {"WaitForCredit", "a packet without credit", perSite, false},
	fltIgnoreBaddr:     {"IgnoreBaddr", "a write of a base address", perSite, false},
	fltNeverIdle:       {"NeverIdle", "a look at IDLE", perSite, false},
	fltNoDrain:         {"NoDrain", "a drain", perSite, false},

	fltHandshakeDeaf:   {"HandshakeDeaf", "a look at the handshake register", perSite, false},
	fltHandshakeMute:   {"HandshakeMute", "a look at the handshake register", perSite, false},
	fltBarmapVersion:   {"BarmapVersion", "a register access", perAccess, true},
	fltBarmapAllOnes:   {"BarmapAllOnes", "a register access", perAccess, true},
	fltBarmapNoSizes:   {"BarmapNoSizes", "a register access", perAccess, true},
	fltFacilityMissing: {"FacilityMissing", "a register access", perAccess, true},
	fltRInfoNoRings:    {"RInfoNoRings", "a read of SDP_EPF_RINFO", perSite, false},
	fltRPCOneDoorbell:  {"RPCOneDoorbell", "a register access", perAccess, true},
	fltRPCSilent:       {"RPCSilent", "a doorbell or a command of rpc", perSite, false},
	fltRPCDelay:        {"RPCDelay", "a command", perSite, false},
	fltRPCError:        {"RPCError", "a command", perSite, false},
	fltRPCLongReply:    {"RPCLongReply", "a command", perSite, false},
	fltAssembly:        {"Assembly", "a PLATFORM_READ", perSite, false},
	fltLIFRefuse:       {"LIFRefuse", "a LIF_ADD_UPDATE of the port", perSite, false},
	fltLIFNotStored:    {"LIFNotStored", "a LIF_ADD_UPDATE of the port", perSite, false},
	fltAgentSilent:     {"AgentSilent", "a look at the mailbox", perSite, false},
	fltAgentDelay:      {"AgentDelay", "a request", perSite, false},
	fltAgentRefuse:     {"AgentRefuse", "such a request", perSite, false},
	fltAgentBody:       {"AgentBody", "a start of NetAgent", perSite, false},
	fltAgentMarker:     {"AgentMarker", "a request", perSite, false},

	fltSwitchSilent:      {"SwitchSilent", "a transaction", perSite, false},
	fltSwitchStuckBusy:   {"SwitchStuckBusy", "a look at the command register", perSite, false},
	fltSwitchPHYStuck:    {"SwitchPHYStuck", "a look at the command register", perSite, false},
	fltSwitchWrongReads:  {"SwitchWrongReads", "a reading of the data register", perSite, false},
	fltSwitchForeignData: {"SwitchForeignData", "a write of the data register", perSite, false},
	fltSwitchForeignRead: {"SwitchForeignRead", "a read command", perSite, false},
	fltSwitchForeignBusy: {"SwitchForeignBusy", "a command", perSite, false},
	fltSwitchNoStick:     {"SwitchNoStick", "a write of register 8", perSite, false},
	fltSwitchID:          {"SwitchID", "a read of an identifier", perSite, false},
	fltSwitchRewrite:     {"SwitchRewrite", "a port that NetAgent raises or lowers", perSite, false},
	fltSwitchUplink:      {"SwitchUplink", "a register access", perAccess, true},

	fltConsoleSilent:       {"ConsoleSilent", "a command of rpc or NetAgent", perCommand, true},
	fltConsoleDead:         {"ConsoleDead", "a command of rpc or NetAgent", perCommand, true},
	fltConsoleCutAfter:     {"ConsoleCutAfter", "a command of rpc or NetAgent", perCommand, true},
	fltConsoleByteTime:     {"ConsoleByteTime", "a command of rpc or NetAgent", perCommand, true},
	fltConsoleNoise:        {"ConsoleNoise", "a command of rpc or NetAgent", perCommand, true},
	fltConsoleLoseOut:      {"ConsoleLoseOut", "a command of rpc or NetAgent", perCommand, true},
	fltConsoleLoseIn:       {"ConsoleLoseIn", "a command of rpc or NetAgent", perCommand, true},
	fltConsoleLocalEcho:    {"ConsoleLocalEcho", "a command of rpc or NetAgent", perCommand, true},
	fltConsoleSecondReader: {"ConsoleSecondReader", "a command of rpc or NetAgent", perCommand, true},
	fltConsoleLogout:       {"ConsoleLogout", "a command of rpc or NetAgent", perCommand, true},
	fltConsoleLoseFiles:    {"ConsoleLoseFiles", "a command of rpc or NetAgent", perCommand, true},
}

// acts tells whether a fault acts on this opportunity, and counts that it did. on
// says that it is switched on for what is at hand; one with a probability is drawn.
func (c *Card) acts(id faultID, on bool) bool { return on && c.inject.draw(id) }

// delay is the time that a fault of d adds on this opportunity.
func (c *Card) delay(id faultID, d time.Duration) time.Duration {
	if !c.acts(id, d != 0) {
		return 0
	}
	return d
}

// chance lets faults begin that wait for an opportunity of this kind. They begin
// with the next event, never in the midst of what is going on.
func (c *Card) chance(o opportunity) {
	if len(c.inject.waiting[o]) > 0 {
		c.drawWaiting(o)
	}
}
