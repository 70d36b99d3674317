package fdstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// Variables of the environment that systemd sets for a service (systemd.exec(5)).
const (
	envSocket = "NOTIFY_SOCKET"
	envMost   = "FDSTORE" // FileDescriptorStoreMax, since systemd 254
)

const (
	maxName = 255 // bytes of a descriptor's name (sd_pid_notify_with_fds(3))
	// sendLimit bounds, by the wall clock, the wait for a service manager that does
	// not read.
	sendLimit = 3 * time.Second
)

var (
	// ErrNone says that there is no store. Why has the reason.
	ErrNone = errors.New("no descriptor store")
	// ErrFull says that the service manager keeps no more descriptors.
	ErrFull = errors.New("the descriptor store is full")
)

// Store is the service manager's, as far as it is this service's. All methods are
// safe for concurrent use, and for a nil Store, which is none.
type Store struct {
	mu   sync.Mutex
	sock int // -1: no service manager
	most int
	why  string
	came map[string]int  // descriptors of an earlier process that nobody has taken
	has  map[string]bool // names in the store
	ping time.Duration
}

// Open takes what the service manager gave this process: the descriptors, which are
// closed on exec from here on, and the variables, which no child inherits. It never
// fails: without a store, Why says so. Call it once, before anything opens files.
func Open() *Store {
	s := &Store{sock: -1, came: map[string]int{}, has: map[string]bool{}}
	s.ping, _ = daemon.SdWatchdogEnabled(true) // unreadable is none
	path, most := os.Getenv(envSocket), os.Getenv(envMost)
	_, _ = os.Unsetenv(envSocket), os.Unsetenv(envMost) // they cannot fail
	s.inherit()
	s.why = s.connect(path, most)
	return s
}

// inherit takes the descriptors under their names. Of two with one name, the later.
func (s *Store) inherit() {
	for _, f := range activation.Files(true) {
		name := f.Name()
		fd, err := dup(f)
		_ = f.Close() // what counts is the copy
		if err != nil {
			continue // then it did not come
		}
		if old, ok := s.came[name]; ok {
			_ = unix.Close(old)
		}
		s.came[name], s.has[name] = fd, true
	}
}

// dup copies a file's descriptor as it is: File.Fd would make it a blocking one.
func dup(f *os.File) (int, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	if e := raw.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 3) }); e != nil {
		return -1, e
	}
	return fd, err
}

// connect returns why there is no store, "" when there is one.
func (s *Store) connect(path, most string) string {
	if path == "" {
		return notStarted
	}
	sock, err := dial(path)
	if err != nil {
		return fmt.Sprintf("the service manager cannot be reached: %v", err)
	}
	s.sock = sock
	if most == "" {
		return "the service manager does not say how many descriptors it keeps (" + envMost + "): it needs systemd 254 and FileDescriptorStoreMax= in the unit"
	}
	if s.most, err = strconv.Atoi(most); err != nil || s.most <= 0 {
		return fmt.Sprintf("the service manager keeps %q descriptors (%s)", most, envMost)
	}
	return ""
}

const notStarted = "not started by a service manager"

// dial connects a socket that lives as long as the process.
func dial(path string) (int, error) {
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err != nil {
		return -1, err
	}
	unix.CloseOnExec(sock)
	limit := unix.NsecToTimeval(sendLimit.Nanoseconds())
	err = unix.SetsockoptTimeval(sock, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit)
	if err == nil {
		err = unix.Connect(sock, &unix.SockaddrUnix{Name: path})
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(sock))
	}
	return sock, nil
}

// Why is the reason that there is no store, "" when there is one.
func (s *Store) Why() string {
	if s == nil {
		return notStarted
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why
}

// Most is how many descriptors the store can hold.
func (s *Store) Most() int {
	if s == nil {
		return 0
	}
	return s.most
}

// Came tells whether an earlier process left a descriptor of that name which was not
// taken.
func (s *Store) Came(name string) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.came[name]
	return ok
}

// Take gives an earlier process's descriptor to the caller, who closes it; the store
// keeps its own. ok is false when there is none, or it was taken.
func (s *Store) Take(name string) (fd int, ok bool) {
	if s == nil {
		return -1, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	fd, ok = s.came[name]
	delete(s.came, name)
	if !ok {
		return -1, false
	}
	return fd, true
}

// Put stores a descriptor, which stays the caller's, in the place of whatever has
// that name. It is in the store for certain once Settle has returned.
//
// Errors: ErrNone, ErrFull, those of the socket.
func (s *Store) Put(name string, fd int) error {
	if s == nil {
		return fmt.Errorf("fdstore: put %s: %w", name, ErrNone)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.put(name, fd); err != nil {
		return fmt.Errorf("fdstore: put %s: %w", name, err)
	}
	return nil
}

func (s *Store) put(name string, fd int) error {
	switch {
	case s.why != "":
		return fmt.Errorf("%w: %s", ErrNone, s.why)
	case !validName(name):
		return fmt.Errorf("bad name %q: want 1 to %d printable ASCII characters without a colon", name, maxName)
	case s.has[name]:
		if err := s.remove(name); err != nil {
			return err
		}
	}
	if len(s.has) >= s.most {
		return fmt.Errorf("%w: it has %d", ErrFull, s.most)
	}
	// Its end is not a reason to throw it away: a card's socket or group that hangs up is news.
	if err := s.send("FDSTORE=1\nFDPOLL=0\nFDNAME="+name, fd); err != nil {
		return err
	}
	s.has[name] = true
	return nil
}

func validName(name string) bool {
	return name != "" && len(name) <= maxName && !strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r > '~' || r == ':' })
}

// Remove takes what has that name out of the store. Nothing of that name is no error.
func (s *Store) Remove(name string) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.remove(name); err != nil {
		return fmt.Errorf("fdstore: remove %s: %w", name, err)
	}
	return nil
}

func (s *Store) remove(name string) error {
	if !s.has[name] {
		return nil
	}
	if fd, ok := s.came[name]; ok {
		_ = unix.Close(fd)
		delete(s.came, name)
	}
	if err := s.send("FDSTOREREMOVE=1\nFDNAME=" + name); err != nil {
		return err
	}
	delete(s.has, name)
	return nil
}

// Abandon takes everything out of the store but what has one of the names that stay;
// there is no store from then on, for that reason. It returns what could not be taken
// out.
func (s *Store) Abandon(why string, stay ...string) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for name := range s.has {
		if slices.Contains(stay, name) {
			continue
		}
		if err := s.remove(name); err != nil {
			errs = append(errs, fmt.Errorf("fdstore: remove %s: %w", name, err))
		}
	}
	s.why = why
	return errors.Join(errs...)
}

// Leave closes what came and was not taken; the store keeps it for the next start.
func (s *Store) Leave() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, fd := range s.came {
		_ = unix.Close(fd)
		delete(s.came, name)
	}
}

// Names are those in the store.
func (s *Store) Names() []string {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for name := range s.has {
		names = append(names, name)
	}
	return names
}

// Ping is how long the service manager waits for a sign of life before it kills the
// service; 0: for ever.
func (s *Store) Ping() time.Duration {
	if s == nil {
		return 0
	}
	return s.ping
}

// Notify tells the service manager something, such as READY=1. Without one it is
// not an error.
func (s *Store) Notify(state string) error {
	if s == nil || s.sock < 0 {
		return nil
	}
	if err := s.send(state); err != nil {
		return fmt.Errorf("fdstore: notify %q: %w", state, err)
	}
	return nil
}

// Settle waits until the service manager has done everything that it was told: a
// message of a process that has died meanwhile is thrown away.
func (s *Store) Settle(ctx context.Context) error {
	if s == nil || s.sock < 0 {
		return nil
	}
	if err := s.settle(ctx); err != nil {
		return fmt.Errorf("fdstore: wait for the service manager: %w", err)
	}
	return nil
}

// settle sends one end of a pipe, which is closed when its turn has come.
func (s *Store) settle(ctx context.Context) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	stop := context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	raw, err := w.SyscallConn()
	if err == nil {
		if e := raw.Control(func(fd uintptr) { err = s.send("BARRIER=1", int(fd)) }); e != nil {
			err = e
		}
	}
	_ = w.Close() // the other copy is the service manager's
	if err != nil {
		return err
	}
	var b [1]byte
	if _, err = r.Read(b[:]); errors.Is(err, os.ErrDeadlineExceeded) {
		return ctx.Err()
	}
	return nil // its end
}

func (s *Store) send(state string, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	for {
		if err := unix.Sendmsg(s.sock, []byte(state), oob, nil, 0); err != unix.EINTR {
			return err
		}
	}
}
