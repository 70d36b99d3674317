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
	return t, int(l.index), l, nil
}

func openLink(name, netns string) (t *sys.TAP, l *netlinkLink, err error) {
	err = sys.InNetNS(netns, func() (err error) {
		if t, err = sys.OpenTAP(name); err != nil {
			return err
		}
		// By name once, by index for ever: an interface can be renamed.
		ifi, err := net.InterfaceByName(name)
		if err == nil {
			l = &netlinkLink{index: uint32(ifi.Index)}
			l.conn, err = rtnetlink.Dial(nil)
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

// netlinkLink is an interface seen through its own netlink socket.
type netlinkLink struct {
	conn  *rtnetlink.Conn
	index uint32
}

func (l *netlinkLink) set(m *rtnetlink.LinkMessage) error {
	m.Index = l.index
	return l.conn.Link.Set(m)
}

func (l *netlinkLink) get() (*rtnetlink.LinkMessage, error) { return getLink(l.conn, l.index) }

// getLink reads one interface. Unlike LinkService.Get it keeps the kernel's
// error: ENODEV is an answer.
func getLink(conn *rtnetlink.Conn, index uint32) (*rtnetlink.LinkMessage, error) {
	msgs, err := conn.Execute(&rtnetlink.LinkMessage{Index: index}, unix.RTM_GETLINK, netlink.Request)
	if err != nil {
		return nil, err
	}
	for _, m := range msgs {
		if lm, ok := m.(*rtnetlink.LinkMessage); ok && lm.Index == index && lm.Attributes != nil {
			return lm, nil
		}
	}
	return nil, fmt.Errorf("no answer about interface %d", index)
}

func (l *netlinkLink) state() (linkState, error) {
	m, err := l.get()
	if err != nil {
		return linkState{}, err
	}
	return linkState{int(m.Attributes.MTU), droppedOf(m)}, nil
}

// droppedOf is the kernel's count in a message about an interface.
func droppedOf(m *rtnetlink.LinkMessage) kernelCount {
	if m.Attributes == nil || m.Attributes.Stats64 == nil {
		return kernelCount{}
	}
	return kernelCount{m.Attributes.Stats64.TXDropped, true}
}

func (l *netlinkLink) setMTU(mtu int) error {
	return l.set(&rtnetlink.LinkMessage{Attributes: &rtnetlink.LinkAttributes{MTU: uint32(mtu)}})
}

func (l *netlinkLink) setMAC(mac [6]byte) error {
	return l.set(&rtnetlink.LinkMessage{Attributes: &rtnetlink.LinkAttributes{Address: mac[:]}})
}

func (l *netlinkLink) setUp(up bool) error {
	m := &rtnetlink.LinkMessage{Change: unix.IFF_UP}
	if up {
		m.Flags = unix.IFF_UP
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
