package traps

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"oxpd/hwsim"
	"oxpd/internal/sys"
)

// traceOptions: trace every thread that is started, and end with the tracer.
const traceOptions = unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_EXITKILL

// A card is moved in steps until it is quiet, or for so long that it does not become quiet.
const (
	step = 10 * time.Microsecond
	most = 10 * time.Millisecond
)

// Process is a program that drives a card.
type Process struct {
	done chan struct{}
	err  error // once done

	mu     sync.Mutex
	fd     int // a pidfd, until done
	killed bool
}

// Start starts a program that sees the card as a PCI device. The card must be a virtual
// function in stepped mode, and is used by nobody else until Wait has returned.
//
// Errors: ErrRefused, errors.ErrUnsupported, and those of files and of the program.
func Start(card *hwsim.Card, o Options) (*Process, error) {
	p := &Process{done: make(chan struct{})}
	started := make(chan error)
	go onThread(func() {
		defer close(p.done)
		t := tracer{card: card, o: &o, code: map[uint64]mov{}, known: map[int]bool{},
			mem: memory{card: card, dir: filepath.Join(o.Dir, HugeDir), pages: map[uint64]page{}}}
		if err := t.start(p); err != nil {
			started <- err
			return
		}
		started <- nil
		p.end(t.run(), errors.Join(t.err, t.mem.close()))
	})
	if err := <-started; err != nil {
		<-p.done
		if errors.Is(err, unix.EPERM) {
			err = errors.Join(err, ErrRefused)
		}
		return nil, fmt.Errorf("traps: start %s: %w", o.Command[0], err)
	}
	return p, nil
}

// onThread calls fn on a thread that ends with it: fn's namespaces and what it traces do
// too.
func onThread(fn func()) {
	runtime.LockOSThread() // and is never unlocked
	if unix.Gettid() != unix.Getpid() {
		fn()
		return
	}
	// The first thread of a process does not end: it is held until another one was had.
	done := make(chan struct{})
	go func() { defer close(done); onThread(fn) }()
	<-done
	runtime.UnlockOSThread()
}

// end notes how the program and its tracing ended.
func (p *Process) end(program, tracing error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.killed {
		program = nil
	}
	p.err = errors.Join(program, tracing, unix.Close(p.fd))
	p.fd = -1
}

// Wait waits for the end of the program and of all its threads. The error is that of the
// program, unless Kill has ended it, and of its tracing.
func (p *Process) Wait() error {
	<-p.done
	if p.err != nil {
		return fmt.Errorf("traps: %w", p.err)
	}
	return nil
}

// Done is closed at the end of the program.
func (p *Process) Done() <-chan struct{} { return p.done }

// Kill ends the program. It does not wait.
func (p *Process) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fd >= 0 {
		p.killed = true
		_ = unix.PidfdSendSignal(p.fd, unix.SIGKILL, nil, 0) // it may have ended
	}
}

// tracer is the thread that is the device.
type tracer struct {
	card *hwsim.Card
	o    *Options
	pid  int
	mem  memory

	known map[int]bool // threads that have stopped once
	code  map[uint64]mov
	bar   uint64 // where BAR0 is mapped, 0: nowhere yet
	err   error  // why the program was ended
}

func (t *tracer) start(p *Process) error {
	if t.o.CPU >= 0 {
		var set unix.CPUSet
		set.Set(t.o.CPU)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return fmt.Errorf("run on CPU %d: %w", t.o.CPU, err)
		}
	}
	if err := tree(t.o.Dir, t.card); err != nil {
		return err
	}
	if err := enter(t.o.Dir); err != nil {
		return err
	}
	// As the kernel's part of igb_uio does when it takes a device.
	t.card.ConfigWrite(cfgCommand, 2, t.card.ConfigRead(cfgCommand, 2)|cmdMemory|cmdBusMaster)
	pid, err := syscall.ForkExec(t.o.Command[0], t.o.Command, &syscall.ProcAttr{
		Dir: t.o.Dir,
		Env: append([]string{
			"PATH=/usr/bin:/bin", "HOME=" + t.o.Dir,
			"SYSFS_PCI_DEVICES=" + filepath.Join(t.o.Dir, treeDir), "RUNTIME_DIRECTORY=" + filepath.Join(t.o.Dir, RuntimeDir),
		}, t.o.Env...),
		Files: []uintptr{t.o.Stdin.Fd(), t.o.Output.Fd(), t.o.Output.Fd()},
		Sys:   &syscall.SysProcAttr{Ptrace: true, Pdeathsig: unix.SIGKILL, PidFD: &p.fd, Setpgid: true},
	})
	if err != nil {
		return err
	}
	t.pid = pid
	if err := t.adopt(); err != nil {
		_ = unix.Kill(pid, unix.SIGKILL)
		return errors.Join(err, t.run(), unix.Close(p.fd))
	}
	return nil
}

// adopt lets the program go, which has stopped at its first instruction.
func (t *tracer) adopt() error {
	var status unix.WaitStatus
	if _, err := t.wait(&status); err != nil {
		return err
	}
	if !status.Stopped() {
		return fmt.Errorf("it ended at its start: %#x", int(status))
	}
	t.known[t.pid] = true
	if err := unix.PtraceSetOptions(t.pid, traceOptions); err != nil {
		return fmt.Errorf("trace it: %w", err)
	}
	return unix.PtraceCont(t.pid, 0)
}

// wait waits for a thread of the program or of its children, all of one process group:
// this thread may have other children, and they are not its business.
func (t *tracer) wait(status *unix.WaitStatus) (int, error) {
	for {
		got, err := unix.Wait4(-t.pid, status, unix.WALL|unix.WNOTHREAD, nil)
		if !errors.Is(err, unix.EINTR) {
			return got, err
		}
	}
}

// run serves the program until its last thread has ended, and returns how it ended.
func (t *tracer) run() (err error) {
	for {
		var status unix.WaitStatus
		tid, e := t.wait(&status)
		if e != nil {
			return err // ECHILD: there is none any more
		}
		if status.Stopped() {
			t.stopped(tid, status)
			continue
		}
		delete(t.known, tid)
		switch {
		case tid != t.pid:
		case status.Signaled():
			err = fmt.Errorf("the program was ended by %v", status.Signal())
		case status.ExitStatus() != 0:
			err = fmt.Errorf("the program ended with status %d", status.ExitStatus())
		}
	}
}

// stopped handles one stop and lets the thread go on. That fails for one that was killed
// meanwhile, and then its end is the next that is heard of it.
func (t *tracer) stopped(tid int, status unix.WaitStatus) {
	signal, first := status.StopSignal(), !t.known[tid]
	t.known[tid] = true
	switch {
	case int(status)>>16 != 0: // an event: a thread was started
		signal = 0
	case first && signal == unix.SIGSTOP: // and this is the new one
		signal = 0
	case signal == unix.SIGBUS:
		switch handled, err := t.fault(tid); {
		case errors.Is(err, unix.ESRCH): // it was killed
		case err != nil:
			t.err = errors.Join(t.err, err)
			signal = unix.SIGKILL
		case handled:
			signal = 0
		}
	}
	_ = unix.PtraceCont(tid, int(signal))
}

// fault makes the access that a thread has stopped at, and moves it behind the
// instruction. It returns false for a fault that is not one of BAR0.
func (t *tracer) fault(tid int) (bool, error) {
	at, err := sys.PtraceFault(tid)
	if err != nil {
		return false, err
	}
	off, ok, err := t.offset(at)
	if !ok || err != nil {
		return false, err
	}
	var r unix.PtraceRegsAmd64
	if err := unix.PtraceGetRegsAmd64(tid, &r); err != nil {
		return false, fmt.Errorf("read registers: %w", err)
	}
	m, err := t.instruction(tid, r.Rip)
	if err != nil {
		return false, fmt.Errorf("BAR0+%#x: %w", off, err)
	}
	if err := t.mem.look(); err != nil {
		return false, err
	}
	a := Access{Store: m.store, Offset: off, Width: m.width, Value: m.value}
	reg := register(&r, m.reg)
	if !m.immediate {
		a.Value = *reg
	}
	if m.width == 4 {
		a.Value &= 1<<32 - 1
	}
	if m.store {
		t.card.Store(0, off, m.width, a.Value)
	} else {
		a.Value = t.card.Load(0, off, m.width)
		*reg = a.Value // the upper half of a register is cleared by a load of the lower
	}
	t.pause()
	if t.o.Observe != nil {
		t.o.Observe(a, t.mem.read)
	}
	r.Rip += uint64(m.size)
	if err := unix.PtraceSetRegsAmd64(tid, &r); err != nil {
		return false, fmt.Errorf("write registers: %w", err)
	}
	return true, nil
}

// pause lets the card work.
func (t *tracer) pause() {
	if t.o.Pause != nil {
		t.card.Advance(t.o.Pause())
		return
	}
	for spent := time.Duration(0); spent < most && !t.card.Quiesced(); spent += step {
		t.card.Advance(step)
	}
}

// offset turns an address of the program into one of BAR0.
func (t *tracer) offset(at uint64) (off uint64, ok bool, err error) {
	size := t.card.BARSize(0)
	if t.bar == 0 || at < t.bar || at >= t.bar+size {
		bar, err := mapping(t.pid, filepath.Join(t.o.Dir, treeDir, Address, "resource0"))
		if err != nil || bar == 0 {
			return 0, false, err
		}
		t.bar = bar
	}
	return at - t.bar, at >= t.bar && at < t.bar+size, nil
}

// mapping is where a process has a file, 0: nowhere.
func mapping(pid int, file string) (start uint64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, err
	}
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		if strings.HasSuffix(s.Text(), " "+file) {
			if _, err := fmt.Sscanf(s.Text(), "%x-", &start); err != nil {
				return 0, fmt.Errorf("read maps: %w", err)
			}
			return start, nil
		}
	}
	return 0, nil
}

// instruction is what stands at an address. Code does not change.
func (t *tracer) instruction(tid int, rip uint64) (mov, error) {
	if m, ok := t.code[rip]; ok {
		return m, nil
	}
	var b [longestMov]byte
	n, err := unix.PtracePeekText(tid, uintptr(rip), b[:])
	if err != nil {
		return mov{}, fmt.Errorf("read code: %w", err)
	}
	m, ok := decode(b[:n])
	if !ok {
		return mov{}, fmt.Errorf("code % x: %w", b[:n], ErrInstruction)
	}
	t.code[rip] = m
	return m, nil
}

// register is a general register by its number in an instruction.
func register(r *unix.PtraceRegsAmd64, n int) *uint64 {
	return [...]*uint64{
		&r.Rax, &r.Rcx, &r.Rdx, &r.Rbx, &r.Rsp, &r.Rbp, &r.Rsi, &r.Rdi,
		&r.R8, &r.R9, &r.R10, &r.R11, &r.R12, &r.R13, &r.R14, &r.R15,
	}[n&15]
}
