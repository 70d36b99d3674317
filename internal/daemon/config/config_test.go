package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/board"
)

func TestParse(t *testing.T) {
	c, err := Parse("oxpd.yaml", []byte(`
socket: /run/x.sock
access: sysfs
device: 0000:01:00.0
workers: 3
watermark: 0x200
dma-bits: 48
link-poll: 250ms
switch: {console: /dev/ttyS2, jumbo: all, size: 10240, watch: 1m}
ports:
  PortF1: {mtu: 9000, mac: 02:00:5E:00:53:09, up: true, promisc: off}
  oxp1: {up: no}
sim:
  timeline: real
  seed: 7
  wires:
    F1: tap:far1@/run/netns/far
`))
	require.NoError(t, err)
	want := Default()
	want.Socket, want.Workers, want.Watermark, want.DMABits, want.LinkPoll = "/run/x.sock", 3, 0x200, 48, Duration(250*time.Millisecond)
	want.Device, want.Switch = "0000:01:00.0", Switch{Console: "/dev/ttyS2", Jumbo: JumboAll, Size: 10240, Watch: Duration(time.Minute)}
	yes, no := true, false
	want.Ports = map[string]Port{"PortF1": {MTU: 9000, Up: &yes, MAC: &MAC{2, 0, 0x5e, 0, 0x53, 9}, Promisc: &no}, "oxp1": {Up: &no}}
	want.Sim = Sim{Timeline: TimelineReal, Seed: 7, Wires: map[string]string{"F1": "tap:far1@/run/netns/far"}}
	assert.Equal(t, want, c)
	assert.Equal(t, want.Ports["PortF1"], c.Port(board.ByIndex(8)))
	assert.Equal(t, Port{}, c.Port(board.ByIndex(1)))
}

func TestParseNothing(t *testing.T) {
	for name, text := range map[string]string{"empty file": "", "comment only": "# nothing\n", "empty mapping": "{}"} {
		t.Run(name, func(t *testing.T) {
			c, err := Parse("f", []byte(text))
			require.NoError(t, err)
			assert.Equal(t, Default(), c)
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"unknown key", "workers: 1\nworkes: 2\n", `f:2: unknown key "workes"`},
		{"unknown key inside", "sim:\n  seed: 1\n  sed: 2\n", `f:3: unknown key "sed"`},
		{"unknown key of a port", "ports:\n  oxp1:\n    mut: 2\n", `f:3: unknown key "mut"`},
		{"text for a number", "workers: many\n", `f:1: "many" has the wrong type: want a number`},
		{"half a worker", "watermark: 512\nworkers: 1.5\n", `f:2: "1.5" has the wrong type: want a whole number`},
		{"mtu with a fraction", "ports:\n  F1:\n    mtu: 1500.9\n", `f:3: "1500.9" has the wrong type: want a whole number`},
		{"size of the switch with an exponent", "switch: {size: 2.048e3}", `f:1: "2.048e3" has the wrong type: want a whole number`},
		{"list for a mapping", "sim: [1]\n", `f:1: a list has the wrong type: want keys with values`},
		{"not yaml", "workers: 1\nsocket: b: c\n", "f:2: mapping values are not allowed in this context"},
		{"two documents", "workers: 1\n---\nworkers: 2\n", "f: more than one document"},
		{"key twice", "workers: 1\nworkers: 2\n", `f:2: mapping key "workers" already defined at line 1`},
		{"another way to the card", "access: uio", `f:1: access: "uio": want sysfs or vfio`},
		{"no way to the card", "access: ''", `f:1: access: "": want sysfs or vfio`},
		{"device that is no address", "workers: 1\ndevice: eth0", `f:2: device: "eth0": want a PCI address such as 0000:01:00.0, or vfio-user:PATH`},
		{"device that is a path", "device: 0000:01:00.0/..", `f:1: device: "0000:01:00.0/..": want a PCI address such as 0000:01:00.0, or vfio-user:PATH`},
		{"device without a socket", "device: 'vfio-user:'", "f:1: device: empty: want a path"},
		{"workers above the rings", "\nworkers: 9\n", "f:2: workers: 9 is out of range: want 0 to 8"},
		{"workers below zero", "workers: -1", "f:1: workers: -1 is out of range: want 0 to 8"},
		{"watermark below a batch", "watermark: 15", "f:1: watermark: 15 is out of range: want 16 to 4096"},
		{"watermark between batches", "watermark: 100", "f:1: watermark: 100 is not a multiple of 16"},
		{"addresses below 32 bits", "dma-bits: 31", "f:1: dma-bits: 31 is out of range: want 32 to 64"},
		{"addresses above 64 bits", "dma-bits: 65", "f:1: dma-bits: 65 is out of range: want 32 to 64"},
		{"poll too fast", "link-poll: 1ms", "f:1: link-poll: 1ms is out of range: want 10ms to 1m0s"},
		{"not a duration", "link-poll: 5", `f:1: "5" is not a duration: want 1s, 250ms`},
		{"mtu below", "ports:\n  oxp1:\n    mtu: 71\n", "f:3: ports.oxp1.mtu: mtu 71 is out of range: want 72 to 9000"},
		{"mtu above", "ports: {oxp1: {mtu: 9001}}", "f:1: ports.oxp1.mtu: mtu 9001 is out of range: want 72 to 9000"},
		{"mode that the switch does not have", "switch:\n  size: 9000\n", "f:2: switch.size: the switch has no mode of 9000 bytes: want 1522, 2048 or 10240, or 0 when it is not known"},
		{"mtu above the switch", "switch: {size: 2048}\nports:\n  F1: {mtu: 9000}\n  oxp1:\n    mtu: 2031\n",
			"f:5: ports.oxp1.mtu: mtu 2031 of oxp1 (Port1) is more than the switch before it passes: 2030, for frames of 2048 bytes with FCS"},
		{"mtu above what the switch is set to", "switch: {jumbo: all, size: 2048}\nports: {oxp1: {mtu: 9000}}\n",
			"f:2: ports.oxp1.mtu: mtu 9000 of oxp1 (Port1) is more than the switch before it passes: 2030, for frames of 2048 bytes with FCS"},
		{"jumbo of one port", "switch:\n  jumbo: oxp1\n", `f:2: switch.jumbo: "oxp1": want all, or nothing`},
		{"console that is no path", "switch: {console: ttyS2}", `f:1: switch.console: "ttyS2": want the absolute path of a terminal, such as /dev/ttyS2`},
		{"console that is found by a detour", "switch: {console: /dev/../ttyS2}", `f:1: switch.console: "/dev/../ttyS2": want the absolute path of a terminal, such as /dev/ttyS2`},
		{"watch too often", "switch: {watch: 1ms}", "f:1: switch.watch: 1ms is out of range: want 10ms to 24h0m0s"},
		{"watch too seldom", "switch: {watch: 25h}", "f:1: switch.watch: 25h0m0s is out of range: want 10ms to 24h0m0s"},
		{"unknown key of the switch", "switch: {sise: 2048}", `f:1: unknown key "sise"`},
		{"mac too short", "ports:\n  F1:\n    mac: 02:00:5e:00:53\n", `f:3: "02:00:5e:00:53" is not a MAC address: want 02:00:5e:00:53:01`},
		{"mac too long", "ports: {F1: {mac: 02:00:5e:00:53:01:02:03}}", `f:1: "02:00:5e:00:53:01:02:03" is not a MAC address: want 02:00:5e:00:53:01`},
		{"mac as a list", "ports: {F1: {mac: [2, 0]}}", `f:1: "" is not a MAC address: want 02:00:5e:00:53:01`},
		{"mac of nobody", "ports:\n  F1:\n    mac: 00:00:00:00:00:00\n", "f:3: ports.F1.mac: 00:00:00:00:00:00 is no station's address"},
		{"mac of a group", "ports:\n  F1: {mac: 03:00:5e:00:53:01}\n", "f:2: ports.F1.mac: 03:00:5e:00:53:01 is a group address: want the address of one station, whose first byte is even"},
		{"mac of everybody", "ports: {F1: {mac: ff:ff:ff:ff:ff:ff}}", "f:1: ports.F1.mac: ff:ff:ff:ff:ff:ff is a group address: want the address of one station, whose first byte is even"},
		{"mac of two ports", "ports:\n  F1:\n    mac: 02:00:5e:00:53:01\n  oxp1:\n    mac: 02-00-5E-00-53-01\n", `f:5: ports.oxp1.mac: 02:00:5e:00:53:01 is the address of "F1" already`},
		{"up by a number", "ports:\n  F1:\n    up: 1\n", `f:3: "1" has the wrong type: want true or false`},
		{"promisc by a word", "ports: {F1: {promisc: maybe}}", `f:1: "maybe" has the wrong type: want true or false`},
		{"unknown port", "ports:\n  oxp13: {}\n", `f:2: ports.oxp13: unknown port "oxp13": want oxp1 to oxp12, Port1 to Port8, PortF1 to PortF4, or F1 to F4`},
		{"port twice", "ports:\n  F1: {}\n  oxp9: {}\n", `f:3: ports.oxp9: is oxp9 (PortF1), which is set as "F1" already`},
		{"timeline", "sim: {timeline: fast}", `f:1: sim.timeline: "fast": want compressed or real`},
		{"option of no console", "sim:\n  console: /run/con@slow\n", `f:2: sim.console: "/run/con@slow": want [LINK][@OPTIONS], options being baud, no-echo, password, mdio-zero with commas between them`},
		{"wire", "sim:\n  wires:\n    F1: far\n", `f:3: sim.wires.F1: wire "far": want tap:NAME[@PATH], pcap:IN[,OUT][@OPTIONS], unix:PATH or loop:PORT`},
		{"wire without namespace", "sim: {wires: {F1: 'tap:a@'}}", `f:1: sim.wires.F1: wire "tap:a@": nothing behind @: want tap:NAME@PATH, the path of a network namespace`},
		{"two wires at one port", "sim:\n  wires:\n    F1: tap:a\n    PortF1: tap:b\n", `f:4: sim.wires.PortF1: is oxp9 (PortF1), which is set as "F1" already`},
		{"wire at no port", "sim: {wires: {eth0: 'tap:a'}}", `f:1: sim.wires.eth0: unknown port "eth0": want oxp1 to oxp12, Port1 to Port8, PortF1 to PortF4, or F1 to F4`},
		{"empty socket", "socket: ''", "f:1: socket: empty: want a path"},
		{"socket too long", "socket: /" + strings.Repeat("s", 107), "f:1: socket: 108 bytes long: the path of a socket has at most 107"},
		{"socket that is a folder", "socket: /run/", "f:1: socket: ends in /: want the path of a socket and not of its directory"},
		{"one interface at two ports", "sim:\n  wires:\n    F1: tap:a\n    F2: tap:a\n", "f:4: sim.wires.F2: interface a hangs at F1 already: name another one"},
		{"one interface in one namespace by two paths", "sim:\n  wires:\n    F1: tap:a@/run/netns/x\n    F2: tap:a@/run/netns/./x\n", "f:4: sim.wires.F2: interface a hangs at F1 already: name another one"},
		{"wire with a pattern", "sim: {wires: {F1: 'tap:w%d'}}", `f:1: sim.wires.F1: wire "tap:w%d": "w%d" is no interface name: no / : % or space may be in it`},
		{"wire with a colon", "sim: {wires: {F1: 'tap:w:0'}}", `f:1: sim.wires.F1: wire "tap:w:0": "w:0" is no interface name: no / : % or space may be in it`},
		{"wire with a tab", `sim: {wires: {F1: "tap:w\t0"}}`, `f:1: sim.wires.F1: wire "tap:w\t0": "w\t0" is no interface name: no / : % or space may be in it`},
		{"wire with two dots", "sim: {wires: {F1: 'tap:..'}}", `f:1: sim.wires.F1: wire "tap:..": ".." is no interface name: no / : % or space may be in it`},
		{"wire of 16 bytes", "sim: {wires: {F1: 'tap:0123456789abcdef'}}", `f:1: sim.wires.F1: wire "tap:0123456789abcdef": interface name "0123456789abcdef" is longer than 15 bytes`},
		{"wire on the loopback interface", "sim: {wires: {F1: 'tap:lo@/run/netns/x'}}", `f:1: sim.wires.F1: wire "tap:lo@/run/netns/x": "lo" is the loopback interface of every network namespace: want another name`},
		{"wire with the name of a port's interface", "sim: {wires: {F1: 'tap:oxp3'}}", `f:1: sim.wires.F1: wire "tap:oxp3": oxp3 is the name of the port's own interface: name it otherwise, or put it into another network namespace`},
		{"wire in a namespace without its folder", "sim: {wires: {F1: 'tap:a@far'}}", `f:1: sim.wires.F1: wire "tap:a@far": "far" is no absolute path of a network namespace: want one such as /run/netns/far`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Parse("f", []byte(tc.text))
			require.Error(t, err)
			assert.Equal(t, tc.want, err.Error())
			var e *Error
			assert.ErrorAs(t, err, &e)
		})
	}
}

func TestParseNamesEveryUnknownKey(t *testing.T) {
	_, err := Parse("f", []byte("a: 1\nworkers: 2\nb: 3\n"))
	require.Error(t, err)
	assert.Equal(t, "f:1: unknown key \"a\"\nf:3: unknown key \"b\"", err.Error())
}

// TestParseNamesEverythingAtOnce: what one reason does not stand in the way of is
// told with it, and a value that could not be taken is told once.
func TestParseNamesEverythingAtOnce(t *testing.T) {
	_, err := Parse("f", []byte("ports:\n  F1: {mtu: 9001, foo: 1}\n  F2: {mac: 02:00}\n  Port77: {}\nworkers: many\nwatermark: 1.5\n"))
	require.Error(t, err)
	var lines []string
	for _, l := range strings.Split(err.Error(), "\n") {
		lines = append(lines, l[:strings.IndexByte(l, ' ')])
	}
	assert.ElementsMatch(t, []string{"f:2:", "f:2:", "f:3:", "f:4:", "f:5:", "f:6:"}, lines, err.Error())
	assert.Contains(t, err.Error(), "unknown key")
	assert.Contains(t, err.Error(), "9001")
}

func TestShownConfigurationIsAccepted(t *testing.T) {
	c := Default()
	no := false
	c.Ports = map[string]Port{"oxp9": {MTU: 9000, Up: &no, MAC: &MAC{2, 0, 0x5e, 0, 0x53, 9}, Promisc: &no}}
	c.Switch.Size, c.Workers = 10240, 2
	b, err := c.YAML()
	require.NoError(t, err)
	got, err := Parse("shown", b)
	require.NoError(t, err)
	assert.Equal(t, c, got)
}

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	_, err := Load(path)
	assert.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, make([]byte, maxBytes+1), 0o600))
	_, err = Load(path)
	assert.ErrorContains(t, err, "longer than")
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	_, err = Load(fifo)
	assert.ErrorContains(t, err, "not a regular file")
	_, err = Load(t.TempDir())
	assert.ErrorContains(t, err, "not a regular file")
}

// TestLoadAsksTheFileItOpens: whatever is put in its place between two looks, and
// without waiting for somebody at the other end of a pipe.
func TestLoadAsksTheFileItOpens(t *testing.T) {
	dir := t.TempDir()
	path, pipe, file := filepath.Join(dir, "c.yaml"), filepath.Join(dir, "pipe"), filepath.Join(dir, "file")
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	require.NoError(t, os.WriteFile(file, []byte("workers: 1\n"), 0o600))
	require.NoError(t, os.Symlink(file, path))
	stop, swapped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(swapped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			_ = os.Symlink([]string{pipe, file}[i%2], path+".new")
			_ = os.Rename(path+".new", path)
		}
	}()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 2000 {
			if c, err := Load(path); err != nil {
				assert.ErrorContains(t, err, "not a regular file")
			} else {
				assert.Equal(t, 1, c.Workers, "what the file says, and not the pipe")
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		f, err := os.OpenFile(pipe, os.O_RDWR, 0) // lets it go
		require.NoError(t, err)
		defer f.Close()
		t.Error("waits for somebody at the other end of a pipe")
	}
	close(stop)
	<-swapped
}

func TestMissing(t *testing.T) {
	dir := t.TempDir()
	have := filepath.Join(dir, "have")
	require.NoError(t, os.WriteFile(have, nil, 0o600))
	c := Default()
	c.Sim.Wires = map[string]string{
		"oxp1": "tap:a", "oxp2": "tap:a@" + have, "oxp3": "tap:a@" + dir + "/ns", "oxp4": "pcap:" + dir + "/in", "oxp5": "pcap:," + dir + "/out", "oxp6": "loop:oxp7",
	}
	assert.Equal(t, []string{
		"sim.wires.oxp3: network namespace: stat " + dir + "/ns: no such file or directory",
		"sim.wires.oxp4: capture: stat " + dir + "/in: no such file or directory",
	}, c.Missing())
	require.NoError(t, c.Check())
}

func TestRisks(t *testing.T) {
	c, err := Parse("f", []byte("ports: {F1: {mtu: 9000}, oxp1: {mtu: 1504}, oxp2: {mtu: 1505}}"))
	require.NoError(t, err)
	require.Len(t, c.Risks(), 1)
	assert.Contains(t, c.Risks()[0], "ports.oxp2.mtu: the limit of the switch before oxp2 (Port2) is unknown")
	c.Switch.Size = 2048
	assert.Empty(t, c.Risks())
	c.Switch = Switch{Jumbo: JumboAll}
	assert.Equal(t, []string{"switch.jumbo: there is no switch.console, by which the switch of a real card is reached"}, c.Risks())
	c.Switch.Console = "/dev/ttyS2"
	assert.Empty(t, c.Risks())
}

func TestSwitch(t *testing.T) {
	for _, tc := range []struct {
		name, file  string
		size, limit int // to be set; known or to be set
		watched     bool
	}{
		{"nothing", "", 0, 0, false},
		{"what it passes is known", "switch: {size: 2048}", 0, 2048, false},
		{"jumbo", "switch: {jumbo: all}", 10240, 10240, true},
		{"jumbo, but smaller", "switch: {jumbo: all, size: 2048}", 2048, 2048, true},
		{"a console to read it", "switch: {console: /dev/ttyS2}", 0, 0, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := Parse("f", []byte(tc.file))
			require.NoError(t, err)
			assert.Equal(t, tc.size, c.Switch.JumboSize())
			assert.Equal(t, tc.limit, c.SwitchLimit().Panel)
			assert.Equal(t, tc.watched, c.Switch.Watched())
		})
	}
}

// FuzzParse: what is accepted passes Check, and is printed as something that is
// accepted and prints the same.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"workers: 1\nsim: {wires: {F1: tap:a}}",
		"ports: {oxp1: {mtu: 9000}}\n---\n",
		"switch: {size: 2048}\nports: {oxp1: {mtu: 2031}, F1: {mtu: 9000}}",
		"switch: {size: 10240}\nports:\n  Port3: {mtu: 9000, up: no, mac: 02:00:5e:00:53:01, promisc: on}\n",
		"ports: {F1: {mac: 02:00:5e:00:53:01}, F2: {mac: 02-00-5E-00-53-01}}",
		"ports: {F1: {mac: 01:00:5e:00:00:01, up: ~, promisc: }}",
		"ports: &p\n  F1: &q {mtu: 72}\n  F2: *q\n",
		"link-poll: 10ms\nreconcile: 1m\nwatermark: 0x200\ndma-bits: 0b100000\n",
		"sim: {timeline: real, seed: 18446744073709551615, wires: {F1: loop:F2, oxp1: 'pcap:a,b@wire'}}",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Parse("f", b)
		if err != nil {
			return
		}
		if err := c.Check(); err != nil {
			t.Fatalf("a file that was accepted does not pass Check: %v", err)
		}
		shown, err := c.YAML()
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse("shown", shown)
		if err != nil {
			t.Fatalf("%v\n%s", err, shown)
		}
		if twice, err := again.YAML(); err != nil || string(twice) != string(shown) {
			t.Fatalf("%s\nbecomes\n%s\n%v", shown, twice, err)
		}
		if _, live, fixed := c.Reload(again); live != nil || fixed != nil {
			t.Fatalf("the same file changes %v and %v", live, fixed)
		}
	})
}
