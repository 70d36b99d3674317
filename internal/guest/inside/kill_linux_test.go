package inside

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/guest/service"
	"oxpd/octep/csr"
	"oxpd/octep/vfio"
)

// newService prepares a daemon whose service manager is the guest's init. At the end of
// the test it is killed, if it runs, and nothing is kept.
func newService(t *testing.T, access string) *daemon {
	t.Helper()
	d := newDaemon(t, access)
	t.Cleanup(func() {
		if d.process != nil {
			_ = d.process.Kill() // it may have ended
		}
		assert.NoError(t, service.Forget())
	})
	return d
}

// serve starts it with what is kept.
func (d *daemon) serve(t *testing.T) {
	t.Helper()
	pid, err := service.Run(service.Start{NetNS: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), d.ns.File().Fd()), Log: d.log, Args: d.args})
	require.NoError(t, err)
	d.process, err = os.FindProcess(pid)
	require.NoError(t, err)
	ended := make(chan error, 1)
	d.ended = ended
	go func() {
		status, err := service.Wait(pid)
		if err == nil && status != "exit status 0" {
			err = errors.New(status)
		}
		ended <- err
	}()
}

// kill kills it, and waits until it is gone.
func (d *daemon) kill(t *testing.T) {
	t.Helper()
	require.NoError(t, d.process.Kill())
	require.ErrorContains(t, d.over(t), "killed")
}

// running waits until this process has all twelve ports up.
func (d *daemon) running(t *testing.T) status {
	t.Helper()
	s := d.status(t, "--wait=90s")
	require.Equal(t, d.process.Pid, s.PID)
	require.Equal(t, "running", s.State)
	require.Equal(t, 12, s.PortsUp)
	return s
}

// interfaces is what the kernel has of the ports, with their addresses.
func (d *daemon) interfaces(t *testing.T) string {
	t.Helper()
	links, err := d.ns.Links()
	require.NoError(t, err)
	var all []string
	require.NoError(t, d.ns.Do(func() error {
		for _, l := range links {
			i, err := net.InterfaceByName(l.Name)
			if err != nil {
				return err
			}
			addresses, err := i.Addrs()
			if err != nil {
				return err
			}
			all = append(all, fmt.Sprint(l.Index, l.Name, l.MAC, l.MTU, l.Up, l.Carrier, addresses))
		}
		return nil
	}))
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// plug gives oxp9 its address, and waits until the outside answers.
func (d *daemon) plug(t *testing.T) {
	t.Helper()
	require.NoError(t, d.ns.AddAddr("oxp9", netip.MustParsePrefix(guestAddress)))
	require.NoError(t, d.ns.SetUp("oxp9", true))
	require.Eventually(t, func() bool { return d.ping(56) == nil }, hang, 10*time.Millisecond, d.said(t))
}

// leave ends the connection at both ends, which an interface that goes away would not: the
// outside does for one that is there what it does not do beside it.
func (f *far) leave(t *testing.T) {
	t.Helper()
	require.NoError(t, f.Conn.(*net.TCPConn).CloseWrite())
	_, err := io.Copy(io.Discard, f.r)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// echoing begins to send bytes that come back, and returns when some have. What it
// returns waits for the rest, and compares.
func (f *far) echoing(t *testing.T, size int) (rest func()) {
	t.Helper()
	b := bytes.Repeat([]byte("0123456789abcde\n"), size/16)
	_, err := fmt.Fprintf(f, "stream %d\n", size)
	require.NoError(t, err)
	sent := make(chan error, 1)
	go func() {
		_, err := f.Write(b)
		sent <- err
	}()
	back := make([]byte, size)
	_, err = io.ReadFull(f.r, back[:size/16])
	require.NoError(t, err)
	return func() {
		t.Helper()
		_, err := io.ReadFull(f.r, back[size/16:])
		require.NoError(t, err)
		require.NoError(t, <-sent)
		assert.True(t, bytes.Equal(b, back))
		line, err := f.r.ReadString('\n')
		require.NoError(t, err)
		assert.Equal(t, "ok\n", line)
	}
}

// survives kills a daemon whose descriptors init keeps: idle, while a stream goes through
// the card and back, and while it takes over. One connection outlives all of it, and so do
// interfaces; the card outside has met one host, and was told the addresses of its rings
// once. Then oxpd is stopped for good: the interfaces go, the rings stay.
func survives(t *testing.T, access string) *daemon {
	d := newService(t, access)
	d.serve(t)
	s := d.running(t)
	assert.True(t, s.Restart.Seamless, "%v", s.Restart.Costs)
	d.plug(t)
	d.call(t, "mtu", "oxp9", "9000")
	f := d.far(t)
	f.echoing(t, 1<<18)()
	before, once := d.interfaces(t), f.ask(t, "once")
	assert.Contains(t, before, strings.TrimSuffix(guestAddress, "/24"))
	same := func(t *testing.T, f *far) {
		t.Helper()
		assert.Equal(t, before, d.interfaces(t))
		assert.Equal(t, once, f.ask(t, "once"))
		assert.Contains(t, d.said(t), "was on, for the process before")
		for _, name := range []string{"oq_lapped", "rx_short", "rx_long", "rx_ghosts"} {
			assert.Zero(t, d.stat(t, name), name)
		}
	}
	for _, tt := range []struct {
		name   string
		stream int // bytes under way
		early  bool
	}{{"idle", 0, false}, {"under TCP", 1 << 20, false}, {"while it takes over", 1 << 20, true}} {
		t.Run("killed "+tt.name, func(t *testing.T) {
			rest := func() {}
			if tt.stream > 0 {
				rest = f.echoing(t, tt.stream)
			}
			d.kill(t)
			if tt.early {
				const opened = `msg="stage done" stage=device`
				n := strings.Count(d.said(t), opened)
				d.serve(t)
				require.Eventually(t, func() bool { return strings.Count(d.said(t), opened) > n }, hang, time.Millisecond, d.said(t))
				d.kill(t)
			}
			d.serve(t)
			rest()
			s := d.running(t)
			assert.True(t, s.Restart.Seamless, "%v", s.Restart.Costs)
			require.NoError(t, d.ping(8972))
			same(t, f)
		})
	}
	t.Run("ended by a signal", func(t *testing.T) {
		require.NoError(t, d.process.Signal(unix.SIGTERM))
		require.NoError(t, d.over(t), d.said(t))
		assert.Equal(t, before, d.interfaces(t))
		d.serve(t)
		d.running(t)
		f.echoing(t, 1<<18)()
		same(t, f)
	})
	t.Run("stopped for good", func(t *testing.T) {
		f.leave(t)
		out := string(d.call(t, "stop"))
		d.end(t)
		assert.NotContains(t, out, "reboot the coprocessor")
		d.serve(t)
		d.running(t)
		d.plug(t)
		l, err := d.ns.Link("oxp9")
		require.NoError(t, err)
		assert.Equal(t, 9000, l.MTU, "the LIF has it")
		f := d.far(t)
		f.echoing(t, 1<<18)()
		before = d.interfaces(t) // made anew
		same(t, f)
		f.leave(t)
	})
	return d
}

// TestSysfsKilled: by files of sysfs and hugepages.
func TestSysfsKilled(t *testing.T) {
	dir := card(t)
	if behindIOMMU(dir) {
		t.Skip("the IOMMU of this guest translates")
	}
	defer flr(t, dir)
	d := survives(t, "sysfs")
	d.call(t, "stop")
	d.end(t)
	names, err := service.Names()
	require.NoError(t, err)
	assert.Empty(t, names)
}

// TestVFIOKilled: by vfio, where nothing may reset the card and nobody has accepted that:
// init keeps the last descriptor also when oxpd is stopped.
func TestVFIOKilled(t *testing.T) {
	for _, form := range forms(t) {
		t.Run(string(form), func(t *testing.T) { killedByVFIO(t, form) })
	}
}

// forms are those that the kernel has.
func forms(t *testing.T) []vfio.Form {
	card(t) // skips on the host
	if _, err := os.Stat("/dev/iommu"); err != nil {
		return []vfio.Form{vfio.GroupForm}
	}
	return []vfio.Form{vfio.GroupForm, vfio.CdevForm}
}

func killedByVFIO(t *testing.T, form vfio.Form) {
	h, address := bound(t)
	dir := card(t)
	if form == vfio.CdevForm { // oxpd takes it where the kernel has no groups
		require.NoError(t, os.Remove(filepath.Join("/dev/vfio", find(t, h, address).IOMMU.Group)))
	}
	d := survives(t, "vfio")
	intr := d.stat(t, "intr_taken")
	require.Eventually(t, func() bool { return d.ping(56) == nil && d.stat(t, "intr_taken") > intr }, hang, time.Millisecond, "no interrupt comes")
	d.call(t, "stop")
	d.end(t)
	names, err := service.Names()
	require.NoError(t, err)
	want := vfio.Kept()
	if form == vfio.CdevForm {
		want = slices.DeleteFunc(want, func(n string) bool { return n == vfio.KeptGroup })
	}
	assert.Equal(t, want, names)
	assert.True(t, busMaster(t, dir), "the card may write to its rings")
	_, _, err = h.Unbind(address)
	assert.ErrorContains(t, err, "another process drives the card", "the kernel would wait for ever")
	require.NoError(t, service.Forget())
	assert.False(t, busMaster(t, dir), "nobody has it open")
}

// busMaster reads the command register by sysfs.
func busMaster(t *testing.T, dir string) bool {
	t.Helper()
	config, err := os.ReadFile(filepath.Join(dir, "config"))
	require.NoError(t, err)
	return config[csr.CfgCommand]&csr.CfgCommandBusMaster != 0
}
