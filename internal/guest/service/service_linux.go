package service

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"oxpd/internal/fdstore/fdtest"
	"oxpd/internal/sys"
)

// Path is the directory of the manager's sockets.
const Path = "/tmp/service"

// places are those of the store, as the unit that is shipped has them.
const places = 64

// order is one thing that is asked for, and answer what comes back.
type (
	order struct {
		Start  *Start `json:",omitempty"`
		Wait   int    `json:",omitempty"` // number of a process
		Names  bool   `json:",omitempty"`
		Forget bool   `json:",omitempty"`
	}
	answer struct {
		PID    int      `json:",omitempty"`
		Status string   `json:",omitempty"`
		Names  []string `json:",omitempty"`
		Error  string   `json:",omitempty"`
	}
)

// Start is a service.
type Start struct {
	NetNS string   // path of its network namespace
	Log   string   // file that its output is added to
	Args  []string // program and arguments
}

// manager is the server's side.
type manager struct {
	become []string

	mu      sync.Mutex
	store   *fdtest.Manager
	running map[int]*exec.Cmd
}

// Serve answers whoever asks. become is the program that becomes the service, the one
// whose main calls Become. It returns when it cannot go on.
func Serve(become ...string) error {
	if err := os.MkdirAll(Path, 0o755); err != nil {
		return err
	}
	ln, err := net.Listen("unix", filepath.Join(Path, "ask"))
	if err != nil {
		return err
	}
	defer ln.Close()
	m := &manager{become: become, running: map[int]*exec.Cmd{}}
	if err := m.begin(); err != nil {
		return err
	}
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		go m.answer(c)
	}
}

// begin makes an empty store.
func (m *manager) begin() (err error) {
	if m.store, err = fdtest.New(Path, places); err == nil {
		m.store.Via(m.become...)
	}
	return err
}

func (m *manager) answer(c net.Conn) {
	defer c.Close()
	var o order
	if json.NewDecoder(c).Decode(&o) != nil {
		return
	}
	a, err := m.do(o)
	if err != nil {
		a.Error = err.Error()
	}
	_ = json.NewEncoder(c).Encode(a) // who has gone wants no answer
}

func (m *manager) do(o order) (answer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case o.Start != nil:
		cmd, err := m.start(o.Start)
		if err != nil {
			return answer{}, err
		}
		m.running[cmd.Process.Pid] = cmd
		return answer{PID: cmd.Process.Pid}, nil
	case o.Wait != 0:
		cmd := m.running[o.Wait]
		if cmd == nil {
			return answer{}, fmt.Errorf("process %d is no service of this manager, or was waited for", o.Wait)
		}
		delete(m.running, o.Wait)
		m.mu.Unlock()
		_ = cmd.Wait() // the status says it
		m.mu.Lock()
		return answer{Status: cmd.ProcessState.String()}, nil
	case o.Names:
		return answer{Names: m.store.Names()}, nil
	case o.Forget:
		return answer{}, errors.Join(m.store.Close(), os.Remove(m.store.Path()), m.begin())
	}
	return answer{}, errors.New("nothing was asked")
}

func (m *manager) start(s *Start) (*exec.Cmd, error) {
	log, err := os.OpenFile(s.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(s.Args[0], s.Args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = []string{"PATH=/", "HOME=/tmp"}
	return cmd, sys.InNetNS(s.NetNS, func() error { return m.store.Start(cmd) })
}

// Become sets LISTEN_PID to the number of this process, which goes on as the program in
// args. It returns an error or not at all.
func Become(args []string) error {
	env := append(os.Environ(), "LISTEN_PID="+strconv.Itoa(os.Getpid()))
	return &os.PathError{Op: "exec", Path: args[0], Err: unix.Exec(args[0], args, env)}
}

// ask asks the manager in another process.
func ask(o order) (answer, error) {
	var a answer
	c, err := net.Dial("unix", filepath.Join(Path, "ask"))
	if err != nil {
		return a, err
	}
	defer c.Close()
	if err := json.NewEncoder(c).Encode(o); err != nil {
		return a, err
	}
	if err := json.NewDecoder(c).Decode(&a); err != nil {
		return a, err
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}

// Run starts the service with what is kept, and returns the number of its process.
func Run(s Start) (pid int, err error) {
	a, err := ask(order{Start: &s})
	return a.PID, err
}

// Wait waits for the end of a process that Run has started, and returns how it ended: "exit
// status 0", "signal: killed".
func Wait(pid int) (string, error) {
	a, err := ask(order{Wait: pid})
	return a.Status, err
}

// Names are those in the store.
func Names() ([]string, error) {
	a, err := ask(order{Names: true})
	return a.Names, err
}

// Forget throws everything away that is kept, and closes it.
func Forget() error {
	_, err := ask(order{Forget: true})
	return err
}
