package console

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/sys"
	"oxpd/switchcfg/mvsw"
)

// pty is the far end of a line.
type pty struct{ *sys.Pty }

func newPTY(t *testing.T) pty {
	t.Helper()
	p, err := sys.OpenPty()
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return pty{p}
}

// near opens our end besides the console, as this process: it keeps the settings
// and counts as no other reader.
func (p pty) near(t *testing.T) *os.File {
	t.Helper()
	f, err := p.Open(false)
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func (p pty) settings(t *testing.T) unix.Termios {
	t.Helper()
	s, err := p.Termios()
	require.NoError(t, err)
	return *s
}

// heard is what comes out of the far end within a moment.
func (p pty) heard(t *testing.T) string {
	t.Helper()
	require.NoError(t, p.File().SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	var b [4096]byte
	n, err := p.File().Read(b[:])
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		require.NoError(t, err)
	}
	return string(b[:n])
}

func ready(context.Context) error { return nil }

// thisHost is this machine with lists of kernel consoles of our own.
func thisHost(t *testing.T, consoles string) host {
	t.Helper()
	proc := t.TempDir()
	entries, err := os.ReadDir("/proc")
	require.NoError(t, err)
	for _, e := range entries {
		if strings.Trim(e.Name(), "0123456789") == "" {
			require.NoError(t, os.Symlink("/proc/"+e.Name(), filepath.Join(proc, e.Name())))
		}
	}
	require.NoError(t, os.WriteFile(filepath.Join(proc, "consoles"), []byte(consoles), 0o644))
	return host{proc: proc, sys: t.TempDir()}
}

func numberOf(t *testing.T, path string) string {
	t.Helper()
	d, err := host{}.device(path)
	require.NoError(t, err)
	return fmt.Sprintf("%d:%d", d.major(), d.minor())
}

//oxpd:fault R56 behaviour
func TestOpenSetsTheLineAndLeavesItSo(t *testing.T) {
	p := newPTY(t)
	p.near(t) // a pseudo terminal forgets its settings at the last close
	require.NotZero(t, p.settings(t).Lflag&unix.ECHO)
	_ = p.heard(t)

	c, err := Open(context.Background(), p.Path(), Options{Ready: ready})
	require.NoError(t, err)
	for range 2 { // open, and closed
		s := p.settings(t)
		assert.Zero(t, s.Lflag, "no echo, no lines, no signals")
		assert.Zero(t, s.Iflag)
		assert.Zero(t, s.Oflag)
		assert.EqualValues(t, unix.B115200, s.Cflag&unix.CBAUD)
		assert.EqualValues(t, unix.CS8|unix.CREAD|unix.CLOCAL, s.Cflag&^unix.CBAUD)
		require.NoError(t, c.Close())
		c, err = Open(context.Background(), p.Path(), Options{Ready: ready})
		require.NoError(t, err)
	}
	_, err = p.File().WriteString("Hit any key to stop autoboot: 3\r\n")
	require.NoError(t, err)
	assert.Empty(t, p.heard(t), "what the far end says is not echoed, and nothing is said unasked")
	require.NoError(t, c.Close())
	assert.Empty(t, p.heard(t))
}

func TestGateIsAskedBeforeTheDeviceIsOpened(t *testing.T) {
	p := newPTY(t)
	before := p.settings(t)
	_, err := Open(context.Background(), p.Path(), Options{Ready: func(context.Context) error { return errBooting }})
	assert.ErrorIs(t, err, NotReady)
	assert.ErrorIs(t, err, errBooting)
	assert.Equal(t, before, p.settings(t))
	assert.Empty(t, p.heard(t))
	_, err = Open(context.Background(), p.Path(), Options{})
	assert.ErrorIs(t, err, NotReady)
}

func TestDevicesThatAreRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	for _, path := range []string{file, t.TempDir(), filepath.Join(t.TempDir(), "none"), "/dev/null", "/dev/full", "/dev/tty", "/dev/ptmx"} {
		_, err := Open(context.Background(), path, Options{Ready: ready})
		assert.ErrorIs(t, err, NotTerminal, path)
	}
}

func TestKernelConsoleIsRefused(t *testing.T) {
	p := newPTY(t)
	before := p.settings(t)
	number := numberOf(t, p.Path())
	h := thisHost(t, "tty0                 -WU (EC  p  )    4:1\nttyS9                -W- (EC  p a)    "+number+"\n")
	_, err := open(context.Background(), h, p.Path(), Options{Ready: ready})
	assert.ErrorIs(t, err, KernelConsole)
	assert.ErrorContains(t, err, "ttyS9 in "+h.proc)

	// A symbolic link is the device that it leads to.
	link := filepath.Join(t.TempDir(), "coprocessor")
	require.NoError(t, os.Symlink(p.Path(), link))
	_, err = open(context.Background(), h, link, Options{Ready: ready})
	assert.ErrorIs(t, err, KernelConsole)

	h = thisHost(t, "")
	tty := filepath.Join(h.sys, "class/tty")
	require.NoError(t, os.MkdirAll(filepath.Join(tty, "console"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(tty, "ttyS9"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(tty, "console/active"), []byte("tty0 ttyS9\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(tty, "ttyS9/dev"), []byte(number+"\n"), 0o644))
	_, err = open(context.Background(), h, p.Path(), Options{Ready: ready})
	assert.ErrorIs(t, err, KernelConsole)
	assert.ErrorContains(t, err, "ttyS9 in "+tty)
	assert.Equal(t, before, p.settings(t), "what is refused is left alone")

	// A serial port of which nothing is known is refused, too.
	err = host{proc: t.TempDir(), sys: t.TempDir()}.mayUse(device{number: unix.Mkdev(majorTTY, firstSerial+2)})
	var r *refusal
	require.ErrorAs(t, err, &r)
	assert.Equal(t, KernelConsole, r.kind)
	assert.NoError(t, thisHost(t, "").mayUse(device{number: unix.Mkdev(majorTTY, 255)}))
}

func TestDeviceThatAnotherProcessHasOpen(t *testing.T) {
	p := newPTY(t)
	before := p.settings(t)
	near, err := p.Open(false)
	require.NoError(t, err)
	cmd := exec.Command("cat") // which gets no end of file
	cmd.Stdin = near
	require.NoError(t, cmd.Start())
	require.NoError(t, near.Close())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })

	_, err = Open(context.Background(), p.Path(), Options{Ready: func(context.Context) error {
		t.Error("what is in use is not opened, so the gate is not asked")
		return nil
	}})
	assert.ErrorIs(t, err, InUse)
	assert.ErrorContains(t, err, fmt.Sprintf("process %d (", cmd.Process.Pid))
	assert.Equal(t, before, p.settings(t))

	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	c, err := Open(context.Background(), p.Path(), Options{Ready: ready})
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

func TestDeviceThatIsClaimed(t *testing.T) {
	p := newPTY(t)
	near := p.near(t)
	before := p.settings(t)

	require.NoError(t, unix.Flock(int(near.Fd()), unix.LOCK_EX))
	_, err := Open(context.Background(), p.Path(), Options{Ready: ready})
	assert.ErrorIs(t, err, Locked)
	require.NoError(t, unix.Flock(int(near.Fd()), unix.LOCK_UN))

	require.NoError(t, unix.IoctlSetInt(int(near.Fd()), unix.TIOCEXCL, 0))
	_, err = Open(context.Background(), p.Path(), Options{Ready: ready})
	assert.ErrorIs(t, err, Exclusive)
	assert.Equal(t, before, p.settings(t))
	require.NoError(t, unix.IoctlSetInt(int(near.Fd()), unix.TIOCNXCL, 0))

	c, err := Open(context.Background(), p.Path(), Options{Ready: ready})
	require.NoError(t, err)
	exclusive, err := unix.IoctlGetInt(int(near.Fd()), unix.TIOCGEXCL)
	require.NoError(t, err)
	assert.NotZero(t, exclusive)
	assert.ErrorIs(t, unix.Flock(int(near.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
	_, err = Open(context.Background(), p.Path(), Options{Ready: ready})
	assert.ErrorIs(t, err, Exclusive, "ours, a second time")
	copied, err := unix.FcntlInt(uintptr(c.line.(*tty).fd), unix.F_DUPFD_CLOEXEC, 0) // as a child has it until it is another program
	require.NoError(t, err)
	defer unix.Close(copied)
	require.NoError(t, c.Close())
	exclusive, err = unix.IoctlGetInt(int(near.Fd()), unix.TIOCGEXCL)
	require.NoError(t, err)
	assert.Zero(t, exclusive, "the claim ends with the console")
	assert.NoError(t, unix.Flock(int(near.Fd()), unix.LOCK_SH|unix.LOCK_NB), "and so does the lock, whoever has a copy")
}

// A process that opens the port between the first look and the claim.
func TestDeviceThatIsOpenedMeanwhile(t *testing.T) {
	p := newPTY(t)
	near := p.near(t)
	before := p.settings(t)
	var cmd *exec.Cmd
	_, err := Open(context.Background(), p.Path(), Options{Ready: func(context.Context) error {
		cmd = exec.Command("cat")
		cmd.Stdin = near
		return cmd.Start()
	}})
	assert.ErrorIs(t, err, InUse)
	assert.Equal(t, before, p.settings(t), "its settings are as they were")
	exclusive, err := unix.IoctlGetInt(int(near.Fd()), unix.TIOCGEXCL)
	require.NoError(t, err)
	assert.Zero(t, exclusive)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
}

func TestLineThatHangsUp(t *testing.T) {
	p := newPTY(t)
	c, err := Open(context.Background(), p.Path(), Options{Ready: ready})
	require.NoError(t, err)
	require.NoError(t, p.File().Close())
	_, _, err = c.Run(context.Background(), "true")
	assert.ErrorIs(t, err, Gone)
	require.NoError(t, c.Close())
}

// A port that is taken away reads as the end of a file.
func TestLineThatIsTakenAway(t *testing.T) {
	p := newPTY(t)
	near := p.near(t)
	c, err := Open(context.Background(), p.Path(), Options{Ready: ready})
	require.NoError(t, err)
	const vhangup = 0x5437 // TIOCVHANGUP, asm-generic/ioctls.h
	if err := unix.IoctlSetInt(int(near.Fd()), vhangup, 0); errors.Is(err, unix.EPERM) {
		t.Skip("only root may hang up a terminal")
	}
	_, err = c.line.Read(make([]byte, 1))
	assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
	_, _, err = c.Run(context.Background(), "true")
	assert.ErrorIs(t, err, Gone)
	require.NoError(t, c.Close())
}

func TestLineThatTakesNothing(t *testing.T) {
	p := newPTY(t)
	c, err := Open(context.Background(), p.Path(), Options{Ready: ready, Session: 200 * time.Millisecond})
	require.NoError(t, err)
	defer c.Close()
	for full := 0; full < 20; full++ { // nobody reads at the far end
		n, err := c.line.Write(make([]byte, 4096))
		require.NoError(t, err)
		if n > 0 {
			full = 0
		}
		time.Sleep(5 * time.Millisecond) // the kernel moves them on
	}
	_, _, err = c.Run(context.Background(), "true")
	assert.ErrorIs(t, err, Stuck)
}

// shell runs a real shell on a pseudo terminal of its own and joins that to p. What is
// typed goes by way of typed, what the shell says by way of said.
func (p pty) shell(t *testing.T, typed, said func([]byte) []byte) {
	t.Helper()
	q := newPTY(t)
	near, err := q.Open(false)
	require.NoError(t, err)
	argv := []string{"sh", "-i"}
	if _, err := exec.LookPath("busybox"); err == nil {
		argv = []string{"busybox", "sh", "-i"}
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TERM=vt100", "PS1=oct \\w # ", "HOME=/nonexistent"}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = near, near, near
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, cmd.Start())
	require.NoError(t, near.Close())
	var pumps sync.WaitGroup
	pump := func(to, from *os.File, through func([]byte) []byte) {
		pumps.Add(1)
		go func() {
			defer pumps.Done()
			r := bufio.NewReader(from)
			for {
				var b [512]byte
				n, err := r.Read(b[:])
				if err != nil {
					return // the end of the test, or of the shell
				}
				if _, err := to.Write(through(b[:n])); err != nil {
					return
				}
			}
		}()
	}
	pump(q.File(), p.File(), typed)
	pump(p.File(), q.File(), said)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = p.File().Close()
		_ = q.File().Close()
		pumps.Wait()
	})
}

func as(b []byte) []byte { return b }

func TestRealShell(t *testing.T) {
	p := newPTY(t)
	p.shell(t, as, as)
	c, err := Open(context.Background(), p.Path(), Options{Ready: ready})
	require.NoError(t, err)
	defer c.Close()
	ctx := context.Background()
	lines, status, err := c.Run(ctx, "echo one; echo; echo two; (exit 3)")
	require.NoError(t, err)
	assert.Equal(t, []string{"one", "two"}, lines)
	assert.Equal(t, 3, status)
	lines, status, err = c.Run(ctx, "no-such-program-here")
	require.NoError(t, err)
	assert.Equal(t, 127, status)
	assert.Len(t, lines, 1)
	long := strings.Repeat("0123456789abcde", 26) // 390
	lines, _, err = c.Run(ctx, "echo "+long)
	require.NoError(t, err)
	assert.Equal(t, []string{long}, lines)
	lines, _, err = c.Run(ctx, `echo 'it'"'"'s'; x='a  b'; echo "$x" $x`)
	require.NoError(t, err)
	assert.Equal(t, []string{"it's", "a  b a b"}, lines)
	_, status, err = c.Run(ctx, "echo OXPEND_0; exec 3</dev/null; false")
	require.NoError(t, err)
	assert.Equal(t, 1, status)
}

// What a command left in a bad state is put right before the next: a program that
// waits for its input, and a quote that was not closed.
func TestRealShellIsFoundAgain(t *testing.T) {
	p := newPTY(t)
	p.shell(t, as, as)
	c, err := Open(context.Background(), p.Path(), Options{Ready: ready, Command: 300 * time.Millisecond})
	require.NoError(t, err)
	defer c.Close()
	for _, line := range []string{"sleep 1000", "echo 'open"} {
		_, _, err = c.Run(context.Background(), line)
		require.Error(t, err)
		require.True(t, errors.Is(err, Unfinished) || errors.Is(err, Unanswered), "%v", err)
		c.o.Command = DefaultCommand
		lines, status, err := c.Run(context.Background(), "echo here")
		require.NoError(t, err, line)
		assert.Zero(t, status)
		assert.Equal(t, []string{"here"}, lines)
		c.o.Command = 300 * time.Millisecond
	}
}

// The program for the coprocessor arrives whole on a line that loses a byte now
// and then, and on which the kernel speaks.
func TestUploadOverALineThatLosesBytes(t *testing.T) {
	p := newPTY(t)
	var count atomic.Int64
	lossy := func(b []byte) []byte {
		var kept []byte
		for _, x := range b {
			if count.Add(1)%5003 != 0 {
				kept = append(kept, x)
			}
		}
		return kept
	}
	noisy := func(b []byte) []byte {
		if i := strings.LastIndex(string(b), "\r\n"); i >= 0 && count.Load()%3 == 0 {
			return []byte(string(b[:i+2]) + "[  417.003172] octeontx-ep: # irq 155: nobody cared\r\n" + string(b[i+2:]))
		}
		return b
	}
	p.shell(t, lossy, noisy)
	c, err := Open(context.Background(), p.Path(), Options{Ready: ready, Command: 5 * time.Second})
	require.NoError(t, err)
	defer c.Close()
	folder, err := os.MkdirTemp("", "oxpd-upload-")
	require.NoError(t, err)
	defer os.RemoveAll(folder)
	h, err := mvsw.New(c, mvsw.Options{Path: filepath.Join(folder, "mvsw")})
	require.NoError(t, err)
	require.NoError(t, h.Prepare(context.Background()))
	state, err := h.Check(context.Background())
	require.NoError(t, err)
	assert.Equal(t, mvsw.Present, state)
}

// A child that is still the program of its parent has copies of the descriptors.
func TestCopyOfOurs(t *testing.T) {
	const us, child = 10, 12
	for _, tc := range []struct {
		name, stat, cmdline string
		copy                bool
	}{
		{"between fork and exec", "12 (a ) b) S 10 1 1", "oxpd\x00run\x00", true},
		{"another program by now", "12 (ip) S 10 1 1", "ip\x00link\x00", false},
		{"another oxpd, of somebody else", "12 (oxpd) S 1 1 1", "oxpd\x00run\x00", false},
		{"ended meanwhile", "", "", false},
		{"cut off", "12 (oxpd) S", "oxpd\x00run\x00", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := host{proc: t.TempDir()}
			for pid, files := range map[int][2]string{us: {"10 (oxpd) S 1 1 1", "oxpd\x00run\x00"}, child: {tc.stat, tc.cmdline}} {
				dir := filepath.Join(h.proc, strconv.Itoa(pid))
				require.NoError(t, os.Mkdir(dir, 0o700))
				require.NoError(t, os.WriteFile(filepath.Join(dir, "stat"), []byte(files[0]), 0o600))
				require.NoError(t, os.WriteFile(filepath.Join(dir, "cmdline"), []byte(files[1]), 0o600))
			}
			assert.Equal(t, tc.copy, h.copyOf(us, child))
		})
	}
}
