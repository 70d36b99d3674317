package probe

import (
	"errors"
	"fmt"

	"oxpd/internal/board"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
)

// memory is what the rings take that the card is told about, in bytes: input
// queue, slots, and each output queue's list and buffers. A page of records comes
// on top.
const memory = wire.IQSlots*(wire.InstrSize+wire.SlotStride) + wire.OQs*wire.OQEntries*(wire.ListEntry+wire.BufStride)

// Stages are the steps of the bring-up in their order, with what each does. The
// names are the daemon's; a test holds them together.
func Stages() []Stage {
	return []Stage{
		{Name: "device", Does: "checks the ids, turns memory decoding on, checks the ring split"},
		{Name: "bus-master", Does: "looks for traces of an earlier run, then lets the card reach memory"},
		{Name: "rings", Does: fmt.Sprintf("allocates %.1f MiB, checks its bus addresses, programs %d rings", float64(memory)/(1<<20), wire.OQs)},
		{Name: "ready", Does: "waits for the target's endpoint driver, reads the barmap"},
		{Name: "handshake", Does: "offers this host, once in a coprocessor boot"},
		{Name: "interrupt-levels", Does: "sets the interrupt levels by the clock that the handshake told"},
		{Name: "rpc", Does: "waits for the fast path to publish rpc, configures it"},
		{Name: "platform", Does: "reads the board's record, stops unless the assembly is " + board.Assembly},
		{Name: "netagent", Does: "waits for NetAgent's mailbox and an answer"},
		{Name: "uplinks", Does: "raises the switch's uplink"},
		{Name: "switch", Does: "reads the switch by the coprocessor's console, sets its size as configured"},
		{Name: "ports", Does: "raises each port, reads its address, installs its LIF, makes its interface"},
		{Name: "links", Does: "reads each link"},
	}
}

func hintOf(err error) string {
	var h interface{ Hint() string }
	if errors.As(err, &h) {
		return h.Hint()
	}
	return ""
}

// stop adds a finding that run stops at.
func (l *looker) stop(err error, hint string) {
	if own := hintOf(err); own != "" {
		hint = own
	}
	l.r.Findings = append(l.r.Findings, Finding{LevelStop, err.Error(), hint})
}

func (l *looker) note(hint, format string, args ...any) {
	l.r.Findings = append(l.r.Findings, Finding{LevelNote, fmt.Sprintf(format, args...), hint})
}

// find collects what stands in the way and what is unlike the records.
func (l *looker) find() {
	c := &l.r.Config
	if l.gone != nil {
		l.r.Gone = true
		l.note("oxpd run waits for it; read its config space (lspci -nn): vendor ffff is a card in reset or without a link, so wait a minute, then reboot the host; "+
			"another vendor is a card whose BARs do not decode: reboot the host", "%v", l.gone)
		return
	}
	if l.identity != nil {
		l.stop(l.identity, "give the address of the card itself: vendor 177d, device a300")
		return
	}
	for _, x := range []struct {
		err  error
		hint string
	}{
		{l.split, "oxpd works without virtual functions: power cycle the appliance and start nothing that makes them"},
		{l.earlier, "reboot the coprocessor (a reboot of the host does it)"},
		{l.ready, "this firmware is not the one on record: send the report, and do not run oxpd on it"},
	} {
		if x.err != nil {
			l.stop(x.err, x.hint)
		}
	}
	if !c.Memory {
		l.note("oxpd run turns it on", "memory decoding is off: nothing behind the BARs was read")
	}
	if l.offer {
		l.note("run oxpd now, or reboot the coprocessor first",
			"a host's offer stands in the handshake register: an oxpd run that begins before the coprocessor answers it takes it over; "+
				"once it is answered a core of the coprocessor spins, and oxpd run stops")
	}
	if c.BusMaster {
		l.note("oxpd run would leave it on", "bus mastering is on: the card can reach host memory")
	}
	const onRecord = "the records are of class 0x0b8000, revision 0x01 (endpoint.md 1)"
	if c.Class != hex(csr.PCIClass, 24) || c.Revision != hex(1, 8) {
		l.note("send the report", "class %s, revision %s: %s", c.Class, c.Revision, onRecord)
	}
	for _, g := range l.r.Globals {
		if (g.Name == "SDP_IRERR" || g.Name == "SDP_ORERR") && g.Value != hex(0, 64) {
			l.note("send the report", "%s=%s: the card has noted ring errors", g.Name, g.Value)
		}
	}
	for _, r := range l.r.Rings {
		if r.Owner != 0 {
			l.note("", "ring %d belongs to virtual function %d", r.Ring, r.Owner)
		}
	}
	if l.r.Refused != 0 {
		l.note("a defect of oxpd: send the report", "%d loads of BAR2 were stopped by the allow-list", l.r.Refused)
	}
}

// plan says what would come of each stage.
func (l *looker) plan() {
	stages := Stages()
	at := func(name string, v Verdict, why string) {
		for i := range stages {
			if stages[i].Name == name {
				stages[i].Verdict, stages[i].Why = v, why
			}
		}
	}
	for i := range stages {
		stages[i].Verdict = Open
	}
	dark := l.gone == nil && l.identity == nil && !l.r.Config.Memory
	at("device", Passes, "")
	switch err := errors.Join(l.identity, l.split); {
	case l.gone != nil:
		at("device", Waits, "for the card, of which only the vendor id is read meanwhile")
	case err != nil:
		at("device", Stops, err.Error())
	case dark:
		at("device", Open, "memory decoding is off; what lies behind it shows when it is on")
	}
	if !dark && l.gone == nil && l.identity == nil {
		l.planRings(at)
		l.planTarget(at)
	}
	at("platform", Open, "the assembly is not to be had without a command to the coprocessor")
	stopped := false
	for i := range stages {
		if stopped {
			stages[i].Verdict, stages[i].Why = NotReached, ""
		} else if stages[i].Verdict == Stops {
			stopped = true
			l.r.Run.Stops, l.r.Run.Stage = true, stages[i].Name
		}
	}
	l.r.Run.Stages = stages
}

func (l *looker) planRings(at func(string, Verdict, string)) {
	switch {
	case l.earlier != nil:
		at("bus-master", Stops, l.earlier.Error())
	case l.r.Config.BusMaster:
		at("bus-master", Passes, "no trace of an earlier run; bus mastering is on already")
	default:
		at("bus-master", Passes, "no trace of an earlier run")
	}
	at("rings", Passes, "")
	for _, r := range l.r.Rings {
		reg, idle := csr.OutControl, r.Out.Idle
		if r.Ring == 0 && !r.In.Idle {
			reg, idle = csr.InControl, false
		}
		if !idle {
			at("rings", Stops, fmt.Sprintf("%v does not show IDLE, and run waits a second for it at most", reg.Queue(r.Ring)))
			return
		}
	}
}

func (l *looker) planTarget(at func(string, Verdict, string)) {
	switch {
	case l.ready != nil:
		why := l.ready.Error()
		if bad := (*octep.BarmapError)(nil); errors.As(l.ready, &bad) && bad.Facility != "" {
			why += "; run gives the table 2 s to be written"
		}
		at("ready", Stops, why)
	case l.awaiting != "":
		at("ready", Waits, "for "+l.awaiting)
	default:
		at("ready", Passes, "")
	}
	why := "only an offer shows whether the coprocessor listens"
	if l.offer {
		why = "takes over the offer that stands, if the coprocessor has not answered it when oxpd run begins; stops if it has"
	}
	at("handshake", Open, why)
	if l.r.RPC == nil {
		at("rpc", Waits, "for the fast path, 1 to 4 minutes after the handshake")
	}
	if l.r.NetAgent == nil {
		at("netagent", Waits, "for the fast path, about 10 s after rpc")
	}
}
