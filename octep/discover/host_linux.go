package discover

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/u-root/u-root/pkg/pci"

	"oxpd/internal/board"
	"oxpd/internal/dma"
	"oxpd/octep/csr"
)

// System is the machine that the process runs on; needs is the memory that oxpd takes.
func System(needs []dma.Need) Host {
	return Host{Sys: "/sys", Proc: "/proc", Root: os.Geteuid() == 0, Needs: needs}
}

// text reads a file of a line, "" when there is none.
func (h Host) text(elem ...string) string {
	b, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		return ""
	}
	return strings.TrimRight(string(b), "\n")
}

// link returns the last part of a symbolic link's target, "" when there is none.
func link(path string) string {
	to, err := os.Readlink(path)
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}

func (h Host) functions() string { return filepath.Join(h.Sys, "bus/pci/devices") }

// Cards returns every function of a card, by address.
func (h Host) Cards() ([]Card, error) {
	entries, err := os.ReadDir(h.functions())
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // no such folder: no PCI bus
		return nil, fmt.Errorf("look for cards: %w", err)
	}
	cards := []Card{}
	for _, e := range entries {
		vendor, device, err := h.ids(e.Name())
		if err != nil || vendor != board.Vendor || device != board.DevicePF && device != board.DeviceVF {
			continue // of others: not our business, not even an error
		}
		c, err := h.Card(e.Name())
		if err != nil {
			return nil, err
		}
		cards = append(cards, *c)
	}
	return cards, nil
}

// ids are those of a function as the kernel found it. A card that has gone since has
// them still.
func (h Host) ids(address string) (vendor, device uint16, err error) {
	var v [2]uint64
	for i, name := range []string{"vendor", "device"} {
		b, err := os.ReadFile(filepath.Join(h.functions(), address, name))
		if err != nil {
			return 0, 0, fmt.Errorf("%s: %w", address, err)
		}
		if v[i], err = strconv.ParseUint(strings.TrimSpace(string(b)), 0, 16); err != nil {
			return 0, 0, fmt.Errorf("%s: %s: %w", address, name, err)
		}
	}
	return uint16(v[0]), uint16(v[1]), nil
}

// Card reads one function. Errors: *NotTheCardError, fs.ErrNotExist, ErrConfig.
func (h Host) Card(address string) (*Card, error) {
	vendor, device, err := h.ids(address)
	if err != nil {
		return nil, fmt.Errorf("look at %w", err)
	}
	if vendor != board.Vendor || device != board.DevicePF && device != board.DeviceVF {
		return nil, &NotTheCardError{address, vendor, device}
	}
	dir := filepath.Join(h.functions(), address)
	f, err := function(dir)
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", address, err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "config"))
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", address, err)
	}
	cfg, err := DecodeConfig(raw)
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", address, err)
	}
	c := &Card{
		Address: address, Vendor: fmt.Sprintf("%04x", vendor), Device: fmt.Sprintf("%04x", device), Class: fmt.Sprintf("%06x", f.Class),
		Virtual: device == board.DeviceVF, Driver: link(filepath.Join(dir, "driver")), Override: override(h.text(dir, "driver_override")),
		IOMMU: h.group(dir, address), BARs: []BAR{}, Command: fmt.Sprintf("0x%04x", cfg.Command),
		Memory: !cfg.Gone && cfg.Command&csr.CfgCommandMemory != 0, Master: !cfg.Gone && cfg.Command&csr.CfgCommandBusMaster != 0,
		Power: cfg.Power, Link: cfg.Link, MSIX: cfg.MSIX, Capabilities: cfg.Capabilities, dir: dir, config: cfg,
	}
	if s := h.text(dir, "power_state"); s != "" && s != "unknown" {
		c.Power = s
	}
	for _, b := range f.BARS {
		if b.Index <= 4 && b.Lim >= b.Base {
			c.BARs = append(c.BARs, BAR{b.Index, fmt.Sprintf("%#x", b.Base), b.Lim - b.Base + 1})
		}
	}
	c.Obstacles = h.obstacles(c, h.Memory())
	return c, nil
}

// function reads class and BARs. A tree that shows no interrupt line, which nobody
// here asks for, is read without it.
func function(dir string) (*pci.PCI, error) {
	f, err := pci.OnePCI(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	f = &pci.PCI{}
	class, err := os.ReadFile(filepath.Join(dir, "class"))
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(class)), 0, 24)
	if err != nil {
		return nil, fmt.Errorf("class: %w", err)
	}
	f.Class = uint32(n)
	resource, err := os.ReadFile(filepath.Join(dir, "resource"))
	if err != nil {
		return nil, err
	}
	for i, line := range strings.Split(strings.TrimSpace(string(resource)), "\n") {
		b := pci.BAR{Index: i}
		if b.Base, b.Lim, b.Attr, err = pci.BaseLimType(line); err != nil {
			return nil, fmt.Errorf("resource: %w", err)
		}
		if b.Base != 0 {
			f.BARS = append(f.BARS, b)
		}
	}
	return f, nil
}

// override is driver_override, in which the kernel writes "(null)" for none.
func override(text string) string {
	if text == "(null)" {
		return ""
	}
	return text
}

// group reads the function's IOMMU group, nil when there is none.
func (h Host) group(dir, address string) *IOMMU {
	at := filepath.Join(dir, "iommu_group")
	if _, err := os.Stat(at); err != nil {
		return nil
	}
	g := &IOMMU{Group: link(at), Type: h.text(at, "type"), Members: []string{}}
	entries, _ := os.ReadDir(filepath.Join(at, "devices")) // a group of which nothing is known has no other member
	for _, e := range entries {
		if e.Name() != address {
			g.Members = append(g.Members, e.Name())
		}
	}
	slices.Sort(g.Members)
	return g
}

// Memory reads what hugepages there are: of 2 MiB, or of the size that is mounted.
func (h Host) Memory() Memory {
	m := Memory{}
	m.Dir, m.Page = mounted(h.text(h.Proc, "mounts"), 2<<20)
	m.Need = dma.Pages(h.Needs, m.Page)
	pool := filepath.Join(h.Sys, "kernel/mm/hugepages", fmt.Sprintf("hugepages-%dkB", m.Page>>10))
	m.Total, _ = strconv.Atoi(h.text(pool, "nr_hugepages"))  // none: 0
	m.Free, _ = strconv.Atoi(h.text(pool, "free_hugepages")) // none: 0
	return m
}

// kept are the pages that an earlier process left for the card at an address.
func (h Host) kept(m Memory, address string) int {
	fi, err := os.Stat(filepath.Join(m.Dir, MemoryName(address)))
	if m.Dir == "" || err != nil {
		return 0
	}
	return int(fi.Size()) / m.Page
}

// mounted finds a hugetlbfs in a list of mounts: one of pages of the wanted size in
// bytes, or else the first, whose size it returns too.
func mounted(mounts string, page int) (dir string, size int) {
	for _, line := range strings.Split(mounts, "\n") {
		f := strings.Fields(line)
		if len(f) < 4 || f[2] != "hugetlbfs" {
			continue
		}
		s := pageOption(f[3])
		if s == page {
			return unescape(f[1]), s
		}
		if dir == "" && s != 0 {
			dir, size = unescape(f[1]), s
		}
	}
	if dir == "" {
		return "", page
	}
	return dir, size
}

// pageOption is the size in bytes of pagesize=2M or pagesize=1024M, 0 for none.
func pageOption(options string) int {
	for _, o := range strings.Split(options, ",") {
		v, ok := strings.CutPrefix(o, "pagesize=")
		if !ok || v == "" {
			continue
		}
		shift := map[byte]int{'K': 10, 'M': 20, 'G': 30}[v[len(v)-1]]
		n, err := strconv.Atoi(strings.TrimRight(v, "KMG"))
		if err != nil || n <= 0 || n > 1<<20 {
			return 0
		}
		return n << shift
	}
	return 0
}

// unescape undoes what the kernel writes for blanks in a path.
func unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}
