package cputime

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Thread is a thread of this process, by the clock of its CPU time. The zero Thread is
// none and has used nothing.
type Thread struct{ clock int32 }

// Bind gives the calling goroutine a thread of its own until it ends, and returns that.
func Bind() Thread {
	runtime.LockOSThread()
	// MAKE_THREAD_CPUCLOCK(tid, CPUCLOCK_SCHED), linux/posix-timers_types.h.
	const perThread, sched = 4, 2
	return Thread{clock: ^int32(unix.Gettid())<<3 | perThread | sched}
}

// Used is the CPU time of the thread since it began. Any thread may ask. Errors: EINVAL
// (errors.Is) when the thread has ended.
func (t Thread) Used() (time.Duration, error) {
	if t == (Thread{}) {
		return 0, nil
	}
	return read(t.clock)
}

// Process is the CPU time of all threads of this process, also of those that have ended.
func Process() (time.Duration, error) { return read(unix.CLOCK_PROCESS_CPUTIME_ID) }

func read(clock int32) (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		return 0, fmt.Errorf("cputime: read a CPU clock: %w", err)
	}
	return time.Duration(ts.Nano()), nil
}

// tick is the unit of times in /proc (USER_HZ).
const tick = 10 * time.Millisecond

// Softirq is the CPU time of all of the kernel's ksoftirqd threads since the machine
// started, to 10 ms each; 0 where they are not shown, as in a namespace of processes.
func Softirq() (time.Duration, error) {
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return 0, fmt.Errorf("cputime: look for ksoftirqd: %w", err)
	}
	var sum time.Duration
	for _, name := range names {
		comm, err := os.ReadFile(name)
		if err != nil || !bytes.HasPrefix(comm, []byte("ksoftirqd/")) {
			continue // it may have ended meanwhile; ksoftirqd does not
		}
		stat, err := os.ReadFile(filepath.Join(filepath.Dir(name), "stat"))
		if err != nil {
			return 0, fmt.Errorf("cputime: read the time of ksoftirqd: %w", err)
		}
		ticks, err := statTicks(stat)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(ticks) * tick
	}
	return sum, nil
}

// statTicks is utime and stime of a stat file (proc_pid_stat(5)): the 14th and 15th
// field, the second being a name in parentheses that may hold anything.
func statTicks(stat []byte) (ticks uint64, err error) {
	const behindName, fields = 11, 13 // utime, and how many there must be
	at := bytes.LastIndexByte(stat, ')')
	f := bytes.Fields(stat[at+1:])
	if at < 0 || len(f) < fields {
		return 0, fmt.Errorf("cputime: read a stat file: %d fields after the name", len(f))
	}
	for _, b := range f[behindName:fields] {
		v, err := strconv.ParseUint(string(b), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("cputime: read a stat file: %w", err)
		}
		ticks += v
	}
	return ticks, nil
}
