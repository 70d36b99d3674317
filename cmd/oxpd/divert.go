package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/divert"
)

// divertLimit bounds a change: a pair of interfaces may be made.
const divertLimit = 20 * time.Second

// counterPrefix is what the counters of inspection begin with.
const counterPrefix = "divert_"

func (a *app) divertCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "divert", Short: "frames that an engine decides about, and what becomes of them without it",
		Long: "Frames of a port wait in a queue for the verdict of an engine: those that a filter's rule says divert of, or all. The queue is bounded,\n" +
			"and a frame that finds it full, or no engine, or one that has stopped answering, is dropped or passed, as is set, and counted.\n" +
			"docs/guides/divert.md has the engines, the settings and how to find a good size.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return &usageError{fmt.Errorf("unknown command %q of oxpd divert", args[0]), "oxpd divert show, set or port"}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.divertShowCommand(), a.divertSetCommand(), a.divertPortCommand())
	return cmd
}

func (a *app) divertShowCommand() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "show [PORT]", Short: "settings, queues, engines, and what became of the frames", Args: args(0, 1),
		Long: "Shows the settings, each queue with its engine, how much is queued and was at most, how long verdicts take, and what became of the\n" +
			"frames of each port. With PORT (oxp9, PortF1 or F1) it shows each counter of that port, by direction. seen is the sum of all others\n" +
			"but reordered and injected.",
		RunE: func(cmd *cobra.Command, args []string) error {
			name := ""
			if len(args) == 1 {
				p, err := board.Parse(args[0])
				if err != nil {
					return err
				}
				name = p.Name
			}
			ctx, cancel := ask(cmd, readLimit)
			defer cancel()
			d, err := a.client().Divert(ctx, name)
			switch {
			case err != nil:
				return err
			case name != "":
				return show(a, d, printDivertPort)
			}
			return show(a, d, printDivert)
		},
	})
}

func (a *app) divertSetCommand() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "set KEY=VALUE...", Short: "change settings, at once and without losing what is queued",
		Args: func(cmd *cobra.Command, words []string) error { return args(1, max(1, len(words)))(cmd, words) },
		Long: "Changes all of the settings, or none when one is refused. They hold for every queue, and are gone after a restart of the daemon; the\n" +
			"configuration (divert) is for what shall stay.\n\n" +
			"  queue-len=N              frames without a verdict, 1 to 1048576\n" +
			"  queue-bytes=SIZE         bytes of them, 64 more for each: 16kb to 4gb\n" +
			"  buffer-size=SIZE         of the sockets of engines that connect from now on: 64kb to 64mb, or 0 for the kernel's default\n" +
			"  on-full=drop|pass        when the queue is full\n" +
			"  on-absent=drop|pass      when there is no engine\n" +
			"  on-stall=drop|pass       when the engine gives no verdicts\n" +
			"  stall-ms=N               after how long that is, 10 to 60000\n" +
			"  order=any|keep           keep: pass only what overtakes no queued frame of its flow, and drop the rest\n\n" +
			"SIZE is in bytes, or with kb, mb or gb, of 1,024.",
		RunE: func(cmd *cobra.Command, args []string) error {
			var set []client.DivertSetting
			for _, word := range args {
				key, value, ok := strings.Cut(word, "=")
				if !ok {
					return &usageError{fmt.Errorf("%q: want KEY=VALUE, such as queue-len=4096", word), cmd.UseLine()}
				}
				set = append(set, client.DivertSetting{Key: key, Value: value})
			}
			ctx, cancel := ask(cmd, divertLimit)
			defer cancel()
			d, err := a.client().SetDivert(ctx, set...)
			if err != nil {
				return err
			}
			for _, w := range d.Warnings {
				fmt.Fprintf(a.err, "warning: %s\n", w)
			}
			return show(a, d, printDivertSettings)
		},
	})
}

func (a *app) divertPortCommand() *cobra.Command {
	engine := ""
	cmd := a.jsonFlag(&cobra.Command{
		Use: "port PORT all|filter", Short: "say which frames of a port are inspected, and by what", Args: args(2, 2),
		Long: "all is every frame of the port in both directions, filter those that a rule of a linked filter says divert of.\n" +
			"PORT is an interface (oxp9), a label (PortF1) or a short label (F1). Gone after a restart of the daemon; the configuration\n" +
			"(divert.ports) is for what shall stay.",
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := board.Parse(args[0])
			if err != nil {
				return err
			}
			in := client.SetDivertPort{Frames: args[1], Engine: engine}
			switch {
			case in.Frames != client.FramesAll && in.Frames != client.FramesFilter:
				err = fmt.Errorf("%q: want %s or %s", in.Frames, client.FramesAll, client.FramesFilter)
			case cmd.Flags().Changed("engine") && engine != client.EngineSocket && engine != client.EngineTapPair:
				err = fmt.Errorf("--engine %q: want %s or %s", engine, client.EngineSocket, client.EngineTapPair)
			}
			if err != nil {
				return &usageError{err, cmd.UseLine()}
			}
			ctx, cancel := ask(cmd, divertLimit)
			defer cancel()
			d, err := a.client().SetDivertPort(ctx, p.Name, in)
			if err != nil {
				return err
			}
			for _, w := range d.Warnings {
				fmt.Fprintf(a.err, "warning: %s\n", w)
			}
			return show(a, d, printDivertMode)
		},
	})
	cmd.Flags().StringVar(&engine, "engine", "", "what inspects them: socket, the engines at the listeners, or tap-pair, a program between two interfaces of the port's own (default as it is)")
	return cmd
}

func printDivertSettings(w io.Writer, d *client.Divert) {
	s := &d.Settings
	buffer := "the kernel's default"
	if s.BufferSize != 0 {
		buffer = divert.FormatSize(s.BufferSize)
	}
	fmt.Fprintf(w, "queue-len %d, queue-bytes %s, buffer-size %s\non-full %s, on-absent %s, on-stall %s after %d ms, order %s\n",
		s.QueueLen, divert.FormatSize(s.QueueBytes), buffer, s.OnFull, s.OnAbsent, s.OnStall, s.StallMS, s.Order)
}

func printDivert(w io.Writer, d *client.Divert) {
	printDivertSettings(w, d)
	fmt.Fprintln(w)
	table(w, func(row func(...any)) {
		row("QUEUE", "ENGINE", "STATE", "QUEUED", "BYTES", "MOST", "MOST BYTES", "P50", "P99", "LONGEST")
		for i := range d.Queues {
			q := &d.Queues[i]
			engine := q.Engine
			if q.PID != 0 {
				engine = strings.TrimSpace(fmt.Sprintf("%s pid %d", engine, q.PID))
			}
			row(q.Name, or(engine, "-"), q.State, q.Queued, q.QueuedBytes, q.MostQueued, q.MostBytes, micro(q.DelayP50US), micro(q.DelayP99US), micro(q.DelayMaxUS))
		}
	})
	for i := range d.Queues {
		printQueueEvents(w, &d.Queues[i])
	}
	fmt.Fprintln(w)
	table(w, func(row func(...any)) {
		row("PORT", "LABEL", "FRAMES", "BY", "SEEN", "ACCEPTED", "REPLACED", "DROPPED", "FLOW PASSED", "UNINSPECTED", "LOST", "QUEUED")
		for i := range d.Ports {
			p := &d.Ports[i]
			row(p.IfName, p.Label, p.Frames, p.Engine, divertTotal(p, "seen"), divertTotal(p, "accepted"), divertTotal(p, "replaced"), divertTotal(p, "dropped"),
				divertTotal(p, "flow_passed"), divertTotal(p, "pass_full", "pass_absent", "pass_stall"),
				divertTotal(p, "drop_full", "drop_absent", "drop_stall", "oversize", "shortened"), divertTotal(p, "queued"))
		}
	})
	for _, x := range d.Warnings {
		fmt.Fprintf(w, "warning: %s\n", x)
	}
}

// printQueueEvents shows what happened at a queue, if anything has.
func printQueueEvents(w io.Writer, q *client.DivertQueue) {
	var words []string
	for _, n := range names(q.Counters) {
		if q.Counters[n] != 0 {
			words = append(words, fmt.Sprintf("%s %d", n, q.Counters[n]))
		}
	}
	if len(words) > 0 {
		fmt.Fprintf(w, "%s: %s\n", q.Name, strings.Join(words, ", "))
	}
}

func micro(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// divertTotal is the sum of counters of a port, both ways.
func divertTotal(p *client.DivertPort, names ...string) (n uint64) {
	for _, name := range names {
		n += p.Total(counterPrefix + name)
	}
	return n
}

func printDivertMode(w io.Writer, d *client.Divert) {
	for i := range d.Ports {
		p := &d.Ports[i]
		fmt.Fprintf(w, "%s (%s): %s\n", p.IfName, p.Label, divertMode(p.Frames, p.Engine))
	}
}

// divertMode is which frames of a port are inspected, and by what, for people.
func divertMode(frames, engine string) string {
	what, by := "all frames", "the engines at the listeners"
	if frames == client.FramesFilter {
		what = "frames that a filter diverts"
	}
	if engine == client.EngineTapPair {
		by = "the tap-pair"
	}
	return what + " are inspected by " + by
}

func printDivertPort(w io.Writer, d *client.Divert) {
	printDivertMode(w, d)
	for i := range d.Ports {
		p := &d.Ports[i]
		table(w, func(row func(...any)) {
			row("", "IN", "OUT")
			new(divert.Counts).Each(func(name string, _ uint64) {
				row(strings.TrimPrefix(name, counterPrefix), p.In[name], p.Out[name])
			})
		})
	}
	for _, x := range d.Warnings {
		fmt.Fprintf(w, "warning: %s\n", x)
	}
}

// engineLines are the lines of the status about engines, if there is anything to inspect.
func engineLines(engines []client.DivertEngine) string {
	var b strings.Builder
	for i, e := range engines {
		word := ""
		if i == 0 {
			word = "engines"
		}
		name := ""
		if e.Engine != "" {
			name = " (" + e.Engine + ")"
		}
		fmt.Fprintf(&b, "%-7s %s: %s%s, %d queued\n", word, e.Queue, e.State, name, e.Queued)
	}
	return b.String()
}
