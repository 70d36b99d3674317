package port

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// An rtnetlink message about an interface is a struct ifinfomsg and attributes
// behind it (rtnetlink(7)), all in the machine's byte order.
const (
	ifinfoIndex = 4 // s32
	ifinfoFlags = 8 // u32
	ifinfoSize  = 16

	statsTxDropped = 7 * 8 // offset of tx_dropped in struct rtnl_link_stats64
	bridgeKind     = "bridge"
)

var errShortLink = errors.New("message about an interface is too short")

// linkMessage is what one message says. Bridge and BridgeMTU are not in it: the
// master has a message of its own.
type linkMessage struct {
	Link
	isBridge bool // the interface is a Linux bridge
}

// decodeLink reads the data of an RTM_NEWLINK or RTM_DELLINK message. The library
// of the other requests does not have promiscuity, which is the only place where
// bridge membership and captures show.
func decodeLink(b []byte) (m linkMessage, err error) {
	if len(b) < ifinfoSize {
		return m, errShortLink
	}
	order := binary.NativeEndian
	m.Index = int(int32(order.Uint32(b[ifinfoIndex:])))
	flags := order.Uint32(b[ifinfoFlags:])
	m.Up = flags&unix.IFF_UP != 0
	m.Promisc = flags&unix.IFF_PROMISC != 0
	m.AllMulti = flags&unix.IFF_ALLMULTI != 0

	ad, err := netlink.NewAttributeDecoder(b[ifinfoSize:])
	if err != nil {
		return m, fmt.Errorf("interface %d: %w", m.Index, err)
	}
	for ad.Next() {
		switch ad.Type() {
		case unix.IFLA_IFNAME:
			m.Name = ad.String()
		case unix.IFLA_ADDRESS:
			copy(m.MAC[:], ad.Bytes())
		case unix.IFLA_MTU:
			m.MTU = int(ad.Uint32())
		case unix.IFLA_MASTER:
			m.Master = int(ad.Uint32())
		case unix.IFLA_CARRIER:
			m.Carrier = ad.Uint8() == 1
		case unix.IFLA_PROMISCUITY:
			m.Promisc = ad.Uint32() > 0 || m.Promisc
		case unix.IFLA_ALLMULTI: // kernel 6.3 and later
			m.AllMulti = ad.Uint32() > 0 || m.AllMulti
		case unix.IFLA_STATS64:
			if s := ad.Bytes(); len(s) >= statsTxDropped+8 {
				m.dropped = kernelCount{order.Uint64(s[statsTxDropped:]), true}
			}
		case unix.IFLA_LINKINFO:
			ad.Nested(func(info *netlink.AttributeDecoder) error {
				for info.Next() {
					if info.Type() == unix.IFLA_INFO_KIND {
						m.isBridge = info.String() == bridgeKind
					}
				}
				return info.Err()
			})
		}
	}
	if err := ad.Err(); err != nil {
		return m, fmt.Errorf("interface %d: %w", m.Index, err)
	}
	return m, nil
}

// askLinks requests interfaces: one by its index, or with 0 and netlink.Dump all
// of them. The kernel's error stays in the chain: ENODEV is an answer.
func askLinks(conn *netlink.Conn, index int, flags netlink.HeaderFlags) ([]linkMessage, error) {
	data := make([]byte, ifinfoSize)
	binary.NativeEndian.PutUint32(data[ifinfoIndex:], uint32(index))
	msgs, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.RTM_GETLINK, Flags: netlink.Request | flags},
		Data:   data,
	})
	if err != nil {
		return nil, err
	}
	links := make([]linkMessage, 0, len(msgs))
	for _, m := range msgs {
		if m.Header.Type != unix.RTM_NEWLINK {
			continue
		}
		l, err := decodeLink(m.Data)
		if err != nil {
			return nil, err
		}
		links = append(links, l)
	}
	return links, nil
}

// readLink reads one interface, without its master.
func readLink(conn *netlink.Conn, index int) (linkMessage, error) {
	links, err := askLinks(conn, index, 0)
	if err != nil {
		return linkMessage{}, err
	}
	for _, l := range links {
		if l.Index == index {
			return l, nil
		}
	}
	return linkMessage{}, fmt.Errorf("no answer about interface %d", index)
}

// readMaster completes a link with the name and MTU of its bridge. A master that
// has gone meanwhile is none; there will be news of it.
func readMaster(conn *netlink.Conn, l *Link) error {
	if l.Master == 0 {
		return nil
	}
	m, err := readLink(conn, l.Master)
	switch {
	case removed(err):
		return nil
	case err != nil:
		return fmt.Errorf("read master %d: %w", l.Master, err)
	}
	l.joinBridge(m)
	return nil
}

func (l *Link) joinBridge(master linkMessage) {
	if master.isBridge {
		l.Bridge, l.BridgeMTU = master.Name, master.MTU
	}
}
