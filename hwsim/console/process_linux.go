package console

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"oxpd/internal/sys"
)

// enter is the script that makes the world a root: arguments are busybox, the folder,
// its devices, and what is run there. What the kernel does not allow here is left out: the
// shell lives without it. Without pivot_root (not from an initramfs) its root can be left.
const enter = `bb=$1 root=$2 devices=$3; shift 3
exec 3>&2 2>/dev/null
$bb mount -o bind $root $root
for d in $devices; do $bb mount -o bind /dev/$d $root/dev/$d; done
$bb mount -t proc proc $root/proc
$bb hostname octeon
cd $root
if $bb pivot_root . sys; then
	/bin/busybox umount -l /sys
	exec "$@" 2>&3 3>&-
fi
exec $bb chroot . "$@" 2>&3 3>&-`

// traceOptions: stop where the filter of system calls says so, trace what is forked, and
// end with the tracer.
const traceOptions = unix.PTRACE_O_TRACESECCOMP | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACECLONE |
	unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_EXITKILL

// process is a shell with everything that it starts, all in a namespace that ends with
// it.
type process struct {
	fd   int           // a pidfd, until done
	done chan struct{} // every process has ended and has been waited for
}

// shell starts a shell on a terminal.
func (w *world) shell(tty *os.File) (*process, error) {
	p := &process{done: make(chan struct{})}
	started := make(chan error)
	go onThread(func() {
		defer close(p.done)
		t := tracer{map[int]bool{}}
		pid, err := w.fork(tty, &p.fd)
		if err != nil {
			started <- refused(err)
			return
		}
		if err = t.adopt(pid); err != nil {
			err = errors.Join(err, unix.Kill(pid, unix.SIGKILL))
		}
		started <- err
		t.run()
		_ = unix.Close(p.fd) // nobody signals what has ended
	})
	if err := <-started; err != nil {
		<-p.done
		return nil, err
	}
	return p, nil
}

// onThread calls fn on a thread that has no child when fn begins, and that ends with it,
// and with it whatever it still traced. A tracer waits for any child of its thread, and
// must not take the end of somebody else's.
func onThread(fn func()) {
	runtime.LockOSThread() // and is not unlocked, where fn runs
	if unix.Gettid() != unix.Getpid() && childless() {
		fn()
		return
	}
	// The first thread of a process does not end. Held, neither is had again.
	done := make(chan struct{})
	go func() { defer close(done); onThread(fn) }()
	<-done
	runtime.UnlockOSThread()
}

// childless tells whether this thread has started no process that is still there. Where
// the kernel does not say, it has not.
func childless() bool {
	children, err := os.ReadFile("/proc/thread-self/children")
	return err != nil || len(children) == 0
}

// fork starts the script in namespaces of its own, stopped at its first instruction.
// The user is root there and itself outside.
func (w *world) fork(tty *os.File, pidfd *int) (int, error) {
	fd := tty.Fd()
	args := append([]string{busybox, "sh", "-c", enter, busybox, w.busy, w.path, strings.Join(devices[:], " "), insideProgram}, append(interpreterArgs[:], shellArg)...)
	return syscall.ForkExec(w.busy, args, &syscall.ProcAttr{
		Dir: w.path,
		Env: []string{
			"HOME=/root", "LOGNAME=root", "PATH=/bin:/sbin:/usr/bin:/usr/sbin", "PS1=" + prompt, "SHELL=/bin/sh", "TERM=vt100", "USER=root",
		},
		Files: []uintptr{fd, fd, fd},
		Sys: &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
			Setsid:      true,
			Setctty:     true, // descriptor 0
			Pdeathsig:   unix.SIGKILL,
			Ptrace:      true,
			PidFD:       pidfd,
		},
	})
}

// refused says what is missing where the kernel does not allow the namespaces.
func refused(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EUSERS) {
		return fmt.Errorf("console: no shell: this machine gives nobody namespaces of a user's own (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone): %w", err)
	}
	return fmt.Errorf("console: start %s: %w", busybox, err)
}

// kill ends every process of the shell. It does not wait.
func (p *process) kill() {
	_ = unix.PidfdSendSignal(p.fd, unix.SIGKILL, nil, 0) // it may have ended
}

// tracer traces a shell and its children, on one thread.
type tracer struct {
	replaced map[int]bool // processes whose execve is about to be that of the interpreter
}

// adopt takes over the child that has stopped at its first instruction, and lets it run.
// It was traced since the fork; what handles stopped jobs is only had by PTRACE_SEIZE.
func (t *tracer) adopt(pid int) error {
	var status unix.WaitStatus
	if _, err := wait(pid, &status); err != nil {
		return err
	}
	if !status.Stopped() {
		return fmt.Errorf("console: %s ended at its start: %v", busybox, status)
	}
	if err := sys.PtraceDetach(pid, unix.SIGSTOP); err != nil {
		return fmt.Errorf("console: let go of process %d: %w", pid, err)
	}
	if err := sys.PtraceSeize(pid, traceOptions); err != nil {
		return fmt.Errorf("console: %w", err)
	}
	return unix.Kill(pid, unix.SIGCONT)
}

// wait waits for a child of this thread, -1 for any, whoever else waits for others.
func wait(pid int, status *unix.WaitStatus) (int, error) {
	for {
		got, err := unix.Wait4(pid, status, unix.WALL|unix.WNOTHREAD, nil)
		if !errors.Is(err, unix.EINTR) {
			return got, err
		}
	}
}

// run serves the tracees until the last one has ended.
func (t *tracer) run() {
	for {
		var status unix.WaitStatus
		pid, err := wait(-1, &status)
		if err != nil {
			return // ECHILD: there is none any more
		}
		if !status.Stopped() {
			delete(t.replaced, pid)
			continue
		}
		t.stopped(pid, status)
	}
}

// stopped handles one stop and lets the process go on. That fails for a process that has
// been killed meanwhile, and then its end is the next that is heard of it.
func (t *tracer) stopped(pid int, status unix.WaitStatus) {
	signal := status.StopSignal()
	switch event := int(status) >> 16; {
	case event == unix.PTRACE_EVENT_SECCOMP:
		t.replaced[pid] = replace(pid)
		signal = 0
	case event == unix.PTRACE_EVENT_EXEC && t.replaced[pid]:
		// The interpreter does its work untraced: it starts nothing, and its end is that
		// of its namespace at the latest.
		delete(t.replaced, pid)
		_ = sys.PtraceDetach(pid, 0)
		return
	case event == unix.PTRACE_EVENT_STOP && signal != unix.SIGTRAP:
		_ = sys.PtraceListen(pid) // job control has stopped it
		return
	case event != 0:
		signal = 0
	}
	_ = unix.PtraceCont(pid, int(signal))
}
