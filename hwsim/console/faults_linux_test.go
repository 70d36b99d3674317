package console_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/hwsim"
	"oxpd/hwsim/console"
)

// quiet waits until nothing more is said, and returns what was said since from.
func (h *host) quiet(from int) string {
	for last := -1; ; time.Sleep(100 * time.Millisecond) {
		text := h.text()
		if len(text) == last {
			return text[from:]
		}
		last = len(text)
	}
}

func (c *card) console(f hwsim.ConsoleFaults) {
	c.Faults(func(all *hwsim.Faults) { all.ConsoleFaults = f })
}

// home waits for a file in the shell's /root.
func (h *host) home(name string) {
	h.t.Helper()
	wait(h.t, func() bool {
		found, err := filepath.Glob(filepath.Join(os.TempDir(), "oxpd-console-*", "root", name))
		return err == nil && len(found) == 1
	}, func() string { return name + " was never made" })
}

// touch makes a file in the shell's home.
func (h *host) touch(name string) {
	h.t.Helper()
	homes, err := filepath.Glob(filepath.Join(os.TempDir(), "oxpd-console-*", "root"))
	require.NoError(h.t, err)
	require.Len(h.t, homes, 1)
	require.NoError(h.t, os.WriteFile(filepath.Join(homes[0], name), nil, 0o644))
}

// settling is how long what the shell has said may be on its way through the line, on a
// machine that has much else to do.
const settling = 5 * time.Second

// many is more bytes than a test sends.
const many = 1 << 20

// taken waits until the line has taken n bytes since ConsoleCutAfter was many.
func (c *card) taken(t *testing.T, n int) {
	t.Helper()
	wait(t, func() bool { return c.ConsoleFaults().ConsoleCutAfter == many-n }, func() string { return "the line has not taken what was sent" })
}

// heard waits until at least n of what are heard, and returns how many there are when
// nothing more comes.
func (h *host) heard(from int, what string, n int) int {
	h.t.Helper()
	wait(h.t, func() bool { return strings.Count(h.text()[from:], what) >= n }, func() string { return "heard only " + h.text()[from:] })
	return strings.Count(h.quiet(from), what)
}

//oxpd:fault S27 symptom
//oxpd:fault R55 symptom
//oxpd:fault R56 symptom
//oxpd:fault R57 symptom
func TestFaults(t *testing.T) {
	t.Run("silent", func(t *testing.T) {
		c, _, h := shell(t, console.Options{})
		from := len(h.quiet(0))
		c.console(hwsim.ConsoleFaults{ConsoleSilent: true})
		h.send("echo SA\"\"ID; echo heard >f\n")
		h.home("f")
		time.Sleep(settling)
		c.console(hwsim.ConsoleFaults{})
		out, _ := h.run("cat f")
		assert.Contains(t, out, "\r\nheard\r\n", "what was sent was obeyed")
		assert.NotContains(t, h.text()[from:], "SAID")
	})
	t.Run("dead", func(t *testing.T) {
		c, _, h := shell(t, console.Options{})
		h.run("{ (until test -e go; do sleep 0.05; done; echo SA\"\"ID; echo heard >f) & }")
		from := len(h.quiet(0))
		c.console(hwsim.ConsoleFaults{ConsoleDead: true})
		h.touch("go")
		h.home("f")
		time.Sleep(settling)
		c.console(hwsim.ConsoleFaults{})
		h.run("true")
		assert.NotContains(t, h.text()[from:], "SAID")
	})
	t.Run("cut in the middle of an upload", func(t *testing.T) {
		c, _, h := shell(t, console.Options{})
		h.send(`echo GO""_; cat >f` + "\n")
		h.expect("GO_")
		c.console(hwsim.ConsoleFaults{ConsoleCutAfter: 7 * 10})
		h.send(strings.Repeat("123456789\n", 7) + "12345")
		wait(t, func() bool { return c.ConsoleFaults().ConsoleDead }, func() string { return "never cut" })
		assert.Zero(t, c.ConsoleFaults().ConsoleCutAfter)
		h.send("lost")
		time.Sleep(settling) // it is taken, and nobody can tell
		c.console(hwsim.ConsoleFaults{})
		h.send("\x04")
		h.expect("# ")
		out, _ := h.run("wc -c <f")
		assert.Contains(t, out, "\r\n70\r\n")
	})
	t.Run("slow", func(t *testing.T) {
		c, _, h := shell(t, console.Options{})
		c.console(hwsim.ConsoleFaults{ConsoleByteTime: 2 * time.Millisecond})
		before := time.Now()
		h.run("head -c 200 /dev/zero | tr '\\0' x")
		assert.Greater(t, time.Since(before), 400*time.Millisecond)
	})
	t.Run("kernel messages in between", func(t *testing.T) {
		c, _, h := shell(t, console.Options{})
		from := len(h.quiet(0))
		c.console(hwsim.ConsoleFaults{ConsoleNoise: 25})
		h.send("seq 100 130 | tr '\\n' ' '\n")
		h.heard(from, "nobody cared", 5)
		assert.NotContains(t, h.text()[from:], "100 101 102 103 104 105 106 107 108 109")
	})
	t.Run("bytes for the host are lost", func(t *testing.T) {
		c, _, h := shell(t, console.Options{})
		from := len(h.quiet(0))
		c.console(hwsim.ConsoleFaults{ConsoleLoseOut: 10})
		h.send("head -c 1000 /dev/zero | tr '\\0' x\n")
		assert.InDelta(t, 900, h.heard(from, "x", 895), 5)
	})
	t.Run("bytes of the host are lost", func(t *testing.T) {
		c, _, h := shell(t, console.Options{})
		h.send(`echo GO""_; cat >f` + "\n")
		h.expect("GO_")
		c.console(hwsim.ConsoleFaults{ConsoleLoseIn: 10, ConsoleCutAfter: many})
		h.send(strings.Repeat("123456789\n", 100))
		c.taken(t, 1000)
		c.console(hwsim.ConsoleFaults{})
		h.send("\n\x04")
		h.expect("# ")
		out, _ := h.run("wc -c <f")
		assert.Contains(t, out, "\r\n901\r\n")
	})
	t.Run("second reader", func(t *testing.T) {
		c, con, h := shell(t, console.Options{})
		from := len(h.quiet(0))
		c.console(hwsim.ConsoleFaults{ConsoleSecondReader: true})
		wait(t, func() bool { return opened(t, con.Path()) == 2 }, func() string { return "nobody else has it open" })
		h.send("head -c 1600 /dev/zero | tr '\\0' x\n")
		assert.InDelta(t, 800, h.heard(from, "x", 780), 20)
		c.console(hwsim.ConsoleFaults{})
		wait(t, func() bool { return opened(t, con.Path()) == 1 }, func() string { return "the other has it open still" })
		_, status := h.run("true")
		assert.Equal(t, "0", status)
	})
	t.Run("login after inactivity", func(t *testing.T) {
		c, _, h := shell(t, console.Options{})
		c.console(hwsim.ConsoleFaults{ConsoleLogout: 200 * time.Millisecond})
		h.expect("login: ")
		c.console(hwsim.ConsoleFaults{})
		h.login()
	})
	t.Run("local echo stops a boot", func(t *testing.T) {
		c := &card{}
		c.console(hwsim.ConsoleFaults{ConsoleLocalEcho: true})
		con, err := console.New(c, console.Options{})
		require.NoError(t, err)
		defer func() { require.NoError(t, con.Close()) }()
		open(t, con.Path())
		c.happen(hwsim.BootLoader)
		wait(t, func() bool { return c.stops() > 10 }, func() string { return "the boot text must come back" })
	})
	t.Run("no local echo otherwise", func(t *testing.T) {
		c := &card{}
		con, err := console.New(c, console.Options{})
		require.NoError(t, err)
		defer func() { require.NoError(t, con.Close()) }()
		h := open(t, con.Path())
		c.happen(hwsim.BootLoader)
		h.expect("Hit any key")
		h.quiet(0)
		assert.Zero(t, c.stops())
	})
}

// opened counts the descriptors of this process that are a terminal's end at the host.
func opened(t *testing.T, path string) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	n := 0
	for _, fd := range fds {
		if to, err := os.Readlink(filepath.Join("/proc/self/fd", fd.Name())); err == nil && to == path {
			n++
		}
	}
	return n
}

// TestAfterTheHost: what a serial port forgets at its last close, and what nobody heard.
func TestAfterTheHost(t *testing.T) {
	_, con, h := shell(t, console.Options{})
	raw, err := h.f.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) { err = unix.IoctlSetInt(int(fd), unix.TIOCEXCL, 0) }))
	require.NoError(t, err)
	h.send(`sleep 0.5; seq 1 3 >f; echo SA""ID; echo >g` + "\n")
	h.close()
	h.home("g")
	time.Sleep(settling) // nobody listens, and then the port is tidied
	h = open(t, con.Path())
	raw, err = h.f.SyscallConn()
	require.NoError(t, err)
	exclusive := -1
	require.NoError(t, raw.Control(func(fd uintptr) { exclusive, err = unix.IoctlGetInt(int(fd), unix.TIOCGEXCL) }))
	require.NoError(t, err)
	assert.Zero(t, exclusive)
	out, status := h.run("cat f")
	assert.Equal(t, "0", status, "the shell is as it was")
	assert.Contains(t, out, "1\r\n2\r\n3\r\n")
	assert.NotContains(t, h.text(), "SAID")
}
