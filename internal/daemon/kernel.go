package daemon

import (
	"fmt"
	"net"

	"oxpd/internal/board"
	"oxpd/internal/port"
)

// kernelView is what somebody has made of a port's interface in the kernel. oxpd
// finds its interface by its index, so neither keeps it from serving the port.
type kernelView struct {
	of   iface   // the interface that it is about
	name string  // "" while it is the port's own
	mac  [6]byte // 0 while it is the card's
}

// foreign is the view when it is about the interface that the port has now.
func (v view) foreign() kernelView {
	if v.iface == nil || v.kernel.of != v.iface {
		return kernelView{}
	}
	return v.kernel
}

// setKernel notes what the kernel says of the interface i: its administrative
// state, and what is not as oxpd made it, which is logged once each time.
func (o *owner) setKernel(i iface, l port.Link) {
	if l.Gone {
		return // what is left of it is looked at by its owner
	}
	now := kernelView{of: i}
	if l.Name != o.port.Name {
		now.name = l.Name
	}
	var before kernelView
	o.update(func(v *view) {
		v.admin = l.Up
		if v.haveMAC && l.MAC != v.mac {
			now.mac = l.MAC
		}
		before = v.foreign()
		v.kernel = now
	})
	if now.name != before.name {
		o.log.Info("interface is called otherwise in the kernel", "port", o.port.Name, "name", l.Name)
	}
	switch {
	case now.mac == before.mac:
	case now.mac == [6]byte{}:
		o.log.Info("interface has the card's address again", "port", o.port.Name, "address", hwAddr(l.MAC))
	default:
		o.log.Warn("interface has an address that the card does not know", "port", o.port.Name, "address", hwAddr(now.mac))
	}
}

func hwAddr(mac [6]byte) string { return net.HardwareAddr(mac[:]).String() }

// warnings are those for the status.
func (k kernelView) warnings(p board.Port, mac [6]byte) (out []string) {
	name := p.Name
	if k.name != "" {
		name = k.name
		out = append(out, fmt.Sprintf("%s is called %s in the kernel; oxpd serves it all the same, and its commands take %s and %s", p, k.name, p.Name, p.Label))
	}
	if k.mac != [6]byte{} {
		out = append(out, fmt.Sprintf("%s: the interface has address %s and the card goes by %s: unicast to the former does not arrive; ip link set %s address %s",
			p, hwAddr(k.mac), hwAddr(mac), name, hwAddr(mac)))
	}
	return out
}
