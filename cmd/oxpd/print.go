package main

import (
	"fmt"
	"io"
	"sort"
	"strings"
	"text/tabwriter"
	"time"

	"oxpd/internal/daemon/client"
)

// table aligns columns for people.
func table(w io.Writer, fn func(row func(cells ...any))) {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fn(func(cells ...any) {
		for i, c := range cells {
			if i > 0 {
				fmt.Fprint(t, "\t")
			}
			fmt.Fprint(t, c)
		}
		fmt.Fprintln(t)
	})
	_ = t.Flush() // a terminal that is gone has no reader either
}

// or replaces an empty cell.
func or(s, instead string) string {
	if s == "" {
		return instead
	}
	return s
}

func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond)
}

func printStatus(w io.Writer, s *client.Status) {
	state := string(s.State)
	if s.State == client.StateGone {
		state = "its card is gone, up" // the time is the daemon's
	}
	fmt.Fprintf(w, "oxpd %s, pid %d, %s for %v\n", s.Version, s.PID, state, seconds(s.Uptime).Round(time.Second))
	device := or(s.Device.Name, "not opened")
	if s.Device.Simulated {
		device += " (simulated)"
	}
	if s.Device.Name != "" && !s.Device.Alive {
		device += ", does not answer"
	}
	if s.Device.Lost > 0 {
		device += fmt.Sprintf(", lost %d times", s.Device.Lost)
	}
	if s.Device.Assembly != "" {
		device += fmt.Sprintf(", %s %s, %d MHz", s.Device.Platform, s.Device.Assembly, s.Device.ClockMHz)
	}
	cpu := ""
	if s.CPU != nil {
		cpu = fmt.Sprintf("; the process takes %.1f %% of a core", s.CPU.Percent)
	}
	fmt.Fprintf(w, "device  %s\nrings   %d, served by %d workers%s%s\nports   %d of %d up\n%s%srestart %s\n\n", device, s.Rings, s.Workers, busy(s.Busy), cpu, s.PortsUp, s.PortsTotal, filters(s.Filters), engineLines(s.Engines), restart(s.Restart))
	table(w, func(row func(...any)) {
		row("STAGE", "STATE", "TIME", "")
		for _, g := range s.Stages {
			took, note := "", g.Detail
			if g.State != client.StagePending {
				took = seconds(g.Seconds).String()
			}
			if g.Awaiting != "" {
				note = "waits for " + g.Awaiting
			}
			if g.Error != "" {
				note = strings.TrimPrefix(note+": "+g.Error, ": ")
			}
			row(g.Name, g.State, took, note)
		}
	})
	for _, x := range s.Warnings {
		fmt.Fprintf(w, "\nwarning: %s\n", x)
	}
}

// filters is the line of those that are linked, if any.
func filters(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "filters " + strings.Join(names, ", ") + "\n"
}

// restart is what one would cost.
func restart(r client.Restart) string {
	if r.Seamless {
		return "seamless"
	}
	return "costs " + strings.Join(r.Costs, ";\n        ")
}

func printPorts(w io.Writer, p *client.Ports) {
	table(w, func(row func(...any)) {
		row("PORT", "LABEL", "ADDRESS", "LINK", "MTU", "SPEED", "ADMIN", "STATE")
		for _, q := range p.Ports {
			state := q.State
			if q.Awaiting != "" {
				state += ": " + q.Awaiting
			}
			if q.KernelName != "" {
				state += ", called " + q.KernelName + " in the kernel"
			}
			if q.KernelAddress != "" {
				state += ", address " + q.KernelAddress + " in the kernel"
			}
			mtu := "-"
			if q.MTU != 0 {
				mtu = fmt.Sprint(q.MTU)
			}
			row(q.IfName, q.Label, or(q.Address, "-"), q.Link, mtu, q.SpeedMbps, q.Admin, state)
		}
	})
}

// known is a cell of a setting that is on or off, empty when that is not known.
func known(b *bool) string {
	if b == nil {
		return ""
	}
	return onOff(*b)
}

func number(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func printPort(w io.Writer, p *client.PortView) {
	fmt.Fprintf(w, "%s (%s), %s", p.IfName, p.Label, p.State)
	if p.Awaiting != "" {
		fmt.Fprintf(w, ": waits for %s", p.Awaiting)
	}
	fmt.Fprintln(w)
	table(w, func(row func(...any)) {
		row("", "WANT", "INTERFACE", "LIF", "NETAGENT")
		for _, r := range []struct {
			name string
			cell func(v *client.PortValues) string
		}{
			{"admin", func(v *client.PortValues) string { return v.Admin }},
			{"link", func(v *client.PortValues) string { return v.Link }},
			{"address", func(v *client.PortValues) string { return v.Address }},
			{"mtu", func(v *client.PortValues) string { return number(v.MTU) }},
			{"mode", func(v *client.PortValues) string { return v.Mode }},
			{"promisc", func(v *client.PortValues) string { return known(v.Promisc) }},
			{"allmulti", func(v *client.PortValues) string { return known(v.AllMulti) }},
		} {
			row(r.name, or(r.cell(&p.Want), "-"), or(r.cell(&p.Interface), "-"), or(r.cell(&p.LIF), "-"), or(r.cell(&p.NetAgent), "-"))
		}
	})
	if p.Bridge != "" {
		fmt.Fprintf(w, "bridge %s, mtu %d\n", p.Bridge, p.BridgeMTU)
	}
	for _, f := range p.Filters {
		fmt.Fprintf(w, "filters %s %s\n", f.Direction, strings.Join(f.Filters, ", then "))
	}
	if d := p.Divert; d != nil {
		fmt.Fprintln(w, divertMode(d.Frames, d.Engine))
	}
	if p.CardAddress != "" && p.CardAddress != p.Want.Address {
		fmt.Fprintf(w, "the card's own address is %s\n", p.CardAddress)
	}
	if p.PutBack+p.Repaired > 0 {
		fmt.Fprintf(w, "changes of the interface put back: %d, repairs of the card: %d\n", p.PutBack, p.Repaired)
	}
	for _, x := range p.Warnings {
		fmt.Fprintf(w, "warning: %s\n", x)
	}
}

func printMTU(w io.Writer, m *client.MTU) {
	limit := func(n int) string {
		if n == 0 {
			return "absent"
		}
		return fmt.Sprint(n)
	}
	fmt.Fprintf(w, "%s (%s)\n", m.IfName, m.Label)
	table(w, func(row func(...any)) {
		row("lif", limit(m.LIF))
		row("interface", limit(m.Interface))
		if m.SwitchMTU != 0 {
			uplink := ""
			if m.UplinkFrame != 0 {
				uplink = fmt.Sprintf(", %d at the uplink", m.UplinkFrame)
			}
			row("switch", fmt.Sprintf("%d (%s: frames of %d bytes%s)", m.SwitchMTU, m.Switch, m.SwitchFrame, uplink))
		} else {
			row("switch", m.Switch)
		}
		row("effective", limit(m.Effective))
	})
	if m.Note != "" {
		fmt.Fprintf(w, "note: %s\n", m.Note)
	}
}

func names(m map[string]uint64) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}

func printStats(w io.Writer, s *client.Stats) {
	table(w, func(row func(...any)) {
		for _, n := range names(s.Device) {
			row(n, s.Device[n])
		}
	})
	fmt.Fprintln(w)
	table(w, func(row func(...any)) {
		row("PORT", "LABEL", "RX PACKETS", "RX BYTES", "RX DROPPED", "TX PACKETS", "TX BYTES", "TX DROPPED")
		for _, p := range s.Ports {
			rx, tx := p.Stats64.RX, p.Stats64.TX
			row(p.IfName, p.Label, rx.Packets, rx.Bytes, rx.Dropped+rx.Errors, tx.Packets, tx.Bytes, tx.Dropped+tx.Errors)
		}
	})
	printWires(w, s.Wires)
	fmt.Fprintln(w)
	printSums(w, &s.Sums)
}

// printRingStats shows what each output queue has a part in.
func printRingStats(w io.Writer, s *client.Stats) {
	if len(s.Rings) == 0 {
		fmt.Fprintln(w, "no rings yet")
		return
	}
	table(w, func(row func(...any)) {
		head := []any{"RING"}
		for _, r := range s.Rings {
			head = append(head, r.Ring)
		}
		row(append(head, "ALL")...)
		for _, n := range names(s.Rings[0].Counters) {
			cells := []any{n}
			for _, r := range s.Rings {
				cells = append(cells, r.Counters[n])
			}
			row(append(cells, s.Device[n])...)
		}
	})
}

// printInstruments shows how the last packets began, 16 bytes a line.
func printInstruments(w io.Writer, in *client.Instruments) {
	fmt.Fprintf(w, "rx_prefix_seq %d\n", in.PrefixSeq)
	for _, r := range in.Rings {
		if r.PrefixSeq == 0 {
			continue
		}
		fmt.Fprintf(w, "\nring %d, rx_prefix_seq %d\n", r.Ring, r.PrefixSeq)
		for _, x := range []struct {
			name  string
			bytes client.Hex
		}{
			{"last prefix", r.LastPrefix}, {"last frame head", r.LastFrameHead},
			{"last untagged prefix", r.LastUntaggedPrefix}, {"last untagged head", r.LastUntaggedHead},
			{"last span prefix", r.LastSpanPrefix}, {"last span head", r.LastSpanHead},
		} {
			if len(x.bytes) == 0 {
				continue
			}
			fmt.Fprintf(w, "  %s\n", x.name)
			for at := 0; at < len(x.bytes); at += 16 {
				fmt.Fprintf(w, "    %3d  % x\n", at, []byte(x.bytes[at:min(at+16, len(x.bytes))]))
			}
		}
	}
}

func printSums(w io.Writer, s *client.Sums) {
	switch {
	case s.Accounted:
		fmt.Fprintf(w, "accounted: each of %d packets taken is in one counter\n", s.Taken)
	case s.Quiet && s.Difference < 0:
		fmt.Fprintf(w, "NOT accounted: %d packets taken, the counters add up to %d more\n", s.Taken, -s.Difference)
	case s.Quiet:
		fmt.Fprintf(w, "NOT accounted: %d packets taken, the counters add up to %d less\n", s.Taken, s.Difference)
	default:
		fmt.Fprintf(w, "not known: packets were taken while the counters were read; ask again\n")
	}
}

// wireInLost and wireOutLost are where frames end at a wire's two ends.
var (
	wireInLost  = []string{"link_down", "runt", "oversize", "switch_dropped", "overrun", "filtered", "no_fast_path"}
	wireOutLost = []string{"out_link_down", "out_switch_dropped", "out_refused"}
)

// printWires shows the wires of a simulated card; a real one has none.
func printWires(w io.Writer, wires []client.WireStats) {
	if len(wires) == 0 {
		return
	}
	fmt.Fprintln(w)
	total := func(c map[string]uint64, names []string) (n uint64) {
		for _, name := range names {
			n += c[name]
		}
		return n
	}
	table(w, func(row func(...any)) {
		row("WIRE OF", "LABEL", "IN", "PASSED", "DROPPED", "OUT", "OUT DROPPED")
		for _, x := range wires {
			row(x.IfName, x.Label, x.Counters["in"], x.Counters["passed"], total(x.Counters, wireInLost), x.Counters["out"], total(x.Counters, wireOutLost))
		}
	})
}

func printPortStats(w io.Writer, s *client.Stats) {
	for _, p := range s.Ports {
		fmt.Fprintf(w, "%s (%s)\n", p.IfName, p.Label)
		table(w, func(row func(...any)) {
			for _, n := range names(p.Counters) {
				row(n, p.Counters[n])
			}
		})
	}
	for _, x := range s.Wires {
		fmt.Fprintf(w, "\nwire of %s, of the simulated card\n", x.IfName)
		table(w, func(row func(...any)) {
			for _, n := range names(x.Counters) {
				row(n, x.Counters[n])
			}
		})
	}
}

func printCounters(w io.Writer, c *client.Counters)    { counterTable(w, c, false) }
func printAllCounters(w io.Writer, c *client.Counters) { counterTable(w, c, true) }

func counterTable(w io.Writer, c *client.Counters, zeros bool) {
	hidden := 0
	table(w, func(row func(...any)) {
		row("INDEX", "COUNTER", "VALUE")
		for _, x := range c.Counters {
			if x.Value == 0 && !zeros {
				hidden++
				continue
			}
			row(x.Index, x.Name, x.Value)
		}
	})
	fmt.Fprintln(w)
	table(w, func(row func(...any)) {
		row("FAST-PATH PORT", "", "RX", "TX", "TX QUEUE FULL")
		for _, p := range c.Ports {
			row(p.Port, p.Name, p.RX, p.TX, p.TXDropQueueFull)
		}
	})
	if hidden > 0 {
		fmt.Fprintf(w, "\n%d counters are 0; --all prints them\n", hidden)
	}
	for _, x := range c.Warnings {
		fmt.Fprintf(w, "warning: %s\n", x)
	}
}

func printStop(w io.Writer, r *client.StopResult) {
	rings, memory := "disabled", "released"
	if r.RingsEnabled {
		rings = "enabled"
	}
	if r.MemoryKept {
		memory = "kept"
	}
	fmt.Fprintf(w, "stopped; rings %s, memory %s\n", rings, memory)
	if r.TXUnfinished > 0 || r.RXLeft > 0 {
		fmt.Fprintf(w, "left behind: %d frames posted and not finished, %d packets in the output rings\n", r.TXUnfinished, r.RXLeft)
	}
	for _, x := range r.Warnings {
		fmt.Fprintf(w, "warning: %s\n", x)
	}
}

// busy is how busy each worker was, "" when that is not known yet.
func busy(workers []client.WorkerBusy) string {
	if len(workers) == 0 {
		return ""
	}
	shares := make([]string, len(workers))
	for i, w := range workers {
		shares[i] = fmt.Sprintf("%.1f", w.Percent)
	}
	return ", busy " + strings.Join(shares, ", ") + " % of the time"
}
