package inside

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/netlab"
)

// hang guards what a test waits for: a guest is slow, and its host may be busy.
const hang = 90 * time.Second

// What is at the other end of oxp9's wire, outside of the guest (internal/guest).
const (
	guestAddress = "10.77.0.1/24"
	farAddress   = "10.77.0.2"
	farService   = "10.77.0.2:7"
)

// daemon is oxpd run in a network namespace of its own.
type daemon struct {
	ns      *netlab.NS
	args    []string
	process *os.Process
	socket  string
	log     string
	ended   chan error
}

// newDaemon prepares one.
func newDaemon(t *testing.T, access string, args ...string) *daemon {
	t.Helper()
	dir := t.TempDir()
	ns, err := netlab.New()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, ns.Close()) })
	require.NoError(t, ns.Sysctl("ipv6/conf/all/disable_ipv6", "1"))
	config := filepath.Join(dir, "oxpd.yaml")
	require.NoError(t, os.WriteFile(config, []byte("access: "+access+"\n"), 0o644))
	d := &daemon{ns: ns, socket: filepath.Join(dir, "s"), log: filepath.Join(dir, "log"), ended: make(chan error, 1)}
	d.args = append([]string{oxpd, "run", "--config", config, "--socket", d.socket}, args...)
	return d
}

// startDaemon starts oxpd run. It is killed with the test, if it has not ended by then.
func startDaemon(t *testing.T, access string, args ...string) *daemon {
	t.Helper()
	d := newDaemon(t, access, args...)
	log, err := os.Create(d.log)
	require.NoError(t, err)
	defer log.Close()
	cmd := exec.Command(d.args[0], d.args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, d.ns.Start(cmd))
	d.process = cmd.Process
	go func() { d.ended <- cmd.Wait() }()
	return d
}

func (d *daemon) said(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(d.log)
	require.NoError(t, err)
	return string(b)
}

// call is another oxpd.
func (d *daemon) call(t *testing.T, args ...string) []byte {
	t.Helper()
	var out, talk bytes.Buffer
	cmd := exec.Command(oxpd, append(args, "--socket", d.socket)...)
	cmd.Stdout, cmd.Stderr = &out, &talk
	require.NoError(t, cmd.Run(), "%s%s\n%s", &out, &talk, d.said(t))
	return out.Bytes()
}

// status is what oxpd status says.
type status struct {
	State   string
	PID     int
	PortsUp int `json:"ports_up"`
	Device  struct {
		Name string
		Lost uint64
	}
	Restart struct {
		Seamless bool
		Costs    []string
	}
}

func (d *daemon) status(t *testing.T, args ...string) (s status) {
	t.Helper()
	require.NoError(t, json.Unmarshal(d.call(t, append([]string{"status", "--json"}, args...)...), &s))
	return s
}

// stat is a counter of the card's.
func (d *daemon) stat(t *testing.T, name string) uint64 {
	t.Helper()
	var doc struct{ Device map[string]uint64 }
	require.NoError(t, json.Unmarshal(d.call(t, "stats", "--json"), &doc))
	v, ok := doc.Device[name]
	require.True(t, ok, name)
	return v
}

// end waits until the daemon has ended, which it does without an error.
func (d *daemon) end(t *testing.T) {
	t.Helper()
	require.NoError(t, d.over(t), d.said(t))
	links, err := d.ns.Links()
	require.NoError(t, err)
	for _, l := range links {
		assert.False(t, strings.HasPrefix(l.Name, "oxp"), "%s is still there", l.Name)
	}
}

// over waits until the daemon has ended, and returns how.
func (d *daemon) over(t *testing.T) error {
	t.Helper()
	select {
	case err := <-d.ended:
		return err
	case <-time.After(hang):
		t.Fatalf("the daemon does not end\n%s", d.said(t))
		return nil
	}
}

// far is a connection to the service outside.
type far struct {
	net.Conn
	r *bufio.Reader
}

func (d *daemon) far(t *testing.T) *far {
	t.Helper()
	var c net.Conn
	require.NoError(t, d.ns.Do(func() (err error) {
		c, err = net.DialTimeout("tcp4", farService, hang/3)
		return err
	}), d.said(t))
	require.NoError(t, c.SetDeadline(time.Now().Add(hang)))
	t.Cleanup(func() { _ = c.Close() })
	return &far{c, bufio.NewReader(c)}
}

// ask asks for something and returns the line of the answer.
func (f *far) ask(t *testing.T, format string, args ...any) string {
	t.Helper()
	_, err := fmt.Fprintf(f, format+"\n", args...)
	require.NoError(t, err)
	line, err := f.r.ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(line)
}

// refused is how many frames from the wire were longer than a LIF takes.
func (f *far) refused(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(f.ask(t, "refused"))
	require.NoError(t, err)
	return n
}

// echo sends bytes and compares what comes back.
func (f *far) echo(t *testing.T, size int) {
	t.Helper()
	b := make([]byte, size)
	rng := rand.New(rand.NewPCG(1, uint64(size)))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	_, err := fmt.Fprintf(f, "echo %d\n", size)
	require.NoError(t, err)
	sent := make(chan error, 1)
	go func() {
		_, err := f.Write(b)
		sent <- err
	}()
	back := make([]byte, size)
	_, err = io.ReadFull(f.r, back)
	require.NoError(t, err)
	require.NoError(t, <-sent)
	assert.True(t, bytes.Equal(b, back))
	line, err := f.r.ReadString('\n')
	require.NoError(t, err)
	assert.Equal(t, "ok\n", line)
}

// ping is one from the guest.
func (d *daemon) ping(bytes int) error {
	_, err := d.ns.Ping(context.Background(), netip.MustParseAddr(farAddress), bytes, 3*time.Second)
	return err
}

// drives is a daemon from its start to its end: twelve ports, pings at both MTUs and
// beyond, from both ends, TCP, a card that is lost and comes back, decoding that goes
// away, SIGTERM. dir is the function's.
func drives(t *testing.T, d *daemon, dir string, interrupts bool) {
	s := d.status(t, "--wait=90s")
	assert.Equal(t, "running", s.State)
	assert.Equal(t, filepath.Base(dir), s.Device.Name)
	require.Equal(t, 12, s.PortsUp)
	require.NoError(t, d.ns.AddAddr("oxp9", netip.MustParsePrefix(guestAddress)))
	require.NoError(t, d.ns.SetUp("oxp9", true))
	before, err := d.ns.Link("oxp9")
	require.NoError(t, err)
	require.Eventually(t, func() bool { return d.ping(56) == nil }, hang, 10*time.Millisecond, d.said(t))

	for _, m := range []struct{ mtu, fits, beyond int }{{1500, 1472, 1480}, {9000, 8972, 8973}} {
		t.Run(fmt.Sprintf("MTU %d", m.mtu), func(t *testing.T) {
			d.call(t, "mtu", "oxp9", strconv.Itoa(m.mtu))
			f := d.far(t)
			assert.NoError(t, d.ping(m.fits), "to the outside")
			assert.ErrorIs(t, d.ping(m.beyond), syscall.EMSGSIZE, "to the outside")
			refused := f.refused(t)
			assert.Equal(t, "ok", f.ask(t, "ping %d", m.fits), "from the outside")
			assert.Equal(t, refused, f.refused(t))
			assert.Equal(t, "no reply", f.ask(t, "ping %d", m.beyond), "from the outside")
			assert.Equal(t, refused+1, f.refused(t), "the LIF has refused it")
			f.echo(t, 1<<20)
		})
	}
	intr := d.stat(t, "intr_taken")
	assert.Equal(t, interrupts, intr > 0, "%d interrupts", intr)
	for _, name := range []string{"oq_lapped", "rx_resync", "rx_short", "rx_long", "rx_ghosts"} {
		assert.Zero(t, d.stat(t, name), name)
	}

	t.Run("the card goes and comes back", func(t *testing.T) {
		require.Equal(t, "ok", d.far(t).ask(t, "lose 500"))
		require.Eventually(t, func() bool {
			s := d.status(t)
			return s.Device.Lost == 1 && s.State == "running" && s.PortsUp == 12
		}, hang, 100*time.Millisecond, d.said(t))
		after, err := d.ns.Link("oxp9")
		require.NoError(t, err)
		assert.Equal(t, before.Index, after.Index, "the interface stays")
		assert.Equal(t, 9000, after.MTU)
		require.Eventually(t, func() bool { return d.ping(8972) == nil }, hang, 10*time.Millisecond, d.said(t))
		if interrupts {
			at := d.stat(t, "intr_taken")
			require.Eventually(t, func() bool { return d.ping(56) == nil && d.stat(t, "intr_taken") > at }, hang, time.Millisecond, "no interrupt comes any more")
		}
		d.far(t).echo(t, 1<<18)
	})
	// VF-9: somebody turns the decoding off. The card is as it was, and knows memory of
	// before, so that it is waited for until it was reset.
	t.Run("decoding goes away", func(t *testing.T) {
		decode(t, dir, false)
		require.Eventually(t, func() bool {
			s := d.status(t)
			return s.Device.Lost == 2 && s.State != "running"
		}, hang, 100*time.Millisecond, d.said(t))
		flr(t, dir)
		require.Eventually(t, func() bool {
			s := d.status(t)
			return s.State == "running" && s.PortsUp == 12
		}, hang, 100*time.Millisecond, d.said(t))
		require.Eventually(t, func() bool { return d.ping(8972) == nil }, hang, 10*time.Millisecond, d.said(t))
	})
	require.NoError(t, d.process.Signal(unix.SIGTERM))
	d.end(t)
}

// ends stops a daemon with SIGTERM when a stage of its bring-up begins.
func ends(t *testing.T, d *daemon, stage string) {
	t.Helper()
	require.Eventually(t, func() bool {
		return strings.Contains(d.said(t), `msg="stage begins" stage=`+stage+" ")
	}, hang, time.Millisecond, stage)
	require.NoError(t, d.process.Signal(unix.SIGTERM))
	d.end(t)
}

// stages are those of a bring-up that a SIGTERM is sent in.
var stages = []string{"device", "bus-master", "rings", "ready", "handshake", "interrupt-levels", "rpc", "platform", "netagent", "uplinks", "ports", "links"}

// TestSysfsDrives: the card by its files and by hugepages, and the outside.
func TestSysfsDrives(t *testing.T) {
	dir := card(t)
	if behindIOMMU(dir) {
		t.Skip("the IOMMU of this guest translates")
	}
	defer flr(t, dir)
	drives(t, startDaemon(t, "sysfs"), dir, false)
}

// TestSysfsEnds: SIGTERM in each stage.
func TestSysfsEnds(t *testing.T) {
	dir := card(t)
	if behindIOMMU(dir) {
		t.Skip("the IOMMU of this guest translates")
	}
	for _, stage := range stages {
		t.Run(stage, func(t *testing.T) {
			defer flr(t, dir) // whatever the card knows by then
			ends(t, startDaemon(t, "sysfs", "--debug"), stage)
		})
	}
}

// TestSysfsRemoved: the kernel is told to remove the function under oxpd, which says that
// the card is lost and goes on (VF-9).
func TestSysfsRemoved(t *testing.T) {
	dir := card(t)
	if behindIOMMU(dir) {
		t.Skip("the IOMMU of this guest translates")
	}
	d := startDaemon(t, "sysfs")
	require.Equal(t, "running", d.status(t, "--wait=90s").State)
	write(t, filepath.Join(dir, "remove"), "1")
	defer func() {
		write(t, "/sys/bus/pci/rescan", "1")
		flr(t, card(t))
	}()
	require.Eventually(t, func() bool {
		s := d.status(t)
		return s.Device.Lost == 1 && s.State == "gone"
	}, hang, 100*time.Millisecond, d.said(t))
	require.NoError(t, d.process.Signal(unix.SIGTERM))
	d.end(t)
}

// TestVFIODrives: the card through vfio-pci and an IOMMU, and the outside. Without a
// store it is refused, unless somebody accepts a reset.
func TestVFIODrives(t *testing.T) {
	bound(t)
	d := startDaemon(t, "vfio")
	select {
	case err := <-d.ended:
		require.Error(t, err)
	case <-time.After(hang):
		t.Fatalf("it is not refused\n%s", d.said(t))
	}
	assert.Contains(t, d.said(t), "what a reset does to a coprocessor that runs is on no record")
	assert.Contains(t, d.said(t), "or accept a reset: --i-accept-reset")
	d = startDaemon(t, "vfio", "--i-accept-reset")
	s := d.status(t, "--wait=90s")
	assert.False(t, s.Restart.Seamless)
	assert.Contains(t, s.Restart.Costs, "a reboot of the coprocessor: its memory ends with oxpd, and the kernel may reset the card when nobody has it open (not started by a service manager)")
	drives(t, d, card(t), true)
}

// TestVFIOEnds: SIGTERM in each stage.
func TestVFIOEnds(t *testing.T) {
	for _, stage := range stages {
		t.Run(stage, func(t *testing.T) {
			bound(t)
			ends(t, startDaemon(t, "vfio", "--i-accept-reset", "--debug"), stage)
		})
	}
}
