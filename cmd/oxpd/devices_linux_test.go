package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/octep/csr"
	"oxpd/octep/discover"
)

func TestDevicesOutput(t *testing.T) {
	card := discover.Card{
		Address: "0000:01:00.0", Vendor: "177d", Device: "a300", Class: "0b8000",
		BARs:    []discover.BAR{{Index: 0, At: "0xf0000000", Size: 8 << 20}, {Index: 2, At: "0xec000000", Size: 64 << 20}, {Index: 4, At: "0xf4800000", Size: 1 << 20}},
		Command: "0x0006", Memory: true, Master: true, Power: "D0",
		Link: &discover.Link{GTps: 8, Width: 8, MaxGTps: 8, MaxWidth: 8}, MSIX: &discover.MSIX{Vectors: 80},
		Capabilities: []discover.Capability{{Offset: "0x40", ID: "0x01", Name: "power management"}, {Offset: "0x70", ID: "0x10", Name: "PCI Express"},
			{Offset: "0x140", ID: "0x0002", Extended: true}},
		Obstacles: []discover.Obstacle{},
	}
	blocked := card
	blocked.Address, blocked.Driver, blocked.Override = "0000:02:00.0", "vfio-pci", "vfio-pci"
	blocked.IOMMU = &discover.IOMMU{Group: "7", Type: "DMA-FQ", Members: []string{"0000:00:01.0"}}
	blocked.Command, blocked.Memory, blocked.Master = "0x0000", false, false
	blocked.Obstacles = []discover.Obstacle{
		{Level: discover.Stop, Text: "the kernel's driver vfio-pci has the card", Command: "oxpd unbind --device 0000:02:00.0"},
		{Level: discover.Note, Text: "memory decoding is off: oxpd run turns it on by itself", Command: "setpci -s 0000:02:00.0 COMMAND=2:2"},
	}
	both(t, "devices", &devices{1, []discover.Card{card, blocked}, discover.Memory{Dir: "/dev/hugepages", Page: 2 << 20, Total: 16, Free: 16, Need: 9}}, printDevices)
	both(t, "devices-none", &devices{1, []discover.Card{}, discover.Memory{Page: 2 << 20, Need: 9}}, printDevices)
}

// bus is a folder that takes the place of /sys/bus/pci, with functions whose BARs are
// files.
type bus struct {
	t   *testing.T
	dir string
}

func newBus(t *testing.T) *bus {
	b := &bus{t, t.TempDir()}
	require.NoError(t, os.Mkdir(filepath.Join(b.dir, "devices"), 0o755))
	return b
}

func (b *bus) function(address, vendor, device string) (dir string) {
	b.t.Helper()
	dir = filepath.Join(b.dir, "devices", address)
	require.NoError(b.t, os.MkdirAll(dir, 0o755))
	none := "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
	resource := "0x00000000f0000000 0x00000000f07fffff 0x0000000000140204\n" + none + "0x00000000ec000000 0x00000000efffffff 0x0000000000140204\n" + strings.Repeat(none, 10)
	config := make([]byte, 4096)
	copy(config, []byte{0x7d, 0x17, 0x00, 0xa3, 0x02, 0, 0, 0, 0x01, 0x00, 0x80, 0x0b})
	for name, text := range map[string]string{
		"vendor": "0x" + vendor + "\n", "device": "0x" + device + "\n", "class": "0x0b8000\n", "irq": "0\n", "resource": resource, "config": string(config),
		"driver_override": "(null)\n", "resource0": "", "resource2": "",
	} {
		require.NoError(b.t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	require.NoError(b.t, os.Truncate(filepath.Join(dir, "resource0"), csr.BAR0Size))
	require.NoError(b.t, os.Truncate(filepath.Join(dir, "resource2"), csr.BAR2Size))
	return dir
}

// oxpd runs the program where the bus is the machine's, in a mount namespace of its own.
func (b *bus) oxpd(exe string, args ...string) (code int, out, err string) {
	b.t.Helper()
	if os.Getuid() != 0 {
		b.t.Skip("needs root: mounts a folder over /sys/bus/pci")
	}
	cmd := exec.Command("sh", append([]string{"-c", `mount --bind "$0" /sys/bus/pci && exec "$@"`, b.dir, exe}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET}
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	_ = cmd.Run() // the exit status says it
	require.NotContains(b.t, e.String(), "mount:")
	return cmd.ProcessState.ExitCode(), o.String(), e.String()
}

func TestDevicesOfTheMachine(t *testing.T) {
	exe := program()
	b := newBus(t)
	socket := filepath.Join(t.TempDir(), "s")
	says := func(name string, want int, text string, args ...string) {
		t.Helper()
		code, out, err := b.oxpd(exe, args...)
		assert.Equal(t, want, code, "%s: %s%s", name, out, err)
		assert.Contains(t, out+err, text, name)
	}
	none := "no card (177d:a300) is on the PCI bus\n"
	says("no card", 0, none, "devices")
	says("no card", 1, "oxpd: "+none+"hint: oxpd run --sim drives a simulated card", "run", "--socket", socket)
	says("no card", 1, "oxpd: "+none+"hint: oxpd probe --sim looks at a simulated card", "probe")
	says("no card", 1, "oxpd: "+none, "bind")
	says("no card", 1, "oxpd: "+none, "unbind")

	first := b.function("0000:01:00.0", "177d", "a300")
	b.function("0000:00:1f.2", "8086", "2922")
	b.function("0000:01:00.1", "177d", "a303")
	code, out, err := b.oxpd(exe, "devices", "--json")
	assert.Zero(t, code, err)
	var doc devices
	require.NoError(t, json.Unmarshal([]byte(out), &doc))
	require.Len(t, doc.Devices, 2, "the card and its virtual function")
	assert.Equal(t, 9, doc.Memory.Need)
	says("a card", 0, "0000:01:00.0  177d:a300\n", "devices")
	says("nothing to do", 0, "0000:01:00.0: no driver has it\n", "unbind")
	says("another function", 1, "0000:00:1f.2 is 8086:2922, not the card", "unbind", "--device", "00:1f.2")
	says("another function", 1, "0000:00:1f.2 is 8086:2922, not the card", "bind", "--device", "00:1f.2")
	says("a virtual function", 1, "a virtual function", "run", "--socket", socket, "--device", "01:00.1")
	says("a driver that is not there", 1, "hint: modprobe vfio-pci disable_idle_d3=1\n", "bind")
	says("a look", 1, "0x0002: memory decoding on, bus mastering off", "probe", "--device", "0000:01:00.0")

	require.NoError(t, os.Symlink("../../drivers/octeon_ep", filepath.Join(first, "driver")))
	says("a driver has it", 1, "0000:01:00.0 cannot be driven: the kernel's driver octeon_ep has the card", "run", "--socket", socket)
	says("a driver has it", 1, "hint: oxpd unbind --device 0000:01:00.0", "run", "--socket", socket)

	b.function("0001:01:00.0", "177d", "a300")
	several := "2 cards are on the PCI bus: 0000:01:00.0, 0001:01:00.0\nhint: say which one, as in --device 0000:01:00.0"
	for _, args := range [][]string{{"run", "--socket", socket}, {"probe"}, {"bind"}, {"unbind"}} {
		says("several", 1, several, args...)
	}
	file := filepath.Join(t.TempDir(), "oxpd.yaml")
	require.NoError(t, os.WriteFile(file, []byte("device: 0001:02:00.0\n"), 0o644))
	says("a card of the configuration", 1, "oxpd: look at 0001:02:00.0: ", "run", "--socket", socket, "--config", file)
	assert.NoFileExists(t, socket)
}
