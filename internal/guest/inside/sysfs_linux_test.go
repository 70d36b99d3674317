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
// card knows behind. The next process goes on with it, whether the one before was ended
// or killed; without its memory it is refused.
func TestSysfs(t *testing.T) {
	dir := card(t)
	if behindIOMMU(dir) {
		t.Skip("the IOMMU of this guest translates")
	}
	defer flr(t, dir)
	address, _ := devices(t)
	d := startDaemon(t, "sysfs")
	out := string(d.call(t, "status", "--wait=90s"))
	assert.Contains(t, out, address)
	assert.Contains(t, out, "no interrupts: they poll")
	d.call(t, "mtu", "oxp10", "9000")
	mtu := func() int {
		t.Helper()
		l, err := d.ns.Link("oxp10")
		require.NoError(t, err)
		return l.MTU
	}
	assert.Equal(t, 9000, mtu())
	// The host sends frames of one buffer and of six.
	frames := func() {
		t.Helper()
		require.Eventually(t, func() bool {
			return d.stat(t, "rx_done") > 100 && d.stat(t, "rx_spans") > 50
		}, hang, 100*time.Millisecond, d.said(t))
		for _, name := range []string{"oq_lapped", "rx_resync", "rx_short", "rx_long", "rx_ghosts", "intr_taken"} {
			assert.Zero(t, d.stat(t, name), name)
		}
	}
	frames()
	beside, err := exec.Command(oxpd, "probe", "--json").CombinedOutput()
	assert.Contains(t, string(beside), `"finished": `, "a look beside it: %v", err)

	memory := filepath.Join("/dev/hugepages", "oxpd-"+address)
	fi, err := os.Stat(memory)
	require.NoError(t, err)
	assert.EqualValues(t, 9<<21, fi.Size())
	sigterm := func() {
		t.Helper()
		require.NoError(t, d.process.Signal(unix.SIGTERM))
		d.end(t)
		assert.FileExists(t, memory, "the card may still write to it")
	}
	sigterm()
	_, stops := devices(t)
	assert.Empty(t, stops)

	goesOn := func() {
		t.Helper()
		d = startDaemon(t, "sysfs")
		s := d.status(t, "--wait=90s")
		assert.Equal(t, "running", s.State)
		assert.Equal(t, 12, s.PortsUp)
		assert.Contains(t, d.said(t), "was on, for the process before")
		assert.Equal(t, 9000, mtu(), "the LIF has it")
		frames()
	}
	goesOn()
	require.NoError(t, d.process.Kill())
	require.Error(t, <-d.ended)
	goesOn()
	sigterm()

	aside := memory + ".aside"
	require.NoError(t, os.Rename(memory, aside))
	d = startDaemon(t, "sysfs")
	select {
	case err := <-d.ended:
		assert.ErrorContains(t, err, "exit status 3")
	case <-time.After(hang):
		t.Fatalf("rings whose memory is not there were taken for its own\n%s", d.said(t))
	}
	assert.Contains(t, d.said(t), "earlier run")
	require.NoError(t, os.Rename(aside, memory))
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
