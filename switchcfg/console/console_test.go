package console

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// console is ours over a simulated line.
func (f *far) console(ready func(context.Context) error) *Console {
	if ready == nil {
		ready = func(context.Context) error { return nil }
	}
	return attach("/dev/ttyS2", f, Options{Ready: ready, Clock: f.clock}.filled())
}

func TestRun(t *testing.T) {
	noise := "[  417.003172] octeontx-ep: # irq 155: nobody cared\r\n"
	for _, c := range []struct {
		name string
		set  func(*far)
	}{
		{"a shell", func(*far) {}},
		{"a shell that does not echo", func(f *far) { f.echoes, f.silent = false, true }},
		{"a prompt that nobody knows", func(f *far) { f.prompt = "oct % " }},
		{"no prompt", func(f *far) { f.prompt = "" }},
		{"a prompt with escape sequences", func(f *far) { f.prompt = "\x1b[1m/root #\x1b[0m \x1b[6n" }},
		{"a slow shell", func(f *far) { f.latency = 3 * time.Second }},
		{"a slow line", func(f *far) { f.perByte = 20 * time.Millisecond }},
		{"a line that takes few bytes at once", func(f *far) { f.room = 7 }},
		{"a login", func(f *far) { f.at = "login" }},
		{"a slow login", func(f *far) { f.at, f.latency = "login", 3*time.Second }},
		{"a login with a password", func(f *far) { f.at, f.asks = "login", true }},
		{"a login in the middle", func(f *far) { f.at, f.asks, f.user = "password", true, "admin" }},
		{"a login behind a kernel message", func(f *far) { f.at, f.asks, f.prompt = "login", true, "# "+noise; f.say(0, "octeon login: "+noise) }},
		{"kernel messages", func(f *far) {
			f.prompt = "# " + noise
			f.damage = func(a string) string { return noise + strings.ReplaceAll(a, "\r\n", "\r\n"+noise) }
		}},
		{"a kernel message before a marker", func(f *far) {
			f.damage = func(a string) string { return strings.ReplaceAll(a, "OXP", "[  417.003172] link up OXP") }
		}},
		{"something runs there", func(f *far) { f.at = "program" }},
		{"an open quote", func(f *far) { f.at = "quote" }},
		{"text of a boot before", func(f *far) { f.say(0, strings.Repeat("booting "+noise, 1000)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFar()
			f.run = func(command string) (string, int) {
				assert.Equal(t, "mvsw 0 2 read 1 8", command)
				return "0x1080\n", 3
			}
			c.set(f)
			con := f.console(nil)
			for range 2 {
				lines, status, err := con.Run(context.Background(), "mvsw 0 2 read 1 8")
				require.NoError(t, err)
				assert.Contains(t, lines, "0x1080")
				assert.Equal(t, 3, status)
			}
			assert.Equal(t, 2, f.finished)
		})
	}
}

func TestHalfTypedLineIsNotEntered(t *testing.T) {
	f := newFar()
	f.lines = []string{"rm -rf /root"}
	_, _, err := f.console(nil).Run(context.Background(), "id")
	require.NoError(t, err)
	for _, l := range f.lines {
		assert.NotContains(t, l, "rm -rf")
	}
	assert.NotContains(t, string(f.typed), "\x03", "nothing is interrupted when a shell answers")
}

// The shell echoes again when we leave, if it is there and the gate is open.
func TestCloseLeavesAShellThatEchoes(t *testing.T) {
	f := newFar()
	con := f.console(nil)
	require.NoError(t, con.Close())
	assert.Empty(t, f.typed, "nothing is said to a shell that was not asked for")

	_, _, err := con.Run(context.Background(), "id")
	require.NoError(t, err)
	assert.False(t, f.echoes)
	require.NoError(t, con.Close())
	assert.True(t, f.echoes)

	f = newFar()
	open := true
	con = f.console(func(context.Context) error {
		if !open {
			return errBooting
		}
		return nil
	})
	_, _, err = con.Run(context.Background(), "id")
	require.NoError(t, err)
	open = false
	typed := len(f.typed)
	require.NoError(t, con.Close())
	assert.Len(t, f.typed, typed)

	f.at, open = "nothing", true
	start := f.clock.now
	con.shell = true
	require.NoError(t, con.Close())
	assert.Less(t, f.clock.now-start, 3*time.Second)
}

// errBooting is what a gate says.
var errBooting = errors.New("SDP_SCRATCH is 0")

func TestNoByteWhileTheGateIsClosed(t *testing.T) {
	f := newFar()
	open := false
	con := f.console(func(context.Context) error {
		if open {
			return nil
		}
		return errBooting
	})
	_, _, err := con.Run(context.Background(), "id")
	assert.ErrorIs(t, err, NotReady)
	assert.ErrorIs(t, err, errBooting)
	assert.Empty(t, f.typed)

	open = true
	_, _, err = con.Run(context.Background(), "id")
	require.NoError(t, err)
	typed := len(f.typed)

	open = false // the coprocessor restarts
	_, _, err = con.Run(context.Background(), "id")
	assert.ErrorIs(t, err, NotReady)
	assert.Len(t, f.typed, typed, "a shell that has answered is no reason")

	open, f.at = true, "login"
	_, _, err = con.Run(context.Background(), "id")
	assert.NoError(t, err)
}

// The gate may close at any moment: in a login, between two writes of one line.
func TestGateIsAskedBeforeEachWrite(t *testing.T) {
	for left := range 40 {
		f := newFar()
		f.at, f.asks, f.room = "login", true, 20
		asked := 0
		con := f.console(func(context.Context) error {
			if asked++; asked > left {
				return errBooting
			}
			return nil
		})
		_, _, err := con.Run(context.Background(), "id")
		if err == nil {
			assert.Greater(t, left, 5, "a login and two commands are many writes")
			return
		}
		require.ErrorIs(t, err, NotReady)
		require.LessOrEqual(t, len(f.typed), left*20)
	}
	t.Error("40 writes of 20 bytes are enough for a login")
}

func TestConsoleWithoutAGateWritesNothing(t *testing.T) {
	f := newFar()
	con := attach("/dev/ttyS2", f, Options{Clock: f.clock}.filled())
	_, _, err := con.Run(context.Background(), "id")
	assert.ErrorIs(t, err, NotReady)
	assert.Empty(t, f.typed)
}

func TestFailures(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*far)
		kind Kind
		says string
		most time.Duration // simulated, for the whole
	}{
		{"silence", func(f *far) { f.at = "nothing" }, Silent, "for 45s", DefaultSession + 5*time.Second},
		{"a program that cannot be interrupted", func(f *far) { f.at, f.echoes = "nothing", false; f.say(0, "busy\r\n") }, Silent, "", DefaultSession + 5*time.Second},
		{"only an echo", func(f *far) { f.at, f.run = "cat", nil }, NoShell, "", DefaultSession + 5*time.Second},
		{"a login that refuses", func(f *far) { f.at, f.refuses = "login", true }, LoginRefused, "", DefaultSession + 10*time.Second},
		{"a line that takes nothing", func(f *far) { f.full = true }, Stuck, "0 of 2 bytes were taken", DefaultSession + time.Second},
		{"a line that hangs up", func(f *far) { f.hungUp = true }, Gone, "input/output error", time.Second},
		{"another process has it open", func(f *far) { f.others = "process 12 (minicom)" }, InUse, "process 12 (minicom)", time.Second},
		{"the answer does not come", func(f *far) { f.damage = func(string) string { return "" } }, Unanswered, "", DefaultCommand + 5*time.Second},
		{"a byte of the first marker is lost", func(f *far) {
			f.damage = func(a string) string { return strings.Replace(a, "_B", "B", 1) }
		}, Unanswered, "", DefaultCommand + 5*time.Second},
		{"a byte of the second marker is lost", func(f *far) {
			f.damage = func(a string) string { return strings.Replace(a, "_E", "E", 1) }
		}, Unfinished, "", DefaultCommand + 5*time.Second},
		{"the end does not come", func(f *far) {
			f.damage = func(a string) string { before, _, _ := strings.Cut(a, "0x1080"); return before }
		}, Unfinished, "", DefaultCommand + 5*time.Second},
		{"more than any command says", func(f *far) {
			f.damage = func(a string) string { return strings.Replace(a, "0x1080", strings.Repeat("noise\r\n", 50_000), 1) }
		}, Flooded, " bytes", 5 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFar()
			f.run = func(string) (string, int) { return "0x1080\n", 0 }
			c.set(f)
			start := f.clock.now
			lines, _, err := f.console(nil).Run(context.Background(), "mvsw 0 2 read 1 8")
			require.ErrorIs(t, err, c.kind)
			assert.ErrorContains(t, err, c.says)
			assert.Empty(t, lines)
			assert.Less(t, f.clock.now-start, c.most)
			var e *Error
			require.ErrorAs(t, err, &e)
			assert.NotEmpty(t, e.Hint())
			assert.Equal(t, c.kind.Final(), e.Final())
		})
	}
}

// After a command whose end was lost, the next one is not given its output.
func TestNextCommandAfterALostOne(t *testing.T) {
	f := newFar()
	late := ""
	f.run = func(string) (string, int) { return "0x1080\n", 0 }
	f.damage = func(a string) string { late = a; return "" }
	con := f.console(nil)
	_, _, err := con.Run(context.Background(), "read")
	require.ErrorIs(t, err, Unanswered)

	f.run = func(string) (string, int) { return "0x2080\n", 0 }
	f.damage = func(a string) string { return late + a }
	lines, _, err := con.Run(context.Background(), "read")
	require.NoError(t, err)
	assert.Equal(t, []string{"0x2080"}, lines)
	assert.Contains(t, string(f.typed), "\x15", "and a shell is looked for before")
}

// A coprocessor that restarted has a login where the shell was. It took the
// command for a name, so the command did not run, and is run once after the login.
func TestShellThatHasEnded(t *testing.T) {
	for _, password := range []bool{false, true} {
		f := newFar()
		f.run = func(string) (string, int) { return "0x1080\n", 0 }
		con := f.console(nil)
		_, _, err := con.Run(context.Background(), "read")
		require.NoError(t, err)

		f.at, f.asks = "login", password
		f.say(0, "\r\nstarting kernel\r\noctet login: ")
		lines, _, err := con.Run(context.Background(), "read")
		require.NoError(t, err)
		assert.Equal(t, []string{"0x1080"}, lines)
		assert.Equal(t, 2, f.finished)
	}
}

//oxpd:fault R55 behaviour
func TestSecondReaderIsNamedWhenAnswersDoNotCome(t *testing.T) {
	f := newFar()
	con := f.console(nil)
	_, _, err := con.Run(context.Background(), "read")
	require.NoError(t, err)
	f.others = "process 12 (cat)"
	f.damage = func(a string) string { return a[:len(a)/2] }
	_, _, err = con.Run(context.Background(), "read")
	assert.ErrorIs(t, err, InUse)
	assert.ErrorIs(t, err, Unfinished)
	assert.ErrorContains(t, err, "process 12 (cat)")
}

// The answer came while we were not running (SW-4).
func TestLastLookAfterTheDeadline(t *testing.T) {
	f := newFar()
	con := f.console(nil)
	_, _, err := con.Run(context.Background(), "read")
	require.NoError(t, err)
	f.latency = DefaultCommand - time.Second
	f.clock.pause = func(time.Duration) time.Duration { return 2 * DefaultCommand }
	_, _, err = con.Run(context.Background(), "read")
	assert.NoError(t, err)
}

func TestContextEndsEveryWait(t *testing.T) {
	for _, at := range []string{"nothing", "login", "shell"} {
		f := newFar()
		f.at, f.refuses = at, true
		f.damage = func(string) string { return "" }
		ctx, cancel := context.WithCancel(context.Background())
		start := f.clock.now
		f.clock.pause = func(d time.Duration) time.Duration {
			if f.clock.now-start > time.Second {
				cancel()
			}
			return d
		}
		_, _, err := f.console(nil).Run(ctx, "read")
		assert.ErrorIs(t, err, context.Canceled, at)
		assert.Less(t, f.clock.now-start, 2*time.Second, at)
	}
}

func TestLinesThatAreNotSent(t *testing.T) {
	f := newFar()
	con := f.console(nil)
	for name, line := range map[string]string{
		"two lines": "true\nreboot", "carriage return": "true\rreboot", "interrupt": "true\x03", "not ASCII": "echo é", "too long": strings.Repeat("x", 420),
	} {
		_, _, err := con.Run(context.Background(), line)
		assert.ErrorIs(t, err, BadLine, name)
	}
	assert.Empty(t, f.typed)
	_, _, err := con.Run(context.Background(), strings.Repeat("x", 400))
	assert.NoError(t, err)
}

func TestEveryKindSaysWhatAndWhatToDo(t *testing.T) {
	for k := NotTerminal; k <= Flooded; k++ {
		assert.NotContains(t, k.Error(), "console error")
		assert.NotEmpty(t, k.text().hint, k.Error())
	}
	assert.Equal(t, "console error 0", Kind(0).Error())
	err := &Error{"/dev/ttyS2", InUse, "process 12 (cat)", errBooting}
	assert.EqualError(t, err, "console /dev/ttyS2: another process has it open: process 12 (cat): SDP_SCRATCH is 0")
}
