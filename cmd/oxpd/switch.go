package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"oxpd/internal/daemon/client"
	"oxpd/switchcfg"
	"oxpd/switchcfg/reg"
)

// Bounds of a command about the switch.
const (
	switchLimit    = 200 * time.Second // longer than the daemon's own, so that its answer says what took so long
	interruptLimit = 30 * time.Second  // from an interruption to the answer: one port is finished
)

const switchPorts = "PORT is an interface (oxp11), a label (PortF3), a short label (F3), or a port of the switch itself, sw1 to sw10. A bare number is\n" +
	"refused: on the panel it is another port. PortF1 and PortF2 are not behind the switch.\n"

func (a *app) switchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "switch", Short: "the switch before ten of the ports: which frames it passes",
		Long: "The switch before Port1 to Port8, PortF3 and PortF4 drops frames that are longer than its own limit, 2048 bytes as the board was found,\n" +
			"and no counter moves. These commands reach it through the coprocessor's console: switch.console of the configuration.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return &usageError{fmt.Errorf("unknown command %q of oxpd switch", args[0]), "oxpd switch show, jumbo, restore, read or write"}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.switchShowCommand(), a.switchJumboCommand(), a.switchRestoreCommand(), a.switchReadCommand(), a.switchWriteCommand())
	return cmd
}

func (a *app) switchShowCommand() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "show", Short: "read what the switch passes", Args: args(0, 0),
		Long: "Reads all eleven ports of the switch and writes nothing.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := ask(cmd, switchLimit)
			defer cancel()
			s, err := a.client().Switch(ctx)
			if err != nil {
				return err
			}
			return show(a, s, printSwitch)
		},
	})
}

func (a *app) switchJumboCommand() *cobra.Command {
	var in client.SetSwitch
	cmd := a.jsonFlag(&cobra.Command{
		Use: "jumbo (--all | --port PORT...)", Short: "set the longest frame that the switch passes",
		Long: "Sets the frame size of ports of the switch, 10240 bytes unless --size says otherwise, and raises the uplink with them where they need it.\n" +
			"Each value is read twice, written with its other bits as they are, and read back; what is as asked already is not written. It may be\n" +
			"repeated, and interrupted: the port that was begun is finished, and the output says which are old and which are new.\n" +
			switchPorts + "Exit status 1 unless every port is as asked.",
		Args: func(cmd *cobra.Command, words []string) error {
			if !cmd.Flags().Changed("port") {
				return args(0, 0)(cmd, words)
			}
			in.Ports = append(in.Ports, words...)
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case in.All == (len(in.Ports) > 0):
				return &usageError{errors.New("switch jumbo: want --all, or --port with names"), cmd.UseLine()}
			case cmd.Flags().Changed("port"):
				for _, name := range in.Ports {
					if err := panelPort(name); err != nil {
						return err
					}
				}
			}
			if _, err := switchcfg.SizeMode(in.Frame); err != nil {
				return &usageError{fmt.Errorf("--size: %w", err), cmd.UseLine()}
			}
			return a.setSwitch(cmd, in)
		},
	})
	f := cmd.Flags()
	f.BoolVar(&in.All, "all", false, "all ten ports")
	f.StringSliceVar(&in.Ports, "port", nil, "these ports, by name")
	f.IntVar(&in.Frame, "size", reg.Jumbo10240.FrameBytes(), fmt.Sprintf("longest frame with its checksum, bytes: %d, %d or %d",
		reg.Jumbo1522.FrameBytes(), reg.Jumbo2048.FrameBytes(), reg.Jumbo10240.FrameBytes()))
	runFlags(cmd, &in)
	return cmd
}

func (a *app) switchRestoreCommand() *cobra.Command {
	in := client.SetSwitch{All: true, Frame: reg.Jumbo2048.FrameBytes(), LeaveUplink: true}
	cmd := a.jsonFlag(&cobra.Command{
		Use: "restore", Short: "set the switch as the board was found: frames of 2048 bytes", Args: args(0, 0),
		Long: "Sets all ten ports to 2048 bytes, as the board was found, and leaves the uplink as it is. An MTU that needs more is in the way, unless\n" +
			"--lower-mtu lowers it first. Exit status 1 unless every port is as asked.",
		RunE: func(cmd *cobra.Command, _ []string) error { return a.setSwitch(cmd, in) },
	})
	runFlags(cmd, &in)
	return cmd
}

func runFlags(cmd *cobra.Command, in *client.SetSwitch) {
	cmd.Flags().BoolVar(&in.DryRun, "dry-run", false, "read, say what would be written, and write nothing")
	cmd.Flags().BoolVar(&in.LowerMTU, "lower-mtu", false, "where the size does not pass the present mtu of a port, lower that first")
}

// panelPort refuses what is no port of the switch, or the uplink.
func panelPort(name string) error {
	p, err := switchcfg.ParsePort(name)
	if err != nil {
		return &usageError{err, "oxpd switch jumbo (--all | --port PORT...)"}
	}
	if p == switchcfg.Uplink {
		return &usageError{fmt.Errorf("%s is raised with the ports that need it, and never lowered", p), "oxpd switch jumbo (--all | --port PORT...)"}
	}
	return nil
}

// setSwitch runs a change of the switch to its end. An interruption ends it at the next
// port, and what it has come to is shown all the same.
func (a *app) setSwitch(cmd *cobra.Command, in client.SetSwitch) error {
	c := a.client()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), switchLimit)
	defer cancel()
	over := context.AfterFunc(cmd.Context(), func() {
		fmt.Fprintln(a.err, "interrupted: the port that was begun is finished")
		short, done := context.WithTimeout(ctx, interruptLimit)
		defer done()
		if err := c.InterruptSwitch(short); err != nil {
			fmt.Fprintf(a.err, "oxpd: interrupt the run: %v\n", err)
			cancel() // nobody is there to finish anything
		}
		time.AfterFunc(interruptLimit, cancel)
	})
	var progress func(client.SwitchPort)
	if isTerminal(a.err) && !a.json {
		progress = func(p client.SwitchPort) { fmt.Fprintf(a.err, "%s: %s\n", switchName(&p), progressOf(&p)) }
	}
	run, err := c.SetSwitch(ctx, in, progress)
	over() // output that cannot be written interrupts nothing any more
	if err != nil {
		return err
	}
	for _, m := range run.Lowered {
		what := "was lowered"
		if in.DryRun {
			what = "would be lowered"
		}
		fmt.Fprintf(a.err, "mtu of %s (%s) %s from %d to %d\n", m.IfName, m.Label, what, m.Before, m.MTU)
	}
	for _, w := range run.Warnings {
		fmt.Fprintf(a.err, "warning: %s\n", w)
	}
	if err := show(a, run, printSwitchRun); err != nil {
		return err
	}
	return run.Check()
}

func (a *app) switchReadCommand() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "read DEVICE REGISTER", Short: "read a register of the switch", Args: args(2, 2),
		Long: "Reads a register twice, and prints it when both are equal. DEVICE is a port as in oxpd switch jumbo, sw0 for the uplink, global1 or\n" +
			"global2. REGISTER is 0 to 31, or 0x0 to 0x1f.",
		RunE: func(cmd *cobra.Command, args []string) error {
			register, err := switchRegister(cmd, args)
			if err != nil {
				return err
			}
			ctx, cancel := ask(cmd, switchLimit)
			defer cancel()
			r, err := a.client().SwitchRegister(ctx, args[0], register)
			if err != nil {
				return err
			}
			return show(a, r, printSwitchRegister)
		},
	})
}

func (a *app) switchWriteCommand() *cobra.Command {
	iKnow := false
	cmd := a.jsonFlag(&cobra.Command{
		Use: "write DEVICE REGISTER VALUE", Short: "write a register of the switch, for those who know what it does", Args: args(3, 3),
		Long: "Writes a register once and reads it back; needs --i-know. DEVICE and REGISTER are those of oxpd switch read, VALUE is 0 to 65535, or\n" +
			"0x0 to 0xffff. A wrong value takes ports down. Never written: register 6 of a port, which keeps the front ports apart, register 4 of\n" +
			"sw0, and a value of register 8 with the reserved frame size.",
		RunE: func(cmd *cobra.Command, args []string) error {
			register, err := switchRegister(cmd, args)
			if err != nil {
				return err
			}
			value, err := switchcfg.ParseNumber("value", args[2], 1<<16-1)
			if err != nil {
				return &usageError{err, cmd.UseLine()}
			}
			dev, err := switchcfg.ParseDevice(args[0])
			if err == nil {
				err = switchcfg.CheckWrite(switchcfg.Register{Dev: dev, Reg: register}, uint16(value))
			}
			switch {
			case err != nil:
				return &usageError{err, cmd.UseLine()}
			case !iKnow:
				return &usageError{errors.New("switch write: a wrong value takes ports down: want --i-know"), cmd.UseLine() + " --i-know"}
			}
			ctx, cancel := ask(cmd, switchLimit)
			defer cancel()
			r, err := a.client().WriteSwitchRegister(ctx, args[0], register, value)
			if err != nil {
				return err
			}
			return show(a, r, printSwitchRegister)
		},
	})
	cmd.Flags().BoolVar(&iKnow, "i-know", false, "you know what the register does")
	return cmd
}

// switchRegister is the register that DEVICE and REGISTER name.
func switchRegister(cmd *cobra.Command, args []string) (int, error) {
	if _, err := switchcfg.ParseDevice(args[0]); err != nil {
		return 0, &usageError{fmt.Errorf("%w, global1 or global2", err), cmd.UseLine()}
	}
	n, err := switchcfg.ParseNumber("register", args[1], reg.PortRegisters-1)
	if err != nil {
		return 0, &usageError{err, cmd.UseLine()}
	}
	return n, nil
}

// isTerminal tells whether somebody may be looking.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	fi, err := f.Stat()
	return err == nil && fi.Mode()&os.ModeCharDevice != 0
}

// switchName is a port of the switch for people.
func switchName(p *client.SwitchPort) string {
	if p.IfName == "" {
		return p.Port + " (uplink)"
	}
	return fmt.Sprintf("%s (%s, %s)", p.IfName, p.Label, p.Port)
}

// progressOf is what became of a port, in a line.
func progressOf(p *client.SwitchPort) string {
	switch {
	case p.Error != "":
		return p.Error
	case p.Outcome == client.SwitchChanged:
		return fmt.Sprintf("%d bytes, was %d", p.Frame, p.Before)
	case p.Outcome == client.SwitchWouldChange:
		return fmt.Sprintf("%d bytes, would change", p.Frame)
	}
	return fmt.Sprintf("%d bytes, %s", p.Frame, p.Outcome)
}

// frameBytes is a frame size for people.
func frameBytes(p *client.SwitchPort) string {
	switch {
	case p.Frame != 0:
		return fmt.Sprint(p.Frame)
	case p.Register != "":
		return "reserved"
	}
	return "not known"
}

func printSwitch(w io.Writer, s *client.Switch) {
	fmt.Fprintf(w, "switch: product %s, revision %d\n", s.Product, s.Revision)
	table(w, func(row func(...any)) {
		row("PORT", "LABEL", "SWITCH", "FRAME", "MTU", "LINK", "SPEED", "STATE", "REGISTER 8")
		for i := range s.Ports {
			p := &s.Ports[i]
			speed, mtu := "-", "-"
			if p.Speed != 0 {
				speed = fmt.Sprint(p.Speed)
			}
			if p.MTU != 0 && p.IfName != "" {
				mtu = fmt.Sprint(p.MTU)
			}
			row(or(p.IfName, "-"), or(p.Label, "uplink"), p.Port, frameBytes(p), mtu, p.Link, speed, p.State, p.Register)
		}
	})
}

func printSwitchRun(w io.Writer, r *client.SwitchRun) {
	table(w, func(row func(...any)) {
		row("PORT", "LABEL", "SWITCH", "BEFORE", "FRAME", "OUTCOME")
		for i := range r.Ports {
			p := &r.Ports[i]
			before := "-"
			if p.Before != 0 {
				before = fmt.Sprint(p.Before)
			}
			row(or(p.IfName, "-"), or(p.Label, "uplink"), p.Port, before, frameBytes(p), p.Outcome)
		}
	})
}

func printSwitchRegister(w io.Writer, r *client.SwitchRegister) {
	if r.Before == "" {
		fmt.Fprintln(w, r.Value)
		return
	}
	fmt.Fprintf(w, "%s, was %s\n", r.Value, r.Before)
}
