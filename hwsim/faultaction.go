package hwsim

import (
	"errors"
	"fmt"
	"strconv"

	"oxpd/internal/board"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
	"oxpd/rpc/msg"
)

// actionID numbers what is done to the card at once.
type actionID uint8

const (
	actKill actionID = iota
	actReboot
	actSoftwareGone
	actFacilitiesGone
	actScratch
	actFastPathCrash
	actStatistics
	actTag
	actWipeLIFs
	actUnbindTags
	actLIFMTU
	actLIFL3
	actAgentDies
	actStrandAgent
	actRestartAgent
	actForgetPorts

	actionIDs
)

// faultAction is something that is done to the card at a moment.
type faultAction struct {
	name, arg, effect string // arg: what it takes, empty if nothing
	per               opportunity
	prepare           func(arg string) (func(c *Card), error) // what is done is done with c.mu held
}

var faultActions = [actionIDs]faultAction{
	actKill:           {"kill", "", "the card is off the bus: everything reads all-ones until a reboot", perAccess, plain(func(c *Card) { c.killed = true; c.target.stop() })},
	actReboot:         {"reboot", "", "the coprocessor starts anew, and all registers", perAccess, plain(func(c *Card) { c.killed = false; c.reset() })},
	actSoftwareGone:   {"software-ends", "", "the coprocessor runs nothing any more: the windows read all-ones until a reboot", perCommand, plain(func(c *Card) { c.target.vanish() })},
	actFacilitiesGone: {"facilities-end", "", "fast path and facilities vanish: sizes read 0, their windows all-ones until a reboot", perCommand, plain(func(c *Card) { c.target.crash() })},
	actScratch:        {"scratch", "VALUE", "SDP_SCRATCH is overwritten, with 0 unless a value is given", perAccess, scratchAction},
	actFastPathCrash:  {"fast-path-crash", "", "the fast path dies, and rpc and NetAgent with it, until a reboot", perFrame, plain(func(c *Card) { c.fpDead = true; c.target.killFastPath() })},
	actStatistics:     {"statistics", "BUFFERS", "a statistics message of so many buffers comes to ring 0; 3 unless a number is given", perFrame, statisticsAction},
	actTag:            {"stray-tag", "TAG", "a frame with a tag that no port has comes to ring 0; 254 unless a tag is given", perFrame, tagAction},
	actWipeLIFs:       {"wipe-lifs", "", "the LIF table is empty, the tags stay bound", perCommand, plain(func(c *Card) { c.lifs.clear() })},
	actUnbindTags:     {"unbind-tags", "", "no tag is bound to an interface, the LIFs stay", perCommand, plain(func(c *Card) { c.lifs.unbind() })},
	actLIFMTU:         {"lif-mtu", "MTU", "every LIF has another MTU; 576 unless one is given", perCommand, mtuAction},
	actLIFL3:          {"lif-l3", "", "every LIF is in L3 mode", perCommand, plain(func(c *Card) { c.lifs.each(func(e *lifEntry) { e.Fwd = msg.FwdL3 }) })},
	actAgentDies:      {"agent-dies", "", "NetAgent answers nothing any more until a reboot", perCommand, plain(func(c *Card) { c.target.agent.dead = true })},
	actStrandAgent:    {"strand-agent", "", "somebody died with NetAgent's reply not acknowledged; nothing if the mailbox is not free", perCommand, plain(func(c *Card) { c.target.agentStrand() })},
	actRestartAgent:   {"restart-agent", "", "NetAgent starts anew and every port is down", perCommand, plain(func(c *Card) { c.target.agentRestart() })},
	actForgetPorts:    {"forget-ports", "", "every port is down and has no address, as after a start", perCommand, plain(func(c *Card) { c.target.resetPorts() })},
}

// FaultVerb is something that Card.Inject does to the card at a moment, or that
// switches it, by name.
type FaultVerb struct {
	Name   string
	Arg    string // of an action: what it takes, empty if nothing
	Effect string // of an action
	Per    string // what an opportunity is for one with a probability; empty: it takes none
	Once   bool   // one opportunity brings it about, and it stays; otherwise each draws
}

// FaultActions are the actions.
func FaultActions() (list []FaultVerb) {
	for _, a := range faultActions {
		list = append(list, FaultVerb{a.name, a.arg, a.effect, opportunityNames[a.per], true})
	}
	return list
}

// FaultSwitches are the fields of Faults as Card.Inject takes them.
func FaultSwitches() (list []FaultVerb) {
	for _, s := range faultSwitches {
		list = append(list, FaultVerb{Name: s.field, Per: s.when, Once: s.per != perSite && s.per != never})
	}
	return list
}

// plain is an action without an argument.
func plain(do func(c *Card)) func(string) (func(c *Card), error) {
	return func(arg string) (func(c *Card), error) {
		if arg != "" {
			return nil, errors.New("takes no argument")
		}
		return do, nil
	}
}

// within reads a number, def when there is none.
func within(arg string, def, lo, hi uint64) (uint64, error) {
	if arg == "" {
		return def, nil
	}
	n, err := strconv.ParseUint(arg, 0, 64)
	if err != nil || n < lo || n > hi {
		return 0, fmt.Errorf("%q: want a number of %d to %d", arg, lo, hi)
	}
	return n, nil
}

func scratchAction(arg string) (func(c *Card), error) {
	v, err := within(arg, 0, 0, allOnes)
	return func(c *Card) { c.sdpScratch = v }, err
}

// maxStatistics is the longest statistics message in buffers (datapath.md 7, row 9).
const maxStatistics = 10

func statisticsAction(arg string) (func(c *Card), error) {
	n, err := within(arg, 3, 1, maxStatistics)
	return func(c *Card) {
		size := int(csr.OutControlBSize.Get(c.rings[0].out.control))
		if size == 0 {
			return // no host has set the ring up
		}
		payload := make([]byte, max((int(n)-1)*size+size/2-wire.PrefixSize, 0))
		c.deliverRaw(0, uint16(board.TagControl), payload, uint64(wire.LenOverhead+len(payload)))
	}, err
}

// strayBytes is the length of a frame that belongs to nobody.
const strayBytes = 60

func tagAction(arg string) (func(c *Card), error) {
	tag, err := within(arg, uint64(board.TagControl), 0, 0xffff)
	if _, known := board.ByTag(board.Tag(tag)); err == nil && known {
		return nil, fmt.Errorf("%q: a port has this tag", arg)
	}
	return func(c *Card) {
		if csr.OutControlBSize.Get(c.rings[0].out.control) == 0 {
			return // no host has set the ring up
		}
		c.deliverRaw(0, uint16(tag), make([]byte, strayBytes), wire.LenOverhead+strayBytes)
	}, err
}

func mtuAction(arg string) (func(c *Card), error) {
	mtu, err := within(arg, 576, 0, 0xffff)
	return func(c *Card) { c.lifs.each(func(e *lifEntry) { e.MTU = uint16(mtu) }) }, err
}
