package demo

import (
	"context"
	"fmt"
	"net/netip"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
)

const bridgeName = "br0"

// Modes of a LIF, as `oxpd port` names them.
const (
	modeL2 = "L2"
	modeL3 = "L3"
)

// bridgedAddr is the address of a port's far side in the network that the bridge is.
func bridgedAddr(p board.Port) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 67, 0, byte(p.Index + 1)})
}

// bridged makes a Linux bridge of the first two ports, whose far sides have no other
// way to each other, and takes it away again.
func bridged(ctx context.Context, l *lab, r *reporter, _ board.Port) error {
	members := [2]board.Port{board.ByIndex(0), board.ByIndex(apartPort)}
	r.begin("bridge", "A Linux bridge of %s and %s; the far sides of %s and %s have no other way to each other",
		members[0].Name, members[1].Name, members[0].Label, members[1].Label)
	if err := l.join(members); err != nil {
		return err
	}
	for _, p := range members {
		if err := l.follows(ctx, r, p, p.Name+", a member of "+bridgeName, modeL2, true); err != nil {
			return err
		}
	}
	if err := l.across(ctx, r, members); err != nil {
		return err
	}
	if err := l.leave(members); err != nil {
		return err
	}
	for _, p := range members {
		if err := l.follows(ctx, r, p, p.Name+", no member any more", modeL3, false); err != nil {
			return err
		}
	}
	for _, p := range members {
		if err := l.reaches(ctx, r, p, "the host", hostAddr(p), smallPing); err != nil {
			return err
		}
	}
	return nil
}

// join makes the bridge and gives its far sides addresses.
func (l *lab) join(members [2]board.Port) error {
	if err := l.host.AddBridge(bridgeName); err != nil {
		return err
	}
	for _, p := range members {
		if err := l.farOf(p).AddAddr(wireName(p), netip.PrefixFrom(bridgedAddr(p), prefixBits)); err != nil {
			return err
		}
		if err := l.host.SetMaster(p.Name, bridgeName); err != nil {
			return err
		}
	}
	return l.host.SetUp(bridgeName, true)
}

// leave removes the bridge. The far sides go on knowing each other, so that they do
// not ask, and be filtered, later.
func (l *lab) leave(members [2]board.Port) error {
	for i, p := range members {
		other := members[1-i]
		far, err := l.farOf(other).Link(wireName(other))
		if err != nil {
			return err
		}
		if err := l.farOf(p).AddNeighbour(wireName(p), bridgedAddr(other), far.MAC); err != nil {
			return err
		}
		if err := l.host.SetMaster(p.Name, ""); err != nil {
			return err
		}
	}
	return l.host.Delete(bridgeName)
}

// follows checks that a LIF, as read back, gets its mode, and that the address filter
// in front of it is as it has to be.
func (l *lab) follows(ctx context.Context, r *reporter, p board.Port, what, mode string, promisc bool) error {
	var v *client.PortView
	err := await(ctx, changeLimit, func() (ok bool, err error) {
		v, err = l.client.Port(ctx, p.Name)
		return err == nil && v.LIF.Mode == mode && v.NetAgent.Promisc != nil && *v.NetAgent.Promisc == promisc, err
	})
	if err != nil {
		return err
	}
	filter := "unknown"
	if v.NetAgent.Promisc != nil {
		filter = onOff(!*v.NetAgent.Promisc)
	}
	show := func(mode, filter string) string { return "LIF in " + mode + ", address filter " + filter }
	r.check(what, show(v.LIF.Mode, filter), show(mode, onOff(!promisc)))
	return nil
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// across pings through the bridge, both ways, and checks that what came in at one
// member went out at the other.
func (l *lab) across(ctx context.Context, r *reporter, members [2]board.Port) error {
	before, err := l.books(ctx)
	if err != nil {
		return err
	}
	for i, p := range members {
		other := members[1-i]
		for _, data := range []int{smallPing, fits1500} {
			if err := l.reaches(ctx, r, p, other.Label, bridgedAddr(other), data); err != nil {
				return err
			}
		}
	}
	after, err := l.books(ctx)
	if err != nil {
		return err
	}
	grown := func(p board.Port, counter string) uint64 { return after.port(p)[counter] - before.port(p)[counter] }
	for i, p := range members {
		other := members[1-i]
		r.sum("received by "+p.Name, grown(p, "rx_packets"), term{"sent by " + other.Name, grown(other, "tx_packets")})
	}
	return nil
}

// reaches checks that the far side of a port gets answers from an address.
func (l *lab) reaches(ctx context.Context, r *reporter, p board.Port, whom string, addr netip.Addr, data int) error {
	answered, err := answers(ctx, l.farOf(p), addr, data, pingsEach, pingLimit)
	if err != nil {
		return err
	}
	r.check(fmt.Sprintf("%s pings %s with %s bytes", p.Label, whom, group(uint64(data))), of(answered, pingsEach), of(pingsEach, pingsEach))
	return nil
}
