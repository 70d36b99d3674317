package cputime

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// hang bounds what a busy machine may take.
const hang = time.Minute

// bound runs f, until it returns true, in a goroutine with a thread of its own; stop ends it.
func bound(t *testing.T, f func() (enough bool)) (th Thread, done <-chan struct{}, stop func()) {
	t.Helper()
	ready, end, quit := make(chan Thread), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(end)
		ready <- Bind()
		for !f() {
		}
		<-quit
	}()
	return <-ready, end, func() { close(quit) }
}

func used(t *testing.T, th Thread) time.Duration {
	t.Helper()
	u, err := th.Used()
	require.NoError(t, err)
	return u
}

// What one thread does is not in the clock of another.
func TestOnlyTheThreadsOwnTime(t *testing.T) {
	const work = 100 * time.Millisecond
	idle, idleDone, stopIdle := bound(t, func() bool { return true })
	before := used(t, idle)
	deadline := time.Now().Add(hang)
	var busy Thread
	busy, busyDone, stopBusy := bound(t, func() bool { // by its own clock
		var ts unix.Timespec
		return unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) != nil || ts.Nano() > int64(work) || time.Now().After(deadline)
	})
	require.Eventually(t, func() bool { return used(t, busy) > work }, hang, time.Millisecond)
	assert.Less(t, used(t, idle)-before, work/10)
	stopIdle()
	stopBusy()
	<-idleDone
	<-busyDone
}

// The kernel's work in a system call is the caller's time.
func TestSystemCallsCount(t *testing.T) {
	const work = 100 * time.Millisecond
	zero, err := os.Open("/dev/zero")
	require.NoError(t, err)
	defer zero.Close()
	kernel := make(chan time.Duration, 1)
	buf := make([]byte, 1<<20)
	deadline := time.Now().Add(hang)
	th, done, stop := bound(t, func() bool {
		_, err := unix.Read(int(zero.Fd()), buf)
		var u unix.Rusage
		if err == nil {
			err = unix.Getrusage(unix.RUSAGE_THREAD, &u)
		}
		spent := time.Duration(u.Stime.Nano())
		if enough := err != nil || spent > work || time.Now().After(deadline); !enough {
			return false
		}
		kernel <- spent
		return true
	})
	spent := <-kernel
	require.Greater(t, spent, work)
	// The kernel cuts the same time into user and system by samples where it has no
	// better: only the sum is exact.
	assert.Greater(t, used(t, th), work/2)
	stop()
	<-done
}

func TestNoThread(t *testing.T) {
	assert.Zero(t, used(t, Thread{}))
}

func TestEndedThread(t *testing.T) {
	th, done, stop := bound(t, func() bool { return true })
	used(t, th)
	stop()
	<-done
	require.Eventually(t, func() bool { _, err := th.Used(); return err != nil }, hang, time.Millisecond)
	_, err := th.Used()
	assert.ErrorIs(t, err, unix.EINVAL)
}

func TestStatTicks(t *testing.T) {
	for _, tc := range []struct {
		name, stat string
		want       uint64
		err        string
	}{
		{"as it is", "16 (ksoftirqd/0) S 2 0 0 0 -1 69238848 0 0 0 0 12 345 0 0 20 0 1 0 12 0 0", 357, ""},
		{"a name with spaces and parentheses", "16 (a) b (c) S 2 0 0 0 -1 69238848 0 0 0 0 12 345 0 0 20", 357, ""},
		{"cut", "16 (ksoftirqd/0) S 2 0 0 0 -1 69238848 0 0 0 0 12", 0, "12 fields after the name"},
		{"nothing", "", 0, "0 fields after the name"},
		{"no number", "16 (x) S 2 0 0 0 -1 69238848 0 0 0 0 12 y 0", 0, "invalid syntax"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := statTicks([]byte(tc.stat))
			assert.Equal(t, tc.want, got)
			if tc.err == "" {
				assert.NoError(t, err)
			} else {
				assert.ErrorContains(t, err, tc.err)
			}
		})
	}
}

func TestSoftirq(t *testing.T) {
	first, err := Softirq()
	require.NoError(t, err)
	second, err := Softirq()
	require.NoError(t, err)
	assert.GreaterOrEqual(t, second, first)
}
