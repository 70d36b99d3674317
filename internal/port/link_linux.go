package port

import (
	"errors"
	"fmt"
	"net"

	"github.com/jsimonetti/rtnetlink/v2"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"oxpd/internal/sys"
)

// openTAP creates the interface and a netlink socket in its namespace. A socket
// belongs to the namespace that it was made in, so every later request acts
// there, whichever thread it comes from.
func openTAP(name, netns string) (tap, int, link, error) {
	t, l, err := openLink(name, netns)
	if err != nil {
		return nil, 0, nil, err
	}
	return t, l.index, l, nil
}

func openLink(name, netns string) (t *sys.TAP, l *netlinkLink, err error) {
	err = sys.InNetNS(netns, func() (err error) {
		if t, err = sys.OpenTAP(name); err != nil {
			return err
		}
		// By name once, by index for ever: an interface can be renamed.
		ifi, err := net.InterfaceByName(name)
		if err == nil {
			l = &netlinkLink{index: ifi.Index}
			l.conn, err = dialRoute(0)
		}
		if err != nil {
			t.Close()
		}
		return err
	})
	switch {
	case errors.Is(err, sys.ErrExists):
		return nil, nil, fmt.Errorf("port: open %s: %w; remove it (ip link delete %s) or stop the program that owns it", name, err, name)
	case err != nil:
		return nil, nil, fmt.Errorf("port: open %s: %w", name, err)
	}
	return t, l, nil
}

// adoptTAP takes over an interface by its descriptor, which is used up also when
// there is an error, and checks that it is the one of that index in its namespace.
func adoptTAP(name, netns string, fd, index int) (tap, link, error) {
	t, err := sys.AdoptTAP(fd)
	if err != nil {
		unix.Close(fd)
		return nil, nil, fmt.Errorf("port: adopt %s: %w", name, err)
	}
	l := &netlinkLink{index: index}
	err = sys.InNetNS(netns, func() error {
		ifi, err := net.InterfaceByIndex(index)
		switch {
		case err != nil:
			return fmt.Errorf("%w: %w", ErrRemoved, err)
		case ifi.Name != t.Name():
			return fmt.Errorf("%w: interface %d is %s, and the descriptor is that of %s", ErrRemoved, index, ifi.Name, t.Name())
		}
		l.conn, err = dialRoute(0)
		return err
	})
	if err != nil {
		t.Close()
		return nil, nil, fmt.Errorf("port: adopt %s: %w", name, err)
	}
	return t, l, nil
}

// netlinkLink is an interface seen through its own netlink socket.
type netlinkLink struct {
	conn  *netlink.Conn
	index int
}

func dialRoute(groups uint32) (*netlink.Conn, error) {
	return netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{Groups: groups})
}

func (l *netlinkLink) set(m *rtnetlink.LinkMessage) error { return l.setWith(m, nil) }

// setWith is set with attributes that the library's message does not send.
func (l *netlinkLink) setWith(m *rtnetlink.LinkMessage, attributes []byte) error {
	m.Index = uint32(l.index)
	data, err := m.MarshalBinary()
	if err != nil {
		return err
	}
	_, err = l.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.RTM_NEWLINK, Flags: netlink.Request | netlink.Acknowledge},
		Data:   append(data, attributes...),
	})
	return err
}

func (l *netlinkLink) state() (Link, error) {
	m, err := readLink(l.conn, l.index)
	return m.Link, err
}

func (l *netlinkLink) master(of *Link) error { return readMaster(l.conn, of) }

func (l *netlinkLink) setMTU(mtu int) error {
	return l.set(&rtnetlink.LinkMessage{Attributes: &rtnetlink.LinkAttributes{MTU: uint32(mtu)}})
}

// setQueue sets how many frames may wait for the TAP's owner to read them.
func (l *netlinkLink) setQueue(frames int) error {
	a := netlink.NewAttributeEncoder()
	a.Uint32(unix.IFLA_TXQLEN, uint32(frames))
	attributes, err := a.Encode()
	if err != nil {
		return err
	}
	return l.setWith(&rtnetlink.LinkMessage{}, attributes)
}

func (l *netlinkLink) setMAC(mac [6]byte) error {
	return l.set(&rtnetlink.LinkMessage{Attributes: &rtnetlink.LinkAttributes{Address: mac[:]}})
}

func (l *netlinkLink) setUp(up bool) error {
	return l.setFlag(unix.IFF_UP, up)
}

func (l *netlinkLink) setPromisc(on bool) error {
	return l.setFlag(unix.IFF_PROMISC, on)
}

func (l *netlinkLink) setFlag(flag uint32, on bool) error {
	m := &rtnetlink.LinkMessage{Change: flag}
	if on {
		m.Flags = flag
	}
	return l.set(m)
}

func (l *netlinkLink) close() error { return l.conn.Close() }

// What a failed read or write of a TAP means.
func interrupted(err error) bool { return err == unix.EINTR }
func again(err error) bool       { return err == unix.EAGAIN }

// short: the kernel has no memory for a frame (ENOMEM, ENOBUFS), or the TAP's send
// buffer is full (EAGAIN).
func short(err error) bool {
	return err == unix.ENOMEM || err == unix.ENOBUFS || err == unix.EAGAIN
}

// removed: the kernel knows no interface of that index.
func removed(err error) bool { return errors.Is(err, unix.ENODEV) }

// gone: the interface is down (EIO), was removed (EBADFD), or is being removed
// (ENODEV, ENXIO).
func gone(err error) bool {
	return err == unix.EIO || err == unix.EBADFD || err == unix.ENODEV || err == unix.ENXIO
}
