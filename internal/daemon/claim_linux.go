package daemon

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"oxpd/internal/sys"
)

const (
	// claimName is an abstract unix socket. Such a name exists once in each network
	// namespace, as the interfaces' names do, and goes with the process that has it.
	claimName  = "@oxpd/ports"
	claimTries = 3 // a holder may end between the refusal and the question who it is

	acceptPause = 100 * time.Millisecond
)

// claim is the right to the ports of a network namespace. Whoever connects to it
// is told the control socket of the daemon that has it.
type claim struct {
	l    *net.UnixListener // nil when somebody who is no daemon has the name
	done chan struct{}     // closed when nobody is answered any more
}

// claimPorts takes the ports of the namespace that netns names (empty: the
// process's own) for the daemon on control. A process that may not make interfaces
// can have the name too; it keeps no daemon from running, and the log says so.
// Errors: *TakenError for another daemon.
func claimPorts(netns, control string, log *slog.Logger) (c *claim, err error) {
	if abs, err := filepath.Abs(control); err == nil {
		control = abs // whoever is told may be in another directory
	}
	err = sys.InNetNS(netns, func() error {
		c, err = claimHere(control, log)
		return err
	})
	return c, err
}

// claimHere is claimPorts in the namespace of the calling thread.
func claimHere(control string, log *slog.Logger) (*claim, error) {
	for try := 1; ; try++ {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: claimName, Net: "unix"})
		if err == nil {
			c := &claim{l: l, done: make(chan struct{})}
			go c.answer(control)
			return c, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return nil, fmt.Errorf("claim the ports of the network namespace: %w", err)
		}
		taken, uid, err := claimant()
		switch {
		case errors.Is(err, unix.ECONNREFUSED) && try < claimTries: // it has just ended
		case errors.Is(err, unix.EAGAIN), err == nil && uid != 0 && uid != os.Geteuid():
			// A daemon may make interfaces, and lets nobody wait to be accepted.
			log.Warn("no daemon has the name that keeps a second one from these ports: nothing keeps it from them now",
				"name", claimName, "pid", taken.PID, "uid", uid)
			return &claim{}, nil
		default:
			return nil, taken
		}
	}
}

// claimant asks who has the ports of the calling thread's namespace, and as which
// user it began. What could not be found out is left empty.
func claimant() (who *TakenError, uid int, err error) {
	who = &TakenError{}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: claimName, Net: "unix"})
	if err != nil {
		return who, 0, err
	}
	defer conn.Close()
	who.PID, uid = peer(conn)
	if err := conn.SetReadDeadline(time.Now().Add(connectLimit)); err != nil {
		return who, uid, nil
	}
	// A daemon that hangs does not say it; one that is no daemon may say anything.
	if said, err := io.ReadAll(io.LimitReader(conn, unix.PathMax)); err == nil && filepath.IsAbs(string(said)) {
		who.Socket = string(said)
	}
	return who, uid, nil
}

// answer tells everybody who asks which control socket is this daemon's.
func (c *claim) answer(control string) {
	defer close(c.done)
	for {
		conn, err := c.l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors: who asks next may have more luck
			time.Sleep(acceptPause)
			continue
		}
		_, _ = io.WriteString(conn, control) // fits what the kernel takes at once; who does not read it knows less
		_ = conn.Close()
	}
}

// release gives the ports back.
func (c *claim) release() error {
	if c.l == nil {
		return nil
	}
	err := c.l.Close()
	<-c.done
	if err != nil {
		return fmt.Errorf("give the ports back: %w", err)
	}
	return nil
}
