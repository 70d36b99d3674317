package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/internal/demo"
	"oxpd/internal/rootless"
)

func (a *app) portsCommand() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "ports", Short: "the front ports", Args: args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := ask(cmd, readLimit)
			defer cancel()
			p, err := a.client().Ports(ctx)
			if err != nil {
				return err
			}
			return show(a, p, printPorts)
		},
	})
}

func (a *app) portCommand() *cobra.Command {
	const names = "PORT is an interface (oxp9), a label (PortF1) or a short label (F1)."
	cmd := a.jsonFlag(&cobra.Command{
		Use: "port PORT", Short: "what a port shall be and what it is; set it up or down", Args: args(1, 1),
		Long: "Shows what is wanted of a port, and what its interface, its LIF and NetAgent have. The port follows its interface: ip link set\n" +
			"up, down, address, promisc, allmulticast, mtu and master. " + names,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := board.Parse(args[0])
			if err != nil {
				return err
			}
			ctx, cancel := ask(cmd, readLimit)
			defer cancel()
			v, err := a.client().Port(ctx, p.Name)
			if err != nil {
				return err
			}
			return show(a, v, printPort)
		},
	})
	for _, c := range []struct{ state, does string }{
		{client.LinkUp, "raise a port in the card and set its interface up"},
		{client.LinkDown, "lower a port in the card, so that its link drops, and set its interface down"},
	} {
		cmd.AddCommand(a.jsonFlag(&cobra.Command{
			Use: c.state + " PORT", Short: c.does, Args: args(1, 1), Long: "Either both or neither: when one refuses, the other is put back. " + names,
			RunE: func(cmd *cobra.Command, args []string) error {
				p, err := board.Parse(args[0])
				if err != nil {
					return err
				}
				ctx, cancel := ask(cmd, cardLimit)
				defer cancel()
				v, err := a.client().SetState(ctx, p.Name, c.state)
				if err != nil {
					return err
				}
				return show(a, v, printPort)
			},
		}))
	}
	return cmd
}

func (a *app) mtuCommand() *cobra.Command {
	var in client.SetMTU
	cmd := a.jsonFlag(&cobra.Command{
		Use: "mtu PORT [VALUE]", Short: "show or set the MTU of a port, LIF and interface together", Args: args(1, 2),
		Long: fmt.Sprintf("Shows what limits the frames of a port, or changes the MTU: the LIF first, read back, then the interface, or neither.\n"+
			"PORT is an interface (oxp9), a label (PortF1) or a short label (F1). VALUE is %d to %d bytes of layer 3.\n"+
			"A value whose frames the switch is known to drop is refused without --switch, which raises the switch at that port first, or --force.\n"+
			"What is known of the switch was read from it, or is switch.size of the configuration.",
			board.MinMTU, board.MaxMTU),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := board.Parse(args[0])
			if err != nil {
				return err
			}
			limit, do := readLimit, func(ctx context.Context) (*client.MTU, error) { return a.client().MTU(ctx, p.Name) }
			switch {
			case len(args) == 2:
				mtu, err := parseMTU(args[1])
				if err != nil {
					return err
				}
				if limit = cardLimit; in.Switch {
					limit += switchLimit
				}
				in.MTU = mtu
				do = func(ctx context.Context) (*client.MTU, error) { return a.client().ChangeMTU(ctx, p.Name, in) }
			case in.Force:
				return &usageError{errors.New("mtu: --force sets a value, and there is none"), cmd.UseLine()}
			case in.Switch:
				return &usageError{errors.New("mtu: --switch raises the switch for a value, and there is none"), cmd.UseLine()}
			}
			ctx, cancel := ask(cmd, limit)
			defer cancel()
			m, err := do(ctx)
			if err != nil {
				return err
			}
			for _, w := range m.Warnings {
				fmt.Fprintf(a.err, "warning: %s\n", w)
			}
			return show(a, m, printMTU)
		},
	})
	cmd.Flags().BoolVar(&in.Force, "force", false, "set VALUE also when the switch is known to drop such frames")
	cmd.Flags().BoolVar(&in.Switch, "switch", false, "raise the frame size of the switch first where VALUE needs it, at that port and at the uplink")
	return cmd
}

func parseMTU(s string) (int, error) {
	mtu, err := strconv.Atoi(s)
	if err != nil {
		return 0, &usageError{
			fmt.Errorf("mtu %q is not a number: want %d to %d", s, board.MinMTU, board.MaxMTU), "oxpd mtu PORT [VALUE]",
		}
	}
	return mtu, board.CheckMTU(mtu)
}

func (a *app) statsCommand() *cobra.Command {
	rings, instruments := false, false
	cmd := a.jsonFlag(&cobra.Command{
		Use: "stats [PORT]", Short: "oxpd's own counters", Args: args(0, 1),
		Long: "Shows the counters of the device, the ports and their sum, or those of one port.\n" +
			"With --instruments it shows instead how the last packets of each ring began in memory, for finding out what the card writes:\n" +
			"the 82 bytes of prefix, and of the frame 22 bytes, the longest Ethernet header. They are of users' frames: MAC addresses, and no\n" +
			"address or data of higher layers as long as the prefix is what it should be.",
		RunE: func(cmd *cobra.Command, args []string) error {
			name := ""
			if len(args) == 1 {
				p, err := board.Parse(args[0])
				if err != nil {
					return err
				}
				name = p.Name
			}
			switch {
			case rings && instruments:
				return &usageError{errors.New("--rings and --instruments are two documents: ask for one"), cmd.UseLine()}
			case rings && name != "":
				return &usageError{errors.New("--rings is about the device: it takes no PORT"), cmd.UseLine()}
			case instruments && name != "":
				return &usageError{errors.New("--instruments is about the device: it takes no PORT"), cmd.UseLine()}
			}
			ctx, cancel := ask(cmd, readLimit)
			defer cancel()
			if instruments {
				in, err := a.client().Instruments(ctx)
				if err != nil {
					return err
				}
				return show(a, in, printInstruments)
			}
			s, err := a.client().Stats(ctx, name)
			switch {
			case err != nil:
				return err
			case name != "":
				return show(a, s, printPortStats)
			case rings:
				return show(a, s, printRingStats)
			}
			return show(a, s, printStats)
		},
	})
	cmd.Flags().BoolVar(&rings, "rings", false, "show each output ring's part, intr_taken by vector among them (--json has it always)")
	cmd.Flags().BoolVar(&instruments, "instruments", false, "show how the last packets of each ring began in memory")
	return cmd
}

func (a *app) countersCommand() *cobra.Command {
	all := false
	cmd := a.jsonFlag(&cobra.Command{
		Use: "counters", Short: "the coprocessor's 182 counters by name", Args: args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := ask(cmd, cardLimit)
			defer cancel()
			c, err := a.client().Counters(ctx)
			if err != nil {
				return err
			}
			if all {
				return show(a, c, printAllCounters)
			}
			return show(a, c, printCounters)
		},
	})
	cmd.Flags().BoolVar(&all, "all", false, "print the counters that are 0 too")
	return cmd
}

func (a *app) stopCommand() *cobra.Command {
	teardown := false
	cmd := a.jsonFlag(&cobra.Command{
		Use: "stop", Short: "end the daemon", Args: args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := ask(cmd, stopLimit)
			defer cancel()
			r, err := a.client().Stop(ctx, teardown)
			if err != nil {
				return err
			}
			if a.json {
				return show(a, r, printStop)
			}
			printStop(a.err, r)
			return nil
		},
	})
	cmd.Flags().BoolVar(&teardown, "teardown", false, "disable the rings too; the coprocessor must reboot before the next start")
	return cmd
}

func (a *app) demoCommand() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "demo", Short: "show frames moving through the simulated card", Args: args(0, 0),
		Long: "Starts a daemon on the simulated card between network namespaces of its own, sends pings and TCP through it and through a bridge\n" +
			"of two ports, drops pings by a filter and by an inspection engine, replays captures on a second card, and checks that each frame is in\n" +
			"exactly one counter. Takes about half a minute, touches no interface of this machine, leaves nothing behind.\n" +
			withoutRoot,
		RunE: a.privileged(func(cmd *cobra.Command, _ []string) error {
			exe, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			if code := demo.Run(cmd.Context(), demo.Options{JSON: a.json, Out: a.out, Err: a.err, Exe: exe}); code != exitDone {
				return exitCode(code)
			}
			return nil
		}),
	})
}

// withoutRoot is how help says what privileged does.
const withoutRoot = "Without root it runs in a user namespace, where the kernel allows one and /dev/net/tun may be opened."

// privileged is a command that makes namespaces and interfaces of its own: who is
// not root gets it in a user namespace.
func (a *app) privileged(run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if rootless.Privileged() {
			return run(cmd, args)
		}
		exe, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
		status, err := rootless.Run(cmd.Context(), rootless.Options{Exe: exe, Args: a.args, Out: a.out, Err: a.err})
		if err == nil && status != exitDone {
			err = exitCode(status)
		}
		return err
	}
}

func (a *app) versionCommand() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "version", Short: "the version of this program", Args: args(0, 0),
		RunE: func(*cobra.Command, []string) error {
			v := buildVersion()
			return show(a, &v, printVersion)
		},
	})
}

func (a *app) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "config", Short: "look at a configuration file as the daemon would",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return &usageError{fmt.Errorf("unknown command %q of oxpd config", args[0]), "oxpd config check FILE, oxpd config show [FILE]"}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		&cobra.Command{
			Use: "check FILE", Short: "say whether the daemon accepts a file", Args: args(1, 1),
			RunE: func(cmd *cobra.Command, args []string) error {
				c, err := loadFor(cmd, args[0])
				if err != nil {
					return err
				}
				for _, m := range slices.Concat(c.Risks(), c.Missing(), c.Doubts()) {
					fmt.Fprintf(a.err, "warning: %s\n", m)
				}
				fmt.Fprintf(a.err, "%s: accepted\n", args[0])
				return nil
			},
		},
		&cobra.Command{
			Use: "show [FILE]", Short: "print the configuration with every default", Args: args(0, 1),
			RunE: func(cmd *cobra.Command, args []string) error {
				c := config.Default()
				if len(args) == 1 {
					var err error
					if c, err = loadFor(cmd, args[0]); err != nil {
						return err
					}
				}
				if a.socket != "" {
					c.Socket = a.socket
				}
				b, err := c.YAML()
				if err != nil {
					return err
				}
				_, err = a.out.Write(b)
				return err
			},
		},
	)
	return cmd
}

// errNoFile says that a file was to be named, and was not.
var errNoFile = errors.New("the name of the configuration file is empty")

// load reads a configuration file. A file system that does not answer holds up
// nobody who interrupts.
func load(ctx context.Context, path string) (config.Config, error) {
	type result struct {
		c   config.Config
		err error
	}
	done := make(chan result, 1)
	go func() {
		c, err := config.Load(path)
		done <- result{c, err}
	}()
	select {
	case r := <-done:
		return r.c, r.err
	case <-ctx.Done():
		return config.Config{}, fmt.Errorf("read configuration %s: interrupted", path)
	}
}

// loadFor is load for a command whose argument the path is.
func loadFor(cmd *cobra.Command, path string) (config.Config, error) {
	if path == "" {
		return config.Config{}, &usageError{errNoFile, cmd.UseLine()}
	}
	return load(cmd.Context(), path)
}
