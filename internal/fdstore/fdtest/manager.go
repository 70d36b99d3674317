// Package fdtest is a service manager for tests: it keeps a service's descriptors as
// systemd does, and starts the service again with them. It runs one service, and
// decides nothing: when to start is the test's business.
//
// Left out: who may send. Everything that arrives on the socket is the service's.
package fdtest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Manager is the service manager. Its methods are safe for concurrent use.
type Manager struct {
	path string
	sock *net.UnixConn
	most int
	quit chan struct{}
	done chan struct{}

	mu      sync.Mutex
	kept    []kept
	told    map[string]int // how often each assignment came
	refused int
	env     []string
	via     []string

	ear  sync.Mutex // held while it listens
	deaf bool
}

type kept struct {
	name string
	file *os.File
}

// New makes a manager that keeps up to most descriptors; its socket is in dir. 0 is
// one without a store.
func New(dir string, most int) (*Manager, error) {
	m := &Manager{path: filepath.Join(dir, "notify"), most: most, quit: make(chan struct{}), done: make(chan struct{}), told: map[string]int{}}
	m.Via("/bin/sh", "-c", `export LISTEN_PID=$$; exec "$0" "$@"`)
	var err error
	if m.sock, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.path, Net: "unixgram"}); err != nil {
		return nil, fmt.Errorf("fdtest: listen: %w", err)
	}
	go m.serve()
	return m, nil
}

// Close throws everything away. The service has ended.
func (m *Manager) Close() error {
	close(m.quit)
	err := m.sock.Close()
	<-m.done
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range m.kept {
		err = errors.Join(err, k.file.Close())
	}
	m.kept = nil
	return err
}

// Start starts the service with what is kept. cmd's environment is added to.
func (m *Manager) Start(cmd *exec.Cmd) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	env := cmd.Env
	if env == nil {
		env = os.Environ()
	}
	env = append(env, "NOTIFY_SOCKET="+m.path)
	if m.most > 0 {
		env = append(env, "FDSTORE="+strconv.Itoa(m.most))
	}
	env = append(env, m.env...)
	if len(m.kept) > 0 {
		var names []string
		for _, k := range m.kept {
			names = append(names, k.name)
			cmd.ExtraFiles = append(cmd.ExtraFiles, k.file)
		}
		env = append(env, "LISTEN_FDS="+strconv.Itoa(len(names)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
		// The process that is the service knows its own number.
		cmd.Args = append(append(append([]string(nil), m.via...), cmd.Path), cmd.Args[1:]...)
		cmd.Path = m.via[0]
	}
	cmd.Env = env
	return cmd.Start()
}

// Path is the socket that NOTIFY_SOCKET names.
func (m *Manager) Path() string { return m.path }

// Names are those in the store, in the order in which they came.
func (m *Manager) Names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for _, k := range m.kept {
		names = append(names, k.name)
	}
	return names
}

// Told is how often the service sent an assignment, such as READY=1.
func (m *Manager) Told(assignment string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.told[assignment]
}

// Refused is how many descriptors did not fit.
func (m *Manager) Refused() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.refused
}

// Setenv adds a variable to the environment of the starts to come.
func (m *Manager) Setenv(key, value string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.env = append(m.env, key+"="+value)
}

// Via names a program that becomes the service, where there is no shell to do so: it is
// given the service's path and arguments, and sets LISTEN_PID to its own number.
func (m *Manager) Via(program ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.via = program
}

// Drop forgets a descriptor.
func (m *Manager) Drop(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(name)
}

func (m *Manager) drop(name string) {
	var left []kept
	for _, k := range m.kept {
		if k.name != name {
			left = append(left, k)
			continue
		}
		_ = k.file.Close() // one copy of several
	}
	m.kept = left
}

// Deaf makes the manager leave the messages that come from now on where they are, or go
// on.
func (m *Manager) Deaf(deaf bool) {
	m.ear.Lock()
	defer m.ear.Unlock()
	m.deaf = deaf
}

// turn is how long it listens, or is deaf, at a time.
const turn = 10 * time.Millisecond

func (m *Manager) serve() {
	defer close(m.done)
	buf, oob := make([]byte, 64<<10), make([]byte, 4096)
	for {
		n, oobn, err := m.listen(buf, oob)
		switch {
		case errors.Is(err, errDeaf):
			select {
			case <-m.quit:
				return
			case <-time.After(turn):
			}
		case errors.Is(err, os.ErrDeadlineExceeded):
		case err != nil:
			return // closed
		default:
			m.take(string(buf[:n]), descriptors(oob[:oobn]))
		}
	}
}

var errDeaf = errors.New("deaf")

// listen waits one turn for a message.
func (m *Manager) listen(buf, oob []byte) (n, oobn int, err error) {
	m.ear.Lock()
	defer m.ear.Unlock()
	if m.deaf {
		return 0, 0, errDeaf
	}
	_ = m.sock.SetReadDeadline(time.Now().Add(turn)) // a closed one says so below
	n, oobn, _, _, err = m.sock.ReadMsgUnix(buf, oob)
	return n, oobn, err
}

func descriptors(oob []byte) (files []*os.File) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), ""))
		}
	}
	return files
}

// take does what one message says; descriptors that it does not keep are closed,
// which is also the answer to a barrier.
func (m *Manager) take(text string, files []*os.File) {
	m.mu.Lock()
	defer m.mu.Unlock()
	values := map[string]string{}
	for _, line := range strings.Split(text, "\n") {
		key, value, _ := strings.Cut(line, "=")
		values[key] = value
		m.told[line]++
	}
	name := values["FDNAME"]
	if values["FDSTOREREMOVE"] == "1" {
		m.drop(name)
	}
	for _, f := range files {
		switch {
		case values["FDSTORE"] != "1":
			_ = f.Close()
		case len(m.kept) >= m.most:
			m.refused++
			_ = f.Close()
		default:
			m.kept = append(m.kept, kept{name, f})
		}
	}
}
