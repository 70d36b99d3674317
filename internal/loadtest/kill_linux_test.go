package loadtest

import (
	"context"
	"fmt"
	"math/rand"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/fdstore/fdtest"
	"oxpd/internal/netlab"
	"oxpd/octep/vfiouser"
)

// What a bring-up writes to the base addresses of eight output rings and one input
// ring: 0 to both halves of each of eight rings, then the addresses of nine.
const basesWritten = 2*8 + 9

// service is oxpd as a service of a service manager that keeps its descriptors, on a card
// that is a process of its own.
type service struct {
	t         *testing.T
	exe       string
	card      string // socket
	host, far *netlab.NS
	manager   *fdtest.Manager
	client    *client.Client
	log       *buffer
	cardLog   *buffer
	served    *exec.Cmd
	cmd       *exec.Cmd // the life of oxpd that runs
}

// killPorts are a cage and a port behind the switch.
func killPorts() []board.Port { return []board.Port{board.ByIndex(8), board.ByIndex(0)} }

func newService(t *testing.T) *service {
	t.Helper()
	s := prepareService(t)
	s.serveCard()
	return s
}

// prepareService is newService without a card.
func prepareService(t *testing.T) *service {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces and TAP interfaces")
	}
	dir := t.TempDir()
	s := &service{t: t, exe: program(), card: filepath.Join(dir, "card"), host: newNS(t), far: newNS(t), log: &buffer{}, cardLog: &buffer{}}
	var err error
	s.manager, err = fdtest.New(dir, 64)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.manager.Close()) })
	s.client = client.New(filepath.Join(dir, "oxpd.sock"))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the card's log:\n%s\noxpd's log:\n%s", s.cardLog, s.log)
		}
	})
	return s
}

// serveCard starts oxpd sim serve, with TAP interfaces in the far namespace.
func (s *service) serveCard() {
	s.t.Helper()
	ns := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), s.far.File().Fd())
	args := []string{"sim", "serve", "--vfio-user", s.card}
	for _, p := range killPorts() {
		args = append(args, "--wire", fmt.Sprintf("%s=tap:%s@%s", p.Label, p.Label, ns))
	}
	ready := &buffer{}
	s.served = exec.Command(s.exe, args...)
	s.served.Stdout, s.served.Stderr = ready, s.cardLog
	require.NoError(s.t, s.served.Start())
	s.t.Cleanup(func() { _ = s.endCard() })
	s.wait("the card is ready", func() bool { return ready.String() == "ready\n" })
}

// endCard ends the card and waits for its last words.
func (s *service) endCard() error {
	if s.served == nil {
		return nil
	}
	served := s.served
	s.served = nil
	_ = served.Process.Signal(unix.SIGTERM) // it may have ended
	return served.Wait()
}

// start begins a life of oxpd, which ends with the test at the latest.
func (s *service) start() {
	s.t.Helper()
	s.begin("vfio-user:" + s.card)
}

// begin is start on a card that is asked for by its name, or by --sim.
func (s *service) begin(device string) {
	s.t.Helper()
	args := []string{"run", "--socket", s.client.Socket(), "--device", device}
	if device == "--sim" {
		args = append(args[:3], device)
	}
	s.cmd = exec.Command(s.exe, args...)
	s.cmd.Stderr = s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	require.NoError(s.t, s.host.Do(func() error { return s.manager.Start(s.cmd) }))
	cmd := s.cmd
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has ended, but for the last
		_ = cmd.Wait()
	})
}

// end ends this life by a signal.
func (s *service) end(signal os.Signal) error {
	require.NoError(s.t, s.cmd.Process.Signal(signal))
	return s.cmd.Wait()
}

// status is nil while nobody answers.
func (s *service) status() *client.Status {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	st, err := s.client.Status(ctx)
	if err != nil {
		return nil
	}
	return st
}

func (s *service) awaitRunning() *client.Status {
	s.t.Helper()
	var st *client.Status
	s.wait("oxpd runs", func() bool {
		st = s.status()
		return st != nil && st.State == client.StateRunning && st.PID == s.cmd.Process.Pid
	})
	require.Equal(s.t, board.Ports, st.PortsUp, "%v", st.Warnings)
	return st
}

func (s *service) wait(what string, cond func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(hang); !cond(); time.Sleep(poll) {
		if time.Now().After(deadline) {
			s.t.Fatalf("never: %s", what)
		}
	}
}

// plug gives both ends of each wire an address.
func (s *service) plug() {
	s.t.Helper()
	for _, p := range killPorts() {
		require.NoError(s.t, s.host.AddAddr(p.Name, netip.PrefixFrom(hostAddr(p), prefixBits)))
		require.NoError(s.t, s.far.AddAddr(p.Label, netip.PrefixFrom(farAddr(p), prefixBits)))
		require.NoError(s.t, s.host.SetUp(p.Name, true))
		require.NoError(s.t, s.far.SetUp(p.Label, true))
	}
	s.pings("after the first start")
}

// pings waits until the far sides of both ports answer.
func (s *service) pings(when string) {
	s.t.Helper()
	for _, p := range killPorts() {
		s.wait(fmt.Sprintf("%s: %s answers", when, p), func() bool {
			_, err := s.host.Ping(context.Background(), farAddr(p), smallPing, answer/120)
			return err == nil
		})
	}
}

// interfaces is what the kernel has of the ports, with addresses and routes.
func (s *service) interfaces() string {
	s.t.Helper()
	var all strings.Builder
	for _, args := range [][]string{{"-o", "addr"}, {"route"}} {
		cmd := exec.Command("ip", args...)
		cmd.Stdout, cmd.Stderr = &all, &all
		require.NoError(s.t, s.host.Do(cmd.Run))
	}
	return all.String()
}

// memory is how many bytes the present life has that the card knows.
func (s *service) memory() int {
	s.t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid)
	open, err := os.ReadDir(dir)
	require.NoError(s.t, err)
	for _, fd := range open {
		at := filepath.Join(dir, fd.Name())
		if name, _ := os.Readlink(at); strings.HasPrefix(name, "/memfd:oxpd-memory") {
			fi, err := os.Stat(at)
			require.NoError(s.t, err)
			return int(fi.Size())
		}
	}
	s.t.Fatal("no file of its memory")
	return 0
}

// load sends in both directions until it is stopped; what it returns stops it, and
// returns what was moved once every byte has been compared.
func (s *service) load() (stop func() int64) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	type result struct {
		bytes int64
		err   error
	}
	done := make(chan result)
	ports := killPorts()
	for i, p := range ports {
		reverse := i == 1
		stream, err := netlab.Connect(ctx, s.host, s.far, farAddr(p), reverse)
		require.NoError(s.t, err)
		go func() {
			var r result
			for ctx.Err() == nil && r.err == nil {
				var one netlab.Transfer
				one, r.err = stream.Send(context.Background(), 1<<20)
				r.bytes += one.Bytes
			}
			if err := stream.Close(); r.err == nil {
				r.err = err
			}
			done <- r
		}()
	}
	return func() (bytes int64) {
		cancel()
		for range ports {
			select {
			case r := <-done:
				assert.NoError(s.t, r.err)
				bytes += r.bytes
			case <-time.After(hang):
				s.t.Fatal("a stream stands still")
			}
		}
		return bytes
	}
}

// The daemon is killed a hundred times under load (25 times under the race detector), and traffic goes on each time: the
// card has met one host, the kernel one set of interfaces. Some deaths come right after
// the start, in the middle of the taking over.
func TestKilledUnderLoad(t *testing.T) {
	s := newService(t)
	s.start()
	st := s.awaitRunning()
	require.True(t, st.Restart.Seamless, "%v", st.Restart.Costs)
	s.plug()
	before, memory := s.interfaces(), s.memory()
	stop := s.load()
	r := rand.New(rand.NewSource(1))
	began := time.Now()
	for i := range kills {
		time.Sleep(time.Duration(r.Intn(int(100 * time.Millisecond)))) // under load, and not always at the same place
		require.Error(t, s.end(unix.SIGKILL))
		s.start()
		if i%4 == 3 {
			time.Sleep(time.Duration(r.Intn(int(100 * time.Millisecond))))
			require.Error(t, s.end(unix.SIGKILL), "while it takes over")
			s.start()
		}
		s.pings(fmt.Sprintf("kill %d", i+1))
		if i%10 == 9 {
			s.awaitRunning()
		}
	}
	t.Logf("%d kills in %v", kills, time.Since(began))
	s.awaitRunning()
	t.Logf("%d MB moved", stop()>>20)
	assert.Equal(t, before, s.interfaces(), "nobody has noticed")
	// A life that ends while a command waits for the card may have left one buffer.
	assert.LessOrEqual(t, s.memory(), memory+2*os.Getpagesize()*2, "memory that the card knows")

	require.NoError(t, s.end(unix.SIGTERM), "an upgrade")
	assert.Equal(t, before, s.interfaces(), "it leaves everything")
	s.start()
	st = s.awaitRunning()
	assert.True(t, st.Restart.Seamless, "%v", st.Restart.Costs)
	s.pings("after SIGTERM")
	assert.Equal(t, before, s.interfaces())

	assert.Zero(t, s.manager.Told("FDSTOREREMOVE=1"), "what is kept was kept all the time")

	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	stopped, err := s.client.Stop(ctx, false)
	require.NoError(t, err)
	assert.True(t, stopped.RebootNeeded, "the memory went with it")
	require.NoError(t, s.cmd.Wait())
	s.wait("nothing is kept", func() bool { return len(s.manager.Names()) == 0 })
	s.wait("the interfaces are gone", func() bool {
		links, err := s.host.Links()
		require.NoError(t, err)
		return len(links) == 1 // lo
	})

	require.NoError(t, s.endCard())
	log := s.cardLog.String()
	assert.Contains(t, log, fmt.Sprintf("handshakes=1 base_writes=%d\n", basesWritten))
	assert.NotContains(t, log, "misuse of the card")
	assert.Equal(t, 1, strings.Count(log, "client connected"), "the card has seen one client")
}

// What cannot be taken over is refused with a status that a service manager does not
// start again after; the card goes on, and the interfaces are there.
func TestRefusedAdoption(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.start()
	s.awaitRunning()
	s.plug()
	before := s.interfaces()
	require.Error(t, s.end(unix.SIGKILL))
	names := s.manager.Names()
	s.manager.Drop(vfiouser.KeptMemory)
	for range 2 {
		s.start()
		err := s.cmd.Wait()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
		assert.Equal(t, 3, exit.ExitCode())
		assert.Contains(t, s.log.String(), "its memory was not kept")
		assert.Len(t, s.manager.Names(), len(names)-1, "what is there is kept")
		assert.Equal(t, before, s.interfaces())
	}
	assert.NotContains(t, s.cardLog.String(), "client left")
}

// Another card than the one whose rings are kept is refused, with both names, and what
// is kept stays for the one that it is of.
func TestAnotherCardIsAskedFor(t *testing.T) {
	s := newService(t)
	s.start()
	s.awaitRunning()
	s.plug()
	before := s.interfaces()
	require.Error(t, s.end(unix.SIGKILL))
	names, kept := s.manager.Names(), s.card
	for _, device := range []string{"vfio-user:" + s.card + ".other", "--sim"} {
		s.begin(device)
		guard := time.AfterFunc(hang, func() { _ = s.cmd.Process.Kill() }) // it would run for ever
		err := s.cmd.Wait()
		guard.Stop()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
		assert.Equal(t, 3, exit.ExitCode())
		assert.Contains(t, s.log.String(), "oxpd: start on "+strings.Replace(device, "--sim", "sim", 1)+": the service manager keeps the interfaces and rings of vfio-user:"+kept)
		assert.Contains(t, s.log.String(), "hint: to go on with vfio-user:"+kept)
		assert.Equal(t, names, s.manager.Names())
		assert.Equal(t, before, s.interfaces())
	}
	s.start()
	s.awaitRunning()
	s.pings("on the card that it is of")
	assert.Equal(t, before, s.interfaces())
}

// A card that has ended, with its coprocessor's boot, is no reason to lose the
// interfaces: the next start brings the next card up, and they are the same.
func TestInterfacesOutliveTheCard(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.start()
	s.awaitRunning()
	s.plug()
	before := s.interfaces()
	require.Error(t, s.end(unix.SIGKILL))
	require.NoError(t, s.endCard())
	s.serveCard()
	for _, p := range killPorts() { // the far side was the card's
		require.NoError(t, s.far.AddAddr(p.Label, netip.PrefixFrom(farAddr(p), prefixBits)))
		require.NoError(t, s.far.SetUp(p.Label, true))
	}
	s.start()
	st := s.awaitRunning()
	assert.True(t, st.Restart.Seamless, "%v", st.Restart.Costs)
	s.pings("on another card")
	assert.Equal(t, before, s.interfaces())
	s.wait("it to be said", func() bool { return strings.Contains(s.log.String(), "the card of the process before has ended") })
}
