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
}

var faultSwitches = [faultIDs]faultSwitch{
	fltGone:            {"Gone", "a register access", perAccess},
	fltResetStalls:     {"ResetStalls", "a register access", perAccess},
	fltLoseAddresses:   {"LoseAddresses", "a reboot", perSite},
	fltResetOnOpen:     {"ResetOnOpen", "somebody opens the function", perSite},
	fltBusResetOnClose: {"BusResetOnClose", "the last one closes the function", perSite},
	fltWakeResets:      {"WakeResets", "a register access", perAccess},
	fltLoseMessages:    {"LoseMessages", "a message", perSite},
	fltStatusStops:     {"StatusStops", "a packet for a ring whose status is latched", perSite},
	fltLateData:        {"LateData", "a packet", perSite},
	fltLateLength:      {"LateLength", "a packet", perSite},
	fltLateTail:        {"LateTail", "a packet", perSite},
	fltLateCount:       {"LateCount", "a packet", perSite},
	fltLateBy:          {"LateBy", "", never},
	fltSkipEntries:     {"SkipEntries", "a packet", perSite},
	fltLoseCounts:      {"LoseCounts", "a packet", perSite},
	fltShortLength:     {"ShortLength", "a packet", perSite},
	fltLongLength:      {"LongLength", "a packet", perSite},
	fltHoldCredit:      {"HoldCredit", "a doorbell write of credit", perSite},
	fltStuckResume:     {"StuckResume", "a look at a ring under the watermark", perSite},
	fltWatermark:       {"Watermark", "a register access", perAccess},
	fltFetchDelay:      {"FetchDelay", "an instruction", perSite},
	fltStopFetch:       {"StopFetch", "a register access", perAccess},
	fltReadDelay:       {"ReadDelay", "an instruction", perSite},
	fltEgressFull:      {"EgressFull", "a frame for a wire", perSite},
	fltFastPathDead:    {"FastPathDead", "a frame at the fast path", perFrame},
	fltIgnoreDisable:   {"IgnoreDisable", "a register access", perAccess},
	fltWaitForCredit:   {"WaitForCredit", "a packet without credit", perSite},
	fltIgnoreBaddr:     {"IgnoreBaddr", "a write of a base address", perSite},
	fltNeverIdle:       {"NeverIdle", "a look at IDLE", perSite},
	fltNoDrain:         {"NoDrain", "a drain", perSite},

	fltHandshakeDeaf:   {"HandshakeDeaf", "a look at the handshake register", perSite},
	fltHandshakeMute:   {"HandshakeMute", "a look at the handshake register", perSite},
	fltBarmapVersion:   {"BarmapVersion", "a register access", perAccess},
	fltBarmapAllOnes:   {"BarmapAllOnes", "a register access", perAccess},
	fltBarmapNoSizes:   {"BarmapNoSizes", "a register access", perAccess},
	fltFacilityMissing: {"FacilityMissing", "a register access", perAccess},
	fltRInfoNoRings:    {"RInfoNoRings", "a read of SDP_EPF_RINFO", perSite},
	fltRPCOneDoorbell:  {"RPCOneDoorbell", "a register access", perAccess},
	fltRPCSilent:       {"RPCSilent", "a doorbell or a command of rpc", perSite},
	fltRPCDelay:        {"RPCDelay", "a command", perSite},
	fltRPCError:        {"RPCError", "a command", perSite},
	fltRPCLongReply:    {"RPCLongReply", "a command", perSite},
	fltAssembly:        {"Assembly", "a PLATFORM_READ", perSite},
	fltLIFRefuse:       {"LIFRefuse", "a LIF_ADD_UPDATE of the port", perSite},
	fltLIFNotStored:    {"LIFNotStored", "a LIF_ADD_UPDATE of the port", perSite},
	fltAgentSilent:     {"AgentSilent", "a look at the mailbox", perSite},
	fltAgentDelay:      {"AgentDelay", "a request", perSite},
	fltAgentRefuse:     {"AgentRefuse", "such a request", perSite},
	fltAgentBody:       {"AgentBody", "a start of NetAgent", perSite},
	fltAgentMarker:     {"AgentMarker", "a request", perSite},

	fltSwitchSilent:      {"SwitchSilent", "a transaction", perSite},
	fltSwitchStuckBusy:   {"SwitchStuckBusy", "a look at the command register", perSite},
	fltSwitchPHYStuck:    {"SwitchPHYStuck", "a look at the command register", perSite},
	fltSwitchWrongReads:  {"SwitchWrongReads", "a reading of the data register", perSite},
	fltSwitchForeignData: {"SwitchForeignData", "a write of the data register", perSite},
	fltSwitchForeignRead: {"SwitchForeignRead", "a read command", perSite},
	fltSwitchForeignBusy: {"SwitchForeignBusy", "a command", perSite},
	fltSwitchNoStick:     {"SwitchNoStick", "a write of register 8", perSite},
	fltSwitchID:          {"SwitchID", "a read of an identifier", perSite},
	fltSwitchRewrite:     {"SwitchRewrite", "a port that NetAgent raises or lowers", perSite},
	fltSwitchUplink:      {"SwitchUplink", "a register access", perAccess},

	fltConsoleSilent:       {"ConsoleSilent", "a command of rpc or NetAgent", perCommand},
	fltConsoleDead:         {"ConsoleDead", "a command of rpc or NetAgent", perCommand},
	fltConsoleCutAfter:     {"ConsoleCutAfter", "a command of rpc or NetAgent", perCommand},
	fltConsoleByteTime:     {"ConsoleByteTime", "a command of rpc or NetAgent", perCommand},
	fltConsoleNoise:        {"ConsoleNoise", "a command of rpc or NetAgent", perCommand},
	fltConsoleLoseOut:      {"ConsoleLoseOut", "a command of rpc or NetAgent", perCommand},
	fltConsoleLoseIn:       {"ConsoleLoseIn", "a command of rpc or NetAgent", perCommand},
	fltConsoleLocalEcho:    {"ConsoleLocalEcho", "a command of rpc or NetAgent", perCommand},
	fltConsoleSecondReader: {"ConsoleSecondReader", "a command of rpc or NetAgent", perCommand},
	fltConsoleLogout:       {"ConsoleLogout", "a command of rpc or NetAgent", perCommand},
	fltConsoleLoseFiles:    {"ConsoleLoseFiles", "a command of rpc or NetAgent", perCommand},
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
