package discover

import (
	"fmt"
	"slices"
	"strings"

	"oxpd/internal/dma"
	"oxpd/octep/csr"
)

// Level is how much is in the way.
type Level string

// Levels of an obstacle.
const (
	Stop Level = "stop" // oxpd does not drive the card
	Note Level = "note" // it does, and somebody may want to know
)

// Obstacle is something that stands in the way.
type Obstacle struct {
	Level   Level  `json:"level"`
	Text    string `json:"text"`
	Command string `json:"command,omitempty"` // that removes it
	Looking bool   `json:"stops_probe"`       // it stands in the way of a mere look too
}

// bars are the windows that oxpd maps.
var bars = []struct {
	index int
	size  uint64
}{{0, csr.BAR0Size}, {2, csr.BAR2Size}}

// lockdownMode is that of the kernel: none, integrity, confidentiality.
func lockdownMode(text string) string {
	_, rest, ok := strings.Cut(text, "[")
	mode, _, closed := strings.Cut(rest, "]")
	if !ok || !closed {
		return "none"
	}
	return mode
}

// translates tells whether a domain of this type lets the card reach memory only by
// addresses that the kernel has mapped for a driver of its own. A type that is not
// known is taken for one that does.
func translates(domain string) bool { return domain != "identity" }

// obstacles judges a card that was read.
func (h Host) obstacles(c *Card, m Memory) []Obstacle {
	out := []Obstacle{}
	add := func(l Level, command, format string, args ...any) {
		out = append(out, Obstacle{l, fmt.Sprintf(format, args...), command, l == Stop})
	}
	driving := func(command, format string, args ...any) {
		out = append(out, Obstacle{Stop, fmt.Sprintf(format, args...), command, false})
	}
	if c.Virtual {
		add(Note, "", "a virtual function: oxpd shows it and drives the physical one")
		return out
	}
	if !h.Root {
		add(Stop, "sudo oxpd run", "BARs, page frames and config space are root's, and this process is not root")
	}
	if c.config.Gone {
		add(Stop, "", "config space reads all ones: the card is held in reset, or its link is down; it takes up to two minutes to come back, and a power cycle if it does not")
		return out
	}
	if mode := lockdownMode(h.text(h.Sys, "kernel/security/lockdown")); mode != "none" {
		add(Stop, "systemctl reboot --firmware-setup", "the kernel is locked down (%s) and lets nobody map a BAR: turn Secure Boot off, and take lockdown= off the kernel's command line", mode)
	}
	switch c.Driver {
	case "":
	case VFIO:
		driving("oxpd unbind --device "+c.Address, "the kernel's driver vfio-pci has the card: oxpd run reaches it with access: vfio, and not by sysfs")
	default:
		driving("oxpd unbind --device "+c.Address, "the kernel's driver %s has the card", c.Driver)
	}
	if g := c.IOMMU; g != nil && translates(g.Type) {
		driving(identityCommand(c), "an IOMMU translates for group %s (%s): physical addresses would be wrong", g.Group, orUnknown(g.Type))
	}
	for _, want := range bars {
		i := slices.IndexFunc(c.BARs, func(b BAR) bool { return b.Index == want.index })
		switch {
		case i < 0:
			add(Stop, "echo 1 > /sys/bus/pci/rescan", "BAR%d has no address: the firmware gave it none", want.index)
		case c.BARs[i].Size < want.size:
			add(Stop, "", "BAR%d is %d bytes long, and that of the card has %d", want.index, c.BARs[i].Size, want.size)
		}
	}
	if c.Power != "" && c.Power != "D0" {
		add(Stop, "echo on > /sys/bus/pci/devices/"+c.Address+"/power/control", "the card sleeps (%s)", c.Power)
	}
	m.judge(driving, h.kept(m, c.Address))
	if !c.Memory {
		add(Note, "setpci -s "+c.Address+" COMMAND=2:2", "memory decoding is off: oxpd run turns it on by itself")
	}
	if l := c.Link; l != nil && (l.Width < l.MaxWidth || l.GTps < l.MaxGTps) {
		add(Note, "", "the link has x%d at %g GT/s, and the card could x%d at %g GT/s", l.Width, l.GTps, l.MaxWidth, l.MaxGTps)
	}
	return out
}

// identityCommand turns translation off for the card: now, where the kernel can.
func identityCommand(c *Card) string {
	if c.IOMMU.Type == "" || len(c.IOMMU.Members) > 0 {
		return "add iommu=pt to the kernel's command line and reboot"
	}
	return "echo identity > /sys/bus/pci/devices/" + c.Address + "/iommu_group/type"
}

func orUnknown(s string) string {
	if s == "" {
		return "of unknown type"
	}
	return s
}

// Memory is the hugepages of the machine.
type Memory struct {
	Dir   string `json:"mount,omitempty"` // empty: they are mounted nowhere
	Page  int    `json:"page_bytes"`
	Total int    `json:"pages"`
	Free  int    `json:"free"`
	Need  int    `json:"needed"` // by oxpd
}

// MemoryName is the file that holds the memory of the card at an address.
func MemoryName(address string) string { return "oxpd-" + address }

// judge names what is missing. kept are pages that an earlier process left: they are
// used again, or given back.
func (m Memory) judge(stop func(string, string, ...any), kept int) {
	if m.Dir == "" {
		stop(dma.MountCommand, "no hugetlbfs is mounted")
	}
	if missing := m.Need - m.Free - kept; missing > 0 {
		stop(dma.PagesCommand(m.Page, m.Total+missing), "%d hugepages of %d KiB are needed and %d are free", m.Need, m.Page>>10, m.Free+kept)
	}
}
