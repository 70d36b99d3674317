package console_test

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/hwsim"
	"oxpd/hwsim/console"
	"oxpd/switchcfg/reg"
)

// hang guards every wait; the machine may be slow and busy.
const hang = time.Minute

// TestMain is also the interpreter that a console of these tests runs: a copy of the test
// itself, inside the shell's world.
func TestMain(m *testing.M) {
	if status, called := console.Called(os.Args[1:]); called {
		os.Exit(status)
	}
	if os.Getenv(holdEnv) != "" {
		holder()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// card is a coprocessor that does as it is told.
type card struct {
	mu     sync.Mutex
	tell   func(hwsim.BootEvent)
	up     bool
	bytes  int
	faults hwsim.Faults
	words  map[[3]int]uint16
}

func (c *card) SetConsole(fn func(hwsim.BootEvent)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tell = fn
}

func (c *card) KernelUp() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.up
}

func (c *card) ConsoleByte() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes++
}

func (c *card) stops() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes
}

func (c *card) ConsoleFaults() hwsim.ConsoleFaults {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.faults.ConsoleFaults
}

func (c *card) Faults(fn func(f *hwsim.Faults)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fn(&c.faults)
}

var errBus = errors.New("bus failure")

func (c *card) MDIORead(bus, phy, reg int) (uint16, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if bus != 0 {
		return 0, errBus
	}
	return c.words[[3]int{bus, phy, reg}], nil
}

func (c *card) MDIOWrite(bus, phy, reg int, v uint16) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if bus != 0 {
		return errBus
	}
	c.words[[3]int{bus, phy, reg}] = v
	return nil
}

// happen is a moment of the card's life.
func (c *card) happen(e hwsim.BootEvent) {
	c.mu.Lock()
	c.up = e == hwsim.BootKernel
	tell := c.tell
	c.mu.Unlock()
	tell(e)
}

// host is a program that has the terminal open, raw.
type host struct {
	t *testing.T
	f *os.File

	mu   sync.Mutex
	all  string
	seen int // of all, by expect
	done chan struct{}
}

func open(t *testing.T, path string) *host {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	require.NoError(t, err)
	h := &host{t: t, f: f, done: make(chan struct{})}
	go func() {
		defer close(h.done)
		var b [256]byte
		for {
			n, err := f.Read(b[:])
			if err != nil {
				return
			}
			h.mu.Lock()
			h.all += string(b[:n])
			h.mu.Unlock()
		}
	}()
	t.Cleanup(h.close)
	return h
}

func (h *host) close() {
	_ = h.f.Close()
	<-h.done
}

func (h *host) text() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.all
}

// find looks for what is said after what was found last.
func (h *host) find(what string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := strings.Index(h.all[h.seen:], what)
	if i >= 0 {
		h.seen += i + len(what)
	}
	return i >= 0
}

func (h *host) expect(what string) {
	h.t.Helper()
	wait(h.t, func() bool { return h.find(what) }, func() string { return fmt.Sprintf("never said: %q in %q", what, h.text()) })
}

func (h *host) send(text string) {
	h.t.Helper()
	_, err := h.f.WriteString(text)
	require.NoError(h.t, err)
}

func wait(t *testing.T, cond func() bool, what func() string) {
	t.Helper()
	for deadline := time.Now().Add(hang); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what())
		}
	}
}

func needBusybox(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("busybox"); err != nil {
		t.Skip("busybox is not installed")
	}
}

// start makes a console whose kernel runs, and a host that has it open.
func start(t *testing.T, o console.Options) (*card, *console.Console, *host) {
	t.Helper()
	c := &card{words: map[[3]int]uint16{{0, reg.Address, 1}: 0x1930}, up: true}
	con, err := console.New(c, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, con.Close()) })
	return c, con, open(t, con.Path())
}

// shell is start with a login behind it.
func shell(t *testing.T, o console.Options) (*card, *console.Console, *host) {
	t.Helper()
	needBusybox(t)
	t.Setenv("TMPDIR", t.TempDir())
	c, con, h := start(t, o)
	h.login()
	return c, con, h
}

func (h *host) login() {
	h.t.Helper()
	h.prompt()
	h.send("root\n")
	h.expect("# ")
}

// prompt asks for the login's prompt until there is one: what was said before anybody
// listened is lost, and what is typed before anybody hears it.
func (h *host) prompt() {
	h.t.Helper()
	wait(h.t, func() bool {
		h.send("\n")
		time.Sleep(20 * time.Millisecond)
		return h.find("login: ")
	}, func() string { return fmt.Sprintf("no prompt in %q", h.text()) })
	for h.find("login: ") {
	}
}

// run runs a command line and returns its status. The end is marked by a text that is not
// in what is sent.
func (h *host) run(line string) (output, status string) {
	h.t.Helper()
	h.mu.Lock()
	from := h.seen
	h.mu.Unlock()
	h.send(line + `; echo E""ND_$?_` + "\n")
	h.expect("END_")
	h.mu.Lock()
	output = h.all[from : h.seen-len("END_")]
	h.mu.Unlock()
	h.expect("_")
	h.mu.Lock()
	defer h.mu.Unlock()
	rest := h.all[from+len(output)+len("END_"):]
	return output, rest[:strings.Index(rest, "_")]
}

// upload brings a file there as base64, by what reads lines from the terminal.
func (h *host) upload(name string, b []byte) {
	h.t.Helper()
	h.send(`echo GO""_; base64 -d >` + name + "\n")
	h.expect("GO_")
	text := base64.StdEncoding.EncodeToString(b)
	for len(text) > 0 {
		n := min(76, len(text))
		h.send(text[:n] + "\n")
		text = text[n:]
	}
	h.send("\x04")
	h.expect("# ")
}

func TestLife(t *testing.T) {
	needBusybox(t)
	c := &card{}
	con, err := console.New(c, console.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, con.Close()) }()
	h := open(t, con.Path())
	c.happen(hwsim.BootOff)
	c.happen(hwsim.BootLoader)
	h.expect("Hit any key")
	assert.Zero(t, c.stops(), "nobody has typed")
	c.happen(hwsim.BootKernel)
	h.expect("Linux version")
	h.expect("login: ")
	h.send("admin\n")
	h.expect("Password: ")
	h.send("secret\n")
	h.expect("Login incorrect")
	assert.NotContains(t, h.text(), "secret")
	h.expect("login: ")
	h.send("root\n")
	h.expect("# ")
	_, status := h.run("false")
	assert.Equal(t, "1", status)
	out, status := h.run("pwd; id -u; env | grep -c .")
	assert.Contains(t, out, "\r\n/root\r\n0\r\n")
	assert.Equal(t, "0", status)
	h.send("exit\n")
	h.expect("login: ")
	assert.Zero(t, c.stops(), "typed at a kernel that runs")

	c.happen(hwsim.BootOff)
	c.happen(hwsim.BootLoader)
	h.expect("Hit any key")
	h.send("\n\n")
	h.expect("loader> ")
	wait(t, func() bool { return c.stops() == 2 }, func() string { return "each byte must reach the card" })
	assert.NotContains(t, h.text()[h.seen:], "login")
}

//oxpd:fault R58 symptom
func TestOptions(t *testing.T) {
	t.Run("no echo", func(t *testing.T) {
		_, _, h := shell(t, console.Options{NoEcho: true})
		out, status := h.run("(exit 3)")
		assert.Equal(t, "3", status)
		assert.NotContains(t, out, "exit", "what is sent does not come back")
	})
	t.Run("echo", func(t *testing.T) {
		_, _, h := shell(t, console.Options{})
		out, _ := h.run("(exit 3)")
		assert.Contains(t, out, "(exit 3)")
	})
	t.Run("password", func(t *testing.T) {
		needBusybox(t)
		_, _, h := start(t, console.Options{AskPassword: true})
		h.prompt()
		h.send("root\n")
		h.expect("assword:")
		h.send("wrong\n")
		h.expect("incorrect")
		h.expect("login: ")
		h.send("root\n")
		h.expect("assword:")
		h.send("\n")
		h.expect("# ")
	})
	t.Run("115,200 baud", func(t *testing.T) {
		_, _, h := shell(t, console.Options{Baud: console.Baud})
		before := time.Now()
		h.run("head -c 11520 /dev/zero | tr '\\0' x")
		assert.Greater(t, time.Since(before), 950*time.Millisecond, "11,520 bytes are a second")
	})
	t.Run("link", func(t *testing.T) {
		link := filepath.Join(t.TempDir(), "console")
		c := &card{}
		require.NoError(t, os.Symlink("/dev/pts/999999", link), "one that was left behind")
		con, err := console.New(c, console.Options{Link: link})
		require.NoError(t, err)
		to, err := os.Readlink(link)
		require.NoError(t, err)
		assert.Equal(t, con.Path(), to)
		_, err = console.New(c, console.Options{Link: link})
		assert.ErrorIs(t, err, fs.ErrExist, "that of another console is left alone")
		require.NoError(t, con.Close())
		assert.NoFileExists(t, link)

		other, err := console.New(c, console.Options{})
		require.NoError(t, err)
		require.NoError(t, os.Symlink(other.Path(), link))
		long := unix.NsecToTimeval(time.Now().Add(-time.Hour).UnixNano())
		require.NoError(t, unix.Lutimes(link, []unix.Timeval{long, long}), "one whose number another terminal has got since")
		con, err = console.New(&card{}, console.Options{Link: link})
		require.NoError(t, err)
		to, err = os.Readlink(link)
		require.NoError(t, err)
		assert.Equal(t, con.Path(), to)
		require.NoError(t, con.Close())
		require.NoError(t, other.Close())

		require.NoError(t, os.WriteFile(link, nil, 0o600))
		_, err = console.New(c, console.Options{Link: link})
		assert.ErrorIs(t, err, fs.ErrExist, "a file is left alone")
	})
	t.Run("no busybox", func(t *testing.T) {
		needBusybox(t)
		path := os.Getenv("PATH")
		t.Setenv("PATH", t.TempDir())
		_, _, h := start(t, console.Options{})
		h.prompt()
		h.send("root\n")
		h.expect(console.ErrNoShell.Error())
		h.expect("login: ")
		t.Setenv("PATH", path)
		h.login()
	})
}

// TestWorld: the shell's root has no way out, and what it needs of /dev works.
func TestWorld(t *testing.T) {
	_, _, h := shell(t, console.Options{})
	inside, _ := h.run("ls /")
	out, status := h.run("nsenter --mount=/proc/self/ns/mnt ls /")
	assert.Equal(t, "0", status, out)
	assert.Contains(t, out, inside[strings.Index(inside, "\r\n"):], "the root of its mounts is its own")
	out, status = h.run("mount; cat </dev/null; head -c 2 /dev/zero | od -An -tx1; echo x >/dev/full")
	assert.Equal(t, "1", status)
	assert.Contains(t, out, "00 00")
	assert.Contains(t, out, "No space left")
	out, _ = h.run("hostname; ls /sys | wc -l")
	assert.Contains(t, out, "octeon\r\n0\r\n")
	h.send("busybox reboot -f\n")
	h.expect("login: ") // it ends what it reaches: the shell
	h.login()
}

func TestUpload(t *testing.T) {
	_, _, h := shell(t, console.Options{})
	b := make([]byte, 40_000)
	for i := range b {
		b[i] = byte(i * i >> 3)
	}
	h.upload("/tmp/uploaded-by-oxpd-test", b)
	out, status := h.run("sha256sum /tmp/uploaded-by-oxpd-test")
	assert.Equal(t, "0", status)
	assert.Contains(t, out, fmt.Sprintf("%x", sha256.Sum256(b)))
	assert.NoFileExists(t, "/tmp/uploaded-by-oxpd-test", "the shell has a /tmp of its own")
}

func TestForeignProgram(t *testing.T) {
	_, _, h := shell(t, console.Options{})
	h.upload("/root/say", sayArguments())
	for _, x := range []struct{ name, line, want, status string }{
		{"not executable", "/root/say", "Permission denied", "126"},
		{"by its path", "chmod +x say; /root/say a 'b c' '' d", "\r\n/root/say\r\na\r\nb c\r\n\r\nd\r\n", "7"},
		{"from its folder", "./say", "\r\n./say\r\n", "7"},
		{"by PATH", "PATH=$PATH:/root; say x", "\r\n/root/say\r\nx\r\n", "7"},
		{"from another program", "echo 1 2 | xargs -n 1 ./say", "\r\n./say\r\n1\r\n./say\r\n2\r\n", "123"},
		{"behind a symlink", "ln -s /root/say /tmp/s; (cd /tmp; ./s)", "\r\n./s\r\n", "7"},
		{"behind a symlink, by its path", "/tmp/s", "\r\n/tmp/s\r\n", "7"},
		{"in the background", "./say & wait $!", "\r\n./say\r\n", "7"},
		{"into a pipe", "./say a | tr a-z A-Z", "\r\n./SAY\r\nA\r\n", "0"},
		{"many arguments", "./say $(seq 1 2000) | tail -n 1", "\r\n2000\r\n", "0"},
		{"cut short", "head -c 100 say >cut; chmod +x cut; ./cut", "not a static little-endian AArch64 program", "126"},
	} {
		out, status := h.run(x.line)
		assert.Contains(t, out, x.want, x.name)
		assert.Equal(t, x.status, status, x.name)
	}
	out, status := h.run("rm /lib/a64; ./say; echo still $?; ls /root")
	assert.Contains(t, out, "still 127\r\n", "the interpreter cannot be run, and the shell lives")
	assert.Equal(t, "0", status)
}

//oxpd:fault S7 symptom
func TestMDIO(t *testing.T) {
	for _, x := range []struct {
		name   string
		zero   bool
		write  bool
		r      reg.Request
		data   uint16 // of the struct afterwards
		status string // what the call returned
	}{
		{"read", false, false, reg.Request{Phy: reg.Address, Reg: 1}, 0x1930, "16"},
		{"read that returns 0", true, false, reg.Request{Phy: reg.Address, Reg: 1}, 0x1930, "0"},
		{"write", false, true, reg.Request{Phy: reg.Address, Reg: 0, Data: 0x9828}, 0x9828, "16"},
		{"write that returns 0", true, true, reg.Request{Phy: reg.Address, Reg: 0, Data: 0x9828}, 0x9828, "0"},
		{"bus failure", false, false, reg.Request{Bus: 1, Data: 0x1234}, 0x1234, "251"},
	} {
		t.Run(x.name, func(t *testing.T) {
			c, _, h := shell(t, console.Options{MDIOZero: x.zero})
			h.upload("p", useBus(x.write, x.r))
			out, status := h.run("chmod +x p; ./p >out; s=$?; base64 out; (exit $s)")
			assert.Equal(t, x.status, status)
			x.r.Data = x.data
			assert.Contains(t, out, base64.StdEncoding.EncodeToString(x.r.Append(nil)))
			if x.write {
				v, err := c.MDIORead(0, reg.Address, 0)
				require.NoError(t, err)
				assert.Equal(t, x.data, v)
			}
		})
	}
	_, _, h := shell(t, console.Options{})
	out, _ := h.run("echo data >/dev/mvmdio-uio")
	assert.Contains(t, out, "No such device", "nothing but an aarch64 program uses the bus")
}

// TestStoppedJob: what job control stops stays so under the tracer.
func TestStoppedJob(t *testing.T) {
	_, _, h := shell(t, console.Options{})
	h.send(`echo GO""_; sleep 1000000` + "\n")
	h.expect("GO_")
	wait(t, func() bool {
		h.send("\x1a")
		time.Sleep(50 * time.Millisecond)
		return h.find("Stopped")
	}, func() string { return fmt.Sprintf("not stopped: %q", h.text()) })
	h.expect("# ")
	// The job, and one that reads in the background.
	h.run("{ cat & } ; both=$(jobs -p)")
	h.run("until [ $(for j in $both; do grep State /proc/$j/status; done | grep -c 'stop)') = 2 ]; do usleep 10000; done")
	h.run("kill %1; kill -CONT %1; kill %2; kill -CONT %2; while pidof sleep cat >/dev/null; do usleep 10000; done")
}

//oxpd:fault S24 symptom
func TestRestart(t *testing.T) {
	c, _, h := shell(t, console.Options{})
	restart := func() {
		t.Helper()
		c.happen(hwsim.BootOff)
		c.happen(hwsim.BootLoader)
		h.expect("Hit any key")
		c.happen(hwsim.BootKernel)
		h.login()
	}
	h.run("echo helper >/tmp/mvsw; echo helper >/root/mvsw; mkdir -p /tmp/a/b; { sleep 1000000 & setsid sleep 1000000 & }")
	restart()
	out, _ := h.run("ls -A /tmp | wc -l; cat /root/mvsw; pidof sleep")
	assert.Contains(t, out, "0\r\nhelper\r\n")
	_, status := h.run("pidof sleep")
	assert.Equal(t, "1", status, "what was begun has ended")
	c.Faults(func(f *hwsim.Faults) { f.ConsoleLoseFiles = true })
	restart()
	_, status = h.run("ls /root/mvsw")
	assert.Equal(t, "1", status)

	c.console(hwsim.ConsoleFaults{ConsoleByteTime: 10 * time.Millisecond})
	h.send("yes\n")
	h.expect("y\r\ny\r\n")
	from := len(h.text())
	c.happen(hwsim.BootOff)
	c.happen(hwsim.BootLoader)
	h.expect("Boot loader")
	assert.Less(t, len(h.text())-from, 1000, "what was not sent yet is gone")
}
