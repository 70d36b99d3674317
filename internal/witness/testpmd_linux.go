package witness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"oxpd/hwsim"
	"oxpd/hwsim/traps"
	"oxpd/internal/debian"
	"oxpd/internal/sys"
)

// prompt is what testpmd says when it wants a command.
const prompt = "testpmd> "

// Testpmd is one that runs, and its terminal.
type Testpmd struct {
	process *traps.Process
	pty     *sys.Pty
	heard   chan struct{} // the terminal has ended

	mu   sync.Mutex
	text string
	news chan struct{} // capacity 1
}

// Run is how testpmd is started.
type Run struct {
	Dir       string                                        // an empty folder of the caller's
	Arguments []string                                      // of DPDK's environment
	Options   []string                                      // of testpmd itself
	Observe   func(traps.Access, func(uint64, []byte) bool) // those of traps.Options
	Pause     func() time.Duration
}

// StartTestpmd starts testpmd, and returns when it asks for the first command. The device
// is its port 0.
func StartTestpmd(ctx context.Context, p *Parts, card *hwsim.Card, r Run) (t *Testpmd, err error) {
	cores, err := cpus()
	if err != nil {
		return nil, err
	}
	pty, err := sys.OpenPty()
	if err != nil {
		return nil, err
	}
	tty, err := pty.Open(false)
	if err != nil {
		return nil, errors.Join(err, pty.Close())
	}
	args := append([]string{
		"--lcores", fmt.Sprintf("0@%d,1@%d", cores[0], cores[1]), "--huge-dir", filepath.Join(r.Dir, traps.HugeDir), "--file-prefix", "oxpd",
		"--no-telemetry", "-a", traps.Address,
	}, r.Arguments...)
	args = append(append(args, "--", "-i", "--no-flush-rx", "--rxd=2048", "--txd=512", "--total-num-mbufs=4096"), r.Options...)
	t = &Testpmd{pty: pty, heard: make(chan struct{}), news: make(chan struct{}, 1)}
	t.process, err = traps.Start(card, traps.Options{
		Dir: r.Dir, Command: p.command(args...), CPU: cores[1], Stdin: tty, Output: tty, Observe: r.Observe, Pause: r.Pause,
	})
	err = errors.Join(err, tty.Close())
	if t.process == nil {
		return nil, errors.Join(err, pty.Close())
	}
	go t.listen()
	if _, e := t.await(ctx); err != nil || e != nil {
		return nil, errors.Join(err, e, t.Close())
	}
	return t, nil
}

// cpus are where testpmd's prompt and its loop run: two, if there are two.
func cpus() (cores [2]int, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return cores, fmt.Errorf("witness: ask for CPUs: %w", err)
	}
	found := 0
	for c := 0; found < len(cores) && c < len(set)*64; c++ {
		if set.IsSet(c) {
			cores[found], cores[1] = c, c
			found++
		}
	}
	return cores, nil
}

// listen collects what is said until nobody can say anything.
func (t *Testpmd) listen() {
	defer close(t.heard)
	b := make([]byte, 4096)
	for {
		n, err := t.pty.File().Read(b)
		t.mu.Lock()
		t.text += strings.ReplaceAll(string(b[:n]), "\r", "")
		t.mu.Unlock()
		select {
		case t.news <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

// await returns what is said up to the next prompt, and forgets it.
func (t *Testpmd) await(ctx context.Context) (said string, err error) {
	ended := t.heard
	for {
		t.mu.Lock()
		said, rest, found := strings.Cut(t.text, prompt)
		if found {
			t.text = rest
		}
		t.mu.Unlock()
		switch {
		case found:
			return said, nil
		case ended == nil:
			return "", fmt.Errorf("witness: testpmd has ended: %s", debian.Tail(said))
		}
		select {
		case <-t.news:
		case <-ended:
			ended = nil
		case <-ctx.Done():
			return "", fmt.Errorf("witness: testpmd does not come to its prompt: %w: %s", ctx.Err(), debian.Tail(said))
		}
	}
}

// Command has a command executed, and returns what it says.
func (t *Testpmd) Command(ctx context.Context, line string) (string, error) {
	if _, err := t.pty.File().WriteString(line + "\n"); err != nil {
		return "", fmt.Errorf("witness: %s: %w", line, err)
	}
	said, err := t.await(ctx)
	if err != nil {
		return "", fmt.Errorf("%s: %w", line, err)
	}
	return said, nil
}

// Done is closed when testpmd has ended.
func (t *Testpmd) Done() <-chan struct{} { return t.process.Done() }

// Close ends testpmd and waits for that.
func (t *Testpmd) Close() error {
	t.process.Kill()
	err := t.process.Wait()
	<-t.heard
	return errors.Join(err, t.pty.Close())
}

// Statistics are a port's, as testpmd says them.
type Statistics map[string]uint64

// statistic is one of them: RX-packets: 32.
var statistic = regexp.MustCompile(`([RT]X-[a-z]+): +(\d+)`)

// parseStatistics reads what "show port stats" and "show fwd stats" say of one port.
func parseStatistics(said string) (Statistics, error) {
	s := Statistics{}
	for _, m := range statistic.FindAllStringSubmatch(said, -1) {
		n, err := strconv.ParseUint(m[2], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("witness: read statistics: %w", err)
		}
		s[m[1]] = n
	}
	if len(s) == 0 {
		return nil, fmt.Errorf("witness: no statistics: %s", debian.Tail(said))
	}
	return s, nil
}

// Statistics asks for those of a port.
func (t *Testpmd) Statistics(ctx context.Context, port int) (Statistics, error) {
	said, err := t.Command(ctx, fmt.Sprintf("show port stats %d", port))
	if err != nil {
		return nil, err
	}
	return parseStatistics(said)
}

// fifos makes two FIFOs and returns their ends.
func fifos(dir string) (in, out *os.File, err error) {
	var files [2]*os.File
	for i, name := range []string{inFile, outFile} {
		path := filepath.Join(dir, name)
		if err := unix.Mkfifo(path, 0o600); err != nil {
			return nil, nil, fmt.Errorf("witness: make %s: %w", path, err)
		}
		// For reading and writing: nobody waits for the other end then.
		if files[i], err = os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0); err != nil {
			return nil, nil, err
		}
		if _, err := unix.FcntlInt(files[i].Fd(), unix.F_SETPIPE_SZ, pipeBytes); err != nil {
			return nil, nil, fmt.Errorf("witness: make room in %s: %w", path, err)
		}
	}
	return files[0], files[1], nil
}
