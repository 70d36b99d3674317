package divert

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Run carries frames until ctx ends, which is no error, or an interface has gone. The
// files' deadlines are used to end it.
func (p *Pair) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() {
		for _, f := range p.cfg.Sides {
			_ = f.SetDeadline(time.Unix(1, 0)) // wakes who reads or writes
		}
	})
	defer stop()
	var all sync.WaitGroup
	start := func(what string, fn func(context.Context) error) {
		all.Add(1)
		go func() {
			defer all.Done()
			if err := fn(ctx); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("divert: %s: %w", what, err))
			}
		}()
	}
	for _, f := range p.cfg.Sides {
		if err := f.SetDeadline(time.Time{}); err != nil {
			return fmt.Errorf("divert: use %s: %w", f.Name(), err)
		}
	}
	start("read the host side", func(context.Context) error { return p.read(In, p.cfg.Sides[HostSide]) })
	start("read the wire side", func(context.Context) error { return p.read(Out, p.cfg.Sides[WireSide]) })
	start("write frames", p.write)
	start("watch the engine", p.watch)
	all.Wait()
	p.present(false)
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// write gives the engine its frames, and probes behind them.
func (p *Pair) write(ctx context.Context) error {
	q := p.cfg.Queue
	var tickets [pairBatch]Ticket
	var buf [probeSize]byte
	tick := time.NewTicker(probePeriod)
	defer tick.Stop()
	for ctx.Err() == nil {
		n := q.Take(tickets[:])
		if n > 0 {
			p.left(tickets[:n])
			for i := range tickets[:n] {
				p.put(tickets[i].Dir, tickets[i].Frame)
			}
			q.Sent(tickets[:n], n)
		}
		now := p.cfg.Clock.Now()
		for _, d := range p.due(now) {
			p.put(d, p.probeFrame(d, buf[:]))
		}
		if dropped := p.judge(now); len(dropped) > 0 {
			q.Settle(dropped)
		}
		if n > 0 {
			continue
		}
		select {
		case <-ctx.Done():
		case <-q.Wake():
		case <-tick.C:
		}
	}
	return nil
}

// put writes one frame. One that an interface does not take has not come back in time,
// when that is.
func (p *Pair) put(d Direction, b []byte) {
	if _, err := p.cfg.Sides[entrance(d)].Write(b); err != nil {
		p.mu.Lock()
		p.stats.WriteErrors++
		p.mu.Unlock()
	}
}

// read takes what comes back of a direction.
func (p *Pair) read(d Direction, f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var bufs [pairReads][]byte
	for i := range bufs {
		bufs[i] = make([]byte, pairBuf)
	}
	var verdicts []Verdict
	for {
		lens, n, err := readSome(raw, &bufs)
		if err != nil {
			return err
		}
		p.wake()
		for i := range n {
			b := bufs[i][:lens[i]]
			if p.back(d, b, &verdicts) {
				verdicts = p.settle(verdicts) // what came before it goes on before it
				p.cfg.Queue.Inject(p.cfg.Port, d, b)
			}
		}
		verdicts = p.settle(verdicts)
	}
}

// readSome waits for a frame, and takes those behind it that are there.
func readSome(raw syscall.RawConn, bufs *[pairReads][]byte) (lens [pairReads]int, n int, err error) {
	var inner error
	err = raw.Read(func(fd uintptr) bool {
		for n < len(bufs) {
			var got int
			got, inner = unix.Read(int(fd), bufs[n])
			switch {
			case errors.Is(inner, unix.EINTR):
				continue
			case errors.Is(inner, unix.EAGAIN):
				inner = nil
				return n > 0
			case inner != nil:
				return true
			}
			lens[n] = got
			n++
		}
		return true
	})
	if err == nil && n == 0 {
		err = inner
	}
	return lens, n, err
}

// settle applies verdicts, and returns their memory.
func (p *Pair) settle(verdicts []Verdict) []Verdict {
	if len(verdicts) > 0 {
		p.cfg.Queue.Settle(verdicts)
	}
	clear(verdicts)
	return verdicts[:0]
}

// watch looks whether the engine is there, and whether it works.
func (p *Pair) watch(ctx context.Context) error {
	said := ""
	for {
		there, err := p.cfg.Attached()
		if err != nil && err.Error() != said {
			said = err.Error()
			p.log.Warn("cannot see whether an engine reads the interfaces", "err", err)
		}
		if err == nil {
			p.present(there)
		}
		if p.silent(p.cfg.Clock.Now()) {
			p.stall()
		}
		if p.cfg.Clock.Sleep(ctx, max(lookTimeMin, min(lookTime, p.cfg.Queue.Settings().Stall/expirySteps))) != nil {
			return nil
		}
	}
}
