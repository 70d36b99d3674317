package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/netlab"
)

// Bounds of what the demo waits for. None is met on a healthy machine.
const (
	bringUpLimit = 30 * time.Second
	stopLimit    = 5 * time.Second
	askLimit     = 10 * time.Second
	changeLimit  = 10 * time.Second // an MTU that was asked for by netlink
	switchLimit  = 3 * time.Minute  // some hundred programs on the simulated coprocessor
	settleLimit  = 10 * time.Second // counters that have to come to rest
	poll         = 50 * time.Millisecond
	logKept      = 16 << 10 // bytes of the child's log that an error may quote
)

// Names inside the scratch directory.
const (
	configName = "oxpd.yaml"
	socketName = "oxpd.sock"
)

// lab is the namespaces and the daemon between them.
type lab struct {
	host    *netlab.NS
	far     *netlab.NS // the far side of every port but one
	apart   *netlab.NS // that of apartPort
	scratch *netlab.Scratch
	exe     string
	client  *client.Client
	child   *exec.Cmd
	log     tail
	exited  chan struct{} // closed when the child has ended
	exit    error         // how, once it is closed
}

// ExtraFiles of the child.
const (
	extraScratch = 0
	extraFar     = 1
	extraApart   = 2
)

// openLab makes the namespaces and starts the daemon.
func openLab(o Options) (_ *lab, err error) {
	l := &lab{exe: o.Exe, exited: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	if l.host, err = netlab.New(); err != nil {
		return nil, err
	}
	for _, n := range []**netlab.NS{&l.host, &l.far, &l.apart} {
		if *n, err = newSilent(); err != nil {
			return nil, err
		}
	}
	if l.scratch, err = netlab.NewScratch(); err != nil {
		return nil, err
	}
	if err := os.WriteFile(l.scratch.Path(configName), config(), 0o600); err != nil {
		return nil, fmt.Errorf("write the configuration: %w", err)
	}
	l.client = client.New(l.scratch.Path(socketName))
	dir := netlab.ChildFDPath(extraScratch)
	l.child = exec.Command(l.exe, "run", "--sim", "--config", dir+"/"+configName, "--socket", dir+"/"+socketName)
	l.child.ExtraFiles = []*os.File{extraScratch: l.scratch.File(), extraFar: l.far.File(), extraApart: l.apart.File()}
	l.child.Stderr = &l.log
	if err := l.host.Start(l.child); err != nil {
		l.child = nil
		return nil, err
	}
	go func() {
		l.exit = l.child.Wait()
		close(l.exited)
	}()
	return l, nil
}

// newSilent makes a namespace in which every frame will be one that the demo sent.
func newSilent() (*netlab.NS, error) {
	n, err := netlab.New()
	if err != nil {
		return nil, err
	}
	for _, s := range [...]struct{ name, value string }{
		{"ipv6/conf/all/disable_ipv6", "1"},
		{"ipv6/conf/default/disable_ipv6", "1"},
		{"ipv4/igmp_link_local_mcast_reports", "0"}, // of a bridge, which looks for others that know of groups
	} {
		if err := n.Sysctl(s.name, s.value); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, errors.Join(err, n.Close())
		}
	}
	return n, nil
}

// config hangs a TAP of a far namespace at each front port, and knows the
// switch as it is.
func config() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "switch:\n  size: %d\n", switchSize)
	fmt.Fprintf(&b, "sim:\n  timeline: compressed\n  wires:\n")
	for _, p := range board.All() {
		ns := extraFar
		if p.Index == apartPort {
			ns = extraApart
		}
		fmt.Fprintf(&b, "    %s: tap:%s@%s\n", p.Label, wireName(p), netlab.ChildFDPath(ns))
	}
	return b.Bytes()
}

// apartPort is the index of the port whose far side is in a namespace of its own,
// where it reaches no other port but through the host.
const apartPort = 1

// farOf is the namespace of a port's far side.
func (l *lab) farOf(p board.Port) *netlab.NS {
	if p.Index == apartPort {
		return l.apart
	}
	return l.far
}

// wireName is the far interface of a port: its label.
func wireName(p board.Port) string { return p.Label }

// hostAddr and farAddr are the two ends of a port's wire, in a /24 of their own.
func hostAddr(p board.Port) netip.Addr { return netip.AddrFrom4([4]byte{10, 66, byte(p.Index + 1), 1}) }
func farAddr(p board.Port) netip.Addr  { return netip.AddrFrom4([4]byte{10, 66, byte(p.Index + 1), 2}) }

// nobody is an address of the wire that no machine has.
func nobody(p board.Port) netip.Addr { return netip.AddrFrom4([4]byte{10, 66, byte(p.Index + 1), 3}) }

const prefixBits = 24

// awaitRunning waits for the end of the bring-up.
func (l *lab) awaitRunning(ctx context.Context) (*client.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, bringUpLimit)
	defer cancel()
	var last *client.Status
	for {
		s, err := l.client.Status(ctx)
		if err == nil {
			last = s
		}
		switch {
		case err == nil && s.State == client.StateFailed:
			return nil, fmt.Errorf("the bring-up failed: %s", l.log.text())
		case err == nil && s.State == client.StateRunning && s.PortsUp == s.PortsTotal:
			return s, nil
		case err != nil && !errors.Is(err, client.ErrNoDaemon) && ctx.Err() == nil:
			return nil, err
		}
		select {
		case <-time.After(poll):
		case <-l.exited:
			return nil, fmt.Errorf("the daemon ended: %v: %s", l.exit, l.log.text())
		case <-ctx.Done():
			return nil, fmt.Errorf("not up after %v, %s: %s", bringUpLimit, awaited(last), l.log.text())
		}
	}
}

// awaited tells what a bring-up waits for.
func awaited(s *client.Status) string {
	if s == nil {
		return "the daemon did not answer"
	}
	for _, st := range s.Stages {
		if st.State == client.StageActive {
			return fmt.Sprintf("stage %s waits for %s", st.Name, st.Awaiting)
		}
	}
	return fmt.Sprintf("%d of %d ports are up", s.PortsUp, s.PortsTotal)
}

// plug gives both ends of every wire an address and brings them up.
func (l *lab) plug() error {
	for _, p := range board.All() {
		for _, end := range []struct {
			ns   *netlab.NS
			name string
			addr netip.Addr
		}{{l.host, p.Name, hostAddr(p)}, {l.farOf(p), wireName(p), farAddr(p)}} {
			if err := end.ns.AddAddr(end.name, netip.PrefixFrom(end.addr, prefixBits)); err != nil {
				return err
			}
			if err := end.ns.SetUp(end.name, true); err != nil {
				return err
			}
		}
	}
	return nil
}

// pin makes both ends of every wire known to each other for good. Nothing is sent
// from then on that the demo does not send.
func (l *lab) pin() error {
	for _, p := range board.All() {
		host, err := l.host.Link(p.Name)
		if err != nil {
			return err
		}
		far, err := l.farOf(p).Link(wireName(p))
		if err != nil {
			return err
		}
		if err := l.host.AddNeighbour(p.Name, farAddr(p), far.MAC); err != nil {
			return err
		}
		if err := l.farOf(p).AddNeighbour(wireName(p), hostAddr(p), host.MAC); err != nil {
			return err
		}
	}
	return nil
}

// oxpd runs another command of the program against the daemon, as its user would.
func (l *lab) oxpd(ctx context.Context, args ...string) error {
	return l.oxpdWithin(ctx, askLimit, args...)
}

// oxpdWithin is oxpd for a command that may take longer than others.
func (l *lab) oxpdWithin(ctx context.Context, limit time.Duration, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, l.exe, append([]string{"--socket", netlab.ChildFDPath(extraScratch) + "/" + socketName}, args...)...)
	cmd.ExtraFiles = []*os.File{extraScratch: l.scratch.File()}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("oxpd %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// misuse is an error for what the daemon's log says in the end that its card had to
// report, except that it had to reach memory after that was turned off: frames may be on
// their way.
func (l *lab) misuse() error {
	for _, line := range strings.Split(l.log.text(), "\n") {
		if strings.Contains(line, "misuse of the card") && !strings.Contains(line, "what=dma-bus-master-off") {
			return errors.New(line)
		}
	}
	return nil
}

// close stops the daemon and lets go of everything. Safe on a half-made lab.
func (l *lab) close() error {
	var errs []error
	if l.child != nil {
		_ = l.child.Process.Signal(unix.SIGTERM) // it may have ended
		select {
		case <-l.exited:
		case <-time.After(stopLimit):
			errs = append(errs, fmt.Errorf("the daemon did not stop within %v and was killed: %s", stopLimit, l.log.text()))
			_ = l.child.Process.Kill()
			<-l.exited
		}
		errs = append(errs, l.misuse())
	}
	for _, n := range []*netlab.NS{l.host, l.far, l.apart} {
		if n != nil {
			errs = append(errs, n.Close())
		}
	}
	if l.scratch != nil {
		errs = append(errs, l.scratch.Close())
	}
	return errors.Join(errs...)
}

// tail keeps the end of what is written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if over := len(t.b) - logKept; over > 0 {
		t.b = append(t.b[:0], t.b[over:]...)
	}
	return len(p), nil
}

// text is what was kept, on lines of its own; the daemon's log says what it met.
func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.b) == 0 {
		return "it said nothing"
	}
	return "it said:\n" + string(bytes.TrimSpace(t.b))
}
