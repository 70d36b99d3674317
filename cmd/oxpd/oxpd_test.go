package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/daemon/client"
	"oxpd/internal/sys"
)

// hang guards against hanging, by the wall clock.
const hang = 60 * time.Second

// programEnv names the program that TestMain has built.
const programEnv = "OXPD_TEST_EXE"

func program() string { return os.Getenv(programEnv) }

// sideBySide is how many tests run at a time where the command line does not say: they
// mostly wait for the programs that they started.
const sideBySide = "4"

// TestMain builds the program once for all tests.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "oxpd-test-")
	exe := filepath.Join(dir, "oxpd")
	if err == nil {
		var out []byte
		if out, err = exec.Command("go", "build", "-o", exe, ".").CombinedOutput(); err != nil {
			err = fmt.Errorf("build oxpd: %w\n%s", err, out)
		}
	}
	if err == nil {
		err = errors.Join(os.Setenv(programEnv, exe), flag.Set("test.parallel", sideBySide))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// result is one finished invocation.
type result struct {
	code     int
	out, err string
}

// oxpd runs the program to its end.
func oxpd(t *testing.T, exe string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// apart is oxpd in a network namespace of its own, so that a daemon that should
// have been refused makes no interface of this machine.
func apart(t *testing.T, exe string, args ...string) (r result) {
	t.Helper()
	if os.Getuid() != 0 || len(args) == 0 || args[0] != "run" {
		return oxpd(t, exe, args...)
	}
	ns, err := sys.NewNetNS()
	require.NoError(t, err)
	defer ns.Close()
	require.NoError(t, ns.Do(func() error { r = oxpd(t, exe, args...); return nil }))
	return r
}

func TestRunWithAFault(t *testing.T) {
	r := apart(t, program(), "run", "--sim", "--fault", "Assembly=AMDA0999-0001", "--fault", "SwitchID=0x1760", "--socket", filepath.Join(t.TempDir(), "oxpd.sock"))
	assert.Equal(t, 1, r.code)
	assert.Contains(t, r.err, `oxpd: stage platform: assembly is "AMDA0999-0001"`)
}

func TestUsage(t *testing.T) {
	exe := program()
	dir := t.TempDir()
	none := filepath.Join(dir, "none.sock")
	bad := filepath.Join(dir, "bad.yaml")
	require.NoError(t, os.WriteFile(bad, []byte("workers: 1\nwatermrk: 16\n"), 0o600))
	good := filepath.Join(dir, "good.yaml")
	require.NoError(t, os.WriteFile(good, []byte("workers: 1\n"), 0o600))
	later := filepath.Join(dir, "later.yaml")
	require.NoError(t, os.WriteFile(later, []byte("sim: {wires: {F1: 'tap:w@"+none+"'}}\n"), 0o600))
	risky := filepath.Join(dir, "risky.yaml")
	require.NoError(t, os.WriteFile(risky, []byte("ports: {oxp1: {mtu: 9000}}\n"), 0o600))
	pipe := filepath.Join(dir, "pipe")
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	long := "/" + strings.Repeat("s", 107)
	const mtuRange = "want 72 to 9000"
	for _, tc := range []struct {
		name string
		args []string
		code int
		err  string // on standard error
		out  string // on standard output
	}{
		{"no daemon names socket and command", []string{"status", "--socket", none}, 1, "hint: start it with: oxpd run --sim --socket " + none, ""},
		{"no daemon: ports", []string{"ports", "--socket", none}, 1, "no daemon answers on " + none, ""},
		{"no daemon: mtu", []string{"mtu", "oxp9", "--socket", none}, 1, none, ""},
		{"no daemon: set mtu", []string{"mtu", "oxp9", "9000", "--socket", none}, 1, none, ""},
		{"no daemon: stats", []string{"stats", "--json", "--socket", none}, 1, none, ""},
		{"no daemon: counters", []string{"counters", "--socket", none}, 1, none, ""},
		{"no daemon: stop", []string{"stop", "--socket", none}, 1, none, ""},
		{"no daemon: port", []string{"port", "oxp9", "--socket", none}, 1, none, ""},
		{"no daemon: port down", []string{"port", "down", "oxp9", "--socket", none}, 1, none, ""},
		{"port that there is not", []string{"port", "oxp13"}, 2, `unknown port "oxp13"`, ""},
		{"port that there is not, up", []string{"port", "up", "oxp13"}, 2, `unknown port "oxp13"`, ""},
		{"port without a port", []string{"port"}, 2, "oxpd: port: PORT is missing", ""},
		{"port up without a port", []string{"port", "up"}, 2, "oxpd: port up: PORT is missing", ""},
		{"port with the words the other way round", []string{"port", "oxp9", "up"}, 2, `oxpd: port: "up" is one argument too many`, ""},
		{"mtu one below", []string{"mtu", "oxp9", "71", "--socket", none}, 2, "mtu 71 is out of range: " + mtuRange, ""},
		{"mtu one above", []string{"mtu", "oxp9", "9001", "--socket", none}, 2, "mtu 9001 is out of range: " + mtuRange, ""},
		{"mtu negative is a value", []string{"mtu", "oxp9", "-1", "--socket", none}, 2, "mtu -1 is out of range: " + mtuRange, ""},
		{"mtu negative before a flag", []string{"mtu", "oxp9", "-1", "--json"}, 2, "mtu -1 is out of range: " + mtuRange, ""},
		{"mtu no number", []string{"mtu", "oxp9", "abc", "--socket", none}, 2, `mtu "abc" is not a number: ` + mtuRange, ""},
		{"mtu beyond a word", []string{"mtu", "oxp9", "99999999999999999999"}, 2, "is not a number", ""},
		{"mtu forced without a value", []string{"mtu", "oxp1", "--force"}, 2, "oxpd: mtu: --force sets a value, and there is none", ""},
		{"mtu with the switch without a value", []string{"mtu", "oxp1", "--switch"}, 2, "oxpd: mtu: --switch raises the switch for a value, and there is none", ""},
		{"switch, and nothing asked", []string{"switch"}, 0, "", "Available Commands:"},
		{"switch with an unknown command", []string{"switch", "jumb"}, 2, `unknown command "jumb" of oxpd switch`, ""},
		{"switch jumbo of nothing", []string{"switch", "jumbo"}, 2, "oxpd: switch jumbo: want --all, or --port with names", ""},
		{"switch jumbo of all and one", []string{"switch", "jumbo", "--all", "--port", "oxp1"}, 2, "want --all, or --port with names", ""},
		{"switch jumbo of a name without --port", []string{"switch", "jumbo", "--all", "oxp1"}, 2, `switch jumbo takes no arguments, and there is "oxp1"`, ""},
		{"switch jumbo of a bare number", []string{"switch", "jumbo", "--port", "9"}, 2, `port "9" of the switch: unknown: want oxp1 to oxp8, oxp11, oxp12`, ""},
		{"switch jumbo of a second bare number", []string{"switch", "jumbo", "--port", "oxp1", "9"}, 2, `port "9" of the switch`, ""},
		{"switch jumbo of the uplink", []string{"switch", "jumbo", "--port", "sw0"}, 2, "sw0 (uplink) is raised with the ports that need it, and never lowered", ""},
		{"switch jumbo of a port that is not behind it", []string{"switch", "jumbo", "--port", "oxp1,F1"}, 2, `port "F1" of the switch: oxp9 (PortF1) is not behind the switch`, ""},
		{"switch jumbo of no size", []string{"switch", "jumbo", "--all", "--size", "9000"}, 2, "--size: frame size 9000 is none of the switch's: want 1522, 2048 or 10240", ""},
		{"no daemon: switch jumbo", []string{"switch", "jumbo", "--all", "--socket", none}, 1, none, ""},
		{"no daemon: switch jumbo of names", []string{"switch", "jumbo", "--port", "oxp1", "sw9", "--socket", none}, 1, none, ""},
		{"no daemon: switch show", []string{"switch", "show", "--socket", none}, 1, none, ""},
		{"no daemon: switch restore", []string{"switch", "restore", "--socket", none}, 1, none, ""},
		{"no daemon: switch read", []string{"switch", "read", "sw9", "0x8", "--socket", none}, 1, none, ""},
		{"no daemon: switch write", []string{"switch", "write", "sw9", "4", "0x7c", "--i-know", "--socket", none}, 1, none, ""},
		{"switch read of a bare number", []string{"switch", "read", "9", "8"}, 2, `port "9" of the switch`, ""},
		{"switch read of no register", []string{"switch", "read", "sw9", "32"}, 2, `register "32": want a number from 0 to 31`, ""},
		{"switch read of half a register", []string{"switch", "read", "sw9"}, 2, "switch read: REGISTER is missing", ""},
		{"switch write of no value", []string{"switch", "write", "sw9", "8", "0x1000g"}, 2, `value "0x1000g": want a number from 0 to 65535`, ""},
		{"switch write of nobody", []string{"switch", "write", "sw9", "4", "0x7c"}, 2, "a wrong value takes ports down: want --i-know", ""},
		{"switch write of the VLAN map", []string{"switch", "write", "sw9", "6", "1", "--i-know"}, 2, "register 0x06 of oxp11 (PortF3, sw9) is never written: it keeps the front ports apart", ""},
		{"switch write of the uplink's control", []string{"switch", "write", "sw0", "0x4", "0x17f", "--i-know"}, 2, "register 0x04 of sw0 (uplink) is never written", ""},
		{"switch write of the reserved size", []string{"switch", "write", "oxp1", "8", "0x3080", "--i-know"}, 2, "has the reserved frame size", ""},
		{"mtu of an unknown port", []string{"mtu", "oxp13"}, 2, `unknown port "oxp13"`, ""},
		{"mtu of an unknown port with a value", []string{"mtu", "eth0", "1500"}, 2, `unknown port "eth0"`, ""},
		{"stats of an unknown port", []string{"stats", "PortF5"}, 2, `unknown port "PortF5"`, ""},
		{"stats of the rings of a port", []string{"stats", "PortF1", "--rings"}, 2, "--rings is about the device: it takes no PORT", ""},
		{"stats of the instruments of a port", []string{"stats", "PortF1", "--instruments"}, 2, "--instruments is about the device: it takes no PORT", ""},
		{"stats of two documents", []string{"stats", "--rings", "--instruments"}, 2, "ask for one", ""},
		{"mtu without a port", []string{"mtu"}, 2, "hint: usage: oxpd mtu PORT [VALUE]", ""},
		{"mtu with too much", []string{"mtu", "oxp9", "1500", "1600"}, 2, `oxpd: mtu: "1600" is one argument too many`, ""},
		{"mtu without a port names it", []string{"mtu"}, 2, "oxpd: mtu: PORT is missing", ""},
		{"config check without a file names it", []string{"config", "check"}, 2, "oxpd: config check: FILE is missing", ""},
		{"status takes nothing", []string{"status", "now"}, 2, `oxpd: status takes no arguments, and there is "now"`, ""},
		{"config check of no name", []string{"config", "check", ""}, 2, "the name of the configuration file is empty", ""},
		{"config show of no name", []string{"config", "show", ""}, 2, "the name of the configuration file is empty", ""},
		{"config show with a socket", []string{"config", "show", "--socket", none}, 0, "", "socket: " + none + "\n"},
		{"config check warns of what is not there yet", []string{"config", "check", later}, 0,
			"warning: sim.wires.F1: network namespace: stat " + none + ": no such file or directory\n" + later + ": accepted", ""},
		{"config check of a pipe", []string{"config", "check", pipe}, 2, pipe + ": not a regular file", ""},
		{"config show of a pipe", []string{"config", "show", pipe}, 2, pipe + ": not a regular file", ""},
		{"run with a pipe", []string{"run", "--sim", "--config", pipe}, 2, pipe + ": not a regular file", ""},
		{"run with no name of a file", []string{"run", "--sim", "--config", ""}, 2, "the name of the configuration file is empty", ""},
		{"run with no name of a socket", []string{"run", "--sim", "--socket", ""}, 2, `--socket "": empty: want a path`, ""},
		{"status with no name of a socket", []string{"status", "--socket="}, 2, `--socket "": empty: want a path`, ""},
		{"a socket too long", []string{"status", "--socket", long}, 2, `--socket "` + long + `": 108 bytes long: the path of a socket has at most 107`, ""},
		{"a socket too long for run", []string{"run", "--sim", "--socket", long}, 2, `--socket "` + long + `": 108 bytes long`, ""},
		{"a socket behind a file", []string{"status", "--socket", good + "/s"}, 1, "oxpd: open " + good + "/s: not a directory\nhint: --socket wants", ""},
		{"a socket that is a file", []string{"status", "--socket", good}, 1, "oxpd: open " + good + ": is a file and no socket", ""},
		{"run on a socket behind a file", []string{"run", "--sim", "--socket", good + "/s"}, 1,
			"oxpd: listen on " + good + "/s: make its directory: mkdir " + good + ": not a directory\nhint: name another one with --socket", ""},
		{"wait for nobody", []string{"status", "--wait=200ms", "--socket", none}, 1, "waiting: a daemon on " + none + "\noxpd: no daemon answers on " + none, ""},
		{"wait with the value behind it", []string{"status", "--wait", "200ms", "--socket", none}, 1, "no daemon answers", ""},
		{"wait for no duration", []string{"status", "--wait", "soon"}, 2, `--wait "soon": want a duration up to 24h0m0s, such as 30s`, ""},
		{"wait for a time that is over", []string{"status", "--wait", "0s"}, 2, "--wait 0s: want a duration", ""},
		{"help of an unknown command", []string{"help", "nonsense"}, 2, `unknown command "nonsense"`, ""},
		{"help of an unknown command of config", []string{"help", "config", "chck"}, 2, `unknown command "config chck"`, ""},
		{"help of a command", []string{"help", "config", "check"}, 0, "", "oxpd config check FILE [flags]"},
		{"version as a flag", []string{"--version"}, 0, "", "oxpd " + version},
		{"unknown command", []string{"statsu"}, 2, `unknown command "statsu"`, ""},
		{"unknown flag", []string{"status", "--jsn"}, 2, "unknown flag: --jsn", ""},
		{"unknown command of config", []string{"config", "chck"}, 2, `unknown command "chck"`, ""},
		{"run with two cards", []string{"run", "--sim", "--device", "vfio-user:" + none}, 2, "--sim and --device are two cards", ""},
		{"run that accepts a reset that cannot be", []string{"run", "--i-accept-reset"}, 2, "--i-accept-reset is about a card that is reached with access: vfio", ""},
		{"run with a fault of a real card", []string{"run", "--fault", "Gone"}, 2, "--fault is about the simulated card: give --sim", ""},
		{"run with no such fault", []string{"run", "--sim", "--fault", "Fire"}, 2, `--fault "Fire": hwsim: no fault "Fire": want the id`, ""},
		{"run with a device of another kind", []string{"run", "--device", "eth0"}, 2, `device "eth0": want a PCI address such as 0000:01:00.0, or vfio-user:PATH`, ""},
		{"bind of what is no device", []string{"bind", "--device", "../x"}, 2, `device "../x": want a PCI address such as 0000:01:00.0`, ""},
		{"unbind of what is no device", []string{"unbind", "--device", "1:0"}, 2, `device "1:0": want a PCI address such as 0000:01:00.0`, ""},
		{"devices takes nothing", []string{"devices", "0000:01:00.0"}, 2, "oxpd: devices takes no arguments", ""},
		{"run with a device of no path", []string{"run", "--device", "vfio-user:"}, 2, `device "vfio-user:": empty: want a path`, ""},
		{"serve without a socket", []string{"sim", "serve"}, 2, "where? --vfio-user is missing", ""},
		{"serve on no socket", []string{"sim", "serve", "--vfio-user", "/tmp/"}, 2, `--vfio-user "/tmp/": ends in /`, ""},
		{"serve in the place of a file", []string{"sim", "serve", "--vfio-user", good}, 1, "listen on " + good + ": a file that is no socket is in its place", ""},
		{"serve with half a wire", []string{"sim", "serve", "--vfio-user", none, "--wire", "F1"}, 2, `--wire "F1": want PORT=WIRE`, ""},
		{"serve with two wires at a port", []string{"sim", "serve", "--vfio-user", none, "--wire", "F1=loop:F2", "--wire", "F1=loop:F3"}, 2,
			`--wire "F1=loop:F3": F1 has a wire already`, ""},
		{"serve with a wire of no kind", []string{"sim", "serve", "--vfio-user", none, "--wire", "F1=x"}, 2, `sim.wires.F1: wire "x": want tap:`, ""},
		{"serve with a wire at no port", []string{"sim", "serve", "--vfio-user", none, "--wire", "F9=loop:F1"}, 2, `unknown port "F9"`, ""},
		{"serve with no such fault", []string{"sim", "serve", "--vfio-user", none, "--fault", "Fire"}, 2, `--fault "Fire": hwsim: no fault "Fire": want the id`, ""},
		{"serve with a fault at no time", []string{"sim", "serve", "--vfio-user", none, "--fault", "Gone@soon"}, 2, `--fault "Gone@soon": hwsim: fault "Gone@soon": @soon: want a time such as @10ms`, ""},
		{"serve with a fault from now on", []string{"sim", "serve", "--vfio-user", none, "--fault", "Gone@+1s"}, 2, `--fault "Gone@+1s": nothing has begun: leave the + out`, ""},
		{"run with a fault too likely", []string{"run", "--sim", "--fault", "Gone%5"}, 2, `%5: want a probability above 0 and up to 1`, ""},
		{"run with a fault that the host makes", []string{"run", "--sim", "--fault", "F3"}, 2, "fault F3 handshake-abandoned is not switched: no more stores", ""},
		{"a fault that is begun and ended", []string{"sim", "fault", "Gone", "--clear", "all", "--socket", none}, 2, "--clear all ends a fault and Gone begins one: do one after the other", ""},
		{"no fault to end", []string{"sim", "fault", "--clear", "", "--socket", none}, 2, "--clear: which fault? want a name or all", ""},
		{"no such fault while it runs", []string{"sim", "fault", "Gone", "Fire", "--socket", none}, 2, `no fault "Fire": want the id`, ""},
		{"a fault at no time while it runs", []string{"sim", "fault", "Gone@soon", "--socket", none}, 2, `@soon: want a time such as @10ms`, ""},
		{"a fault of nobody's card", []string{"sim", "fault", "Gone", "--socket", none}, 1, "no daemon answers on " + none, ""},
		{"serve with a fault of no ring", []string{"sim", "serve", "--vfio-user", none, "--fault", "LateTail=64"}, 2, `"64": want numbers of 0 to 63`, ""},
		{"serve with a console of no kind", []string{"sim", "serve", "--vfio-user", none, "--console", "x@fast"}, 2, `sim.console: "x@fast": want [LINK][@OPTIONS]`, ""},
		{"serve with no such boot", []string{"sim", "serve", "--vfio-user", none, "--timeline", "x"}, 2, `sim.timeline: "x": want compressed or real`, ""},
		{"serve of no such function", []string{"sim", "serve", "--vfio-user", none, "--function", "VF"}, 2, `--function "VF": want pf or vf`, ""},
		{"serve of no function", []string{"sim", "serve", "--vfio-user", none, "--function="}, 2, `--function "": want pf or vf`, ""},
		{"serve with a wire behind a virtual function", []string{"sim", "serve", "--vfio-user", none, "--function", "vf", "--wire", "F1=loop:F2"}, 2,
			"--wire with --function vf: no front port is behind a virtual function; leave one of them out", ""},
		{"serve with a boot behind a virtual function", []string{"sim", "serve", "--vfio-user", none, "--function", "vf", "--timeline", "real"}, 2,
			"--timeline with --function vf: nothing boots behind a virtual function; leave one of them out", ""},
		{"serve with a console behind a virtual function", []string{"sim", "serve", "--vfio-user", none, "--function", "vf", "--console", "x"}, 2,
			"--console with --function vf: nothing boots behind a virtual function; leave one of them out", ""},
		{"probe of two cards", []string{"probe", "--sim", "--device", "0000:01:00.0"}, 2, "--sim and --device are two cards", ""},
		{"probe of a moment without the simulated card", []string{"probe", "--after", "1s"}, 2, "--after says how a simulated card is: it needs --sim", ""},
		{"probe of an unknown host", []string{"probe", "--sim", "--host", "x"}, 2, `host "x": want absent, firmware, offer, rings, handshake`, ""},
		{"probe of an unknown timeline", []string{"probe", "--sim", "--timeline", "x"}, 2, `timeline "x": want real or compressed`, ""},
		{"probe before the reset", []string{"probe", "--sim", "--after", "-1s"}, 2, "after -1s: want 0 to 1h0m0s", ""},
		{"probe of a device", []string{"probe", "0000:01:00.0"}, 2, "oxpd: probe takes no arguments", ""},
		{"run with a bad file", []string{"run", "--sim", "--config", bad}, 2, bad + `:2: unknown key "watermrk"`, ""},
		{"run with no file", []string{"run", "--sim", "--config", filepath.Join(dir, "x.yaml")}, 1, "no such file", ""},
		{"config check refuses", []string{"config", "check", bad}, 2, bad + `:2: unknown key "watermrk"`, ""},
		{"config check accepts", []string{"config", "check", good}, 0, "accepted", ""},
		{"config check warns of the switch", []string{"config", "check", risky}, 0, "warning: ports.oxp1.mtu: the limit of the switch before oxp1 (Port1) is unknown", ""},
		{"config show has every default", []string{"config", "show", good}, 0, "", "socket: /run/oxpd/oxpd.sock\naccess: sysfs\ndevice: \"\"\nworkers: 1\nwatermark: 1024\ndma-bits: 36\nlink-poll: 1s\nreconcile: 1s\nswitch:\n  console: \"\"\n  jumbo: \"\"\n  size: 0\n  watch: 5m0s\ndivert:\n  queue-len: 1024\n  queue-bytes: 4mb\n  buffer-size: 0\n  on-full: drop\n  on-absent: drop\n  on-stall: drop\n  stall-ms: 1000\n  order: any\ntcpstats:\n  max-open-fds: 16\n  max-concurrent-readers: 32\n  max-read-duration-ms: 5000\n  min-read-interval-ms: 0\n  flow: false\n  flow-max: 16384\n  flow-idle: 5m0s\nsim:\n  timeline: compressed\n  seed: 1\n"},
		{"no command prints help", nil, 0, "", "Available Commands:"},
		{"version", []string{"version"}, 0, "", "oxpd " + version},
		{"version as JSON", []string{"version", "--json"}, 0, "", `"schema": 1`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := apart(t, exe, tc.args...)
			assert.Equal(t, tc.code, r.code, "exit status; %+v", r)
			assert.Contains(t, r.err, tc.err)
			assert.Contains(t, r.out, tc.out)
			if tc.code != 0 {
				assert.Empty(t, r.out, "talk goes to standard error")
				assert.Regexp(t, "^(waiting: .*\n)*oxpd: ", r.err)
			}
		})
	}
}

func TestNotRoot(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: becomes somebody else")
	}
	exe := program()
	dir, err := os.MkdirTemp("/tmp", "oxpd-test")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	require.NoError(t, os.Chmod(dir, 0o755))
	public := filepath.Join(dir, "oxpd")
	b, err := os.ReadFile(exe)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(public, b, 0o755))
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	require.NoError(t, err)
	defer l.Close()
	require.NoError(t, os.Chmod(filepath.Join(dir, "s"), 0o600))
	for _, tc := range []struct {
		name      string
		args      []string
		err, hint string
	}{
		{"status", []string{"status"}, "open " + filepath.Join(dir, "s") + ": permission denied", "hint: run it as root (sudo)"},
		{"run", []string{"run", "--sim"}, "interfaces cannot be made without CAP_NET_ADMIN", "hint: run it as root (sudo)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cmd := exec.Command(public, append(tc.args, "--socket", filepath.Join(dir, "s"))...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			out, _ := cmd.CombinedOutput()
			assert.Equal(t, 1, cmd.ProcessState.ExitCode())
			assert.Contains(t, string(out), tc.err)
			assert.Contains(t, string(out), tc.hint)
			assert.Equal(t, 2, strings.Count(string(out), "\n"), "nothing was begun: %s", out)
		})
	}
}

// TestFailedOutput: whatever could not be printed is a failure, and says so.
func TestFailedOutput(t *testing.T) {
	t.Parallel()
	exe := program()
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	full := func(t *testing.T) *os.File {
		f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Skip("needs /dev/full: " + err.Error())
		}
		return f
	}
	unread := func(t *testing.T) *os.File {
		// A program that another test starts meanwhile would have a copy of the end that
		// is read, until it runs.
		syscall.ForkLock.RLock()
		defer syscall.ForkLock.RUnlock()
		r, w, err := os.Pipe()
		require.NoError(t, err)
		require.NoError(t, r.Close())
		return w
	}
	for _, out := range []struct {
		name, why string
		open      func(t *testing.T) *os.File
	}{{"full", "no space left on device", full}, {"unread", "broken pipe", unread}} {
		for _, args := range [][]string{
			{"version"}, {"version", "--json"}, {"--version"}, {"--help"}, {"help", "mtu"}, {"config"}, {"config", "show"}, {"demo"}, {"demo", "--json"},
		} {
			t.Run(out.name+" "+strings.Join(args, " "), func(t *testing.T) {
				t.Parallel()
				if args[0] == "demo" && os.Getuid() != 0 {
					t.Skip("needs root: makes network namespaces and TAP interfaces")
				}
				if args[0] == "demo" && len(args) > 1 && testing.Short() {
					t.Skip("takes half a minute: it says nothing before it is over")
				}
				f := out.open(t)
				defer f.Close()
				cmd := exec.Command(exe, append(args, "--socket", socket)...)
				var talk bytes.Buffer
				cmd.Stdout, cmd.Stderr = f, &talk
				_ = cmd.Run() // by its status
				assert.Equal(t, 1, cmd.ProcessState.ExitCode(), "%v: %s", cmd.ProcessState, talk.String())
				assert.Contains(t, talk.String(), "oxpd: write standard output: "+out.why+"\n")
			})
		}
	}
}

// daemonProcess is `oxpd run` in a namespace of its own.
type daemonProcess struct {
	cmd  *exec.Cmd
	ns   *sys.NetNS
	log  *lockedBuffer
	done chan struct{}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func runDaemon(t *testing.T, exe string, args ...string) *daemonProcess {
	t.Helper()
	return startProcess(t, exe, append([]string{"run", "--sim"}, args...)...)
}

// startProcess is oxpd in a network namespace of its own, for as long as it runs.
func startProcess(t *testing.T, exe string, args ...string) *daemonProcess {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: makes a network namespace and TAP interfaces")
	}
	ns, err := sys.NewNetNS()
	require.NoError(t, err)
	p := &daemonProcess{cmd: exec.Command(exe, args...), ns: ns, log: &lockedBuffer{}, done: make(chan struct{})}
	p.cmd.Stderr = p.log
	require.NoError(t, ns.Do(p.cmd.Start))
	go func() { defer close(p.done); _ = p.cmd.Wait() }()
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(unix.SIGTERM)
		p.wait(t)
		assert.NoError(t, ns.Close())
		if t.Failed() {
			t.Logf("daemon's log:\n%s", p.log)
		}
	})
	return p
}

func (p *daemonProcess) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(hang):
		_ = p.cmd.Process.Kill()
		t.Fatal("the daemon does not end")
	}
	return p.cmd.ProcessState.ExitCode()
}

func TestDaemon(t *testing.T) {
	t.Parallel()
	exe := program()
	socket := filepath.Join(t.TempDir(), "oxpd.sock")
	p := runDaemon(t, exe, "--socket", socket)
	c := client.New(socket)
	ask := func(args ...string) result { return oxpd(t, exe, append(args, "--socket", socket)...) }
	require.Eventually(t, func() bool {
		s, err := c.Status(context.Background())
		return err == nil && s.State == client.StateRunning
	}, hang, 20*time.Millisecond)

	t.Run("reading commands print a document", func(t *testing.T) {
		for _, args := range [][]string{{"status"}, {"ports"}, {"mtu", "F1"}, {"stats"}, {"stats", "--rings"}, {"stats", "--instruments"}, {"stats", "Port3"}, {"counters"}} {
			r := ask(args...)
			assert.Equal(t, 0, r.code, "%v: %+v", args, r)
			assert.NotEmpty(t, r.out)
			assert.Empty(t, r.err)
			r = ask(append(args, "--json")...)
			assert.Equal(t, 0, r.code, "%v", args)
			var doc struct{ Schema int }
			require.NoError(t, json.Unmarshal([]byte(r.out), &doc), "%v", args)
			assert.Equal(t, client.Schema, doc.Schema, "%v", args)
		}
	})
	t.Run("counters has 182 names", func(t *testing.T) {
		r := ask("counters", "--all")
		assert.Len(t, regexp.MustCompile(`(?m)^\d+ +[A-Z0-9_]+ +\d+$`).FindAllString(r.out, -1), 182)
	})
	t.Run("mtu changes", func(t *testing.T) {
		r := ask("mtu", "PortF1", "9000")
		assert.Equal(t, result{out: "oxp9 (PortF1)\nlif        9000\ninterface  9000\nswitch     none\neffective  9000\n"}, r)
	})
	t.Run("faults come and go", func(t *testing.T) {
		r := ask("sim", "fault", "LIFNotStored=oxp3@+1h", "RInfoNoRings%0.5")
		assert.Equal(t, 0, r.code, "%+v", r)
		assert.Regexp(t, `(?m)^RInfoNoRings +on +\d+ +0\.5 of: a read of SDP_EPF_RINFO$`, r.out)
		assert.Regexp(t, `(?m)^LIFNotStored=oxp3 +at 1h0m`, r.out)
		r = ask("sim", "fault", "--clear", "lif-not-stored")
		assert.Equal(t, 0, r.code, "%+v", r)
		assert.NotContains(t, r.out, "LIFNotStored")
		r = ask("sim", "fault", "--clear", "lif-not-stored")
		assert.Equal(t, 1, r.code)
		assert.Contains(t, r.err, "fault lif-not-stored is not on")
		assert.Equal(t, 0, ask("sim", "fault", "--clear", "all").code)
		r = ask("sim", "fault")
		assert.Regexp(t, `^cycle \d+, [\d.]+ s since the card was made\nno faults\n$`, r.out)
		r = ask("sim", "fault", "Gone@1ms")
		assert.Equal(t, 2, r.code)
		assert.Contains(t, r.err, "the card is past that cycle")
	})
	t.Run("second daemon is told socket and pid", func(t *testing.T) {
		r := oxpd(t, exe, "run", "--sim", "--socket", socket)
		assert.Equal(t, 1, r.code)
		assert.Contains(t, r.err, fmt.Sprintf("another daemon (pid %d) listens on %s", p.cmd.Process.Pid, socket))
		assert.Contains(t, r.err, "hint: ")
	})
	t.Run("wait for one that runs", func(t *testing.T) {
		r := ask("status", "--wait")
		assert.Equal(t, 0, r.code)
		assert.Empty(t, r.err)
		assert.Equal(t, 1, strings.Count(r.out, "running for"))
	})
	t.Run("stop", func(t *testing.T) {
		r := ask("stop")
		assert.Equal(t, 0, r.code, "%+v", r)
		assert.Equal(t, "stopped; rings enabled, memory released\n", r.err, "the simulated card has ended: there is nothing to reboot")
		assert.NotContains(t, p.log.String(), "reboot")
		assert.Equal(t, 0, p.wait(t))
	})
	t.Run("the socket is gone", func(t *testing.T) {
		assert.NoFileExists(t, socket)
		assert.Equal(t, 1, ask("status").code)
	})
}

func TestDaemonAfterKill(t *testing.T) {
	t.Parallel()
	exe := program()
	socket := filepath.Join(t.TempDir(), "oxpd.sock")
	p := runDaemon(t, exe, "--socket", socket)
	up := func() bool { return oxpd(t, exe, "status", "--socket", socket).code == 0 }
	require.Eventually(t, up, hang, 20*time.Millisecond)
	require.NoError(t, p.cmd.Process.Kill())
	p.wait(t)
	require.FileExists(t, socket)
	assert.Equal(t, 1, oxpd(t, exe, "status", "--socket", socket).code)
	q := runDaemon(t, exe, "--socket", socket)
	require.Eventually(t, up, hang, 20*time.Millisecond, "a stale socket is replaced")
	for range 2 {
		require.NoError(t, q.cmd.Process.Signal(unix.SIGTERM))
	}
	assert.Equal(t, 0, q.wait(t), "SIGTERM twice is one stop sequence")
	assert.Equal(t, 1, strings.Count(q.log.String(), "msg=stopping"))
}

// TestSignals that are no reason to end: SIGHUP, and SIGPIPE of a log that nobody
// reads any more.
func TestSignals(t *testing.T) {
	exe := program()
	socket := filepath.Join(t.TempDir(), "oxpd.sock")
	if os.Getuid() != 0 {
		t.Skip("needs root: makes a network namespace and TAP interfaces")
	}
	ns, err := sys.NewNetNS()
	require.NoError(t, err)
	defer ns.Close()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd := exec.Command(exe, "run", "--sim", "--debug", "--socket", socket)
	cmd.Stderr = w
	require.NoError(t, ns.Do(cmd.Start))
	require.NoError(t, w.Close())
	done := make(chan struct{})
	go func() { defer close(done); _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill(); <-done }()
	log := bufio.NewScanner(r)
	said := func(what string) {
		t.Helper()
		for log.Scan() {
			if strings.Contains(log.Text(), what) {
				return
			}
		}
		t.Fatalf("the log ends without %q: %v", what, log.Err())
	}
	said("msg=running")
	require.NoError(t, cmd.Process.Signal(unix.SIGHUP))
	said("SIGHUP: no configuration file was named at the start, and nothing is read")
	require.NoError(t, r.Close())
	require.NoError(t, cmd.Process.Signal(unix.SIGHUP)) // and what it would say
	for _, mtu := range []string{"9000", "1500"} {
		got := oxpd(t, exe, "mtu", "oxp9", mtu, "--socket", socket)
		assert.Equal(t, 0, got.code, "%+v", got)
	}
	got := oxpd(t, exe, "stop", "--json", "--socket", socket)
	assert.Equal(t, 0, got.code, "%+v", got)
	var doc client.StopResult
	require.NoError(t, json.Unmarshal([]byte(got.out), &doc), "%+v", got)
	assert.Equal(t, client.Schema, doc.Schema)
	assert.Empty(t, got.err)
	<-done
	assert.Equal(t, 0, cmd.ProcessState.ExitCode(), "%v", cmd.ProcessState)
	assert.NoFileExists(t, socket, "the stop sequence ran")
}

// TestReload: the file that the daemon was started with, read again at SIGHUP with
// the same flags laid over it.
func TestReload(t *testing.T) {
	t.Parallel()
	exe := program()
	dir := t.TempDir()
	socket, file := filepath.Join(dir, "oxpd.sock"), filepath.Join(dir, "oxpd.yaml")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	write("socket: /run/elsewhere.sock\nworkers: 1\nports: {F1: {mtu: 9000}}\n")
	// What the file says of the switch holds where it cannot be read.
	p := runDaemon(t, exe, "--socket", socket, "--config", file, "--fault", "ConsoleSilent=true")
	ask := func(args ...string) result { return oxpd(t, exe, append(args, "--socket", socket)...) }
	r := ask("status", "--wait", "1m")
	require.Equal(t, 0, r.code, "%+v", r)
	hup := func(until string) {
		t.Helper()
		seen := strings.Count(p.log.String(), until)
		require.NoError(t, p.cmd.Process.Signal(unix.SIGHUP))
		require.Eventually(t, func() bool { return strings.Count(p.log.String(), until) > seen }, hang, 10*time.Millisecond, until)
	}
	const done = "configuration was read again"
	mtu := func(port string) string { return ask("mtu", port).out }
	require.Contains(t, mtu("F1"), "effective  9000")

	t.Run("a file that is wrong changes nothing", func(t *testing.T) {
		write("switch: {size: 2048}\nports:\n  F1: {mtu: 1500}\n  Port1: {mtu: 9000}\n  Port2: {mtu: 71}\n")
		hup(file + ":5: ports.Port2.mtu: mtu 71 is out of range")
		assert.Contains(t, p.log.String(), file+":4: ports.Port1.mtu: mtu 9000 of oxp1 (Port1) is more than the switch before it passes: 2030")
		assert.Contains(t, mtu("F1"), "effective  9000")
		assert.Contains(t, mtu("Port1"), "switch     unknown")
		assert.NotContains(t, p.log.String(), done)
	})
	t.Run("one that is missing too", func(t *testing.T) {
		require.NoError(t, os.Rename(file, file+"~"))
		hup("no such file or directory")
		assert.Contains(t, mtu("F1"), "effective  9000")
	})
	t.Run("one that is right is put into force", func(t *testing.T) {
		write("workers: 2\nswitch: {size: 2048}\nports:\n  F1: {mtu: 1500}\n  Port1: {mtu: 2030}\n")
		hup(done)
		assert.Contains(t, mtu("F1"), "effective  1500")
		assert.Contains(t, mtu("Port1"), "switch     2030 (config: frames of 2048 bytes)\neffective  2030")
		assert.Contains(t, p.log.String(), `msg="needs a restart" key=workers running=1 file=2`)
		assert.NotContains(t, p.log.String(), "key=socket", "the flag is laid over the file")
	})
	t.Run("the command line and the limit of the switch", func(t *testing.T) {
		r := ask("mtu", "Port1", "9000")
		assert.Equal(t, 1, r.code)
		assert.Contains(t, r.err, "is more than the switch before it passes: 2030")
		assert.Contains(t, r.err, "hint: oxpd mtu oxp1 9000 --switch raises the frame size of the switch at that port first")
		r = ask("mtu", "Port1", "9000", "--force")
		assert.Equal(t, 0, r.code, "%+v", r)
		assert.Contains(t, r.err, "warning: mtu 9000 of oxp1 (Port1) is more than the switch before it passes")
		assert.Contains(t, r.out, "lif        9000\ninterface  9000\nswitch     2030 (config: frames of 2048 bytes)\neffective  2030\n")
	})
}

// TestUnreachableDaemon that lives: what is said helps.
func TestUnreachableDaemon(t *testing.T) {
	t.Parallel()
	exe := program()
	socket := filepath.Join(t.TempDir(), "oxpd.sock")
	p := runDaemon(t, exe, "--socket", socket)
	pid := p.cmd.Process.Pid
	r := oxpd(t, exe, "status", "--wait", "1m", "--socket", socket)
	require.Equal(t, 0, r.code, "%+v", r)
	t.Run("stopped", func(t *testing.T) {
		require.NoError(t, p.cmd.Process.Signal(unix.SIGSTOP))
		r := oxpd(t, exe, "ports", "--socket", socket)
		require.NoError(t, p.cmd.Process.Signal(unix.SIGCONT))
		assert.Equal(t, 1, r.code)
		assert.Contains(t, r.err, fmt.Sprintf("ask the daemon (pid %d) on %s: no answer within 5s\nhint: ", pid, socket))
		assert.Contains(t, r.err, fmt.Sprintf("kill -CONT %d", pid))
	})
	t.Run("without its socket", func(t *testing.T) {
		require.NoError(t, os.Remove(socket))
		for _, args := range [][]string{{"ports"}, {"run", "--sim"}} {
			r := oxpd(t, exe, append(args, "--socket", socket)...)
			assert.Equal(t, 1, r.code)
			assert.Contains(t, r.err, fmt.Sprintf("no daemon answers on %s, but a daemon (pid %d) holds %s.lock\nhint: somebody removed its socket: end it with kill %d", socket, pid, socket, pid))
		}
	})
}
