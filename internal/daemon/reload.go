package daemon

import (
	"context"
	"errors"
	"strings"
	"sync"

	"oxpd/internal/board"
	"oxpd/internal/daemon/config"
)

// reloadLimit bounds the wait for one port: its settings are changes, one after the
// other, and somebody else's may be in front.
const reloadLimit = 5 * changeLimit

// Reload puts a configuration that was read again into force, as far as that goes
// while the daemon runs, and logs each result: keys that changed, settings of each
// port, and keys that need a restart. It returns when every port has answered.
//
// What the file says of a port or a filter holds again, whatever was set otherwise meanwhile. What it
// says of the switch does when it has changed: an unchanged file keeps what is. A
// key that is not in the file any more leaves what is, and is tried no longer. A port
// that refuses keeps none of the others from theirs.
func (d *Daemon) Reload(ctx context.Context, file config.Config) {
	d.mu.Lock()
	before := d.cfg
	now, live, fixed := before.Reload(file)
	d.cfg = now
	owners := d.owners
	changed := now.Switch != before.Switch
	if m := d.life.modes; m != nil && changed {
		clear(m.byHand)
	}
	d.mu.Unlock()
	if changed {
		d.sw.lookSoon()
	}
	for _, c := range live {
		d.log.Info("configuration changed", "key", c.Key, "old", c.Running, "new", c.File)
	}
	d.filters.reload(now.Filters)
	d.inspect.reload(&before.Divert, &now.Divert)
	d.tcp.reload(&before.TCPStats, &now.TCPStats)
	for _, c := range fixed {
		d.log.Warn("needs a restart", "key", c.Key, "running", c.Running, "file", c.File)
	}
	var ports sync.WaitGroup
	for _, o := range owners {
		if o == nil {
			continue // it takes its settings when it is made
		}
		ports.Add(1)
		go func() {
			defer ports.Done()
			o.reload(ctx, before.Port(o.port), now.Port(o.port))
		}()
	}
	ports.Wait()
	d.warnLimit()
	d.log.Info("configuration was read again")
}

// warnLimit names the ports whose MTU is more than the switch is known to pass.
// It is not taken back: who set it may have had a reason, and sessions use it.
func (d *Daemon) warnLimit() {
	for _, p := range board.All() {
		limit, _ := d.switchLimit(p)
		if mtu := int(d.lifs.State(p).Have.MTU); limit.Check(p, mtu) != nil {
			d.log.Warn("mtu stays above the limit of the switch", "port", p.Name, "mtu", mtu, "why", limit.Warning(p, mtu))
		}
	}
}

// reload asks for the settings of a configuration that was read again, and logs
// what came of it.
func (o *owner) reload(ctx context.Context, before, now config.Port) {
	gone, dropped := missing(before, now)
	if len(dropped) > 0 {
		o.log.Info("no longer in the configuration: stays as it is", "port", o.port.Name, "keys", strings.Join(dropped, " "))
	}
	s := settingsOf(now)
	if s == (portSettings{}) && len(dropped) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, reloadLimit)
	defer cancel()
	wait := func() { o.drop(gone); o.pending = s.over(o.pending) }
	if o.later(wait) {
		o.log.Info("settings wait for the card", s.attrs(o.port)...)
		return
	}
	err := o.ask(ctx, func(ctx context.Context) error {
		o.drop(gone)
		return o.apply(ctx, s)
	})
	if notBegun(err) {
		o.next(wait)
	}
	switch {
	case err != nil:
		o.log.Warn("port is not as configured", append(s.attrs(o.port), "err", err)...)
	case s != portSettings{}:
		o.log.Info("port is as configured", s.attrs(o.port)...)
	}
}

// notBegun tells whether a request never came to its turn, though the owner goes on.
func notBegun(err error) bool {
	return errors.Is(err, errBusy) || errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, errUnderWay)
}

// next keeps what shall be done to run's own state until it comes to its marks: the
// reconcile that goes with it tries what is pending then.
func (o *owner) next(do func()) {
	o.mu.Lock()
	o.late = append(o.late, do)
	o.mu.Unlock()
	o.notice(markReconcile)
}

// later keeps what shall be done to run's own state until a card that was lost is back,
// and tells whether one was.
func (o *owner) later(do func()) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !errors.Is(o.cause, errCardGone) {
		return false
	}
	o.late = append(o.late, do)
	return true
}

// drop takes settings that no configuration wants any more out of what is still to
// be done. An MTU that is to be put back is none of them.
func (o *owner) drop(gone portSettings) {
	p := &o.pending
	if gone.mtu != 0 && p.mtu == gone.mtu && p.mtu != o.want.mtu {
		p.mtu = 0
	}
	if gone.up != nil {
		p.up = nil
	}
	if gone.mac == p.mac {
		p.mac = [6]byte{}
	}
	if gone.promisc != nil {
		p.promisc = nil
	}
}

// settingsOf are the settings of a port in a configuration.
func settingsOf(p config.Port) portSettings {
	s := portSettings{mtu: p.MTU, up: p.Up, promisc: p.Promisc}
	if p.MAC != nil {
		s.mac = *p.MAC
	}
	return s
}

// missing are the settings of before that now does not have, and their keys.
func missing(before, now config.Port) (gone portSettings, keys []string) {
	was, is := settingsOf(before), settingsOf(now)
	if was.mtu != 0 && is.mtu == 0 {
		gone.mtu, keys = was.mtu, append(keys, "mtu")
	}
	if was.up != nil && is.up == nil {
		gone.up, keys = was.up, append(keys, "up")
	}
	if was.mac != [6]byte{} && is.mac == [6]byte{} {
		gone.mac, keys = was.mac, append(keys, "mac")
	}
	if was.promisc != nil && is.promisc == nil {
		gone.promisc, keys = was.promisc, append(keys, "promisc")
	}
	return gone, keys
}

// attrs are settings for the log.
func (s portSettings) attrs(p board.Port) []any {
	out := []any{"port", p.Name}
	if s.mtu != 0 {
		out = append(out, "mtu", s.mtu)
	}
	if s.up != nil {
		out = append(out, "up", *s.up)
	}
	if s.mac != [6]byte{} {
		out = append(out, "mac", hwAddr(s.mac))
	}
	if s.promisc != nil {
		out = append(out, "promisc", *s.promisc)
	}
	return out
}
