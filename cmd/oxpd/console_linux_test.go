package main

import (
	"encoding/base64"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// helper is the program that reaches the switch from the coprocessor.
const helper = "../../switchcfg/mvsw/helper/mvsw.aarch64"

// terminal is a console that is open; what is heard is kept.
type terminal struct {
	t    *testing.T
	f    *os.File
	text lockedBuffer
}

func openTerminal(t *testing.T, name string) *terminal {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	require.NoError(t, err)
	c := &terminal{t: t, f: f}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var b [256]byte
		for {
			n, err := f.Read(b[:])
			if err != nil {
				return
			}
			_, _ = c.text.Write(b[:n])
		}
	}()
	t.Cleanup(func() { _ = f.Close(); <-done })
	return c
}

// say sends a text again and again, until what is wanted is heard.
func (c *terminal) say(text, want string, again time.Duration) {
	c.t.Helper()
	from := len(c.text.String())
	heard := func() bool { return strings.Contains(c.text.String()[from:], want) }
	for deadline := time.Now().Add(hang); !heard(); {
		if time.Now().After(deadline) {
			c.t.Fatalf("never heard %q in %q", want, c.text.String())
		}
		_, err := c.f.WriteString(text)
		require.NoError(c.t, err)
		for next := time.Now().Add(again); !heard() && time.Now().Before(next); time.Sleep(5 * time.Millisecond) {
		}
	}
}

// TestConsole: from the console of a served card to its switch, by the shipped helper.
func TestConsole(t *testing.T) {
	if _, err := exec.LookPath("busybox"); err != nil {
		t.Skip("busybox is not installed")
	}
	exe := program()
	dir := t.TempDir()
	link := filepath.Join(dir, "console")
	card, log := serveCard(t, exe, "--vfio-user", filepath.Join(dir, "card.sock"), "--console", link+"@no-echo,mdio-zero", "--fault", "ConsoleNoise=100000", "--debug")
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "kernel of the simulated coprocessor runs") }, hang, 5*time.Millisecond) // a byte before that would stop its boot
	c := openTerminal(t, link)
	c.say("\n", "login: ", 100*time.Millisecond)
	c.say("root\n", "# ", hang)
	b, err := os.ReadFile(helper)
	require.NoError(t, err)
	c.say("echo begin; cat >p.b64\n", "begin\r\n", hang)
	text := base64.StdEncoding.EncodeToString(b)
	for len(text) > 0 {
		n := min(len(text), 76)
		_, err := c.f.WriteString(text[:n] + "\n")
		require.NoError(t, err)
		text = text[n:]
	}
	c.say("\x04", "# ", hang)
	c.say("base64 -d p.b64 >p; chmod +x p; ./p 0 2 id; echo st${none}atus $?\n", "status 0", hang)
	assert.Contains(t, c.text.String(), "switch id 0x1930 - device 0x0193 revision 0\r\n")
	c.say("./p 0 2 read 1 32; echo again st${none}atus $?\n", "again status 2", hang)
	assert.NotContains(t, c.text.String(), "cat >p.b64", "what is sent does not come back")
	require.NoError(t, card.Process.Signal(unix.SIGTERM))
	require.NoError(t, card.Wait())
	assert.NoFileExists(t, link)
	assert.NotContains(t, log.String(), "misuse of the card")
}

// TestA64: the interpreter as the console's shell calls it.
func TestA64(t *testing.T) {
	exe := program()
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	require.NoError(t, os.WriteFile(text, []byte("hello, world"), 0o700))
	for _, x := range []struct {
		name     string
		args     []string
		code     int
		out, err string
	}{
		{"no file", nil, 2, "", "sim a64: FILE is missing"},
		{"a file that is not there", []string{filepath.Join(dir, "none")}, 126, "", "no such file or directory"},
		{"a file that is no program", []string{text}, 126, "", "not a static little-endian AArch64 program"},
		{"a program's usage", []string{helper}, 2, "usage: mvsw", ""},
		{"a program's own flags", []string{helper, "--help", "-x"}, 2, "usage: mvsw", ""},
		{"without the device", []string{helper, "0", "2", "id"}, 1, "cannot open /dev/mvmdio-uio", ""},
	} {
		t.Run(x.name, func(t *testing.T) {
			r := oxpd(t, exe, append([]string{"sim", "a64"}, x.args...)...)
			assert.Equal(t, x.code, r.code)
			assert.Contains(t, r.out, x.out)
			assert.Contains(t, r.err, x.err)
			if x.err == "" {
				assert.Empty(t, r.err)
			}
		})
	}
}
