package systemd

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/octep/vfio"
)

// farService is outside of the guest, on oxp9's wire (internal/guest).
const farService = "10.77.0.2:7"

// TestUnit is the life of the service, one thing after the other: each goes on where the
// one before it has ended. First the card is reached by its files and hugepages, then by
// vfio.
func TestUnit(t *testing.T) {
	if os.Getenv("OXPD_IN_GUEST") == "" {
		t.Skip("runs in the guest of internal/guest")
	}
	t.Log(strings.SplitN(run(t, "systemctl", "--version"), "\n", 2)[0])
	l := &life{names: ofPorts()}
	for _, tt := range []struct {
		name string
		do   func(t *testing.T)
	}{
		{"installed as the guide says", l.installs},
		{"kill -9", l.unnoticed(l.killed)},
		{"systemctl restart with another binary", l.unnoticed(l.upgraded)},
		{"systemctl stop and start", l.unnoticed(l.stopped)},
		{"systemctl reload", l.unnoticed(l.reloaded)},
		{"watchdog", l.unnoticed(l.hung)},
		{"memory that is missing", l.unnoticed(l.memoryMissing)},
		{"a record that is damaged", l.unnoticed(l.recordDamaged)},
		{"a configuration that is wrong", l.unnoticed(l.configWrong)},
		{"console", l.unnoticed(l.console)},
		{"hardening", hardened},
		{"oxpd stop", l.ends},
		{"access: vfio", l.vfio},
		{"kill -9 with vfio", l.unnoticed(l.killed)},
		{"systemctl stop and start with vfio", l.unnoticed(l.stopped)},
		{"oxpd stop with vfio", l.ends},
	} {
		require.True(t, t.Run(tt.name, tt.do), "what comes next goes on with it")
	}
}

// life is what the tests of the service go on with.
type life struct {
	names  []string // in the store while oxpd runs
	lasts  []string // in the store after oxpd stop
	before kernel   // what the kernel had of the ports before anything happened
	flow   net.Conn // to the outside, since then
}

// ofPorts are the names that the store has of any card.
func ofPorts() []string {
	all := []string{"state"}
	for i := range 12 {
		all = append(all, fmt.Sprintf("tap oxp%d", i+1))
	}
	return all
}

// unnoticed is something that happens to oxpd, after which it runs, and nobody else has
// noticed.
func (l *life) unnoticed(do func(t *testing.T)) func(t *testing.T) {
	return func(t *testing.T) {
		require.NotZero(t, number(t, "MainPID"), "it runs") // 0 would be the whole group of this process
		do(t)
		assert.Equal(t, l.before, ports(t))
		assert.ElementsMatch(t, l.names, stored(t))
		assert.NoError(t, echo(l.flow, 100_000), "the connection of before")
		counts := stats(t)
		for _, name := range []string{"oq_lapped", "rx_resync", "rx_short", "rx_long", "rx_ghosts"} {
			require.Contains(t, counts, name)
			assert.Zero(t, counts[name], name)
		}
	}
}

// installs does what the unit's first lines say.
func (l *life) installs(t *testing.T) {
	install(t, program, installed, 0o755)
	install(t, shipped, unit, 0o644)
	install(t, "/dev/null", config, 0o644)
	run(t, "systemctl", "daemon-reload")
	run(t, "systemd-analyze", "verify", unit)
	run(t, "systemctl", "enable", "--now", "oxpd")
	running(t)
	run(t, "ip", "link", "add", "br0", "up", "type", "bridge")
	assert.ElementsMatch(t, l.names, stored(t))
	l.used(t)
}

// used gives ports what an administrator would, and connects to the outside.
func (l *life) used(t *testing.T) {
	for _, line := range []string{
		"link set oxp3 master br0",
		"link set oxp3 up",
		"address add 10.77.0.1/24 dev oxp9",
		"address add fd77::1/64 dev oxp9 nodad",
		"link set oxp9 up",
		"route add 10.78.0.0/16 via 10.77.0.2 dev oxp9",
	} {
		run(t, append([]string{"ip"}, strings.Fields(line)...)...)
	}
	run(t, "oxpd", "mtu", "oxp9", "9000")
	run(t, "oxpd", "mtu", "oxp3", "3000")
	var err error
	require.Eventually(t, func() bool {
		l.flow, err = net.DialTimeout("tcp4", farService, 5*time.Second)
		return err == nil
	}, hang, poll, "%v", err)
	require.NoError(t, l.flow.SetDeadline(time.Now().Add(5*hang)))
	require.NoError(t, echo(l.flow, 100_000))
	l.before = ports(t)
}

func (l *life) killed(t *testing.T) {
	pid, restarts := number(t, "MainPID"), number(t, "NRestarts")
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	another(t, pid)
	assert.Equal(t, restarts+1, number(t, "NRestarts"))
}

// upgraded: the bytes of the program are others, and what runs is the new file.
func (l *life) upgraded(t *testing.T) {
	pid := number(t, "MainPID")
	install(t, program, installed, 0o755, '\n')
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	require.NoError(t, err)
	require.Equal(t, installed+" (deleted)", exe)
	run(t, "systemctl", "restart", "oxpd")
	exe, err = os.Readlink(fmt.Sprintf("/proc/%d/exe", another(t, pid)))
	require.NoError(t, err)
	assert.Equal(t, installed, exe)
}

// stopped: interfaces stay while there is no oxpd, also when systemd itself begins anew.
func (l *life) stopped(t *testing.T) {
	run(t, "systemctl", "stop", "oxpd")
	assert.Equal(t, "inactive", property(t, "ActiveState"))
	run(t, "systemctl", "daemon-reload")
	run(t, "systemctl", "daemon-reexec")
	assert.Equal(t, l.before, ports(t))
	assert.ElementsMatch(t, l.names, stored(t))
	run(t, "systemctl", "start", "oxpd")
	running(t)
}

// reloaded: what is right is put into force, what is wrong is refused, in words.
func (l *life) reloaded(t *testing.T) {
	pid := number(t, "MainPID")
	mtu := func(name string) int {
		all := ports(t).Links
		return all[slices.IndexFunc(all, func(l link) bool { return l.Name == name })].MTU
	}
	for _, want := range []int{4000, 3000} {
		configure(t, fmt.Sprintf("ports:\n  oxp3:\n    mtu: %d\n", want))
		run(t, "systemctl", "reload", "oxpd")
		assert.Eventually(t, func() bool { return mtu("oxp3") == want }, hang, poll, journal())
	}
	configure(t, "ports: nonsense\n")
	_, err := try("systemctl", "reload", "oxpd")
	assert.Error(t, err, "a file that is wrong")
	configure(t, "")
	run(t, "systemctl", "reload", "oxpd")
	assert.Equal(t, pid, number(t, "MainPID"))
}

// hung: a process that takes no turn any more is ended and started again.
func (l *life) hung(t *testing.T) {
	pid, restarts := number(t, "MainPID"), number(t, "NRestarts")
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	another(t, pid)
	assert.Equal(t, restarts+1, number(t, "NRestarts"))
	assert.Contains(t, run(t, "journalctl", "--no-pager", "-o", "cat", "-u", "oxpd"), "SIGABRT: abort", "and says where everything was")
}

// refusedOnce: the service was started with something that no start cures, and is not
// started again.
func (l *life) refusedOnce(t *testing.T, restarts int) {
	t.Helper()
	ended(t)
	assert.Equal(t, 3, number(t, "ExecMainStatus"))
	assert.Equal(t, restarts, number(t, "NRestarts"))
	time.Sleep(time.Second) // ten times the pause before a restart
	assert.Equal(t, restarts, number(t, "NRestarts"))
	assert.Equal(t, "failed", property(t, "ActiveState"))
	after := ports(t)
	assert.Equal(t, l.before.Addresses, after.Addresses)
	assert.Equal(t, l.before.Routes, after.Routes)
	assert.ElementsMatch(t, l.names, stored(t))
}

// memoryMissing: killed, and the start after it does not find the rings.
func (l *life) memoryMissing(t *testing.T) {
	pid, restarts := number(t, "MainPID"), number(t, "NRestarts")
	found, err := filepath.Glob("/dev/hugepages/oxpd-*")
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.NoError(t, os.Rename(found[0], "/dev/hugepages/away"))
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	l.refusedOnce(t, restarts+1)
	require.NoError(t, os.Rename("/dev/hugepages/away", found[0]))
	run(t, "systemctl", "start", "oxpd")
	running(t)
}

// recordDamaged: what the process before has left with systemd cannot be read.
func (l *life) recordDamaged(t *testing.T) {
	run(t, "systemctl", "stop", "oxpd")
	f := record(t)
	defer f.Close()
	whole, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	damaged := slices.Repeat([]byte{0x55}, len(whole))
	_, err = f.WriteAt(damaged, 0)
	require.NoError(t, err)
	_, err = try("systemctl", "start", "oxpd")
	require.Error(t, err)
	l.refusedOnce(t, 0)
	assert.Contains(t, journal(), "no whole copy of the state")
	_, err = f.WriteAt(whole, 0)
	require.NoError(t, err)
	run(t, "systemctl", "start", "oxpd")
	running(t)
}

// record is the file in memory that systemd keeps, through systemd's descriptor of it.
func record(t *testing.T) *os.File {
	t.Helper()
	all, err := filepath.Glob("/proc/1/fd/*")
	require.NoError(t, err)
	for _, path := range all {
		if to, err := os.Readlink(path); err == nil && strings.HasPrefix(to, "/memfd:oxpd-state") {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			require.NoError(t, err)
			return f
		}
	}
	t.Fatal("systemd has no such file")
	return nil
}

// configWrong: each start fails at once, until the limit ends that, and what is kept
// stays kept. The limit of the unit is ten starts in a minute, which a slow guest does
// not come to.
func (l *life) configWrong(t *testing.T) {
	const dir = "/run/systemd/system/oxpd.service.d"
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "limit.conf"), []byte("[Unit]\nStartLimitIntervalSec=600\nStartLimitBurst=3\n"), 0o644))
	run(t, "systemctl", "daemon-reload")
	run(t, "systemctl", "reset-failed", "oxpd")
	configure(t, "ports: nonsense\n")
	pid, restarts := number(t, "MainPID"), number(t, "NRestarts")
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	ended(t)
	assert.Equal(t, 2, number(t, "ExecMainStatus"))
	assert.Equal(t, restarts+3+1, number(t, "NRestarts"), "three, and one that was not let begin")
	assert.Equal(t, l.before.Addresses, ports(t).Addresses)
	assert.ElementsMatch(t, l.names, stored(t))
	configure(t, "")
	_, err := try("systemctl", "start", "oxpd")
	assert.Error(t, err, "the limit also keeps a hand from it")
	require.NoError(t, os.RemoveAll(dir))
	run(t, "systemctl", "daemon-reload")
	run(t, "systemctl", "reset-failed", "oxpd")
	run(t, "systemctl", "start", "oxpd")
	running(t)
}

// console: the service sees who else has a serial port open, and may open it.
func (l *life) console(t *testing.T) {
	const port = "/dev/ttyS2"
	configure(t, "switch: {console: "+port+"}\n")
	f, err := os.OpenFile(port, os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	defer f.Close()
	run(t, "systemctl", "restart", "oxpd")
	pid := running(t)
	_, err = try("oxpd", "switch", "show")
	assert.ErrorContains(t, err, fmt.Sprintf("another process has it open: process %d ", os.Getpid()))
	require.NoError(t, f.Close())
	show := exec.Command("oxpd", "switch", "show") // nobody answers on this line
	require.NoError(t, show.Start())
	opened := func() bool {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		require.NoError(t, err)
		return slices.ContainsFunc(files, func(f string) bool {
			to, err := os.Readlink(f)
			return err == nil && to == port
		})
	}
	assert.Eventually(t, opened, hang/3, poll, journal())
	configure(t, "")
	run(t, "systemctl", "restart", "oxpd")
	assert.Error(t, show.Wait(), "it has ended with oxpd")
	running(t)
}

// hardened records what systemd thinks of the unit.
func hardened(t *testing.T) {
	out := run(t, "systemd-analyze", "security", "oxpd.service", "--no-pager")
	_, score, ok := strings.Cut(out, "Overall exposure level for oxpd.service: ")
	require.True(t, ok, out)
	assert.Equal(t, "2.9 OK :-)", strings.TrimSpace(score), "docs/guides/systemd.md has it\n%s", out)
}

// ends: the one end that removes interfaces. The card goes on, in hugetlbfs or in the
// store, and the next start needs no reboot of it.
func (l *life) ends(t *testing.T) {
	run(t, "oxpd", "stop")
	require.Eventually(t, func() bool { return property(t, "ActiveState") == "inactive" }, hang, poll, journal())
	assert.Empty(t, ports(t).Links)
	assert.ElementsMatch(t, l.lasts, stored(t))
	assert.Equal(t, "success", property(t, "Result"))
	run(t, "systemctl", "start", "oxpd")
	running(t)
	assert.Len(t, ports(t).Links, 12)
	assert.ElementsMatch(t, l.names, stored(t))
}

// vfio: the coprocessor is rebooted, and reached another way, by the files that the guide
// has for it.
func (l *life) vfio(t *testing.T) {
	run(t, "oxpd", "stop")
	found, err := filepath.Glob("/sys/bus/pci/devices/*/vendor")
	require.NoError(t, err)
	var dir string
	for _, f := range found {
		if b, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(b)) == fmt.Sprintf("0x%04x", board.Vendor) {
			dir = filepath.Dir(f)
		}
	}
	require.NotEmpty(t, dir)
	for _, w := range []struct{ path, text string }{
		{filepath.Join(dir, "reset_method"), "flr"},
		{filepath.Join(dir, "reset"), "1"},
		{"/etc/tmpfiles.d/oxpd.conf", "w " + filepath.Join(dir, "reset_method") + ` - - - - \n`},
		{unit + ".d/vfio.conf", "[Service]\nExecStartPre=/usr/sbin/oxpd bind\n"},
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(w.path), 0o755))
		require.NoError(t, os.WriteFile(w.path, []byte(w.text), 0o644))
	}
	run(t, "systemd-tmpfiles", "--create", "/etc/tmpfiles.d/oxpd.conf")
	run(t, "systemctl", "daemon-reload")
	configure(t, "access: vfio\n")
	run(t, "systemctl", "start", "oxpd")
	running(t)
	l.lasts = vfio.Kept()
	l.names = append(ofPorts(), l.lasts...)
	assert.ElementsMatch(t, l.names, stored(t))
	l.used(t)
	assert.NotZero(t, stats(t)["intr_taken"])
}
