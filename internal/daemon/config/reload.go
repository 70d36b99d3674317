package config

import (
	"fmt"
	"maps"
	"strings"

	"oxpd/internal/board"
)

// Change is a key whose value in a file is not the one that is in force.
type Change struct{ Key, Running, File string }

// Reload lays a file that was read again over the configuration in force, and
// returns what is in force then: with its ports, filters, inspection, TCP statistics, switch, link-poll and reconcile.
// live are the changes among those but for the ports and filters. fixed are the changes to keys
// that cannot change while the daemon runs, the listeners of inspection among them: they stay as they are.
func (c Config) Reload(file Config) (now Config, live, fixed []Change) {
	now = file
	now.Socket, now.Access, now.Device, now.Workers, now.Watermark, now.DMABits, now.Sim = c.Socket, c.Access, c.Device, c.Workers, c.Watermark, c.DMABits, c.Sim
	now.Divert.Listeners = c.Divert.Listeners
	now.TCPStats.Socket, now.TCPStats.Group = c.TCPStats.Socket, c.TCPStats.Group

	note := func(to *[]Change, key string, running, file any) {
		if ch := (Change{key, fmt.Sprint(running), fmt.Sprint(file)}); ch.Running != ch.File {
			*to = append(*to, ch)
		}
	}
	note(&live, "switch.console", c.Switch.Console, file.Switch.Console)
	note(&live, "switch.jumbo", c.Switch.Jumbo, file.Switch.Jumbo)
	note(&live, "switch.size", c.Switch.Size, file.Switch.Size)
	note(&live, "switch.watch", c.Switch.Watch, file.Switch.Watch)
	note(&live, "link-poll", c.LinkPoll, file.LinkPoll)
	note(&live, "reconcile", c.Reconcile, file.Reconcile)
	was, will := c.Divert.Settings().List(), file.Divert.Settings().List()
	for i := range was {
		note(&live, "divert."+was[i].Key, was[i].Value, will[i].Value)
	}
	for _, p := range board.All() {
		note(&live, "divert.ports."+p.Name, c.Divert.mode(p), file.Divert.mode(p))
	}
	had, has := c.TCPStats.List(), file.TCPStats.List()
	for i := range had {
		note(&live, "tcpstats."+strings.ReplaceAll(had[i].Key, "_", "-"), had[i].Value, has[i].Value)
	}
	for _, name := range profileNames(c.TCPStats.Profiles, file.TCPStats.Profiles) {
		note(&live, "tcpstats.profiles."+name, c.TCPStats.Profiles[name], file.TCPStats.Profiles[name])
	}

	note(&fixed, "socket", c.Socket, file.Socket)
	note(&fixed, "access", c.Access, file.Access)
	note(&fixed, "device", c.Device, file.Device)
	note(&fixed, "workers", c.Workers, file.Workers)
	note(&fixed, "watermark", c.Watermark, file.Watermark)
	note(&fixed, "dma-bits", c.DMABits, file.DMABits)
	note(&fixed, "divert.listeners", strings.Join(c.Listeners(), " "), strings.Join(file.Listeners(), " "))
	note(&fixed, "tcpstats.socket", c.StatsSocket(), file.StatsSocket())
	note(&fixed, "tcpstats.group", c.TCPStats.Group, file.TCPStats.Group)
	note(&fixed, "sim.timeline", c.Sim.Timeline, file.Sim.Timeline)
	note(&fixed, "sim.seed", c.Sim.Seed, file.Sim.Seed)
	note(&fixed, "sim.console", c.Sim.Console, file.Sim.Console)
	for _, p := range board.All() {
		note(&fixed, "sim.wires."+p.Name, c.Sim.wire(p), file.Sim.wire(p))
	}
	return now, live, fixed
}

// wire is what hangs at a port, "none" when nothing does.
func (s Sim) wire(p board.Port) string {
	for k, v := range s.Wires {
		if q, err := board.Parse(k); err == nil && q.Index == p.Index {
			return v
		}
	}
	return "none"
}

// profileNames are the names of both, each once and in order.
func profileNames(a, b map[string]string) []string {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, b)
	return keys(all)
}
