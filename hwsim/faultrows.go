package hwsim

import "strings"

// FaultHow says what brings a failure mode about.
type FaultHow string

// Ways in which a failure mode comes about.
const (
	HowSwitch  FaultHow = "switch"  // a field of Faults
	HowMisuse  FaultHow = "misuse"  // the host does it; the model punishes it on its own
	HowChoice  FaultHow = "choice"  // a field of Choices or of TargetOptions
	HowEvent   FaultHow = "event"   // traffic, time or a method of Card brings it
	HowOutside FaultHow = "outside" // this model does not have the part that fails
)

// FaultRow is a failure mode that the hardware pages state, by name.
type FaultRow struct {
	ID     string // F: endpoint.md 15, D: datapath.md 7, R: rpc-lif.md, S: switch.md, the latter two in the page's order
	Name   string
	Effect string // what a host sees; of F and D rows, the page's words
	Source string // page and section
	How    FaultHow
	By     string // the field, the method, what the host does, or why the model lacks it

	sets []string // what the name switches: FIELD=ARGUMENT, or an action. An argument of the name's own replaces the first one's
}

// Pages of the rows.
const (
	pageF = "endpoint.md 15"
	pageD = "datapath.md 7"
)

// FaultRows returns every failure mode: F1 to F30, D1 to D28, then those of the
// other two pages.
func FaultRows() []FaultRow {
	rows := make([]FaultRow, 0, len(endpointRows)+len(datapathRows)+len(rpcRows)+len(switchRows))
	for _, page := range [][]FaultRow{endpointRows, datapathRows, rpcRows, switchRows} {
		rows = append(rows, page...)
	}
	return rows
}

// FaultRowOf finds a failure mode by its id or its name, in whatever case.
func FaultRowOf(name string) (FaultRow, bool) {
	for _, r := range FaultRows() {
		if strings.EqualFold(r.ID, name) || strings.EqualFold(r.Name, name) {
			return r, true
		}
	}
	return FaultRow{}, false
}

// Switched tells whether Card.Inject takes the row's name.
func (r *FaultRow) Switched() bool { return len(r.sets) > 0 }

var endpointRows = []FaultRow{
	{"F1", "bar2-interrupt-read", "host stalls, no output", pageF, HowMisuse, "a load in BAR2 entry 15 (bar2-forbidden-read); with Choices.StallForbidden it never completes", nil},
	{"F2", "software-gone", "all-ones", pageF, HowMisuse, "a load of BAR2 that is not mapped, or before the coprocessor's kernel runs", []string{"software-ends"}},
	{"F3", "handshake-abandoned", "register keeps its value; one coprocessor core at 100 %, later offers unanswered", pageF, HowMisuse, "no more stores to SLI_EPF_SCRATCH after GET_HOST_INFO", nil},
	{"F4", "handshake-again", "no answer; started-port bitmap lost", pageF, HowMisuse, "HOST_LOADED after HANDSHAKE_COMPLETED (handshake-again)", nil},
	{"F5", "phantom-vfs", "handshake completes; within minutes fast path and facilities vanish: windows all-ones, sizes 0, mgmt down, RINFO fine", pageF, HowMisuse, "an info word with VFs (handshake-vfs)", []string{"facilities-end"}},
	{"F6", "ring-rearmed", "no error; packets go to old addresses; after a while the coprocessor's queue-full drops climb (192 of 400 measured)", pageF, HowMisuse, "base addresses written after the handshake (baddr-after-latch)", nil},
	{"F7", "grant-below-watermark", "one packet per ring, then nothing; OUT_CNTS 1", pageF, HowMisuse, "a first grant below the watermark; Choices.UnderWatermark: DeliverOne is this row", []string{"Watermark=4096"}},
	{"F8", "grant-too-big", "laps: OUT_CNTS > RSIZE, newest frames first, silent loss, later gaps", pageF, HowMisuse, "more credit than ring + watermark - 16 (credit-above-grant)", []string{"Watermark=256"}},
	{"F9", "drain-after-enable", "taken as credit", pageF, HowMisuse, "0xffffffff to OUT_SLIST_DBELL of an enabled ring (drain-after-enable); Choices.DrainIsGrant: how much", nil},
	{"F10", "rings-not-armed", "only flows hashing to armed rings arrive", pageF, HowMisuse, "fewer than eight rings enabled", nil},
	{"F11", "wrong-input-ring", "frames classified as wire ingress and dropped", pageF, HowMisuse, "instructions on another ring than 0 (bad-instruction)", nil},
	{"F12", "rlenss-zero", "fast path crashes; SDP still fetches instructions (IN_PKT_CNT moves)", pageF, HowMisuse, "rlenssz 0 with a frame that is not IP (rlenssz-zero-non-ip)", []string{"fast-path-crash"}},
	{"F13", "metadata-not-vendor", "frame sent to encryption, dropped, never on the wire", pageF, HowMisuse, "metadata byte 1 not 0 (metadata-not-clear)", nil},
	{"F14", "lif-missing", "frames from the wire dropped as invalid LIF; OUT_PKT_CNT 0", pageF, HowMisuse, "a port without PPORT_UPDATE or LIF_ADD_UPDATE; Card.WipeLIFs", []string{"wipe-lifs"}},
	{"F15", "agent-fec", "every later request times out; packets continue", pageF, HowMisuse, "NetAgent attribute 0x0b, read or written", []string{"agent-dies"}},
	{"F16", "agent-unacknowledged", "STATUS stays 1, next request times out", pageF, HowMisuse, "a reply that is not acknowledged; Card.StrandAgent", []string{"strand-agent"}},
	{"F17", "mgmt-short-frame", "consumer index frozen, target log flood", pageF, HowOutside, "the management link is not modelled beyond its first registers", nil},
	{"F18", "mgmt-bad-header", "TARGET_STATUS 4 for good", pageF, HowOutside, "the management link is not modelled beyond its first registers", nil},
	{"F19", "servicer-leaves-packets", "no interrupt ever again on that ring", pageF, HowMisuse, "a count that stays at or above the level: there is no edge", nil},
	{"F20", "span-as-one-buffer", "ring is one or more buffers behind, everything late, counters clean", pageF, HowMisuse, "a host that takes one buffer for a packet of several", nil},
	{"F21", "slot-reused-early", "wrong port's frame goes out, no counter moves", pageF, HowMisuse, "a transmit buffer that is written before IN_CNTS says so (in-slot-reuse)", []string{"ReadDelay=1ms"}},
	{"F22", "input-ring-overrun", "instructions overwritten", pageF, HowMisuse, "more posted than the ring holds (in-overrun)", []string{"StopFetch=true"}},
	{"F23", "rsize-too-large", "device writes over foreign memory", pageF, HowMisuse, "RSIZE larger than the list behind it (dma-outside-region where nothing is registered)", nil},
	{"F24", "scratch-overwritten", "barmap pointer lost for the next reader", pageF, HowMisuse, "a store to SDP_SCRATCH (scratch-overwritten)", []string{"scratch"}},
	{"F25", "swap-bits-wrong", "pointers byte-reversed or instructions mis-sized; DMA to wrong addresses [I]", pageF, HowMisuse, "ES_P, ESR or IS_64B not as the host's words are", nil},
	{"F26", "baddr-not-idle", "ignored or undefined [I]", pageF, HowMisuse, "a base address written while IDLE reads 0 (baddr-not-idle); NeverIdle holds it there", []string{"NeverIdle=all"}},
	{"F27", "tag-invalid", "wire error + drop / silent drop", pageF, HowMisuse, "a frame with tag 0, 253 or 255 (tag-unknown)", nil},
	{"F28", "fast-path-wedged", "IN_PKT_CNT moves, coprocessor's from-host counter frozen, rpc still answers", pageF, HowSwitch, "FastPathDead", []string{"FastPathDead=true"}},
	{"F29", "read-during-reset", "host hang [other family]", pageF, HowSwitch, "ResetStalls, while the card is away", []string{"ResetStalls=true"}},
	{"F30", "stuck-read-index", "buffer at index empty, later ones full", pageF, HowSwitch, "SkipEntries", []string{"SkipEntries=0:1"}},
}

var datapathRows = []FaultRow{
	{"D1", "message-edge-lost", "OUT_CNTS grows, vectors frozen, TX_KN +n, rx_done +0; seen 1,532 waiting", pageD, HowSwitch, "LoseMessages", []string{"LoseMessages=all"}},
	{"D2", "status-latched", "no further delivery", pageD, HowSwitch, "StatusStops; Choices.StatusStops", []string{"StatusStops=all"}},
	{"D3", "count-before-data", "count > 0, entry empty", pageD, HowSwitch, "LateData", []string{"LateData=all", "LateBy=200us"}},
	{"D4", "entry-never-written", "gap", pageD, HowSwitch, "SkipEntries", []string{"SkipEntries=0:1"}},
	{"D5", "count-never-raised", "count 0, entry full for two ticks", pageD, HowSwitch, "LoseCounts", []string{"LoseCounts=0:1"}},
	{"D6", "short-length", "entry neither empty nor frame", pageD, HowSwitch, "ShortLength", []string{"ShortLength=0:1"}},
	{"D7", "nonsense-length", "one buffer consumed, rx_long", pageD, HowSwitch, "LongLength", []string{"LongLength=0:1"}},
	{"D8", "span-wraps", "pieces at the end and the start", pageD, HowEvent, "a packet of several buffers at the end of the list", []string{"statistics=3"}},
	{"D9", "statistics-spans", "a driver taking one buffer per count falls one buffer behind per extra buffer, forever: one connection in eight times out, count 0, 268 buffers written and untaken", pageD, HowEvent, "the action statistics; Card.DeliverRaw with board.TagControl", []string{"statistics=3"}},
	{"D10", "no-gather-buffer", "rx_span_nobuf, ring intact", pageD, HowEvent, "more spans under way in the host than it has buffers for", nil},
	{"D11", "stock-watermark", "grant 768 too big: block laps a full ring", pageD, HowSwitch, "Watermark; Options.Watermark", []string{"Watermark=256"}},
	{"D12", "watermark-above-grant", "ring delivers nothing", pageD, HowSwitch, "Watermark; Options.Watermark", []string{"Watermark=4096"}},
	{"D13", "credit-withheld", "ring starves: 12 frames in half a second, then recovers", pageD, HowSwitch, "HoldCredit", []string{"HoldCredit=all"}},
	{"D14", "host-away", "full ring", pageD, HowEvent, "traffic while the host takes nothing", nil},
	{"D15", "resume-stuck", "ring silent with credit above watermark", pageD, HowSwitch, "StuckResume", []string{"StuckResume=all"}},
	{"D16", "slow-fetch", "doorbell low half at 255", pageD, HowSwitch, "FetchDelay, StopFetch", []string{"FetchDelay=1ms"}},
	{"D17", "late-data-read", "corrupt frame on the wire if a slot is reused early, TX_WIRE_ERR", pageD, HowSwitch, "ReadDelay", []string{"ReadDelay=1ms"}},
	{"D18", "slot-stride", "frames of other slots, WAN dead", pageD, HowMisuse, "instructions that point elsewhere than the frames are", nil},
	{"D19", "stale-metadata", "FROM_KN_TO_IPSEC_ENCR and TX_DROP move for clear traffic", pageD, HowMisuse, "metadata byte 1 not 0 (metadata-not-clear)", nil},
	{"D20", "rlenss-zero-crash", "fast path dies: nothing consumed any more", pageD, HowMisuse, "rlenssz 0 with a frame that is not IP (rlenssz-zero-non-ip)", []string{"fast-path-crash"}},
	{"D21", "egress-full", "FROM_KN_TO_WIRE - TX_WIRE = QUEUE_FULL, latency flat", pageD, HowSwitch, "EgressFull; more traffic than a port carries", []string{"EgressFull=true"}},
	{"D22", "lif-mtu-lower", "MTU_EXCEEDED +1 per frame, silence on the ring", pageD, HowEvent, "the action lif-mtu; Card.SetLIF", []string{"lif-mtu=576"}},
	{"D23", "lif-update-refused", "old MTU kept, error returned", pageD, HowSwitch, "LIFRefuse", []string{"LIFRefuse=all:1"}},
	{"D24", "lif-l3-bridged", "LIF_NOT_MY_MAC +1 per frame", pageD, HowEvent, "the action lif-l3; a LIF in L3 and frames for other addresses", []string{"lif-l3"}},
	{"D25", "frame-of-no-port", "rx_untagged only", pageD, HowEvent, "the action stray-tag; Card.DeliverRaw with a tag that no port has", []string{"stray-tag"}},
	{"D26", "ring-over-buffers", "memory beyond overwritten by poison and by the block: two panics", pageD, HowMisuse, "RSIZE larger than the list behind it", nil},
	{"D27", "interface-removed", "use after free", pageD, HowEvent, "an interface of the host that goes under traffic", nil},
	{"D28", "one-tuple-flood", "one ring full, seven idle", pageD, HowEvent, "traffic of one address and port pair", nil},
}

// Sections of rpc-lif.md.
const (
	pageR = "rpc-lif.md "
	pageS = "switch.md "
)

var rpcRows = []FaultRow{
	{"R1", "doorbell-window-read", "the machine hangs without a message until a power cycle", pageR + "1", HowMisuse, "a load at or above gicd_offset of BAR2 (bar2-forbidden-read)", nil},
	{"R2", "doorbell-not-published", "some other interrupt of the coprocessor is raised", pageR + "1", HowMisuse, "a doorbell number outside the published ranges (doorbell-unknown-spi)", nil},
	{"R3", "facility-late", "entries of the facility table read 0 for minutes, nothing announces them", pageR + "1", HowSwitch, "FacilityMissing; Timeline", []string{"FacilityMissing=2,3"}},
	{"R4", "post-flag", "done advances, no reply is written, every refusal is invisible", pageR + "2.3", HowMisuse, "flag POST in a descriptor", nil},
	{"R5", "reply-length", "the length of a reply is more than the buffer holds", pageR + "2.4", HowSwitch, "RPCLongReply", []string{"RPCLongReply=true"}},
	{"R6", "stale-done-byte", "byte 2 of the request is taken for the target's answer", pageR + "2.4", HowMisuse, "request byte 2 not zero and POST set: the target writes no reply over it", nil},
	{"R7", "command-time-out", "a command is not done within 2,000 ms and stays on the ring", pageR + "2.4, 3.2", HowSwitch, "RPCSilent, RPCDelay", []string{"RPCSilent=true"}},
	{"R8", "buffer-clobbered", "a buffer that is wiped under its descriptor is run as command 0", pageR + "2.4", HowMisuse, "a store to the buffer of a command that timed out; RPCDelay is the time for it", []string{"RPCDelay=3s"}},
	{"R9", "refused", "rc 1 to 20: the fast path refuses", pageR + "2.5", HowSwitch, "RPCError, LIFRefuse", []string{"RPCError=1"}},
	{"R10", "handler-busy", "rc 31: EAGAIN, ask again after 2 ms", pageR + "2.5", HowSwitch, "RPCError; only SA_ADD is known to send it", []string{"RPCError=31"}},
	{"R11", "transport-error", "rc with bit 15: the command was not dispatched", pageR + "2.5", HowMisuse, "an unknown command, or one that is too long; RPCError does it to any", []string{"RPCError=0x8016"}},
	{"R12", "alive-not-configured", "the window reads 0x0100000000000000: done is set and nothing is configured", pageR + "3", HowEvent, "every start of rpc", nil},
	{"R13", "configuration-unseen", "byte 7 never returns to 1", pageR + "3", HowMisuse, "no doorbell, a wrong doorbell index or a shared flag (rpc-config); RPCSilent", []string{"RPCSilent=true"}},
	{"R14", "configuration-twice", "the second word is cached as applied and was not", pageR + "3", HowMisuse, "a second config word before byte 7 is set", nil},
	{"R15", "configuration-torn", "half of a config word is taken", pageR + "3", HowMisuse, "the doorbell between two 32-bit stores of the word", nil},
	{"R16", "high-ring-livelock", "one command is answered, then nothing, later all of the BAR is all-ones", pageR + "3.1", HowSwitch, "RPCOneDoorbell", []string{"RPCOneDoorbell=true"}},
	{"R17", "posting-order", "the target takes a descriptor or a buffer that is not written yet", pageR + "3.2", HowMisuse, "posted or the doorbell before the descriptor", nil},
	{"R18", "command-zero", "every offloaded flow is invalidated", pageR + "4", HowMisuse, "command 0: a buffer of zeros", nil},
	{"R19", "no-entries", "nothing comes back", pageR + "4.1", HowMisuse, "a table read with num_entries 0; Choices.SilentUnknown", nil},
	{"R20", "counters-cleared", "a reading empties the counters", pageR + "4.1, 6.3", HowMisuse, "commands 47 to 50", nil},
	{"R21", "lif-update-short", "rc 1", pageR + "5.2", HowMisuse, "LIF_ADD_UPDATE of 16 bytes", nil},
	{"R22", "df-in-mask", "the DF bit lands in the update mask", pageR + "5.2", HowMisuse, "one 16-bit store of private mask and DF bit", nil},
	{"R23", "lif-mask", "rc 1: a create mask on a live LIF, another mask on an empty one", pageR + "5.2", HowMisuse, "LIF_ADD_UPDATE without a look at the entry", nil},
	{"R24", "lif-mac-zero", "broadcast alone is received: the port looks alive and is not", pageR + "5.2", HowMisuse, "a LIF in L3 with MAC zero", nil},
	{"R25", "tag-unbound", "LIF_INDEX_INVALID, counter 24, for every frame", pageR + "5.4", HowMisuse, "a LIF without PPORT_UPDATE", []string{"unbind-tags"}},
	{"R26", "pport-refused", "refused: shorter than 4 bytes, or an interface above 127", pageR + "5.4", HowMisuse, "such a PPORT_UPDATE", nil},
	{"R27", "lif-sweep", "one entry found on a board with twelve", pageR + "5.5", HowMisuse, "LO_LIF_READ by interface number", nil},
	{"R28", "lif-slot-empty", "an empty slot reads 14 zero bytes, or nothing", pageR + "5.5", HowChoice, "TargetOptions.EmptyLIFShort", nil},
	{"R29", "lif-table-cleared", "LIFs that were answered rc 0 are lost, tags still resolve", pageR + "5.6", HowEvent, "the action wipe-lifs; TargetOptions.ClearLIFs", []string{"wipe-lifs"}},
	{"R30", "lif-not-stored", "rc 0 and nothing stored", pageR + "5.6", HowSwitch, "LIFNotStored", []string{"LIFNotStored=all"}},
	{"R31", "lif-mtu-refused", "the LIF keeps its MTU", pageR + "5.7", HowSwitch, "LIFRefuse", []string{"LIFRefuse=all:1"}},
	{"R32", "lif-mtu-exceeded", "frame less 14 above the LIF's MTU: MTU_EXCEEDED +1, nothing in a host ring", pageR + "5.7", HowEvent, "the action lif-mtu; a frame that is too long", []string{"lif-mtu=576"}},
	{"R33", "counters-restart", "every counter starts at 0", pageR + "6.1", HowEvent, "the action reboot", []string{"reboot"}},
	{"R34", "decided-not-delivered", "TX_KN moves with QUEUE_FULL, and nothing arrives", pageR + "6.1", HowSwitch, "HoldCredit; a host that returns no credit", []string{"HoldCredit=all"}},
	{"R35", "agent-blank", "the mailbox reads 0: no cookie", pageR + "7", HowEvent, "the action restart-agent; Timeline.AgentUp", []string{"restart-agent"}},
	{"R36", "agent-all-ones", "0xffffffff in the mailbox: the endpoint has gone", pageR + "7", HowEvent, "the action kill", []string{"kill"}},
	{"R37", "agent-version", "another body offset than 0x34", pageR + "7", HowSwitch, "AgentBody", []string{"AgentBody=0x38"}},
	{"R38", "agent-marker", "a reply whose first word is not 0x14", pageR + "7", HowSwitch, "AgentMarker", []string{"AgentMarker=0x15"}},
	{"R39", "agent-stranded", "STATUS is 1 before anything was asked", pageR + "7", HowEvent, "the action strand-agent", []string{"strand-agent"}},
	{"R40", "agent-silent", "no reply within 3 s", pageR + "7", HowSwitch, "AgentSilent, AgentDelay", []string{"AgentSilent=true"}},
	{"R41", "agent-wedged", "a reply that is not acknowledged holds the mailbox against everybody", pageR + "7", HowMisuse, "a host that leaves before step 6", []string{"strand-agent"}},
	{"R42", "agent-late-idle", "STATUS stays 1 for a tick of 10 ms after the acknowledgement, one time in a hundred", pageR + "7", HowEvent, "Timeline.AgentTick", nil},
	{"R43", "agent-odd-length", "a reply of 9 bytes: one word, of which one byte counts", pageR + "7", HowEvent, "GET state", nil},
	{"R44", "agent-two-callers", "the second request overwrites the first", pageR + "7", HowMisuse, "two transactions at once", nil},
	{"R45", "agent-refuses", "status 1", pageR + "7.1", HowSwitch, "AgentRefuse", []string{"AgentRefuse=4"}},
	{"R46", "agent-phantom-port", "a tag that is in no table is answered", pageR + "7.1", HowEvent, "GET of tag 0x0003", nil},
	{"R47", "agent-fec-touched", "NetAgent answers nothing any more until a coprocessor restart", pageR + "7.2", HowMisuse, "attribute 0x0b, read or written", []string{"agent-dies"}},
	{"R48", "agent-mac-zero", "GET MAC answers zeros before the port is raised", pageR + "7.2", HowEvent, "every start; the action forget-ports", []string{"forget-ports"}},
	{"R49", "filter-closed", "only broadcast reaches the coprocessor", pageR + "7.2", HowMisuse, "a port whose address was not named by SET MAC; the action forget-ports", []string{"forget-ports"}},
	{"R50", "link-not-yet", "GET state says 0 for one to two seconds after SET state", pageR + "7.2", HowEvent, "every raised port", nil},
	{"R51", "speed-nominal", "GET speed says 10,000 or 1,000 without a link", pageR + "7.2", HowEvent, "a port without a link", nil},
	{"R52", "port-without-mac", "GET MAC of a cage is refused three times", pageR + "8", HowSwitch, "AgentRefuse", []string{"AgentRefuse=4/3/F1"}},
	{"R53", "mgmt-fatal", "target status 4 until its module is reloaded", pageR + "9", HowOutside, "the management link is not modelled beyond its first registers", nil},
	{"R54", "mgmt-jam", "a frame under 60 bytes is not consumed and jams the ring for good", pageR + "9", HowOutside, "the management link is not modelled beyond its first registers", nil},
	{"R55", "console-second-reader", "two readers take turns, both transcripts are useless", pageR + "10", HowSwitch, "ConsoleSecondReader", []string{"ConsoleSecondReader=true"}},
	{"R56", "console-echo", "the host's end echoes the boot text into the boot loader and stops the boot", pageR + "10", HowSwitch, "ConsoleLocalEcho (console-byte-in-boot)", []string{"ConsoleLocalEcho=true"}},
	{"R57", "console-silent", "no prompt for a whole boot", pageR + "10", HowSwitch, "ConsoleSilent", []string{"ConsoleSilent=true"}},
	{"R58", "console-echoed-marker", "the shell echoes the command with its marker", pageR + "10", HowEvent, "every command", nil},
}

var switchRows = []FaultRow{
	{"S1", "busy-ignored", "half of the readings are wrong: 0x007f one time, 0x0000 the next", pageS + "2, 8.3", HowSwitch, "SwitchWrongReads", []string{"SwitchWrongReads=2"}},
	{"S2", "busy-stuck", "the busy bit stays set", pageS + "2", HowSwitch, "SwitchStuckBusy", []string{"SwitchStuckBusy=true"}},
	{"S3", "stale-read-written", "a read-modify-write on a bad read takes a link down", pageS + "2", HowMisuse, "Port Control written from a reading that nothing confirmed; SwitchWrongReads", []string{"SwitchWrongReads=2"}},
	{"S4", "not-atomic-data", "a foreign command overwrites the data before ours takes it", pageS + "2", HowSwitch, "SwitchForeignData", []string{"SwitchForeignData=1"}},
	{"S5", "not-atomic-read", "the data register holds the answer to a foreign command", pageS + "2", HowSwitch, "SwitchForeignRead", []string{"SwitchForeignRead=1"}},
	{"S6", "not-atomic-busy", "our command meets a foreign one and is lost", pageS + "2", HowSwitch, "SwitchForeignBusy", []string{"SwitchForeignBusy=1"}},
	{"S7", "mdio-result", "the device's read() returns 0 or 16 for success", pageS + "3", HowChoice, "the console's option mdio-zero", nil},
	{"S8", "vlan-map-written", "the switch bridges panel ports behind the firewall's back", pageS + "4", HowMisuse, "panel ports named in register 6 of a panel port (switch-vlan-map)", nil},
	{"S9", "jumbo-reserved", "jumbo mode 3: reserved", pageS + "5", HowMisuse, "mode 3 written (switch-reserved-mode)", nil},
	{"S10", "wrong-product", "register 3 is not 0x193x: bits 13 and 12 mean something else", pageS + "5", HowSwitch, "SwitchID", []string{"SwitchID=0x1760"}},
	{"S11", "mtu-is-a-lie", "frames above 2,048 bytes are lost in the switch whatever the LIF allows, and counter 29 does not move", pageS + "5, 6.3", HowEvent, "a LIF MTU above the port's jumbo mode", nil},
	{"S12", "jumbo-lost", "the field is as found again after a coprocessor restart", pageS + "5", HowEvent, "the action reboot", []string{"reboot"}},
	{"S13", "blind-write", "other bits of register 8 change", pageS + "5", HowMisuse, "a value that was not derived from a read (switch-other-bits)", nil},
	{"S14", "write-not-stuck", "register 8 reads as before", pageS + "5, 9", HowSwitch, "SwitchNoStick", []string{"SwitchNoStick=1:1"}},
	{"S15", "read-of-nothing", "0x0000 or 0xffff is read", pageS + "5", HowSwitch, "SwitchSilent", []string{"SwitchSilent=true"}},
	{"S16", "uplink-short", "port 0 is not in mode 2: panel jumbo cannot work", pageS + "6.1", HowSwitch, "SwitchUplink", []string{"SwitchUplink=2048"}},
	{"S17", "agent-rewrites", "register 8 is as found again when NetAgent raises a port", pageS + "6.2, 11", HowSwitch, "SwitchRewrite", []string{"SwitchRewrite=true"}},
	{"S18", "globals-written", "the whole switch changes", pageS + "6.2", HowMisuse, "a write to Global1 or Global2 beside the PHY pair (switch-global)", nil},
	{"S19", "phy-busy-stuck", "the second busy bit, of the PHY command register, stays set", pageS + "7", HowSwitch, "SwitchPHYStuck", []string{"SwitchPHYStuck=true"}},
	{"S20", "phy-page", "every PHY register reads 0x0000, which looks like no PHY", pageS + "7", HowEvent, "every start: the page is not 0", nil},
	{"S21", "phy-asleep", "the copper port has no link: PHY register 0 has bit 11 set", pageS + "7", HowEvent, "a port that NetAgent has not raised", nil},
	{"S22", "lane-asleep", "the cage has no link until its lane is woken", pageS + "7", HowEvent, "a cage that NetAgent has not raised", nil},
	{"S23", "laser-off", "the cage has no light, and the switch cannot see why", pageS + "7", HowOutside, "the CPLD is not modelled", nil},
	{"S24", "helper-missing", "the program for the switch is not on the coprocessor", pageS + "8.1, 9", HowSwitch, "ConsoleLoseFiles and a restart", []string{"ConsoleLoseFiles=true"}},
	{"S25", "unparsable-number", "it becomes register or device 31, or a value of 0xffff", pageS + "8.1", HowMisuse, "a word that is no number, to mvsw", nil},
	{"S26", "write-unproven", "silence and exit 0, and the value did not stick", pageS + "8.1", HowSwitch, "SwitchNoStick", []string{"SwitchNoStick=1:-1"}},
	{"S27", "console-noise", "kernel messages within an answer", pageS + "8.1", HowSwitch, "ConsoleNoise", []string{"ConsoleNoise=40"}},
	{"S28", "dump-skips", "a port whose reads fail is not in the dump", pageS + "8.1", HowEvent, "SwitchSilent during a dump", []string{"SwitchSilent=true"}},
}
