package port

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"oxpd/internal/board"
	"oxpd/internal/frame"
)

// Errors that callers branch on.
var (
	// ErrClosed says that the port has been closed.
	ErrClosed = errors.New("port closed")
	// ErrRemoved says that the interface is not in its namespace any more: somebody
	// removed it, or moved it elsewhere.
	ErrRemoved = errors.New("interface was removed")
)

// Config is what a port needs. Only Port is required.
type Config struct {
	Port     board.Port
	NetNS    string    // path of a network namespace; empty: the process's own
	Counters *Counters // of an earlier life of the port; nil: from 0
}

// Port is one TAP interface. All methods are safe for concurrent use.
type Port struct {
	port     board.Port
	index    int
	counters *Counters
	limit    atomic.Int32 // MTU in bytes that frames are measured against

	tap tap // closed is read, and the file used, under the lock of a shard

	ctl    sync.Mutex // the interface's settings
	link   link
	closed atomic.Bool // set under all locks
}

// drainMost ends the emptying of a queue that somebody goes on filling.
const drainMost = 1 << 20

// tap is the file behind a port, one frame per call. Tests put in one that fails.
type tap interface {
	Read(b []byte) (int, error)
	Write(b []byte) (int, error)
	Writev(pieces [][]byte) (int, error)
	SetCarrier(up bool) error
	FD() int
	Close() error
}

// link is the interface's settings. The kernel answers each in the system call
// that asks.
type link interface {
	state() (Link, error)  // without the bridge's name and MTU
	master(of *Link) error // adds them
	setMTU(mtu int) error
	setMAC(mac [6]byte) error
	setUp(up bool) error
	setPromisc(on bool) error
	close() error
}

// kernelCount is the kernel's TX-dropped of an interface: frames that the TAP's
// queue refused, or that were sent without carrier.
type kernelCount struct {
	frames uint64
	known  bool // the kernel told
}

// Open creates the port's interface: down, carrier off, MTU 1,500. It is never
// taken over from somebody else: an interface of that name is an error that
// wraps sys.ErrExists.
func Open(cfg Config) (*Port, error) {
	t, index, l, err := openTAP(cfg.Port.Name, cfg.NetNS)
	if err != nil {
		return nil, err
	}
	p := newPort(cfg, t, l)
	p.index = index
	s, err := l.state()
	if err == nil {
		p.limit.Store(int32(s.MTU))
		err = t.SetCarrier(false)
	}
	if err != nil {
		t.Close()
		l.close()
		return nil, fmt.Errorf("port: open %s: %w", cfg.Port.Name, err)
	}
	return p, nil
}

// Adopt goes on with the interface of an earlier process: fd is a descriptor of its
// TAP, which is the port's from then on, and index the interface's in its namespace.
// Nothing of the interface changes, carrier included; frames that wait in its queue
// are read. TapKernelDropped counts from here. An interface that is refused loses
// this descriptor: with the last one, it goes.
//
// Errors: sys.ErrNotTAP for another kind of descriptor, or one whose interface has
// gone; ErrRemoved for an interface that is elsewhere; the kernel's.
func Adopt(cfg Config, fd, index int) (*Port, error) {
	t, l, err := adoptTAP(cfg.Port.Name, cfg.NetNS, fd, index)
	if err != nil {
		return nil, err
	}
	p := newPort(cfg, t, l)
	p.index = index
	s, err := l.state()
	if err != nil {
		t.Close()
		l.close()
		return nil, fmt.Errorf("port: adopt %s: %w", cfg.Port.Name, err)
	}
	p.limit.Store(int32(s.MTU))
	p.counters.kernel.begin(s.dropped)
	return p, nil
}

func newPort(cfg Config, t tap, l link) *Port {
	p := &Port{port: cfg.Port, counters: cfg.Counters, tap: t, link: l}
	if p.counters == nil {
		p.counters = new(Counters)
	}
	p.limit.Store(board.DefaultMTU)
	return p
}

// Board is the port's row of the board table.
func (p *Port) Board() board.Port { return p.port }

// Index is the kernel's index of the interface in its namespace.
func (p *Port) Index() int { return p.index }

// Counters are the port's numbers, for the next Open.
func (p *Port) Counters() *Counters { return p.counters }

// control runs one change of the interface.
func (p *Port) control(verb string, fn func() error) error {
	p.ctl.Lock()
	defer p.ctl.Unlock()
	err := ErrClosed
	if !p.closed.Load() {
		err = fn()
	}
	if removed(err) {
		err = fmt.Errorf("%w: %w", ErrRemoved, err)
	}
	if err != nil {
		return fmt.Errorf("port: %s %s: %w", verb, p.port.Name, err)
	}
	return nil
}

// look reads the interface's state, and keeps the kernel's count: the last one
// that was read is the one that stays when the interface is removed.
func (p *Port) look() (Link, error) {
	s, err := p.link.state()
	if err == nil {
		p.counters.kernel.update(s.dropped)
	}
	return s, err
}

// SetMAC sets the interface's address. Do it before SetUp: the kernel derives
// addresses from it when the interface comes up.
func (p *Port) SetMAC(mac [6]byte) error {
	return p.control("set MAC of", func() error { return p.link.setMAC(mac) })
}

// SetUp sets the interface administratively up or down.
// Errors: ErrRemoved, ErrClosed, ctx's, the kernel's.
func (p *Port) SetUp(ctx context.Context, up bool) error {
	return p.control("set state of", func() error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return p.link.setUp(up)
	})
}

// SetPromisc sets the interface's own promiscuous flag, as ip link set promisc does.
// Off leaves it promiscuous for whoever else asks for that (Link.Promisc).
// Errors: ErrRemoved, ErrClosed, ctx's, the kernel's.
func (p *Port) SetPromisc(ctx context.Context, on bool) error {
	return p.control("set promiscuity of", func() error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return p.link.setPromisc(on)
	})
}

// SetCarrier shows the front port's link at the interface.
func (p *Port) SetCarrier(up bool) error {
	return p.control("set carrier of", func() error { return p.tap.SetCarrier(up) })
}

// MTU is the interface's MTU as the kernel has it; TapKernelDropped is read with it.
// Errors: ErrRemoved, ErrClosed, the kernel's.
func (p *Port) MTU() (int, error) {
	var l Link
	err := p.control("read MTU of", func() (err error) { l, err = p.look(); return err })
	return l.MTU, err
}

// Link reads the interface's state now, as Watch reports it; TapKernelDropped is
// read with it. Not every change is an event: promiscuity that comes with a
// macvlan is not.
// Errors: ErrRemoved, ErrClosed, the kernel's.
func (p *Port) Link() (Link, error) {
	var l Link
	err := p.control("read", func() (err error) {
		if l, err = p.look(); err != nil {
			return err
		}
		return p.link.master(&l)
	})
	if err != nil {
		return Link{}, err
	}
	return l, nil
}

// Note takes the kernel's count out of what Watch reported about this port's
// interface: of one that was removed, there is no other way to learn the last.
func (p *Port) Note(l Link) {
	p.ctl.Lock()
	defer p.ctl.Unlock()
	if l.Index == p.index && !p.closed.Load() {
		p.counters.kernel.update(l.dropped)
	}
}

// SetMTU sets the interface's MTU, and raises the limit where it is lower. It
// never lowers it: frames of the larger MTU may still be on their way, and when
// they are past is known to the owner alone (SetLimit). If the kernel refuses,
// both are as before. The LIF is the caller's business, before this in either
// direction.
// Errors: *board.MTURangeError, ErrRemoved, ErrClosed, the kernel's.
func (p *Port) SetMTU(ctx context.Context, mtu int) error {
	return p.control("set MTU of", func() error {
		if err := board.CheckMTU(mtu); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		old := p.limit.Load()
		p.SetLimit(max(int(old), mtu))
		if err := p.link.setMTU(mtu); err != nil {
			p.SetLimit(int(old))
			return err
		}
		return nil
	})
}

// SetLimit sets the MTU that frames are measured against, both ways, without
// touching the interface.
func (p *Port) SetLimit(mtu int) { p.limit.Store(int32(mtu)) }

// Limit is the MTU that frames are measured against.
func (p *Port) Limit() int { return int(p.limit.Load()) }

// Stats reads the port's numbers. If the kernel does not answer,
// TapKernelDropped is as last read.
func (p *Port) Stats() Stats {
	p.ctl.Lock()
	if !p.closed.Load() {
		_, _ = p.look() // the error is one of the kernel not answering
	}
	p.ctl.Unlock()
	return p.counters.Stats()
}

// Close removes the interface. It waits for frames in flight; later ones are
// counted as tap_down. Frames that nobody has read are counted as tx_closed. A
// second Close returns ErrClosed.
//
// Of an interface that somebody removed before, the kernel has thrown its queue
// away without counting: up to txqueuelen frames (1,000 unless changed) that were
// sent and not read yet are in no counter.
func (p *Port) Close() error {
	return p.control("close", func() error {
		// Down first: nothing is sent any more, so both numbers are the last. An
		// interface that has gone says so at each step, and there is nothing to do.
		_ = p.link.setUp(false)
		_, _ = p.look()
		p.counters.lock()
		p.closed.Store(true)
		p.counters.tx.closed += p.drain()
		err := p.tap.Close()
		p.counters.unlock()
		p.counters.kernel.retire()
		return errors.Join(err, p.link.close())
	})
}

// Descriptor is the TAP's, which stays the port's: a copy of it, with another
// process, keeps the interface when this one ends.
func (p *Port) Descriptor() int { return p.tap.FD() }

// Keep ends the port as Close does and leaves the interface alone, whose descriptor
// somebody else has: it stays up, keeps its carrier, and what is sent waits in its
// queue for the next Adopt.
func (p *Port) Keep() error {
	return p.control("keep", func() error {
		_, _ = p.look()
		p.counters.lock()
		p.closed.Store(true)
		err := p.tap.Close()
		p.counters.unlock()
		p.counters.kernel.retire()
		return errors.Join(err, p.link.close())
	})
}

// Discard throws away the frames that the interface sent and nobody has read, and
// counts them as tx_gone: those that waited while there was no card are too old to be
// of use. Nobody reads the port meanwhile.
func (p *Port) Discard() error {
	return p.control("empty", func() error {
		p.counters.waits.lock(&p.counters.tx.mu)
		defer p.counters.tx.mu.Unlock()
		p.counters.tx.gone += p.drain()
		return nil
	})
}

// drain takes what is left in the TAP's queue and returns how many frames.
func (p *Port) drain() (frames uint64) {
	var head [frame.HeaderSize]byte // the rest is cut off
	for frames < drainMost {
		switch _, err := p.tap.Read(head[:]); {
		case err == nil:
			frames++
		case !interrupted(err):
			return frames
		}
	}
	return frames
}

// lock stops everybody who may be using the file.
func (c *Counters) lock() {
	var all [Shards + 1]*sync.Mutex
	for i := range c.rx {
		all[i] = &c.rx[i].mu
	}
	all[Shards] = &c.tx.mu
	c.waits.lock(all[:]...)
}

func (c *Counters) unlock() {
	for i := range c.rx {
		c.rx[i].mu.Unlock()
	}
	c.tx.mu.Unlock()
}

// Receive hands one frame, in order of its pieces, to the kernel: one system
// call, no allocation up to eight pieces. The pieces are the caller's again
// when it returns. header is the length of the frame's Ethernet header with its VLAN
// tags when somebody has read it, 0 when nobody has. Each concurrent caller uses its
// own shard, 0 to Shards-1; one that is shared is waited for.
func (p *Port) Receive(shard int, pieces [][]byte, header int) Disposition {
	n := 0
	for _, b := range pieces {
		n += len(b)
	}
	s := &p.counters.rx[shard%Shards]
	s.mu.Lock()
	d := p.deliver(pieces, n, header)
	s.n[d]++
	if d == Delivered {
		s.bytes += uint64(n)
	}
	s.mu.Unlock()
	return d
}

// deliver decides and writes. n is the frame's length. Called with a shard's lock.
func (p *Port) deliver(pieces [][]byte, n, header int) Disposition {
	switch d := p.measure(pieces, n, header); {
	case d != Delivered:
		return d
	case p.closed.Load():
		return TapDown
	}
	for {
		var written int
		var err error
		if len(pieces) == 1 {
			written, err = p.tap.Write(pieces[0])
		} else {
			written, err = p.tap.Writev(pieces)
		}
		switch {
		case err == nil && written == n:
			return Delivered
		case interrupted(err):
		case gone(err):
			return TapDown
		case short(err):
			return NoBuf
		default:
			return TapErr
		}
	}
}

// measure is what a frame's length makes of it; Delivered when it may be delivered.
func (p *Port) measure(pieces [][]byte, n, header int) Disposition {
	switch mtu := p.Limit(); {
	case n < frame.HeaderSize:
		return Malformed
	case n > mtu+frame.HeaderSize && n > mtu+headerBytes(pieces, header):
		return TooLong
	}
	return Delivered
}

// Fits tells whether a frame of n bytes has the length of one that the port takes, by
// the limit that holds now. header is as Receive has it.
func (p *Port) Fits(pieces [][]byte, n, header int) bool {
	return p.measure(pieces, n, header) == Delivered
}

// headerBytes is the length of the frame's Ethernet header with its VLAN tags,
// two at most; known is it, when it is not 0.
func headerBytes(pieces [][]byte, known int) int {
	if known > 0 {
		return known
	}
	var head [frame.MaxHeader]byte
	n := 0
	for _, b := range pieces {
		if n += copy(head[n:], b); n == len(head) {
			break
		}
	}
	return frame.L3Of(head[:n])
}
