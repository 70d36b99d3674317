package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"oxpd/hwsim"
	"oxpd/internal/daemon/config"
	"oxpd/internal/probe"
	"oxpd/internal/probe/staged"
	"oxpd/octep/discover"
	"oxpd/octep/sysfs"
)

// defaultAfter shows a simulated card that has done all that it does by itself.
const defaultAfter = time.Second

func (a *app) probeCommand() *cobra.Command {
	var (
		sim            bool
		timeline, host string
		device         string
		after          time.Duration
	)
	hosts := make([]string, 0, len(staged.Hosts()))
	for _, h := range staged.Hosts() {
		hosts = append(hosts, string(h))
	}
	cmd := a.jsonFlag(&cobra.Command{
		Use: "probe", Short: "look at the card and change nothing", Args: args(0, 0),
		Long: "Reads config space, registers and the table of windows, says what stands in the way, and what oxpd run would do stage by stage.\n" +
			"Nothing is written: not to the card's registers, not to config space, and no memory is given to it. Memory decoding that is\n" +
			"off stays off.\n\n" +
			"It looks at the card of this machine, also while oxpd drives it; --device says which, if there are several. With --sim it looks at a\n" +
			"simulated card of its own whose time stands still at a moment of its life. --host says who had it before:\n" +
			"  absent     nobody: memory decoding is off\n" +
			"  firmware   memory decoding is on, nothing else\n" +
			"  offer      a host offered itself in the handshake, and died\n" +
			"  rings      a host turned bus mastering on and programmed the rings\n" +
			"  handshake  a host finished the handshake too, and died\n" +
			"and --after how long ago that was, or the card's reset where no host did anything.\n\n" +
			"Exit status: 0 when nothing stands in the way of oxpd run, 1 when it would stop or the card cannot be looked at, 2 usage.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !sim {
				for _, f := range []string{"timeline", "host", "after"} {
					if cmd.Flags().Changed(f) {
						return &usageError{fmt.Errorf("--%s says how a simulated card is: it needs --sim", f), cmd.UseLine()}
					}
				}
				return a.probeDevice(cmd.Context(), device)
			}
			if device != "" {
				return &usageError{errors.New("--sim and --device are two cards: give one of them"), cmd.UseLine()}
			}
			m := staged.Moment{Host: staged.Host(host), After: after}
			switch timeline {
			case config.TimelineReal:
				m.Timeline = hwsim.Real()
			case config.TimelineCompressed:
				m.Timeline = hwsim.Compressed()
			default:
				return &usageError{fmt.Errorf("timeline %q: want %s or %s", timeline, config.TimelineReal, config.TimelineCompressed), cmd.UseLine()}
			}
			switch {
			case !slices.Contains(hosts, host):
				return &usageError{fmt.Errorf("host %q: want %s", host, strings.Join(hosts, ", ")), cmd.UseLine()}
			case after < 0 || after > staged.MaxAfter:
				return &usageError{fmt.Errorf("after %v: want 0 to %v", after, staged.MaxAfter), cmd.UseLine()}
			}
			return a.probe(cmd.Context(), m, timeline)
		},
	})
	f := cmd.Flags()
	f.BoolVar(&sim, "sim", false, "look at a simulated card")
	f.StringVar(&device, "device", "", whichDevice)
	f.StringVar(&timeline, "timeline", config.TimelineCompressed, "boot of the simulated card: compressed (well under a second) or real (minutes)")
	f.StringVar(&host, "host", string(staged.HostFirmware), "who had the simulated card before: "+strings.Join(hosts, ", "))
	f.DurationVar(&after, "after", defaultAfter, "moment at which the simulated card's time stands still")
	return cmd
}

func (a *app) probe(ctx context.Context, m staged.Moment, timeline string) error {
	card, err := staged.Open(ctx, m)
	if err != nil {
		return err
	}
	defer card.Close()
	since := "its part"
	if m.Host == staged.HostAbsent || m.Host == staged.HostFirmware {
		since = "the reset"
	}
	r, err := probe.Look(ctx, card, probe.Options{
		Source: fmt.Sprintf("simulated card, %s timeline, host %s, %v after %s", timeline, m.Host, m.After, since),
	})
	if err != nil {
		return err
	}
	return a.showProbe(r)
}

// probeDevice looks at the card of that name, or at the only one.
func (a *app) probeDevice(ctx context.Context, name string) error {
	h := host()
	c, err := h.Find(name)
	if errors.Is(err, discover.ErrNone) {
		return &hinted{err, "oxpd probe --sim looks at a simulated card, oxpd run --sim drives one; lspci -nn shows what is on the bus"}
	}
	if err != nil {
		return err
	}
	d, err := sysfs.Look(h, c)
	if err != nil {
		return err
	}
	r, err := probe.Look(ctx, d, probe.Options{})
	if err = errors.Join(err, d.Close()); err != nil {
		return err
	}
	return a.showProbe(r)
}

func (a *app) showProbe(r *probe.Report) error {
	if err := show(a, r, printProbe); err != nil {
		return err
	}
	if r.Run.Stops || r.Gone {
		return exitCode(exitFailed)
	}
	return nil
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

func printProbe(w io.Writer, r *probe.Report) {
	fmt.Fprintf(w, "%s", r.Device)
	if r.Source != "" {
		fmt.Fprintf(w, "  (%s)", r.Source)
	}
	fmt.Fprint(w, "\n\n")
	table(w, func(row func(...any)) {
		c := &r.Config
		known := ""
		switch {
		case r.Gone && c.Command == "":
			known = ": nothing answers"
		case !c.Recognised:
			known = ": not the card"
		}
		row("identity", fmt.Sprintf("vendor %s, device %s%s", c.Vendor, c.Device, known))
		if c.Command != "" {
			row("", fmt.Sprintf("class %s, revision %s", c.Class, c.Revision))
			row("command", fmt.Sprintf("%s: memory decoding %s, bus mastering %s; status %s", c.Command, onOff(c.Memory), onOff(c.BusMaster), c.Status))
		}
		for n, at := range c.BARs {
			row(fmt.Sprintf("BAR%d", 2*n), at)
		}
		if i := r.RingInfo; i != nil {
			row("ring split", fmt.Sprintf("%s: %d rings from %d, %d virtual functions of %d", i.Value, i.TRS, i.SRN, i.NVFS, i.RPVF))
		}
		if s := r.Readiness; s != nil {
			row("SDP_SCRATCH", s.Value+": "+s.Words)
		}
		if h := r.Handshake; h != nil {
			row("handshake", h.Value+": "+h.State)
			row("", h.Words)
			row("fast path", map[bool]string{true: "shows signs of life", false: "no sign of life"}[h.FastPath])
		}
		for _, g := range r.Globals {
			row(g.Name, g.Value)
		}
	})
	if b := r.Barmap; b != nil {
		fmt.Fprintf(w, "\nbarmap at %s, version %s, doorbell word at %s (never read)\n", b.Offset, b.Version, b.Doorbell)
		table(w, func(row func(...any)) {
			row("FACILITY", "OFFSET", "SIZE", "DOORBELLS", "HEAD")
			for _, f := range b.Facilities {
				if !f.Present {
					row(f.Name, "absent")
					continue
				}
				bells, head := "none", "not read"
				if f.Doorbells > 0 {
					bells = fmt.Sprintf("%d", f.Doorbell)
				}
				if f.Doorbells > 1 {
					bells = fmt.Sprintf("%d to %d", f.Doorbell, f.Doorbell+f.Doorbells-1)
				}
				switch {
				case f.Name == "rpc" && r.RPC != nil:
					head = r.RPC.Value + ": " + r.RPC.Words
				case f.Name == "nw_agent" && r.NetAgent != nil:
					head = r.NetAgent.Value + ": " + r.NetAgent.Words
				}
				row(f.Name, f.Offset, f.Size, bells, head)
			}
		})
	}
	printRings(w, r.Rings)
	if len(r.Findings) > 0 {
		fmt.Fprintln(w)
	}
	for _, f := range r.Findings {
		fmt.Fprintf(w, "%s: %s\n", f.Level, f.Text)
		if f.Hint != "" {
			fmt.Fprintf(w, "      %s\n", f.Hint)
		}
	}
	fmt.Fprintf(w, "\noxpd run with the card as it is:\n")
	table(w, func(row func(...any)) {
		for _, s := range r.Run.Stages {
			why := s.Why
			if why != "" {
				why = ": " + why
			}
			row("  "+s.Name, s.Does, string(s.Verdict)+why)
		}
	})
	fmt.Fprintf(w, "\nnothing was written\n")
}

// printRings shows the rings decoded, then each register once for all rings that
// agree on it.
func printRings(w io.Writer, rings []probe.Ring) {
	if len(rings) == 0 {
		return
	}
	fmt.Fprintln(w)
	table(w, func(row func(...any)) {
		row("IN RING", "ENABLED", "IDLE", "BADDR", "RSIZE", "64-BYTE", "POSTED", "POSITION", "FINISHED", "PACKETS", "BYTES")
		for _, r := range rings {
			i := r.In
			row(r.Ring, yesNo(i.Enabled), yesNo(i.Idle), i.Base, i.Entries, yesNo(i.Wide), i.Posted, i.Position, i.Finished, i.Packets, i.Bytes)
		}
	})
	fmt.Fprintln(w)
	table(w, func(row func(...any)) {
		row("OUT RING", "ENABLED", "IDLE", "BADDR", "RSIZE", "BSIZE", "CREDIT", "POSITION", "WAITING", "LEVEL", "PACKETS", "BYTES")
		for _, r := range rings {
			o := r.Out
			row(r.Ring, yesNo(o.Enabled), yesNo(o.Idle), o.Base, o.Entries, o.Buffer, o.Credit, o.Position, o.Waiting,
				fmt.Sprintf("%d/%d", o.Level, o.Ticks), o.Packets, o.Bytes)
		}
	})
	fmt.Fprintln(w)
	table(w, func(row func(...any)) {
		row("REGISTER", "RINGS", "VALUE")
		for n := range rings[0].Registers {
			for q := 0; q < len(rings); {
				end := q + 1
				for end < len(rings) && rings[end].Registers[n].Value == rings[q].Registers[n].Value {
					end++
				}
				which := fmt.Sprint(q)
				if end-q > 1 {
					which = fmt.Sprintf("%d-%d", q, end-1)
				}
				row(rings[q].Registers[n].Name, which, rings[q].Registers[n].Value)
				q = end
			}
		}
	})
}
