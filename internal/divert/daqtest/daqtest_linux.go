package daqtest

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"oxpd/internal/netlab"
)

const (
	compiler = "gcc"
	// modules is where Debian has the module, below the folder of the architecture.
	modules = "/usr/lib/*/daq/daq_afpacket.so"
	// header says that the library can be built with.
	header = "/usr/include/daq_api.h"

	// WholeFrames is a snaplen above all frames that a port takes.
	WholeFrames = 9216
	// defaultBuffer is the rings' memory in MB: 384 frames of WholeFrames each way.
	defaultBuffer = 16

	// readyWithin is how long a start may take; a guard.
	readyWithin = time.Minute
)

// ErrMissing says that the library or the compiler is not on this machine.
var ErrMissing = errors.New("not installed; make test installs it")

//go:embed engine/engine.c
var source string

// Program is the engine's program.
type Program struct{ path, modules string }

// Build compiles the program into a folder. ErrMissing when it cannot be built here.
func Build(ctx context.Context, folder string) (Program, error) {
	if _, err := exec.LookPath(compiler); err != nil {
		return Program{}, fmt.Errorf("daqtest: %s: %w", compiler, ErrMissing)
	}
	found, _ := filepath.Glob(modules) // the pattern is good
	if _, err := os.Stat(header); err != nil || len(found) == 0 {
		return Program{}, fmt.Errorf("daqtest: libdaq-dev: %w", ErrMissing)
	}
	p := Program{path: filepath.Join(folder, "engine"), modules: filepath.Dir(found[0])}
	build := exec.CommandContext(ctx, compiler, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o", p.path, "-x", "c", "-", "-ldaq")
	build.Stdin = strings.NewReader(source)
	if out, err := build.CombinedOutput(); err != nil {
		return Program{}, fmt.Errorf("daqtest: build the engine: %w: %s", err, out)
	}
	return p, nil
}

// Options say what an engine does.
type Options struct {
	Wire, Host string // the interfaces
	Snaplen    int    // bytes of a frame that it takes; 0: WholeFrames
	Buffer     int    // MB that its four rings share; 0: 16
	Block      uint16 // UDP destination port that it blocks; 0: none
	Change     uint16 // UDP destination port whose frames it changes, length kept; 0: none
}

// Where a frame of UDP over IPv4 without options has its checksum and its payload.
const (
	checksumAt = 40
	payloadAt  = 42
)

// Changed is what an engine makes of a frame to the port that it changes, which has no
// tags: the first byte of the payload inverted, and no checksum.
func Changed(b []byte) []byte {
	c := bytes.Clone(b)
	c[payloadAt] ^= 0xff
	c[checksumAt], c[checksumAt+1] = 0, 0
	return c
}

// Counts are what an engine counted: Received = Passed + Blocked + Changed.
type Counts struct {
	Received, Passed, Blocked, Changed uint64
	Cut                                uint64 // of those: longer than what it got of them
	Lost                               uint64 // found no room in its rings
}

// Engine is a running engine.
type Engine struct {
	cmd  *exec.Cmd
	out  *bufio.Reader
	said *strings.Builder
}

// Start starts an engine in a namespace and returns when frames go through it. It is
// killed with the namespace or the process, if nothing ends it before.
func (p Program) Start(ns *netlab.NS, o Options) (*Engine, error) {
	if o.Snaplen == 0 {
		o.Snaplen = WholeFrames
	}
	if o.Buffer == 0 {
		o.Buffer = defaultBuffer
	}
	cmd := exec.Command(p.path, p.modules, o.Wire, o.Host,
		strconv.Itoa(o.Snaplen), strconv.Itoa(o.Buffer), strconv.Itoa(int(o.Block)), strconv.Itoa(int(o.Change)))
	e := &Engine{cmd: cmd, said: new(strings.Builder)}
	cmd.Stderr = e.said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("daqtest: make a pipe to the engine: %w", err)
	}
	e.out = bufio.NewReader(out)
	if err := ns.Start(cmd); err != nil {
		return nil, err
	}
	guard := time.AfterFunc(readyWithin, func() { _ = cmd.Process.Kill() })
	line, err := e.out.ReadString('\n')
	guard.Stop()
	if err != nil || line != "ready\n" {
		_ = cmd.Process.Kill() // it may have ended
		return nil, fmt.Errorf("daqtest: start the engine: said %q: %w", line, errors.Join(err, e.wait()))
	}
	return e, nil
}

// wait waits for the program's end; the error has what it said.
func (e *Engine) wait() error {
	if err := e.cmd.Wait(); err != nil {
		return fmt.Errorf("daqtest: engine ended: %w: %s", err, strings.TrimSpace(e.said.String()))
	}
	return nil
}

// Stop ends the engine and returns what it counted. An engine that ended by itself
// before is an error, with its reason.
func (e *Engine) Stop() (c Counts, err error) {
	if err := e.Signal(unix.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return c, err
	}
	out, err := io.ReadAll(e.out)
	if err := errors.Join(err, e.wait()); err != nil {
		return c, err
	}
	return c, c.parse(string(out))
}

// parse reads the lines that the program prints at its end.
func (c *Counts) parse(out string) error {
	for _, n := range []struct {
		name string
		to   *uint64
	}{
		{"received", &c.Received},
		{"passed", &c.Passed},
		{"blocked", &c.Blocked},
		{"changed", &c.Changed},
		{"cut", &c.Cut},
		{"lost", &c.Lost},
	} {
		line, rest, _ := strings.Cut(out, "\n")
		value, err := strconv.ParseUint(strings.TrimPrefix(line, n.name+" "), 10, 64)
		if err != nil {
			return fmt.Errorf("daqtest: read the engine's %s from %q: %w", n.name, line, err)
		}
		*n.to, out = value, rest
	}
	return nil
}

// Kill ends the engine by SIGKILL. What it counted is lost.
func (e *Engine) Kill() error {
	if err := e.Signal(unix.SIGKILL); err != nil {
		return err
	}
	_ = e.cmd.Wait() // "signal: killed"
	return nil
}

// Signal sends a signal: SIGSTOP makes an engine that takes nothing and is there,
// SIGCONT has it go on.
func (e *Engine) Signal(s unix.Signal) error {
	if err := e.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("daqtest: send %s to the engine: %w", s, err)
	}
	return nil
}
