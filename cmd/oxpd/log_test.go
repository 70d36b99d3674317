package main

import (
	"errors"
	"fmt"
	"io"
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

	"oxpd/internal/sys"
)

// stalled is a log that takes nothing before its reader goes on.
type stalled struct {
	lockedBuffer
	inside chan struct{} // gets one when a write has begun
	goOn   chan struct{} // closed
}

func (s *stalled) Write(b []byte) (int, error) {
	select {
	case s.inside <- struct{}{}:
	default:
	}
	<-s.goOn
	return s.lockedBuffer.Write(b)
}

func TestLogOfASlowReader(t *testing.T) {
	out := &stalled{inside: make(chan struct{}, 1), goOn: make(chan struct{})}
	l := newLogWriter(out)
	say := func(format string, args ...any) {
		line := fmt.Sprintf(format+"\n", args...)
		n, err := l.Write([]byte(line))
		require.NoError(t, err)
		require.Equal(t, len(line), n)
	}
	say("first")
	<-out.inside // it is on its way
	const lines, lineBytes = 100, logQueue / 50
	for i := range lines {
		say("line %02d %s", i, strings.Repeat("x", lineBytes-len("line 00 \n")))
	}
	say("short") // there is room, and it would be out of place
	close(out.goOn)
	require.Eventually(t, func() bool { return strings.Contains(out.String(), "lines=51") }, hang, time.Millisecond, "what is missing is said without another line")
	say("last")
	l.close(hang)
	got := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	require.Len(t, got, 1+50+2)
	assert.Equal(t, "first", got[0])
	for i := range 50 {
		assert.True(t, strings.HasPrefix(got[1+i], fmt.Sprintf("line %02d x", i)), got[1+i][:10])
	}
	assert.Regexp(t, `level=WARN msg="log was not read in time: lines are missing here" lines=51$`, got[51])
	assert.Equal(t, "last", got[52])
}

func TestLogAtTheEnd(t *testing.T) {
	t.Run("everything is written", func(t *testing.T) {
		out := &lockedBuffer{}
		l := newLogWriter(out)
		var all sync.WaitGroup
		for i := range 4 {
			all.Add(1)
			go func() {
				defer all.Done()
				for j := range 100 {
					fmt.Fprintf(l, "line %d of %d\n", j, i)
				}
			}()
		}
		all.Wait()
		l.close(hang)
		assert.Equal(t, 400, strings.Count(out.String(), "\n"))
		_, err := l.Write([]byte("late\n"))
		require.NoError(t, err)
		assert.NotContains(t, out.String(), "late")
		assert.Empty(t, l.queue, "nor kept: nobody will write it")
	})
	t.Run("nobody reads", func(t *testing.T) {
		out := &stalled{inside: make(chan struct{}, 1), goOn: make(chan struct{})}
		l := newLogWriter(out)
		fmt.Fprintln(l, "lost")
		l.close(10 * time.Millisecond)
		close(out.goOn)
		<-l.done
	})
	t.Run("a write fails", func(t *testing.T) {
		r, w := io.Pipe()
		require.NoError(t, r.CloseWithError(errors.New("full")))
		l := newLogWriter(w)
		fmt.Fprintln(l, "lost")
		l.close(hang)
		select {
		case <-l.done:
		default:
			t.Error("it waits for ever")
		}
	})
}

// TestLogNobodyReads: the pipe is full and stays open.
func TestLogNobodyReads(t *testing.T) {
	exe := program()
	if os.Getuid() != 0 {
		t.Skip("needs root: makes a network namespace and TAP interfaces")
	}
	ns, err := sys.NewNetNS()
	require.NoError(t, err)
	defer ns.Close()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	fd := int(w.Fd())
	require.NoError(t, unix.SetNonblock(fd, true))
	for err == nil {
		_, err = unix.Write(fd, make([]byte, 4096))
	}
	require.ErrorIs(t, err, unix.EAGAIN)
	require.NoError(t, unix.SetNonblock(fd, false))
	socket := filepath.Join(t.TempDir(), "s")
	cmd := exec.Command(exe, "run", "--sim", "--debug", "--socket", socket)
	cmd.Stderr = w
	require.NoError(t, ns.Do(cmd.Start))
	require.NoError(t, w.Close())
	done := make(chan struct{})
	go func() { defer close(done); _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill(); <-done }()
	for _, args := range [][]string{{"status", "--wait"}, {"mtu", "oxp9", "9000"}, {"stop"}} {
		got := oxpd(t, exe, append(args, "--socket", socket)...)
		require.Equal(t, 0, got.code, "%+v", got)
	}
	select {
	case <-done:
	case <-time.After(hang):
		t.Fatal("the daemon does not end")
	}
	assert.Equal(t, 0, cmd.ProcessState.ExitCode(), "%v", cmd.ProcessState)
}
