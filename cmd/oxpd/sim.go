package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"oxpd/hwsim/console"
	"oxpd/internal/board"
	"oxpd/internal/replay"
)

// simCommand is what can be done with a simulated card that needs no daemon.
func (a *app) simCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "sim", Short: "simulated cards of their own, without a daemon",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return &usageError{fmt.Errorf("unknown command %q of oxpd sim", args[0]), "oxpd sim replay CAPTURE --port PORT, oxpd sim serve --vfio-user PATH, oxpd sim trace SCENARIO --out FILE, oxpd sim calibrate, oxpd sim faults, or oxpd sim fault"}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.replayCommand(), a.serveCommand(), a.faultsCommand(), a.faultCommand(), a.traceCommand(), a.calibrateCommand(), a.a64Command())
	return cmd
}

// a64Command runs a program of the simulated coprocessor: its shell calls it for what is
// for aarch64.
func (a *app) a64Command() *cobra.Command {
	return &cobra.Command{
		Use: "a64 FILE [ARGS...]", Short: "run a small static aarch64 program", Hidden: true, DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &usageError{errors.New("sim a64: FILE is missing"), cmd.UseLine()}
			}
			status, err := console.Execute(args)
			if err != nil {
				fmt.Fprintf(a.err, "oxpd: %s: %v\n", args[0], err)
			}
			return exitCode(status)
		},
	}
}

func (a *app) replayCommand() *cobra.Command {
	var (
		o     replay.Options
		port  string
		pace  string
		debug bool
	)
	cmd := a.jsonFlag(&cobra.Command{
		Use: "replay CAPTURE --port PORT", Short: "send a capture into a port and say where each frame ended", Args: args(1, 1),
		Long: "Brings up a simulated card and the driver in a network namespace of their own, sends the frames of CAPTURE (pcap or pcapng,\n" +
			"Ethernet) into PORT, and says in which counter each of them ended. Frames that reached the interface are compared with\n" +
			"those that were sent. Exit status 1 when the sum does not close or a frame came out altered. Touches no interface of\n" +
			"this machine, leaves nothing behind. " + withoutRoot + "\n\n" +
			"Packets that the capture kept only in part (a snap length) are counted as cut and never sent.",
		RunE: a.privileged(func(cmd *cobra.Command, args []string) error {
			o.In, o.Pace = args[0], replay.Pace(pace)
			if o.Out == "-" {
				return &usageError{errors.New("--out -: standard output has the report; name a file"), cmd.UseLine()}
			}
			if port == "" {
				return &usageError{errors.New("which port? --port is missing"), cmd.UseLine()}
			}
			p, err := board.Parse(port)
			if err != nil {
				return err
			}
			o.Port = p
			switch o.Pace {
			case replay.PaceHost, replay.PaceCapture, replay.PaceWire:
			default:
				return &usageError{fmt.Errorf("pace %q: want %s, %s or %s", pace, replay.PaceHost, replay.PaceCapture, replay.PaceWire), cmd.UseLine()}
			}
			if cmd.Flags().Changed("mtu") {
				if err := board.CheckMTU(o.MTU); err != nil {
					return err
				}
			}
			if debug {
				o.Logger = slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: slog.LevelDebug}))
			}
			r, err := replay.Run(cmd.Context(), o)
			if errors.Is(err, replay.ErrOverwrite) {
				return &usageError{err, cmd.UseLine()}
			}
			if err != nil {
				return err
			}
			if err := show(a, r, printReplay); err != nil {
				return err
			}
			if !r.OK {
				return exitCode(exitFailed)
			}
			return nil
		}),
	})
	f := cmd.Flags()
	f.StringVar(&port, "port", "", "port that the frames go into: oxp9, PortF1 or F1")
	f.IntVar(&o.MTU, "mtu", 0, fmt.Sprintf("MTU of the port, %d to %d (default %d)", board.MinMTU, board.MaxMTU, board.DefaultMTU))
	f.StringVar(&o.Out, "out", "", "write what reached the interface to this file (pcapng)")
	f.BoolVar(&o.RewriteMAC, "rewrite-mac", false, "give unicast frames the port's own address as their destination")
	f.StringVar(&pace, "pace", string(replay.PaceHost), "host: as fast as the host takes them; capture: with the capture's own timing; wire: at line rate")
	f.BoolVar(&debug, "debug", false, "log what the daemon does")
	return cmd
}

func printReplay(w io.Writer, r *replay.Report) {
	fmt.Fprintf(w, "%s into %s (%s), MTU %d\n", r.File, r.IfName, r.Label, r.MTU)
	fmt.Fprintf(w, "%d packets, %d bytes, longest %d; %d sent in %v\n", r.Packets, r.Bytes, r.Longest, r.Sent, seconds(r.Seconds))
	table(w, func(row func(cells ...any)) {
		for _, e := range r.Ends {
			row("  "+string(e.Place), e.Counter, e.Frames, e.Why)
		}
	})
	sum := fmt.Sprintf("each of the %d packets is in one counter", r.Packets)
	if r.Difference != 0 {
		sum = fmt.Sprintf("%d of the %d packets are in no counter", r.Difference, r.Packets)
		if r.Difference < 0 {
			sum = fmt.Sprintf("%d more than the %d packets are in counters", -r.Difference, r.Packets)
		}
	}
	fmt.Fprintf(w, "%-4s  %s\n", verdict(r.Difference == 0), sum)
	fmt.Fprintf(w, "%-4s  frames that reached %s: %d, as they were sent %d, altered %d, not seen there %d\n",
		verdict(r.Altered == 0 && r.Unseen == 0), r.IfName, r.Reached, r.Unaltered, r.Altered, r.Unseen)
}

// verdict is the word before a check.
func verdict(ok bool) string {
	if ok {
		return "ok"
	}
	return "FAIL"
}
