package mvsw

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// deviceFD is the descriptor that a traced program gets for the device. It is
// nothing that the kernel knows.
const deviceFD = 1000

// bus is what stands behind the device: one transaction, and what the driver's read or
// write returns for it.
type bus interface {
	transact(write bool, bus, phy, reg int32, data uint16) (uint16, int)
}

// traced runs a program with its openat, read and write of /dev/mvmdio-uio
// answered by the model, and returns its standard output and exit status. An
// emulator is traced the same way: its system calls are the program's.
func traced(t *testing.T, b bus, argv ...string) (string, int) {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	defer out.Close()

	runtime.LockOSThread() // which alone may trace
	defer runtime.UnlockOSThread()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	require.NoError(t, cmd.Start())
	status := (&tracee{t: t, pid: cmd.Process.Pid, bus: b}).run()
	require.NoError(t, cmd.Process.Release())

	text, err := os.ReadFile(out.Name())
	require.NoError(t, err)
	return string(text), status
}

type tracee struct {
	t    *testing.T
	pid  int
	bus  bus
	done int // transactions
}

// run goes from stop to stop until the program has ended.
func (p *tracee) run() int {
	ended := false
	defer func() {
		if !ended { // a test that gave up
			_ = unix.Kill(p.pid, unix.SIGKILL)
			_, _ = unix.Wait4(p.pid, nil, unix.WALL, nil)
		}
	}()
	wait := func() unix.WaitStatus {
		var ws unix.WaitStatus
		_, err := unix.Wait4(p.pid, &ws, unix.WALL, nil)
		require.NoError(p.t, err)
		ended = ws.Exited() || ws.Signaled()
		return ws
	}
	require.True(p.t, wait().Stopped()) // by its exec
	require.NoError(p.t, unix.PtraceSetOptions(p.pid, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_EXITKILL))
	entry, answered, result, signal := true, false, 0, 0
	for {
		require.NoError(p.t, unix.PtraceSyscall(p.pid, signal))
		ws := wait()
		require.False(p.t, ws.Signaled(), "the program died of a signal")
		if ws.Exited() {
			return ws.ExitStatus()
		}
		if ws.StopSignal() != unix.SIGTRAP|0x80 {
			signal = int(ws.StopSignal())
			continue
		}
		signal = 0
		var regs unix.PtraceRegs
		require.NoError(p.t, unix.PtraceGetRegs(p.pid, &regs))
		switch {
		case entry:
			if result, answered = p.answer(&regs); answered {
				regs.Orig_rax = ^uint64(0) // no system call
				require.NoError(p.t, unix.PtraceSetRegs(p.pid, &regs))
			}
		case answered:
			regs.Rax = uint64(result)
			require.NoError(p.t, unix.PtraceSetRegs(p.pid, &regs))
		}
		entry = !entry
	}
}

// answer does what the device would do, if it is about the device.
func (p *tracee) answer(regs *unix.PtraceRegs) (int, bool) {
	switch call := regs.Orig_rax; call {
	case unix.SYS_OPENAT:
		if p.text(regs.Rsi) != "/dev/mvmdio-uio" {
			return 0, false
		}
		if c, ok := p.bus.(*chip); ok && c.denied {
			return -int(unix.ENOENT), true
		}
		return deviceFD, true
	case unix.SYS_READ, unix.SYS_WRITE:
		if regs.Rdi != deviceFD {
			return 0, false
		}
		require.EqualValues(p.t, 16, regs.Rdx)
		p.done++
		require.Less(p.t, p.done, transactionsMax, "a wait without an end")
		var request [16]byte
		_, err := unix.PtracePeekData(p.pid, uintptr(regs.Rsi), request[:])
		require.NoError(p.t, err)
		word := func(at int) int32 { return int32(binary.LittleEndian.Uint32(request[at:])) }
		data, result := p.bus.transact(call == unix.SYS_WRITE, word(0), word(4), word(8), binary.LittleEndian.Uint16(request[12:]))
		if call == unix.SYS_READ && result >= 0 {
			binary.LittleEndian.PutUint16(request[12:], data)
			_, err = unix.PtracePokeData(p.pid, uintptr(regs.Rsi), request[:])
			require.NoError(p.t, err)
		}
		return result, true
	}
	return 0, false
}

// text is a string of the program's memory.
func (p *tracee) text(at uint64) string {
	var b strings.Builder
	for {
		var c [1]byte
		_, err := unix.PtracePeekData(p.pid, uintptr(at), c[:])
		require.NoError(p.t, err)
		if c[0] == 0 {
			return b.String()
		}
		b.WriteByte(c[0])
		at++
	}
}
