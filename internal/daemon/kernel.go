package daemon

import (
	"fmt"
	"net"
	"strings"

	"oxpd/internal/board"
	"oxpd/internal/port"
)

// kernelView is a port's interface as the kernel had it when it was last looked at.
type kernelView struct {
	of   iface // the interface that it is about
	link port.Link
}

// inKernel is the view when it is about the interface that the port has now.
func (v *view) inKernel() port.Link {
	if v.iface == nil || v.kernel.of != v.iface {
		return port.Link{}
	}
	return v.kernel.link
}

// foreignName is what somebody has called the interface in the kernel, "" while it
// has the port's name. oxpd finds it by its index, so it is served all the same.
func (v *view) foreignName(p board.Port) string {
	if name := v.inKernel().Name; name != p.Name { // "" is not known yet
		return name
	}
	return ""
}

// setKernel notes what the kernel says of the interface i. A name that is not the
// port's is logged once each time.
func (o *owner) setKernel(i iface, l port.Link) {
	if l.Gone {
		return // what is left of it is looked at by its owner
	}
	var before, now string
	o.update(func(v *view) {
		before = v.foreignName(o.port)
		v.admin = l.Up
		v.kernel = kernelView{i, l}
		now = v.foreignName(o.port)
	})
	switch {
	case now == before:
	case now == "":
		o.log.Info("interface has the port's name again", "port", o.port.Name, "was", before)
	default:
		o.log.Info("interface is called otherwise in the kernel", "port", o.port.Name, "name", now)
	}
}

func hwAddr(mac [6]byte) string { return net.HardwareAddr(mac[:]).String() }

// warnings are those of one port, for the status and for itself.
func (o *owner) warnings(v *view) (out []string) {
	p := o.port
	switch {
	case v.up && v.err != nil:
		out = append(out, fmt.Sprintf("%s: %v", p, v.err))
	case v.err != nil:
		out = append(out, fmt.Sprintf("%s waits for %s: %v", p, v.awaiting, v.err))
	}
	if name := v.foreignName(p); name != "" {
		out = append(out, fmt.Sprintf("%s is called %s in the kernel; oxpd serves it all the same, and its commands take %s and %s", p, name, p.Name, p.Label))
	}
	if v.linkErr != nil {
		out = append(out, fmt.Sprintf("%s: link unknown: %v", p, v.linkErr))
	}
	if s := o.lifs.State(p); s.Present && s.DFDiffers {
		out = append(out, fmt.Sprintf("%s: the LIF's DF bit is %v and was to be %v: no command changes it, and frames pass with either", p, s.Have.DF, s.Want.DF))
	}
	return out
}

// notices are what somebody ought to know who asks for this port: what was put
// back last, until such a change succeeds, and what an MTU does to the kernel.
func (o *owner) notices(v *view) (out []string) {
	for _, s := range []string{v.mtuBack, v.macBack} {
		if s != "" && (v.err == nil || !strings.Contains(v.err.Error(), s)) {
			out = append(out, fmt.Sprintf("%s: %s", o.port, s))
		}
	}
	l := v.inKernel()
	return append(out, ipv6Warning(l.Name, l.MTU)...)
}

// endNotice forgets a change that was put back, the last error too when it is that one.
func (v *view) endNotice(notice *string) {
	if v.err != nil && v.err.Error() == *notice {
		v.err = nil
	}
	*notice = ""
}

// minIPv6 is the least MTU that the kernel runs IPv6 on (RFC 8200, section 5).
const minIPv6 = 1280

// ipv6Warning says what an MTU does to the addresses of an interface.
func ipv6Warning(name string, mtu int) []string {
	if mtu == 0 || mtu >= minIPv6 {
		return nil
	}
	return []string{fmt.Sprintf("mtu %d is below %d: the kernel takes IPv6 away from %s, and addresses that were set by hand do not come back when it rises (ip -6 addr show dev %s)",
		mtu, minIPv6, name, name)}
}
