package systemd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// hang guards what a test waits for: a guest is slow, and its host may be busy.
const hang = 90 * time.Second

// poll is how often something is looked at, mostly by a program that is started for it.
const poll = 200 * time.Millisecond

// What the test outside has put there, and where the unit's first lines say it goes.
const (
	program, installed = "/oxpd", "/usr/sbin/oxpd"
	shipped, unit      = "/oxpd.service", "/etc/systemd/system/oxpd.service"
	config             = "/etc/oxpd/oxpd.yaml"
)

// run runs a program and returns its standard output.
func run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := try(args...)
	require.NoError(t, err, "%s\n%s", strings.Join(args, " "), journal())
	return out
}

// try is run for what may be refused; what it said is in the error.
func try(args ...string) (string, error) {
	var out, said bytes.Buffer
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%w: %s", err, &said)
	}
	return out.String(), nil
}

// journal is the end of the service's log.
func journal() string {
	out, err := try("journalctl", "--no-pager", "-o", "cat", "-n", "40", "-u", "oxpd")
	return fmt.Sprint(out, err)
}

// property is one of the unit's as it is now.
func property(t *testing.T, name string) string {
	t.Helper()
	return strings.TrimSpace(run(t, "systemctl", "show", "oxpd", "--value", "-p", name))
}

func number(t *testing.T, name string) int {
	t.Helper()
	n, err := strconv.Atoi(property(t, name))
	require.NoError(t, err, name)
	return n
}

// install copies a file with its permissions, in the place of what was there: the old
// one goes on for who has it open, as with install(1).
func install(t *testing.T, from, to string, mode os.FileMode, more ...byte) {
	t.Helper()
	b, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
	require.NoError(t, os.WriteFile(to+".new", append(b, more...), mode))
	require.NoError(t, os.Rename(to+".new", to))
}

// configure writes the configuration.
func configure(t *testing.T, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(config, []byte(text), 0o644))
}

// link is an interface, as far as a restart must leave it alone.
type link struct {
	Index   int    `json:"ifindex"`
	Name    string `json:"ifname"`
	MTU     int    `json:"mtu"`
	Master  string `json:"master"`
	Address string `json:"address"`
	State   string `json:"operstate"`
}

// kernel is what the kernel knows of the ports.
type kernel struct {
	Links     []link
	Addresses []string
	Routes    string
}

// ports reads it.
func ports(t *testing.T) (k kernel) {
	t.Helper()
	var all []link
	require.NoError(t, json.Unmarshal([]byte(run(t, "ip", "-j", "link")), &all))
	for _, l := range all {
		if strings.HasPrefix(l.Name, "oxp") {
			k.Links = append(k.Links, l)
		}
	}
	for _, line := range strings.Split(run(t, "ip", "-o", "address"), "\n") {
		if strings.Contains(line, " oxp") && !strings.Contains(line, "scope link") {
			k.Addresses = append(k.Addresses, line)
		}
	}
	k.Routes = run(t, "ip", "route") + run(t, "ip", "-6", "route", "show", "proto", "boot")
	return k
}

// status is what oxpd status says.
type status struct {
	State   string
	PortsUp int `json:"ports_up"`
	Restart struct {
		Seamless bool
		Costs    []string
	}
}

// running waits until oxpd is, and returns its process number.
func running(t *testing.T) int {
	t.Helper()
	var s status
	require.NoError(t, json.Unmarshal([]byte(run(t, "oxpd", "status", "--json", "--wait="+hang.String())), &s))
	require.Equal(t, "running", s.State)
	require.Eventually(t, func() bool { return property(t, "ActiveState") == "active" }, hang, poll, journal())
	return number(t, "MainPID")
}

// another waits until a process other than old runs.
func another(t *testing.T, old int) (pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		pid = number(t, "MainPID")
		return pid != 0 && pid != old
	}, hang, poll, journal())
	assert.Equal(t, pid, running(t), "it stays")
	return pid
}

// ended waits until the service has failed and is not started again.
func ended(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return property(t, "ActiveState") == "failed" }, hang, poll, journal())
}

// stored are the names in the service manager's store.
func stored(t *testing.T) (names []string) {
	t.Helper()
	var all []struct{ FDName string }
	out := run(t, "systemd-analyze", "fdstore", "oxpd.service", "--json=short")
	require.NoError(t, json.Unmarshal([]byte(out), &all), out)
	for _, f := range all {
		names = append(names, f.FDName)
	}
	assert.Equal(t, len(names), number(t, "NFileDescriptorStore"))
	return names
}

// stats are the counters of the card.
func stats(t *testing.T) map[string]uint64 {
	t.Helper()
	var doc struct{ Device map[string]uint64 }
	require.NoError(t, json.Unmarshal([]byte(run(t, "oxpd", "stats", "--json")), &doc))
	return doc.Device
}

// echo sends bytes along a connection to the outside, and they come back.
func echo(c io.ReadWriter, n int) error {
	want := bytes.Repeat([]byte("oxpd "), n/5+1)[:n]
	if _, err := fmt.Fprintf(c, "echo %d\n%s", n, want); err != nil {
		return err
	}
	got := make([]byte, n+len("ok\n"))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if !bytes.Equal(got, append(want, "ok\n"...)) {
		return fmt.Errorf("other bytes came back")
	}
	return nil
}
