package daemon

import (
	"context"
	"fmt"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/port"
	"oxpd/rpc/msg"
)

// portView implements control. It asks the kernel and nothing of the card.
func (d *Daemon) portView(p board.Port) client.PortView {
	out := client.PortView{
		Schema: client.Schema, IfName: p.Name, Label: p.Label, State: client.PortWaiting, Awaiting: "bring-up",
		LIF: d.showLIFValues(p), Warnings: []string{},
	}
	o := d.owner(p)
	if o == nil {
		return out
	}
	v := o.snapshot()
	out.Filters, out.Divert = d.filters.of(p), d.inspect.of(p)
	out.Awaiting, out.PutBack, out.Repaired = v.awaiting, v.putBack, v.drift+v.forgot
	if v.up {
		if index, _ := kernel(v.iface); index != 0 {
			out.State = client.PortUp
		} else {
			out.Awaiting = interfaceGone
		}
	}
	if v.haveMAC {
		out.CardAddress = hwAddr(v.own)
		out.Want = client.PortValues{
			Admin: oper(v.want.up), Address: hwAddr(v.want.mac), MTU: v.want.mtu, Mode: lifModes[v.want.mode()],
			Promisc: &v.want.promisc, AllMulti: &v.want.allMulti,
		}
	}
	if v.agentMAC != [6]byte{} {
		out.NetAgent.Address = hwAddr(v.agentMAC)
	}
	if v.linkErr == nil && v.link != client.LinkUnknown {
		out.NetAgent.Link = v.link
	}
	if v.told.sure {
		out.NetAgent.Admin = oper(v.told.up)
		if v.told.up {
			out.NetAgent.Promisc, out.NetAgent.AllMulti = &v.told.promisc, &v.told.allMulti
		}
	}
	l, ok := lookNow(v.iface)
	if ok {
		o.setKernel(v.iface, l)
		v = o.snapshot()
		carrier := client.LinkDown
		if l.Carrier {
			carrier = client.LinkUp
		}
		promisc := l.Promisc || l.Bridge != ""
		out.Interface = client.PortValues{
			Admin: oper(l.Up), Link: carrier, Address: hwAddr(l.MAC), MTU: l.MTU, Promisc: &promisc, AllMulti: &l.AllMulti,
		}
		out.KernelName, out.Bridge, out.BridgeMTU = v.foreignName(p), l.Bridge, l.BridgeMTU
	}
	for _, w := range [][]string{o.warnings(&v), o.notices(&v), d.bridgeWarning(l)} {
		out.Warnings = append(out.Warnings, w...)
	}
	return out
}

// lookNow reads an interface that may be nil, or gone.
func lookNow(i iface) (port.Link, bool) {
	if i == nil {
		return port.Link{}, false
	}
	l, err := i.Link()
	return l, err == nil
}

// bridgeWarning compares a bridge's MTU with those of its members that are ports of
// oxpd. Linux sets a bridge's MTU to that of its smallest member until somebody sets
// it, and its members' never.
func (d *Daemon) bridgeWarning(of port.Link) []string {
	if of.Bridge == "" {
		return nil
	}
	var least board.Port
	mtu := 0
	for _, o := range d.allOwners() {
		l, ok := lookNow(o.snapshot().iface)
		if ok && l.Bridge == of.Bridge && (mtu == 0 || l.MTU < mtu) {
			least, mtu = o.port, l.MTU
		}
	}
	if mtu == 0 || of.BridgeMTU <= mtu {
		return nil
	}
	remedy := fmt.Sprintf("ip link set %s mtu %d", of.Bridge, mtu)
	if board.CheckMTU(of.BridgeMTU) == nil {
		remedy = fmt.Sprintf("oxpd mtu %s %d, or %s", least.Name, of.BridgeMTU, remedy)
	}
	return []string{fmt.Sprintf("bridge %s has mtu %d and its member %s %d: what the bridge sends above that is lost at the member; %s",
		of.Bridge, of.BridgeMTU, least, mtu, remedy)}
}

// showLIFValues is the LIF as last read back.
func (d *Daemon) showLIFValues(p board.Port) client.PortValues {
	s := d.lifs.State(p)
	if !s.Present {
		return client.PortValues{}
	}
	return client.PortValues{Address: hwAddr(s.Have.MAC), MTU: int(s.Have.MTU), Mode: lifModes[s.Have.Fwd&msg.FlagFwdMask]}
}

func oper(up bool) string {
	if up {
		return client.OperUp
	}
	return client.OperDown
}

// setUp implements control.
func (d *Daemon) setUp(ctx context.Context, p board.Port, up bool) (client.PortView, error) {
	o, err := d.served(p)
	if err == nil {
		err = o.ask(ctx, func(ctx context.Context) error { return o.setUp(ctx, up) })
	}
	if err != nil {
		return client.PortView{}, fmt.Errorf("set %s %s: %w", p.Name, upDown(up), err)
	}
	return d.portView(p), nil
}
