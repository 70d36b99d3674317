package vfiouser

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"oxpd/internal/dma"
)

// Names of the descriptors by which a later process goes on with the card.
const (
	KeptConn   = "card connection"
	KeptMemory = "card memory"
)

// AdoptError is a card of an earlier process that cannot be gone on with.
type AdoptError struct {
	Path string
	// Ended says that the other end has closed the connection: that card reaches no
	// memory of ours any more, and Open finds another, or none.
	Ended bool
	Err   error
}

func (e *AdoptError) Error() string {
	return fmt.Sprintf("go on with the card at %s: %v", e.Path, e.Err)
}

// Unwrap returns why.
func (e *AdoptError) Unwrap() error { return e.Err }

// Hint is what an operator can do.
func (e *AdoptError) Hint() string {
	return "end oxpd sim serve, have the service manager forget the descriptors (systemctl clean --what=fdstore oxpd), start both again"
}

// Keep hands the descriptors that a later process needs to put, under their names.
// They stay the device's. One that was adopted has none to hand: they are where it took
// them from, and to put them there again is to take them out for a moment, in which the
// death of this process would end the card's connection.
//
// The memory comes first: a later process that finds no connection opens the card anew,
// one that finds a connection without memory could not.
func (d *Device) Keep(put func(name string, fd int) error) error {
	if d.adopted {
		return nil
	}
	if err := put(KeptMemory, d.dma.File()); err != nil {
		return err
	}
	raw, err := d.conn.sock.SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) { err = put(KeptConn, int(fd)) }); e != nil {
		return e
	}
	return err
}

// SetKeeps says whether somebody else has the descriptors: then memory outlives this
// process, and Close takes nothing from the card.
func (d *Device) SetKeeps(keeps bool) { d.dma.SetKeeps(keeps) }

// Adopt goes on with the card that an earlier process opened, by the descriptors that
// it kept, which take hands over: they are the device's from then on. The server
// notices nothing. What the process before had asked and not read is skipped; memory
// that the card knows is found by its name (dma.Holder), and vectors are bound anew.
//
// A command is one write that the socket takes whole or not at all, so that a process
// does not die in the middle of one. If one is cut short all the same, the server
// ends the connection at the next, or does not answer: that is an error here.
//
// Error: *AdoptError.
func Adopt(ctx context.Context, path string, take func(name string) (fd int, ok bool)) (*Device, error) {
	d, err := adopt(ctx, path, take)
	if err != nil {
		ended := errors.Is(err, io.EOF) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET)
		return nil, &AdoptError{path, ended, err}
	}
	return d, nil
}

func adopt(ctx context.Context, path string, take func(name string) (int, bool)) (*Device, error) {
	connFD, ok := take(KeptConn)
	if !ok {
		return nil, errors.New("its connection was not kept")
	}
	sock, err := connection(connFD, path)
	if err != nil {
		return nil, err
	}
	d := newDevice(path, sock)
	stop := context.AfterFunc(ctx, func() { _ = sock.Close() })
	defer stop()
	if err := d.goOn(take); err != nil {
		return nil, errors.Join(err, ctx.Err(), d.Close())
	}
	d.adopted = true
	return d, nil
}

// connection makes a descriptor the connection to path.
func connection(fd int, path string) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), KeptConn)
	c, err := net.FileConn(f)
	_ = f.Close() // c has a copy
	if err != nil {
		return nil, fmt.Errorf("its connection: %w", err)
	}
	sock, ok := c.(*net.UnixConn)
	if !ok || sock.RemoteAddr().Network() != "unix" || !samePath(sock.RemoteAddr().String(), path) {
		return nil, errors.Join(fmt.Errorf("what was kept is a connection to %s %s", c.RemoteAddr().Network(), c.RemoteAddr()), c.Close())
	}
	return sock, nil
}

// samePath tells whether the name that a server gave its socket can be that of path. The
// server may have been started elsewhere: of a relative name only the last part is sure.
func samePath(served, path string) bool {
	if !filepath.IsAbs(served) {
		return filepath.Base(served) == filepath.Base(path)
	}
	if abs, err := filepath.Abs(path); err == nil && abs == filepath.Clean(served) {
		return true
	}
	a, errA := os.Stat(served)
	b, errB := os.Stat(path)
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// goOn looks whether the card answers, and opens its memory. The looks have answers
// of five kinds: when the last has come, nothing older can.
func (d *Device) goOn(take func(name string) (int, bool)) error {
	d.conn.id, d.conn.skip = uint16(rand.Uint32()), true // not the number of a question of before
	if err := d.attach(); err != nil {
		return err
	}
	d.conn.skip = false
	fd, ok := take(KeptMemory)
	if !ok {
		return errors.New("its memory was not kept")
	}
	var err error
	if d.dma, err = dma.OpenKept(mapper{d.conn}, fd, nil); err != nil {
		closeFD(fd)
	}
	return err
}
