package netlab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// patternBytes is the period of what a Stream carries: a prime, so that no
// number of lost or repeated segments below it goes unnoticed.
const patternBytes = 1<<20 - 3

// chunkBytes is what a Stream writes and reads at a time.
const chunkBytes = 256 << 10

// Stream is one TCP connection, used in one direction, whose every byte is
// compared with what was sent. One caller sends at a time.
type Stream struct {
	out, in  *net.TCPConn
	pattern  []byte // patternBytes and its beginning once more
	sent     int64
	received atomic.Int64  // verified
	progress chan struct{} // received has grown
	ended    chan struct{} // closed when the receiver ends
	err      error         // why it ended
}

// Transfer is what one run of a Stream moved.
type Transfer struct {
	Bytes       int64
	Elapsed     time.Duration
	MSS         int // bytes a segment may carry now, the sender's view
	Retransmits int // segments sent again since the connection began
}

// Mbps is the rate of the payload in Mbit/s.
func (t Transfer) Mbps() float64 {
	if t.Elapsed <= 0 {
		return 0
	}
	return float64(t.Bytes) * 8 / t.Elapsed.Seconds() / 1e6
}

// CorruptError says that a stream delivered something else than was sent.
type CorruptError struct{ Offset int64 }

func (e *CorruptError) Error() string {
	return fmt.Sprintf("netlab: stream is corrupt in the %d bytes before offset %d", chunkBytes, e.Offset)
}

// Connect opens a TCP connection from one namespace to an address of another;
// data goes from `from` to `to`, or the other way when reverse is set.
func Connect(ctx context.Context, from, to *NS, addr netip.Addr, reverse bool) (*Stream, error) {
	var l net.Listener
	err := to.Do(func() (err error) {
		l, err = (&net.ListenConfig{}).Listen(ctx, "tcp4", netip.AddrPortFrom(addr, 0).String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("netlab: listen on %s: %w", addr, err)
	}
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()

	type accepted struct {
		conn net.Conn
		err  error
	}
	got := make(chan accepted, 1)
	go func() {
		c, err := l.Accept()
		got <- accepted{c, err}
	}()
	var dialled net.Conn
	err = from.Do(func() (err error) {
		// A literal address: the socket is made on this thread.
		dialled, err = (&net.Dialer{}).DialContext(ctx, "tcp4", l.Addr().String())
		return err
	})
	if err != nil {
		l.Close()
		if a := <-got; a.conn != nil {
			a.conn.Close()
		}
		return nil, fmt.Errorf("netlab: connect to %s: %w", addr, err)
	}
	a := <-got
	if a.err != nil {
		return nil, fmt.Errorf("netlab: accept on %s: %w", addr, errors.Join(a.err, dialled.Close()))
	}
	s := &Stream{
		out: dialled.(*net.TCPConn), in: a.conn.(*net.TCPConn),
		pattern:  make([]byte, patternBytes+chunkBytes),
		progress: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	if reverse {
		s.out, s.in = s.in, s.out
	}
	_, _ = rand.NewChaCha8([32]byte{}).Read(s.pattern[:patternBytes]) // cannot fail
	copy(s.pattern[patternBytes:], s.pattern)
	go s.receive()
	return s, nil
}

// receive verifies what arrives until the connection ends.
func (s *Stream) receive() {
	defer close(s.ended)
	buf := make([]byte, chunkBytes)
	for at := int64(0); ; {
		n, err := s.in.Read(buf)
		if !bytes.Equal(buf[:n], s.at(at, n)) {
			s.err = &CorruptError{Offset: at + int64(n)}
			return
		}
		at = s.received.Add(int64(n))
		select {
		case s.progress <- struct{}{}:
		default:
		}
		if err != nil {
			s.err = err
			return
		}
	}
}

// Send moves exactly size bytes and returns when they are verified. An error,
// the context's end among them, breaks the connection.
func (s *Stream) Send(ctx context.Context, size int64) (Transfer, error) {
	return s.send(ctx, func(sent int64) int64 { return size - sent })
}

// SendFor sends for a time and returns when what was under way is verified.
func (s *Stream) SendFor(ctx context.Context, d time.Duration) (Transfer, error) {
	end := time.Now().Add(d)
	return s.send(ctx, func(int64) int64 {
		if time.Now().Before(end) {
			return chunkBytes
		}
		return 0
	})
}

// SendUntil sends until stop is closed and returns when what was under way is verified.
func (s *Stream) SendUntil(ctx context.Context, stop <-chan struct{}) (Transfer, error) {
	return s.send(ctx, func(int64) int64 {
		select {
		case <-stop:
			return 0
		default:
			return chunkBytes
		}
	})
}

// Received is how many bytes have been verified so far. It may be called while another
// goroutine sends.
func (s *Stream) Received() int64 { return s.received.Load() }

// send writes chunks of at most what left returns for the bytes that this call
// has sent, until that is 0.
func (s *Stream) send(ctx context.Context, left func(sent int64) int64) (Transfer, error) {
	_ = s.out.SetWriteDeadline(time.Time{})
	expire := context.AfterFunc(ctx, func() { _ = s.out.SetWriteDeadline(time.Unix(1, 0)) })
	defer expire()
	start, first := time.Now(), s.sent
	for n := left(0); n > 0 && ctx.Err() == nil; n = left(s.sent - first) {
		w, err := s.out.Write(s.at(s.sent, int(min(n, chunkBytes))))
		s.sent += int64(w)
		if err != nil && ctx.Err() == nil {
			return Transfer{}, fmt.Errorf("netlab: send after %d bytes: %w", s.sent, err)
		}
	}
	for s.received.Load() < s.sent {
		select {
		case <-s.progress:
		case <-s.ended:
			if s.received.Load() < s.sent {
				return Transfer{}, fmt.Errorf("netlab: receive after %d of %d bytes: %w", s.received.Load(), s.sent, s.err)
			}
		case <-ctx.Done():
			return Transfer{}, fmt.Errorf("netlab: %d of %d bytes received: %w", s.received.Load(), s.sent, ctx.Err())
		}
	}
	if ctx.Err() != nil {
		return Transfer{}, ctx.Err()
	}
	t := Transfer{Bytes: s.sent - first, Elapsed: time.Since(start)}
	var err error
	t.MSS, t.Retransmits, err = s.Info()
	return t, err
}

// at is n bytes, at most chunkBytes, of the endless pattern.
func (s *Stream) at(offset int64, n int) []byte {
	i := int(offset % patternBytes)
	return s.pattern[i : i+n]
}

// Info is what the sender's kernel knows of the connection: the bytes that a
// segment may carry now, and the segments sent again so far. It may be called
// while another goroutine sends.
func (s *Stream) Info() (mss, retransmits int, err error) {
	raw, err := s.out.SyscallConn()
	if err != nil {
		return 0, 0, fmt.Errorf("netlab: read TCP_INFO: %w", err)
	}
	var info *unix.TCPInfo
	controlErr := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if err = errors.Join(controlErr, err); err != nil {
		return 0, 0, fmt.Errorf("netlab: read TCP_INFO: %w", err)
	}
	return int(info.Snd_mss), int(info.Total_retrans), nil
}

// Close closes both ends and waits for the receiver.
func (s *Stream) Close() error {
	err := errors.Join(s.out.Close(), s.in.Close())
	<-s.ended
	return err
}
