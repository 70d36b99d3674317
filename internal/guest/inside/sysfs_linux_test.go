package inside

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// devices are the texts of what stands in the way of the card.
func devices(t *testing.T) (address string, stops []string) {
	t.Helper()
	out, err := exec.Command(oxpd, "devices", "--json").CombinedOutput()
	require.NoError(t, err, string(out))
	var doc struct {
		Devices []struct {
			Address   string
			Obstacles []struct{ Level, Text string }
		}
	}
	require.NoError(t, json.Unmarshal(out, &doc))
	require.Len(t, doc.Devices, 1, string(out))
	for _, o := range doc.Devices[0].Obstacles {
		if o.Level == "stop" {
			stops = append(stops, o.Text)
		}
	}
	return doc.Devices[0].Address, stops
}

// behindIOMMU tells whether there is one in this guest.
func behindIOMMU(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "iommu_group"))
	return err == nil
}

// TestDevices: a kernel's own tree. An IOMMU that translates is the one thing that
// stands in the way, where there is one.
func TestDevices(t *testing.T) {
	dir := card(t)
	address, stops := devices(t)
	assert.Equal(t, filepath.Base(dir), address)
	if !behindIOMMU(dir) {
		assert.Empty(t, stops)
		return
	}
	require.Len(t, stops, 1)
	assert.Contains(t, stops[0], "an IOMMU translates")
	out, err := exec.Command(oxpd, "run", "--socket", t.TempDir()+"/s").CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), "physical addresses would be wrong")
	assert.Contains(t, string(out), "hint: echo identity > /sys/bus/pci/devices/"+address+"/iommu_group/type")
}

// TestSysfs: oxpd drives the card by its files and by hugepages, and leaves what the
// card knows behind.
func TestSysfs(t *testing.T) {
	dir := card(t)
	if behindIOMMU(dir) {
		t.Skip("the IOMMU of this guest translates")
	}
	address, _ := devices(t)
	socket := t.TempDir() + "/oxpd.sock"
	d := exec.Command(oxpd, "run", "--socket", socket)
	log, err := os.Create(t.TempDir() + "/log")
	require.NoError(t, err)
	defer log.Close()
	d.Stdout, d.Stderr = log, log
	require.NoError(t, d.Start())
	said := func() string {
		b, err := os.ReadFile(log.Name())
		require.NoError(t, err)
		return string(b)
	}
	out, err := exec.Command(oxpd, "status", "--wait=90s", "--socket", socket).CombinedOutput()
	require.NoError(t, err, "%s\n%s", out, said())
	assert.Contains(t, string(out), address)
	assert.Contains(t, string(out), "no interrupts: they poll")
	out, err = exec.Command(oxpd, "mtu", "oxp10", "9000", "--socket", socket).CombinedOutput()
	require.NoError(t, err, "%s\n%s", out, said())
	assert.Equal(t, "9000", read(t, "/sys/class/net/oxp10", "mtu"))
	// The host sends frames of one buffer and of six.
	var stats struct {
		Device map[string]uint64
	}
	require.Eventually(t, func() bool {
		out, err := exec.Command(oxpd, "stats", "--json", "--socket", socket).CombinedOutput()
		require.NoError(t, err, "%s\n%s", out, said())
		require.NoError(t, json.Unmarshal(out, &stats))
		return stats.Device["rx_done"] > 100 && stats.Device["rx_spans"] > 50
	}, 90*time.Second, 100*time.Millisecond)
	for _, name := range []string{"oq_lapped", "rx_resync", "rx_short", "rx_long", "rx_ghosts", "intr_taken"} {
		assert.Zero(t, stats.Device[name], name)
	}
	out, err = exec.Command(oxpd, "probe", "--json").CombinedOutput()
	assert.Contains(t, string(out), `"finished": `, "a look beside it: %v", err)

	memory := filepath.Join("/dev/hugepages", "oxpd-"+address)
	fi, err := os.Stat(memory)
	require.NoError(t, err)
	assert.EqualValues(t, 9<<21, fi.Size())

	require.NoError(t, d.Process.Signal(unix.SIGTERM))
	ended := make(chan error, 1)
	go func() { ended <- d.Wait() }()
	select {
	case err := <-ended:
		assert.NoError(t, err, said())
	case <-time.After(90 * time.Second):
		t.Fatalf("the daemon does not end\n%s", said())
	}
	assert.FileExists(t, memory, "the card may still write to it")
	_, stops := devices(t)
	assert.Empty(t, stops)
	again, err := exec.Command(oxpd, "run", "--socket", socket).CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(again), "earlier run")
	assert.FileExists(t, memory)
}

// TestBind: the kernel's own driver_override. Without an IOMMU vfio-pci does not take
// the card, and everything is as it was found.
func TestBind(t *testing.T) {
	dir := card(t)
	driver := func() string {
		to, err := os.Readlink(filepath.Join(dir, "driver"))
		if err != nil {
			return ""
		}
		return filepath.Base(to)
	}
	says := func(code int, text string, args ...string) {
		t.Helper()
		cmd := exec.Command(oxpd, args...)
		out, _ := cmd.CombinedOutput() // the exit status says it
		assert.Equal(t, code, cmd.ProcessState.ExitCode(), string(out))
		assert.Contains(t, string(out), text)
	}
	says(0, "no driver has it\n", "unbind")
	address := filepath.Base(dir)
	empty := "echo > /sys/bus/pci/devices/" + address + "/reset_method; or --i-accept-reset"
	if behindIOMMU(dir) { // in whose guest the module has its parameter
		says(1, "is on no record\nhint: "+empty, "bind")
	} else {
		says(1, "is on no record\nhint: modprobe -r vfio-pci; modprobe vfio-pci disable_idle_d3=1; then "+empty, "bind")
	}
	assert.Equal(t, "(null)", read(t, dir, "driver_override"))
	if !behindIOMMU(dir) {
		says(1, "bind "+address+" to vfio-pci: ", "bind", "--i-accept-reset")
		assert.Empty(t, driver())
		assert.Equal(t, "(null)", read(t, dir, "driver_override"))
		return
	}
	says(0, "bound to vfio-pci (before: none)\n", "bind", "--i-accept-reset")
	assert.Equal(t, "vfio-pci", driver())
	says(0, "vfio-pci has it already\n", "bind")
	says(1, "the kernel's driver vfio-pci has the card", "run", "--socket", t.TempDir()+"/s")
	says(0, "no driver has it now (before: vfio-pci)\n", "unbind")
	assert.Empty(t, driver())
	assert.Equal(t, "(null)", read(t, dir, "driver_override"))
	says(0, "no driver has it\n", "unbind")
}
