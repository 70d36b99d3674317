package systemd

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// farService is outside of the guest, on oxp9's wire (internal/guest).
const farService = "10.77.0.2:7"

// TestUnit: the card by its files and by hugepages. It is the life of the service, one thing after the other: each goes on where
// the one before it has ended.
func TestUnit(t *testing.T) {
	if os.Getenv("OXPD_IN_GUEST") == "" {
		t.Skip("runs in the guest of internal/guest")
	}
	version := run(t, "systemctl", "--version")
	t.Log(strings.SplitN(version, "\n", 2)[0])

	require.True(t, t.Run("installed as the guide says", installs))
	before := ports(t)
	var flow net.Conn
	t.Run("traffic", func(t *testing.T) {
		var err error
		require.Eventually(t, func() bool {
			flow, err = net.DialTimeout("tcp4", farService, 5*time.Second)
			return err == nil
		}, hang, poll, "%v", err)
		require.NoError(t, flow.SetDeadline(time.Now().Add(3*hang)))
		require.NoError(t, echo(flow, 100_000))
	})
	// same: whatever happened, nobody else has noticed.
	same := func(t *testing.T) {
		t.Helper()
		assert.Equal(t, before, ports(t))
		assert.Equal(t, names(), stored(t))
		require.NotNil(t, flow)
		assert.NoError(t, echo(flow, 100_000), "the connection of before")
		for _, name := range []string{"oq_lapped", "rx_resync", "rx_short", "rx_long", "rx_ghosts"} {
			assert.Zero(t, stat(t, name), name)
		}
	}
	for _, tt := range []struct {
		name string
		do   func(t *testing.T)
	}{
		{"kill -9", killed},
		{"systemctl restart with another binary", upgraded},
		{"systemctl stop and start", func(t *testing.T) { stopped(t, before) }},
		{"systemctl reload", reloaded},
		{"watchdog", hung},
		{"memory that is missing", func(t *testing.T) { memoryMissing(t, before) }},
		{"a record that is damaged", func(t *testing.T) { recordDamaged(t, before) }},
		{"a configuration that is wrong", func(t *testing.T) { configWrong(t, before) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.NotZero(t, number(t, "MainPID"), "it runs") // 0 would be the whole group of this process
			tt.do(t)
			same(t)
		})
	}
	t.Run("hardening", hardened)
	t.Run("oxpd stop", ends)
}

// names are what the store has.
func names() []string {
	all := []string{"state"}
	for i := range 12 {
		all = append(all, fmt.Sprintf("tap oxp%d", i+1))
	}
	slices.Sort(all)
	return all
}

// installs does what the unit's first lines say, and gives ports what an administrator
// would.
func installs(t *testing.T) {
	install(t, program, installed, 0o755)
	install(t, shipped, unit, 0o644)
	install(t, "/dev/null", config, 0o644)
	run(t, "systemctl", "daemon-reload")
	run(t, "systemd-analyze", "verify", unit)
	run(t, "systemctl", "enable", "--now", "oxpd")
	running(t)
	assert.Equal(t, names(), stored(t))
	for _, line := range []string{
		"link add br0 type bridge",
		"link set br0 up",
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
	require.Eventually(t, func() bool {
		return !slices.ContainsFunc(ports(t).Links, func(l link) bool { return l.Name == "oxp9" && l.State != "UP" })
	}, hang, poll)
}

func killed(t *testing.T) {
	pid := number(t, "MainPID")
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	another(t, pid)
	assert.Equal(t, 1, number(t, "NRestarts"))
}

// upgraded: the bytes of the program are others, and what runs is the new file.
func upgraded(t *testing.T) {
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
func stopped(t *testing.T, before kernel) {
	run(t, "systemctl", "stop", "oxpd")
	assert.Equal(t, "inactive", property(t, "ActiveState"))
	run(t, "systemctl", "daemon-reload")
	run(t, "systemctl", "daemon-reexec")
	assert.Equal(t, before, ports(t))
	assert.Equal(t, names(), stored(t))
	run(t, "systemctl", "start", "oxpd")
	running(t)
}

// reloaded: what is right is put into force, what is wrong is refused, in words.
func reloaded(t *testing.T) {
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
func hung(t *testing.T) {
	pid, restarts := number(t, "MainPID"), number(t, "NRestarts")
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	another(t, pid)
	assert.Equal(t, restarts+1, number(t, "NRestarts"))
	assert.Contains(t, run(t, "journalctl", "--no-pager", "-o", "cat", "-u", "oxpd"), "SIGABRT: abort", "and says where everything was")
}

// refusedOnce: the service was started with something that no start cures, and is not
// started again.
func refusedOnce(t *testing.T, restarts int, before kernel) {
	t.Helper()
	ended(t)
	assert.Equal(t, 3, number(t, "ExecMainStatus"))
	assert.Equal(t, restarts, number(t, "NRestarts"))
	time.Sleep(time.Second) // ten times the pause before a restart
	assert.Equal(t, restarts, number(t, "NRestarts"))
	assert.Equal(t, "failed", property(t, "ActiveState"))
	after := ports(t)
	assert.Equal(t, before.Addresses, after.Addresses)
	assert.Equal(t, before.Routes, after.Routes)
	assert.Equal(t, names(), stored(t))
}

// memoryMissing: killed, and the start after it does not find the rings.
func memoryMissing(t *testing.T, before kernel) {
	pid, restarts := number(t, "MainPID"), number(t, "NRestarts")
	found, err := filepath.Glob("/dev/hugepages/oxpd-*")
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.NoError(t, os.Rename(found[0], "/dev/hugepages/away"))
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	refusedOnce(t, restarts+1, before)
	require.NoError(t, os.Rename("/dev/hugepages/away", found[0]))
	run(t, "systemctl", "start", "oxpd")
	running(t)
}

// recordDamaged: what the process before has left with systemd cannot be read.
func recordDamaged(t *testing.T, before kernel) {
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
	refusedOnce(t, 0, before)
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
func configWrong(t *testing.T, before kernel) {
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
	assert.Equal(t, before.Addresses, ports(t).Addresses)
	assert.Equal(t, names(), stored(t))
	configure(t, "")
	_, err := try("systemctl", "start", "oxpd")
	assert.Error(t, err, "the limit also keeps a hand from it")
	run(t, "systemctl", "reset-failed", "oxpd")
	run(t, "systemctl", "start", "oxpd")
	running(t)
}

// hardened records what systemd thinks of the unit.
func hardened(t *testing.T) {
	out := run(t, "systemd-analyze", "security", "oxpd.service", "--no-pager")
	_, score, ok := strings.Cut(out, "Overall exposure level for oxpd.service: ")
	require.True(t, ok, out)
	assert.Equal(t, "2.2 OK :-)", strings.TrimSpace(score), "docs/guides/systemd.md has it\n%s", out)
}

// ends: the one end that removes interfaces.
func ends(t *testing.T) {
	run(t, "oxpd", "stop")
	require.Eventually(t, func() bool { return property(t, "ActiveState") == "inactive" }, hang, poll, journal())
	assert.Empty(t, ports(t).Links)
	assert.Empty(t, stored(t))
	assert.Equal(t, "success", property(t, "Result"))
	// The card goes on in hugetlbfs: the next start needs no reboot of it.
	run(t, "systemctl", "start", "oxpd")
	running(t)
	assert.Len(t, ports(t).Links, 12)
	assert.Equal(t, names(), stored(t))
}
