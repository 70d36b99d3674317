package simcard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"oxpd/internal/board"
	"oxpd/internal/capture"
	"oxpd/internal/daemon/config"
)

// readyPoll is the time between two looks at a port whose link is awaited.
const readyPoll = 5 * time.Millisecond

// pcapWire is the far side of a wire that a capture comes from and one is made
// of: what hwsim's Attach reads and writes. One goroutine reads; writes and the
// rest may come from others.
type pcapWire struct {
	log   *slog.Logger
	port  board.Port
	spec  config.Wire
	ready func() (mac [6]byte, ok bool) // the port takes frames now; its address

	in     *capture.File     // nil: nothing is replayed
	out    *capture.Recorder // nil: nothing is recorded
	closed chan struct{}
	once   sync.Once

	begun bool // of the reader alone, with pace and mac
	pace  capture.Pacer
	mac   [6]byte

	sent, cut atomic.Uint64
	refusing  atomic.Bool // a write has failed and been logged
}

// attachPcap opens the captures and hangs them at a front port.
func (d *Board) attachPcap(p board.Port, spec config.Wire) error {
	w := &pcapWire{log: d.log, port: p, spec: spec, closed: make(chan struct{})}
	w.ready = func() ([6]byte, bool) {
		lif, live := d.Card.LIF(uint32(p.LIF()))
		_, bound := d.Card.PPort(uint16(p.Tag))
		return lif.MAC, live && bound && d.wire(p).Carries()
	}
	if err := w.open(); err != nil {
		return err
	}
	stop := d.wire(p).Attach(w)
	d.pcaps[p.Index] = w
	d.stop = append(d.stop, func() error { stop(); return w.end() })
	return nil
}

// open looks through the whole capture before anything of it is sent, and makes
// the recording.
func (w *pcapWire) open() (err error) {
	if w.spec.In != "" {
		s, err := capture.Check(w.spec.In)
		if err != nil {
			return err
		}
		if s.Cut > 0 {
			w.log.Warn("packets that the capture cut short are not replayed", "port", w.port.Name, "file", w.spec.In, "cut", s.Cut, "packets", s.Packets)
		}
		if w.in, err = capture.Open(context.Background(), w.spec.In); err != nil {
			return err
		}
	}
	if w.spec.Out == "" {
		return nil
	}
	if w.spec.In != "" && capture.Same(w.spec.In, w.spec.Out) {
		err = fmt.Errorf("%s is %s, which would be overwritten while it is read: name another file", w.spec.Out, w.spec.In)
	} else {
		w.out, err = capture.Create(w.spec.Out, w.port.Name)
	}
	if err != nil && w.in != nil {
		err = errors.Join(err, w.in.Close())
	}
	return err
}

// Read waits for the next frame's time and copies it. io.EOF when there is none,
// os.ErrClosed after Close. A frame longer than b is cut; b holds more than any
// port's MAC takes, so that the card counts it as too long all the same.
func (w *pcapWire) Read(b []byte) (int, error) {
	if w.in == nil {
		return 0, io.EOF
	}
	if !w.begun {
		if err := w.await(); err != nil {
			return 0, err
		}
		w.begun = true
		w.log.Info("replay begins", "port", w.port.Name, "file", w.spec.In, "pace", string(w.spec.Pace))
	}
	for {
		r, err := w.in.Next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				w.log.Info("replay is over", "port", w.port.Name, "file", w.spec.In, "sent", w.sent.Load(), "cut", w.cut.Load())
			} else {
				w.log.Error("replay ends early", "port", w.port.Name, "sent", w.sent.Load(), "err", err) // changed since it was looked through
			}
			return 0, err
		}
		if r.Cut() {
			w.cut.Add(1)
			continue
		}
		if w.spec.Pace == config.PaceCapture {
			if err := w.sleep(w.pace.Wait(r.Time, time.Now())); err != nil {
				return 0, err
			}
		}
		n := copy(b, r.Frame)
		if w.spec.RewriteMAC {
			capture.Readdress(b[:n], w.mac)
		}
		w.sent.Add(1)
		return n, nil
	}
}

// await waits until the port takes frames.
func (w *pcapWire) await() error {
	for {
		mac, ok := w.ready()
		if ok {
			w.mac = mac
			return w.sleep(w.spec.Start)
		}
		if err := w.sleep(readyPoll); err != nil {
			return err
		}
	}
}

func (w *pcapWire) sleep(d time.Duration) error {
	if d <= 0 {
		select {
		case <-w.closed:
			return os.ErrClosed
		default:
			return nil
		}
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-w.closed:
		return os.ErrClosed
	}
}

// Write records a frame that has left the port.
func (w *pcapWire) Write(b []byte) (int, error) {
	if w.out == nil {
		return len(b), nil
	}
	if err := w.out.Record(time.Now(), b); err != nil {
		if !errors.Is(err, os.ErrClosed) && !w.refusing.Swap(true) {
			w.log.Error("recording has ended", "port", w.port.Name, "file", w.spec.Out, "frames", w.out.Frames(), "err", err)
		}
		return 0, err
	}
	return len(b), nil
}

// Close ends the waiting of Read.
func (w *pcapWire) Close() error {
	w.once.Do(func() { close(w.closed) })
	return nil
}

// end closes the files, once nobody reads.
func (w *pcapWire) end() error {
	var errs []error
	if w.in != nil {
		errs = append(errs, w.in.Close())
	}
	if w.out != nil {
		errs = append(errs, w.out.Close())
		w.log.Info("recording is closed", "port", w.port.Name, "file", w.spec.Out, "frames", w.out.Frames())
	}
	return errors.Join(errs...)
}

// count adds the wire's own numbers to those of the card's end.
func (w *pcapWire) count(to map[string]uint64) {
	if w.in != nil {
		to["replay_sent"], to["replay_cut"] = w.sent.Load(), w.cut.Load()
	}
	if w.out != nil {
		to["recorded"] = w.out.Frames()
	}
}
