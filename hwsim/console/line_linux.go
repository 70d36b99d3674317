package console

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"oxpd/hwsim"
	"oxpd/internal/sys"
)

const (
	bitsPerByte = 10   // a start bit, eight, a stop bit
	queueLimit  = 4096 // bytes that wait to be sent before a program on the coprocessor waits
	chunk       = 256
	chunkTime   = 5 * time.Millisecond // of a slow line
	readLimit   = time.Second          // for a listener to make room

	takenRun = 16 // bytes that a second reader gets at a time

	absentPause = 20 * time.Millisecond  // between looks at whether somebody has opened the host's end
	tidyAfter   = 200 * time.Millisecond // of nobody having it open
)

// line is the serial line: the terminal at the host's end, and bytes that travel. Put
// and write may be called by any goroutine; send and receive have one each.
type line struct {
	pty    *sys.Pty
	card   Card
	byteIn time.Duration // one byte, at the line's speed

	ready chan struct{} // something is in the queue
	room  chan struct{} // something has left it

	mu    sync.Mutex
	queue []byte

	// Of send, of receive and of keep alone.
	out, in int  // bytes that have come by
	echo    bool // the host's end echoes
}

func newLine(card Card, baud int) (*line, error) {
	pty, err := sys.OpenPty()
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	l := &line{pty: pty, card: card, ready: make(chan struct{}, 1), room: make(chan struct{}, 1)}
	if baud > 0 {
		l.byteIn = bitsPerByte * time.Second / time.Duration(baud)
	}
	// Opened and closed once, the host's end counts as closed until somebody opens it.
	l.echo = card.ConsoleFaults().ConsoleLocalEcho
	if err := l.tidy(); err != nil {
		return nil, errors.Join(fmt.Errorf("console: set up %s: %w", pty.Path(), err), pty.Close())
	}
	return l, nil
}

// tidy is what the last close of a serial port does, where a pseudo terminal keeps its
// state: exclusive use ends, and what nobody read is gone.
func (l *line) tidy() error {
	f, err := l.pty.Open(true)
	if err != nil {
		return err
	}
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	if cerr := raw.Control(func(fd uintptr) {
		if err = unix.IoctlSetInt(int(fd), unix.TIOCNXCL, 0); err == nil {
			err = unix.IoctlSetInt(int(fd), unix.TCFLSH, unix.TCIFLUSH)
		}
	}); cerr != nil {
		return cerr
	}
	if err != nil {
		return err
	}
	return l.setEcho()
}

// setEcho sets the host's end: raw, or, with echo, as a terminal is that nobody has set.
func (l *line) setEcho() error {
	t, err := l.pty.Termios()
	if err != nil {
		return err
	}
	const lines = unix.ECHO | unix.ECHOE | unix.ECHOK | unix.ICANON | unix.ISIG | unix.IEXTEN
	if l.echo {
		t.Iflag |= unix.ICRNL
		t.Oflag |= unix.OPOST
		t.Lflag |= lines
	} else {
		t.Iflag &^= unix.ICRNL | unix.IXON
		t.Oflag &^= unix.OPOST
		t.Lflag &^= lines
	}
	return l.pty.SetTermios(t)
}

// put adds to what is to be sent, and does not wait.
func (l *line) put(b string) {
	l.mu.Lock()
	l.queue = append(l.queue, b...)
	l.mu.Unlock()
	signal(l.ready)
}

// write adds to what is to be sent once there is room.
func (l *line) write(ctx context.Context, b []byte) error {
	for {
		l.mu.Lock()
		if len(l.queue) < queueLimit {
			l.queue = append(l.queue, b...)
			l.mu.Unlock()
			signal(l.ready)
			return nil
		}
		l.mu.Unlock()
		select {
		case <-l.room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// clear forgets what has not been sent.
func (l *line) clear() {
	l.mu.Lock()
	l.queue = nil
	l.mu.Unlock()
	signal(l.room)
}

func (l *line) take(b []byte) int {
	l.mu.Lock()
	n := copy(b, l.queue)
	l.queue = l.queue[n:]
	l.mu.Unlock()
	if n > 0 {
		signal(l.room)
	}
	return n
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// send sends what was put and written until ctx ends.
func (l *line) send(ctx context.Context) {
	var buf [chunk]byte
	due := time.Now()
	for {
		f := l.card.ConsoleFaults()
		each := l.byteIn + f.ConsoleByteTime
		most := chunk
		if each > 0 {
			most = int(min(max(chunkTime/each, 1), chunk))
		}
		n := l.take(buf[:most])
		if n == 0 {
			select {
			case <-l.ready:
				continue
			case <-ctx.Done():
				return
			}
		}
		if b := l.spoil(buf[:n], &f); len(b) > 0 {
			l.transmit(ctx, b)
		}
		if now := time.Now(); due.Before(now) {
			due = now
		}
		due = due.Add(time.Duration(n) * each)
		if !pause(ctx, time.Until(due)) {
			return
		}
	}
}

// spoil is what the faults leave of bytes for the host.
func (l *line) spoil(b []byte, f *hwsim.ConsoleFaults) []byte {
	out := make([]byte, 0, len(b))
	for _, x := range b {
		l.out++
		lost := f.ConsoleSilent || f.ConsoleDead ||
			f.ConsoleLoseOut > 0 && l.out%f.ConsoleLoseOut == 0 ||
			f.ConsoleSecondReader && l.out/takenRun%2 == 1
		if !lost {
			out = append(out, x)
		}
		if f.ConsoleNoise > 0 && l.out%f.ConsoleNoise == 0 && !f.ConsoleSilent && !f.ConsoleDead {
			out = append(out, noiseText...)
		}
	}
	return out
}

// transmit gives bytes to whoever has the host's end open.
func (l *line) transmit(ctx context.Context, b []byte) {
	master := l.pty.File()
	for len(b) > 0 && ctx.Err() == nil {
		if there, err := l.pty.Listening(); err != nil || !there {
			return
		}
		_ = master.SetWriteDeadline(time.Now().Add(readLimit)) // it has one: the file waits in the runtime
		n, err := master.Write(b)
		if err != nil {
			return // closed, or nobody reads
		}
		b = b[n:]
	}
}

// receive hands over what the host sends until the line is closed.
func (l *line) receive(ctx context.Context, to func(b []byte)) {
	var buf [chunk]byte
	for ctx.Err() == nil {
		n, err := l.pty.File().Read(buf[:])
		if err != nil {
			pause(ctx, absentPause) // nobody has the host's end open
			continue
		}
		if b := l.lose(buf[:n]); len(b) > 0 {
			to(b)
		}
		pause(ctx, time.Duration(n)*l.byteIn)
	}
}

// lose is what the faults leave of bytes from the host.
func (l *line) lose(b []byte) []byte {
	f := l.card.ConsoleFaults()
	if f.ConsoleDead {
		return nil
	}
	if f.ConsoleCutAfter > 0 {
		b = b[:min(len(b), f.ConsoleCutAfter)]
		l.card.Faults(func(f *hwsim.Faults) {
			f.ConsoleCutAfter -= len(b)
			f.ConsoleDead = f.ConsoleCutAfter <= 0
		})
	}
	out := b[:0]
	for _, x := range b {
		l.in++
		if f.ConsoleLoseIn == 0 || l.in%f.ConsoleLoseIn != 0 {
			out = append(out, x)
		}
	}
	return out
}

// pause waits, and tells whether ctx lasts.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// keep sets the host's end as the faults say, until ctx ends.
func (l *line) keep(ctx context.Context) {
	var (
		second *os.File
		closed time.Time // since when nobody has it open; zero: somebody has, or it is tidy
		tidied = true
	)
	defer func() {
		if second != nil {
			_ = second.Close()
		}
	}()
	for pause(ctx, absentPause) {
		f := l.card.ConsoleFaults()
		if f.ConsoleLocalEcho != l.echo {
			l.echo = f.ConsoleLocalEcho
			_ = l.setEcho() // fails when the line is closed, as ctx is then
		}
		switch {
		case f.ConsoleSecondReader && second == nil:
			second, _ = l.pty.Open(true) // refused to a user while the host's program wants it for itself; the bytes are gone all the same
		case !f.ConsoleSecondReader && second != nil:
			_ = second.Close()
			second = nil
		}
		there, err := l.pty.Listening()
		switch {
		case err != nil:
			return
		case there:
			tidied, closed = false, time.Time{}
		case !tidied && closed.IsZero():
			closed = time.Now()
		case !tidied && time.Since(closed) > tidyAfter:
			tidied = true
			_ = l.tidy() // a user cannot where exclusive use was not ended: the next one finds it so
		}
	}
}
