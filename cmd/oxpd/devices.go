package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"oxpd/internal/daemon"
	"oxpd/internal/daemon/client"
	"oxpd/octep/discover"
)

// host is this machine.
func host() discover.Host { return discover.System(daemon.Needs()) }

// devices is the document of oxpd devices.
type devices struct {
	Schema  int             `json:"schema"`
	Devices []discover.Card `json:"devices"`
	Memory  discover.Memory `json:"hugepages"`
}

func (a *app) devicesCommand() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "devices", Short: "the cards of this machine and what stands in the way of driving them", Args: args(0, 0),
		Long: "Lists each function of the card on the PCI bus: who has it, its IOMMU group and who else is in that, BARs, link, capabilities, and\n" +
			"what stands in the way of oxpd run, each with the command that removes it. A line that begins with stop keeps oxpd run from\n" +
			"starting, one that begins with note does not. Changes nothing and touches no BAR.\n\n" +
			"Exit status: 0 also when there is no card, 1 when one cannot be looked at.",
		RunE: func(*cobra.Command, []string) error {
			h := host()
			cards, err := h.Cards()
			if err != nil {
				return err
			}
			return show(a, &devices{client.Schema, cards, h.Memory()}, printDevices)
		},
	})
}

// bytesOf is a size in the unit that divides it.
func bytesOf(n uint64) string {
	for _, u := range []struct {
		shift int
		name  string
	}{{30, "GiB"}, {20, "MiB"}, {10, "KiB"}} {
		if n > 0 && n&(1<<u.shift-1) == 0 {
			return fmt.Sprintf("%d %s", n>>u.shift, u.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func printDevices(w io.Writer, d *devices) {
	if len(d.Devices) == 0 {
		fmt.Fprintln(w, discover.ErrNone)
		return
	}
	for i := range d.Devices {
		if i > 0 {
			fmt.Fprintln(w)
		}
		printDevice(w, &d.Devices[i])
	}
	m := &d.Memory
	fmt.Fprintf(w, "\nhugepages of %s at %s: %d, %d free, oxpd takes %d\n", bytesOf(uint64(m.Page)), orNone(m.Dir), m.Total, m.Free, m.Need)
}

func printDevice(w io.Writer, c *discover.Card) {
	fmt.Fprintf(w, "%s  %s:%s\n", c.Address, c.Vendor, c.Device)
	table(w, func(row func(...any)) {
		driver := orNone(c.Driver)
		if c.Override != "" {
			driver += ", only " + c.Override + " may have it"
		}
		row("  driver", driver)
		row("  IOMMU", iommuOf(c.IOMMU))
		for _, b := range c.BARs {
			row(fmt.Sprintf("  BAR%d", b.Index), fmt.Sprintf("%s at %s", bytesOf(b.Size), b.At))
		}
		row("  command", fmt.Sprintf("%s: memory decoding %s, bus mastering %s", c.Command, onOff(c.Memory), onOff(c.Master)))
		row("  power", orNone(c.Power))
		if l := c.Link; l != nil {
			row("  link", fmt.Sprintf("x%d at %g GT/s; the card could x%d at %g GT/s", l.Width, l.GTps, l.MaxWidth, l.MaxGTps))
		}
		if m := c.MSIX; m != nil {
			row("  interrupts", fmt.Sprintf("MSI-X, %d vectors, %s", m.Vectors, onOff(m.Enabled)))
		}
		for i, cap := range c.Capabilities {
			name := "  capabilities"
			if i > 0 {
				name = ""
			}
			row(name, strings.TrimSpace(fmt.Sprintf("%s: %s %s", cap.Offset, cap.ID, cap.Name)))
		}
	})
	for _, o := range c.Obstacles {
		fmt.Fprintf(w, "%s: %s\n", o.Level, o.Text)
		if o.Command != "" {
			fmt.Fprintf(w, "      %s\n", o.Command)
		}
	}
	if len(c.Blocking()) == 0 && !c.Virtual {
		fmt.Fprintln(w, "nothing stands in the way of oxpd run")
	}
}

func iommuOf(g *discover.IOMMU) string {
	if g == nil {
		return "none"
	}
	text := "group " + g.Group
	if g.Type != "" {
		text += " (" + g.Type + ")"
	}
	if len(g.Members) > 0 {
		text += ", with " + strings.Join(g.Members, ", ")
	}
	return text
}

const whichDevice = "PCI address of the card; empty: the only one of this machine"

func (a *app) bindCommand() *cobra.Command {
	var device, driver string
	var accept bool
	cmd := &cobra.Command{
		Use: "bind", Short: "give the card to a kernel driver", Args: args(0, 0),
		Long: "Takes the card from the kernel driver that has it, gives it to another one (driver_override and drivers_probe), and reads back who\n" +
			"has it. Does nothing when that one has it. Refuses any other function than the card, and while oxpd drives it.\n\n" +
			"What a reset or sleep does to a coprocessor that runs is on no record. So vfio-pci must have been loaded with disable_idle_d3=1, and\n" +
			"the card's reset_method be empty; --i-accept-reset does without. oxpd run reaches the card by sysfs, for which no driver may have\n" +
			"it: oxpd unbind.",
		RunE: func(*cobra.Command, []string) error {
			h := host()
			before, err := h.Find(device)
			if err != nil {
				return noCard(err)
			}
			c, changed, err := h.Bind(before.Address, driver, accept)
			if err != nil {
				return err
			}
			if !changed {
				fmt.Fprintf(a.out, "%s: %s has it already\n", c.Address, c.Driver)
				return nil
			}
			fmt.Fprintf(a.out, "%s: bound to %s (before: %s)\n", c.Address, c.Driver, orNone(before.Driver))
			return nil
		},
	}
	cmd.Flags().StringVar(&device, "device", "", whichDevice)
	cmd.Flags().StringVar(&driver, "driver", discover.VFIO, "kernel driver that gets the card")
	cmd.Flags().BoolVar(&accept, "i-accept-reset", false, "bind vfio-pci also where it may reset the card or send it to sleep")
	return cmd
}

func (a *app) unbindCommand() *cobra.Command {
	var device string
	cmd := &cobra.Command{
		Use: "unbind", Short: "take the card from the kernel driver that has it", Args: args(0, 0),
		Long: "Unbinds the kernel driver that has the card, clears driver_override, and reads back that none has it. Does nothing when that is so.\n" +
			"Refuses any other function than the card, and while oxpd drives it.",
		RunE: func(*cobra.Command, []string) error {
			h := host()
			before, err := h.Find(device)
			if err != nil {
				return noCard(err)
			}
			c, changed, err := h.Unbind(before.Address)
			if err != nil {
				return err
			}
			if !changed {
				fmt.Fprintf(a.out, "%s: no driver has it\n", c.Address)
				return nil
			}
			fmt.Fprintf(a.out, "%s: no driver has it now (before: %s)\n", c.Address, orNone(before.Driver))
			return nil
		},
	}
	cmd.Flags().StringVar(&device, "device", "", whichDevice)
	return cmd
}
