package demo

import (
	"context"
	"fmt"
	"strings"

	"oxpd/internal/board"
	"oxpd/switchcfg/reg"
)

// switchSize is the longest frame, in bytes with FCS, that the switch passes as it
// was found; switchMTU the MTU that it leaves (hardware/switch.md 5).
var (
	switchSize = reg.Jumbo2048.FrameBytes()
	switchMTU  = switchSize - reg.Overhead
)

// Ping data on either edge of the switch's limit: its MTU less 28 bytes of headers.
const (
	fitsSwitch = 2002
	overSwitch = 2003
)

// Counters that say where a frame that is too long for the switch was lost: before
// the coprocessor.
const (
	rxWire        = "RX_WIRE"
	switchDropped = "switch_dropped"
)

// switchCap shows the limit of the switch, which no counter of the coprocessor
// knows of, at the first port behind it.
func switchCap(ctx context.Context, l *lab, r *reporter, _ board.Port) error {
	p := board.ByIndex(0)
	r.begin("switch", "The switch before %s passes frames of %s bytes with FCS, whatever the LIF says", p.Label, group(uint64(switchSize)))
	if err := l.tooLong(ctx, r, p, board.MaxMTU); err != nil {
		return err
	}
	if err := l.byCommand(ctx, p, board.MaxMTU, r, "--force"); err != nil {
		return err
	}
	if err := l.pings(ctx, r, p, fitsSwitch, pingsEach); err != nil {
		return err
	}
	before, err := l.read(ctx)
	if err != nil {
		return err
	}
	if err := l.unanswered(ctx, r, p, overSwitch); err != nil {
		return err
	}
	after, err := l.read(ctx)
	if err != nil {
		return err
	}
	r.grown("switch_dropped: frames lost before the card", before.wire(p)[switchDropped], after.wire(p)[switchDropped], pingsEach)
	r.grown("RX_WIRE: frames that the coprocessor saw", before.card.Get(rxWire), after.card.Get(rxWire), 0)
	r.grown("MTU_EXCEEDED: frames that the LIF refused", before.card.Get(mtuExceeded), after.card.Get(mtuExceeded), 0)
	return l.byCommand(ctx, p, board.DefaultMTU, r)
}

// tooLong asks for an MTU that the switch does not pass, and checks that the answer
// names its limit and that nothing has changed.
func (l *lab) tooLong(ctx context.Context, r *reporter, p board.Port, mtu int) error {
	const refused = "refused, the switch passes %s"
	want := fmt.Sprintf(refused, group(uint64(switchMTU)))
	got := "not refused"
	if err := l.oxpd(ctx, "mtu", p.Name, fmt.Sprint(mtu)); err != nil {
		got = err.Error()
		if strings.Contains(got, fmt.Sprintf("%d, for frames of %d bytes", switchMTU, switchSize)) {
			got = want
		}
	}
	r.check(fmt.Sprintf("oxpd mtu %s %d", p.Name, mtu), got, want)
	return l.inForce(ctx, p, board.DefaultMTU, r, "so it stays as it was")
}
