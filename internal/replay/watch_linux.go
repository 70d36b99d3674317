package replay

import (
	"context"
	"errors"
	"hash/maphash"
	"os"
	"sync"
	"time"

	"oxpd/internal/capture"
	"oxpd/internal/netlab"
)

// watcher takes what reaches the interface, compares it with what was sent, and
// writes it to a file if one is wanted.
type watcher struct {
	socket   *netlab.Packets
	recorder *capture.Recorder // nil: no file
	seed     maphash.Seed
	cancel   context.CancelFunc
	done     chan struct{} // closed when the reader has ended

	mu                 sync.Mutex
	sent               map[uint64]int // hash of a frame, how often it was sent and not seen
	unaltered, altered uint64
	err                error
}

// watch opens the packet socket and begins to read it.
func (b *bench) watch(ctx context.Context) (*watcher, error) {
	w := &watcher{seed: maphash.MakeSeed(), sent: map[uint64]int{}, done: make(chan struct{})}
	var err error
	if w.socket, err = b.ns.Packets(b.o.Port.Name); err != nil {
		return nil, err
	}
	if b.o.Out != "" {
		if w.recorder, err = capture.Create(b.o.Out, b.o.Port.Name); err != nil {
			return nil, errors.Join(err, w.socket.Close())
		}
	}
	ctx, w.cancel = context.WithCancel(ctx)
	go w.read(ctx)
	return w, nil
}

// expect notes a frame that is about to be sent.
func (w *watcher) expect(frame []byte) {
	h := maphash.Bytes(w.seed, frame)
	w.mu.Lock()
	w.sent[h]++
	w.mu.Unlock()
}

func (w *watcher) read(ctx context.Context) {
	defer close(w.done)
	for {
		frame, err := w.socket.Next(ctx)
		if err == nil && w.recorder != nil {
			err = w.recorder.Record(time.Now(), frame)
		}
		w.mu.Lock()
		if err != nil {
			if ctx.Err() == nil {
				w.err = err
			}
			w.mu.Unlock()
			return
		}
		h := maphash.Bytes(w.seed, frame)
		if w.sent[h] > 0 {
			w.sent[h]--
			w.unaltered++
		} else {
			w.altered++
		}
		w.mu.Unlock()
	}
}

// await waits until as many frames were seen as reached the interface, or no more
// come.
func (w *watcher) await(ctx context.Context, frames uint64) error {
	var last uint64
	for moved := time.Now(); ; {
		w.mu.Lock()
		seen, err := w.unaltered+w.altered, w.err
		w.mu.Unlock()
		if seen != last {
			last, moved = seen, time.Now()
		}
		if err != nil || seen >= frames || time.Since(moved) > stillLimit {
			return err
		}
		if err := sleep(ctx, lookAgain); err != nil {
			return err
		}
	}
}

// finish waits for the last frames and fills in what was seen.
func (w *watcher) finish(ctx context.Context, r *Report) error {
	err := errors.Join(w.await(ctx, r.Reached), w.close())
	r.Unaltered, r.Altered = w.unaltered, w.altered
	return err
}

// close ends the reader and closes the file.
func (w *watcher) close() error {
	w.cancel()
	<-w.done
	err := w.socket.Close()
	if w.recorder != nil {
		if e := w.recorder.Close(); !errors.Is(e, os.ErrClosed) {
			err = errors.Join(err, e)
		}
	}
	return err
}
