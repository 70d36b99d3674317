package tcpload

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"oxpd/internal/netlab"
)

const (
	childVariable  = "OXPD_TCPLOAD"
	maxPart        = 40_000 // connections of a process
	spare          = 100    // descriptors that a process has beside them
	backlog        = 65_535
	firstPort      = 10_000
	firstEphemeral = 15_000
	lastEphemeral  = 64_000
	ready          = "ready"
)

// Load is connections. Close ends them.
type Load struct {
	listeners []int
	children  []*child
}

type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	out   *bufio.Reader
}

// Start makes n connections over the loopback of a namespace: n sockets at each end. Ports
// are the ports of the listening ends, one for each process. It returns when all are there.
//
// Errors: that of a process which could not connect, among others. Then nothing is left.
func Start(ns *netlab.NS, n int) (*Load, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return nil, fmt.Errorf("tcpload: limit of descriptors: %w", err)
	}
	most, err := part(limit.Cur)
	if err != nil {
		return nil, err
	}
	return start(ns, n, most)
}

// part is how many connections a process makes that may have so many descriptors.
func part(limit uint64) (int, error) {
	if limit <= spare {
		return 0, fmt.Errorf("tcpload: a process may have %d descriptors, want more than %d: raise ulimit -n", limit, spare)
	}
	return int(min(limit-spare, maxPart)), nil
}

// start makes n connections, at most so many of them in a process.
func start(ns *netlab.NS, n, most int) (*Load, error) {
	l := new(Load)
	if err := l.connections(ns, n, most); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *Load) connections(ns *netlab.NS, n, most int) error {
	for name, value := range map[string]string{
		"core/somaxconn":           strconv.Itoa(backlog),
		"ipv4/ip_local_port_range": fmt.Sprint(firstEphemeral, " ", lastEphemeral),
		"ipv4/tcp_max_syn_backlog": strconv.Itoa(backlog),
	} {
		if err := ns.Sysctl(name, value); err != nil {
			return err
		}
	}
	for i := 0; n > 0; i++ {
		part := min(n, most)
		n -= part
		if err := ns.Do(func() error { return l.listen(firstPort + i) }); err != nil {
			return fmt.Errorf("tcpload: listen: %w", err)
		}
		if err := l.child(ns, i, part); err != nil {
			return fmt.Errorf("tcpload: start a process: %w", err)
		}
	}
	return l.await()
}

// await waits until each process has its connections.
func (l *Load) await() error {
	for _, c := range l.children {
		line, err := c.out.ReadString('\n')
		switch said := strings.TrimSpace(line); {
		case said == ready:
		case said == "":
			return fmt.Errorf("tcpload: a process ended before it was connected: %w", err)
		default:
			return fmt.Errorf("tcpload: a process could not connect: %s", said)
		}
	}
	return nil
}

// listen makes a listener that nobody accepts at.
func (l *Load) listen(port int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	l.listeners = append(l.listeners, fd)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	return unix.Listen(fd, backlog)
}

func (l *Load) child(ns *netlab.NS, i, n int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d,%d", childVariable, i, n))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := ns.Start(cmd); err != nil {
		return err
	}
	l.children = append(l.children, &child{cmd: cmd, stdin: stdin, out: bufio.NewReader(stdout)})
	return nil
}

// Ports are the ports of the listening ends.
func (l *Load) Ports() []int {
	var out []int
	for i := range l.listeners {
		out = append(out, firstPort+i)
	}
	return out
}

// Close ends the connections and waits for the processes.
func (l *Load) Close() error {
	var errs []error
	for _, c := range l.children {
		errs = append(errs, c.stdin.Close())
	}
	for _, c := range l.children {
		errs = append(errs, c.cmd.Wait())
	}
	for _, fd := range l.listeners {
		errs = append(errs, unix.Close(fd))
	}
	l.children, l.listeners = nil, nil
	return errors.Join(errs...)
}

// Child is the life of a process that Start has started: it tells whether this is one, and
// returns when its connections are to end. In any other process it returns at once.
func Child() bool {
	what := os.Getenv(childVariable)
	if what == "" {
		return false
	}
	var i, n int
	if _, err := fmt.Sscanf(what, "%d,%d", &i, &n); err != nil {
		panic(err)
	}
	if err := connect(i, n); err != nil {
		fmt.Println(err)
	} else {
		fmt.Println(ready)
		_, _ = io.Copy(io.Discard, os.Stdin) // until whoever started it closes it, or ends
	}
	return true
}

// connect makes n connections to listener i, from an address of its own.
func connect(i, n int) error {
	for range n {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		// Nobody waits for minutes where nothing answers.
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 20}); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
			return err
		}
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 1, byte(i), 1}}); err != nil {
			return err
		}
		err = unix.EINTR
		for err == unix.EINTR { // waits on: a connect with a limit is not begun again by the kernel
			err = unix.Connect(fd, &unix.SockaddrInet4{Port: firstPort + i, Addr: [4]byte{127, 0, 0, 1}})
		}
		if err != nil {
			return err
		}
	}
	return nil
}
