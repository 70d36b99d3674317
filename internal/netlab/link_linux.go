package netlab

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/jsimonetti/rtnetlink/v2"
	"golang.org/x/sys/unix"
)

// Link is the state of an interface, read from the kernel.
type Link struct {
	Index   uint32
	Name    string
	MAC     net.HardwareAddr
	MTU     int // bytes of layer 3
	Up      bool
	Carrier bool
	// Stats are the interface's own counters. For a TAP, TXPackets are the
	// frames that its owner has read and TXDropped those that found its queue
	// full; RXPackets are the frames that its owner has written.
	Stats rtnetlink.LinkStats64
}

// Links lists the interfaces of the namespace.
func (n *NS) Links() ([]Link, error) {
	msgs, err := n.conn.Link.List()
	if err != nil {
		return nil, fmt.Errorf("netlab: list interfaces: %w", err)
	}
	links := make([]Link, 0, len(msgs))
	for _, m := range msgs {
		l := Link{Index: m.Index, Up: m.Flags&unix.IFF_UP != 0, Carrier: m.Flags&unix.IFF_LOWER_UP != 0}
		if a := m.Attributes; a != nil {
			l.Name, l.MAC, l.MTU = a.Name, a.Address, int(a.MTU)
			if a.Stats64 != nil {
				l.Stats = *a.Stats64
			}
		}
		links = append(links, l)
	}
	return links, nil
}

// Link reads one interface.
func (n *NS) Link(name string) (Link, error) {
	links, err := n.Links()
	if err != nil {
		return Link{}, err
	}
	for _, l := range links {
		if l.Name == name {
			return l, nil
		}
	}
	return Link{}, fmt.Errorf("netlab: interface %s: %w", name, unix.ENODEV)
}

// change sends one RTM_NEWLINK for an existing interface.
func (n *NS) change(what, name string, set func(*rtnetlink.LinkMessage)) error {
	l, err := n.Link(name)
	if err != nil {
		return err
	}
	m := rtnetlink.LinkMessage{Index: l.Index, Attributes: &rtnetlink.LinkAttributes{}}
	set(&m)
	if err := n.conn.Link.Set(&m); err != nil {
		return fmt.Errorf("netlab: set %s of %s: %w", what, name, err)
	}
	return nil
}

// SetUp brings an interface up or down.
func (n *NS) SetUp(name string, up bool) error {
	return n.change("state", name, func(m *rtnetlink.LinkMessage) {
		m.Change = unix.IFF_UP
		if up {
			m.Flags = unix.IFF_UP
		}
	})
}

// SetMTU changes an interface's MTU, as `ip link set NAME mtu N` does.
func (n *NS) SetMTU(name string, mtu int) error {
	return n.change("mtu", name, func(m *rtnetlink.LinkMessage) { m.Attributes.MTU = uint32(mtu) })
}

// AddBridge makes a bridge without members.
func (n *NS) AddBridge(name string) error {
	err := n.conn.Link.New(&rtnetlink.LinkMessage{
		Attributes: &rtnetlink.LinkAttributes{Name: name, Info: &rtnetlink.LinkInfo{Kind: "bridge"}},
	})
	if err != nil {
		return fmt.Errorf("netlab: make bridge %s: %w", name, err)
	}
	return nil
}

// SetMaster makes an interface a member of a bridge, or of none when that is "".
func (n *NS) SetMaster(name, bridge string) error {
	var master uint32
	if bridge != "" {
		l, err := n.Link(bridge)
		if err != nil {
			return err
		}
		master = l.Index
	}
	return n.change("bridge", name, func(m *rtnetlink.LinkMessage) { m.Attributes.Master = &master })
}

// Delete removes an interface. Its members, if it has any, go on without it.
func (n *NS) Delete(name string) error {
	l, err := n.Link(name)
	if err != nil {
		return err
	}
	if err := n.conn.Link.Delete(l.Index); err != nil {
		return fmt.Errorf("netlab: remove %s: %w", name, err)
	}
	return nil
}

// AddAddr gives an interface an IPv4 address and with it the route to its prefix.
func (n *NS) AddAddr(name string, addr netip.Prefix) error {
	l, err := n.Link(name)
	if err != nil {
		return err
	}
	ip := net.IP(addr.Addr().AsSlice())
	err = n.conn.Address.New(&rtnetlink.AddressMessage{
		Family: unix.AF_INET, PrefixLength: uint8(addr.Bits()), Index: l.Index,
		Attributes: &rtnetlink.AddressAttributes{Address: ip, Local: ip},
	})
	if err != nil {
		return fmt.Errorf("netlab: add %s to %s: %w", addr, name, err)
	}
	return nil
}

// AddNeighbour makes an address known by its MAC for good, so that no ARP is
// sent for it. What the kernel has learned of it gives way.
func (n *NS) AddNeighbour(name string, addr netip.Addr, mac net.HardwareAddr) error {
	l, err := n.Link(name)
	if err != nil {
		return err
	}
	// Neigh.New would refuse an address that is known.
	_, err = n.conn.Execute(&rtnetlink.NeighMessage{
		Family: unix.AF_INET, Index: l.Index, State: unix.NUD_PERMANENT,
		Attributes: &rtnetlink.NeighAttributes{Address: addr.AsSlice(), LLAddress: mac, IfIndex: l.Index},
	}, unix.RTM_NEWNEIGH, unix.NLM_F_REQUEST|unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	if err != nil {
		return fmt.Errorf("netlab: add neighbour %s to %s: %w", addr, name, err)
	}
	return nil
}

// AddRoute routes a prefix through a gateway.
func (n *NS) AddRoute(dst netip.Prefix, via netip.Addr) error {
	err := n.conn.Route.Add(&rtnetlink.RouteMessage{
		Family: unix.AF_INET, DstLength: uint8(dst.Bits()), Table: unix.RT_TABLE_MAIN, Protocol: unix.RTPROT_STATIC,
		Scope: unix.RT_SCOPE_UNIVERSE, Type: unix.RTN_UNICAST,
		Attributes: rtnetlink.RouteAttributes{Dst: dst.Addr().AsSlice(), Gateway: via.AsSlice()},
	})
	if err != nil {
		return fmt.Errorf("netlab: route %s via %s: %w", dst, via, err)
	}
	return nil
}
