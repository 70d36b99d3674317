package discover

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"oxpd/internal/dma"
)

// machine is a tree that looks like sysfs and procfs, and a kernel that the test plays.
type machine struct {
	t   *testing.T
	dir string

	wrote []string // to files of sysfs: path below /sys, and text
	stuck bool     // the kernel binds and unbinds nothing
}

func newMachine(t *testing.T) *machine {
	m := &machine{t: t, dir: t.TempDir()}
	m.file("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "16\n")
	m.file("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "16\n")
	m.file("proc/mounts", "proc /proc proc rw 0 0\nhugetlbfs /dev/hugepages hugetlbfs rw,relatime,pagesize=2M 0 0\n")
	return m
}

func (m *machine) at(path string) string { return filepath.Join(m.dir, path) }

func (m *machine) file(path, text string) {
	m.t.Helper()
	require.NoError(m.t, os.MkdirAll(filepath.Dir(m.at(path)), 0o755))
	require.NoError(m.t, os.WriteFile(m.at(path), []byte(text), 0o644))
}

func (m *machine) link(path, to string) {
	m.t.Helper()
	require.NoError(m.t, os.MkdirAll(filepath.Dir(m.at(path)), 0o755))
	require.NoError(m.t, os.Symlink(to, m.at(path)))
}

// host is the machine for a process that is root.
func (m *machine) host() Host {
	return Host{Sys: m.at("sys"), Proc: m.at("proc"), Root: true, Needs: slices.Repeat([]dma.Need{{Size: 3 << 19, Align: 64}}, 9), write: m.kernel}
}

// kernel is what the kernel does with a write.
func (m *machine) kernel(path, text string) error {
	rel, err := filepath.Rel(m.at("sys"), path)
	require.NoError(m.t, err)
	m.wrote = append(m.wrote, rel+"="+text)
	switch {
	case filepath.Base(path) == "driver_override":
		if text == "\n" {
			text = "(null)\n"
		}
		return os.WriteFile(path, []byte(text), 0o644)
	case m.stuck:
		return nil
	case filepath.Base(path) == "unbind":
		return os.Remove(filepath.Join(m.at(dev), "driver"))
	case rel == "bus/pci/drivers_probe":
		want := override(strings.TrimSpace(string(must(os.ReadFile(filepath.Join(m.at("sys/bus/pci/devices"), text, "driver_override"))))))
		return os.Symlink("../../drivers/"+want, filepath.Join(m.at("sys/bus/pci/devices"), text, "driver"))
	}
	m.t.Errorf("a write to %s", rel)
	return nil
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

const (
	addr = "0000:01:00.0"
	dev  = "sys/bus/pci/devices/" + addr
)

// lines is the resource file: BAR0, BAR2 and BAR4 as they were seen on the appliance.
func lines(bars map[int]string) string {
	var b strings.Builder
	for i := range 13 {
		l, ok := bars[i]
		if !ok {
			l = "0x0000000000000000 0x0000000000000000 0x0000000000000000"
		}
		b.WriteString(l + "\n")
	}
	return b.String()
}

var seen = map[int]string{
	0: "0x00000000f0000000 0x00000000f07fffff 0x0000000000140204",
	2: "0x00000000ec000000 0x00000000efffffff 0x0000000000140204",
	4: "0x00000000f4800000 0x00000000f48fffff 0x0000000000140204",
}

// function adds a PCI function.
func (m *machine) function(address string, vendor, device string, config []byte) {
	d := "sys/bus/pci/devices/" + address + "/"
	for name, text := range map[string]string{
		"vendor": "0x" + vendor + "\n", "device": "0x" + device + "\n", "class": "0x0b8000\n", "irq": "11\n", "resource": lines(seen),
		"driver_override": "(null)\n", "power_state": "D0\n", "config": string(config),
	} {
		m.file(d+name, text)
	}
}

// card adds the card as it should be.
func (m *machine) card() { m.function(addr, "177d", "a300", space(nil)) }

func (m *machine) driver(name string) {
	m.file("sys/bus/pci/drivers/"+name+"/unbind", "")
	m.link(dev+"/driver", "../../drivers/"+name)
}
