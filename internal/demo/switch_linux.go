package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
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

// uplink is the port of the switch to the coprocessor.
const uplink = "sw0"

// overAll is ping data that the switch drops as it was found, and passes raised.
const overAll = 3000

// switchRaised raises the switch by the coprocessor's console, and shows that all ten
// ports behind it carry what the LIF does then, and no more.
func switchRaised(ctx context.Context, l *lab, r *reporter, _ board.Port) error {
	p := board.ByIndex(0)
	if why := l.noConsole(ctx); why != "" {
		r.say("")
		r.say("The switch cannot be raised here: %s", why)
		return ctx.Err()
	}
	r.begin("raised", "oxpd switch jumbo --all: by the coprocessor's console, all ten ports behind the switch carry frames of 9,000 bytes")
	if err := l.byCommand(ctx, p, board.MaxMTU, r, "--force"); err != nil {
		return err
	}
	before, err := l.client.Counters(ctx)
	if err != nil {
		return err
	}
	if err := l.unanswered(ctx, r, p, overAll); err != nil {
		return err
	}
	after, err := l.client.Counters(ctx)
	if err != nil {
		return err
	}
	r.grown("MTU_EXCEEDED: frames that the LIF refused", before.Get(mtuExceeded), after.Get(mtuExceeded), 0)
	if err := l.jumbo(ctx, r); err != nil {
		return err
	}
	return l.throughAll(ctx, r)
}

// noConsole is why there is no way to the switch, "" when there is one.
func (l *lab) noConsole(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, switchLimit)
	defer cancel()
	var e *client.Error
	if _, err := l.client.SwitchRegister(ctx, uplink, reg.Identifier); errors.As(err, &e) && e.Code == client.CodeNotReady {
		return fmt.Sprintf("%s; %s", e.Message, e.Hint)
	}
	return "" // what else is wrong, the command says
}

// jumbo raises the switch as its user would, and checks what it reads.
func (l *lab) jumbo(ctx context.Context, r *reporter) error {
	if err := l.oxpdWithin(ctx, switchLimit, "switch", "jumbo", "--all"); err != nil {
		return err
	}
	at := 0
	for _, p := range behindSwitch() {
		m, err := l.client.MTU(ctx, p.Name)
		if err != nil {
			return err
		}
		if m.Switch == client.SwitchRead && m.SwitchFrame == reg.Jumbo10240.FrameBytes() && m.UplinkFrame == m.SwitchFrame {
			at++
		}
	}
	r.check("oxpd switch jumbo --all", ports10240(at), ports10240(len(behindSwitch())))
	return nil
}

func ports10240(n int) string {
	return fmt.Sprintf("%s bytes at %d ports", group(uint64(reg.Jumbo10240.FrameBytes())), n)
}

// throughAll sends pings on either edge of 9,000 through all ten ports.
func (l *lab) throughAll(ctx context.Context, r *reporter) error {
	ports := behindSwitch()
	taken := 0
	for _, p := range ports {
		if err := l.oxpd(ctx, "mtu", p.Name, fmt.Sprint(board.MaxMTU)); err != nil {
			return err
		}
		m, err := l.client.MTU(ctx, p.Name)
		if err != nil {
			return err
		}
		if m.Effective == board.MaxMTU {
			taken++
		}
	}
	r.check("oxpd mtu 9000 at each, without --force", fmt.Sprintf("in force at %d", taken), fmt.Sprintf("in force at %d", len(ports)))
	before, err := l.client.Counters(ctx)
	if err != nil {
		return err
	}
	fits, over := 0, 0
	for _, p := range ports {
		n, err := answers(ctx, l.farOf(p), hostAddr(p), fits9000, 1, pingLimit)
		if err != nil {
			return err
		}
		fits += n
		if n, err = answers(ctx, l.farOf(p), hostAddr(p), over9000, 1, silence); err != nil {
			return err
		}
		over += n
	}
	after, err := l.client.Counters(ctx)
	if err != nil {
		return err
	}
	r.check(fmt.Sprintf("ping with %s bytes through each", group(fits9000)), of(fits, len(ports)), of(len(ports), len(ports)))
	r.check(fmt.Sprintf("ping with %s bytes through each", group(over9000)), of(over, len(ports)), of(0, len(ports)))
	r.grown("MTU_EXCEEDED: frames that the LIF refused", before.Get(mtuExceeded), after.Get(mtuExceeded), uint64(len(ports)))
	for _, p := range ports {
		if err := l.oxpd(ctx, "mtu", p.Name, fmt.Sprint(board.DefaultMTU)); err != nil {
			return err
		}
	}
	return nil
}

// behindSwitch are the ten ports.
func behindSwitch() (ports []board.Port) {
	for _, p := range board.All() {
		if p.BehindSwitch() {
			ports = append(ports, p)
		}
	}
	return ports
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
