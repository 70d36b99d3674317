package lif

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"oxpd/internal/board"
	"oxpd/rpc/msg"
)

// Pauses after a failed try. The fast path may clear the table some seconds into
// its start, so a lost entry is tried every 2 s, 45 times (rpc-lif.md 5.6).
const (
	firstPause = 2 * time.Second
	maxPause   = 60 * time.Second
	quickTries = 45
)

// Table is the coprocessor's LIF table and tag map.
type Table interface {
	// LIFRead reads one entry; present is false for an empty one.
	LIFRead(ctx context.Context, index uint32) (lif msg.LIF, present bool, err error)
	// LIFUpdate sends one LIF_ADD_UPDATE. A refusal is a *msg.RCError.
	LIFUpdate(ctx context.Context, r msg.LIFUpdateReq) error
	// PPort binds a tag to an interface id. A refusal is a *msg.RCError.
	PPort(ctx context.Context, p msg.PPort) error
}

// Clock is the time that pauses are measured in.
type Clock interface {
	Now() time.Duration
}

// Config is what a Manager needs. A nil logger logs nothing.
type Config struct {
	Table  Table
	Clock  Clock
	Logger *slog.Logger
}

// State is one port as the manager sees it.
type State struct {
	Provisioned bool    // Provision was called; Want is valid
	Want        msg.LIF // what the entry shall hold
	Have        msg.LIF // what was read last; valid when Present
	Present     bool    // the entry existed at the last read
	DFDiffers   bool    // the entry's DF bit was read otherwise than wanted; see the package comment
	Bound       bool    // the port's tag leads to the LIF, as far as oxpd wrote it and nobody doubts
	Err         error   // of the last try, nil when want equals have
	Refusals    uint64  // rc 1 answers, ever
	Lost        uint64  // times that an entry which had been there was read absent: the fast path restarted
	RetryAt     time.Duration
}

// Ready tells whether the entry was last read as wanted and the tag is bound. The
// DF bit has no say: frames pass with either.
func (s State) Ready() bool {
	return s.Provisioned && s.Present && s.Bound && s.Err == nil && diff(s.Want, s.Have) == 0
}

// Stats counts what a Manager did since New.
type Stats struct {
	Created     uint64 // LIF_ADD_UPDATE with mask 0xff, accepted
	Updated     uint64 // with another mask, accepted; the changes below included
	MTUChanges  uint64 // accepted and read back
	MACChanges  uint64 // the same, by SetMAC
	ModeChanges uint64 // the same, by SetMode
	Bound       uint64 // PPORT_UPDATE, accepted
	Refused     uint64 // rc 1
	Failed      uint64 // every other error of the table
	Mismatches  uint64 // accepted and read back otherwise
	DFDiffers   uint64 // times that an entry's DF bit began to differ
	PausedTries uint64 // tries not made because a port pauses
}

// port is the manager's record of one front port.
type port struct {
	board.Port
	turn chan struct{} // one token: the right to send commands for this port

	// Guarded by Manager.mu, and written only by the holder of turn.
	state   State
	misses  int // failed tries in a row
	adopted bool
	moving  [6]byte // the address that a SetMAC under way would give it, or zero

	doubted atomic.Bool // DoubtTags was called; whoever has turn takes note
}

// Manager owns the LIF of each front port. All methods are safe for concurrent
// use; commands for one port run one after another, and waiting for one's turn
// ends with the context. State and Stats never wait for a command.
type Manager struct {
	table Table
	clock Clock
	log   *slog.Logger

	mu    sync.Mutex // guards the ports' states; never held during a command
	ports [board.Ports]port
	first int // where the next ReconcileAll starts

	created, updated, mtuChanges, macChanges, modeChanges, bound, refused, failed, mismatches, dfDiffers, paused atomic.Uint64
}

// New returns a manager that wants nothing yet.
func New(cfg Config) *Manager {
	m := &Manager{table: cfg.Table, clock: cfg.Clock, log: cfg.Logger}
	if m.log == nil {
		m.log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	for i := range m.ports {
		m.ports[i].Port = board.ByIndex(i)
		m.ports[i].turn = make(chan struct{}, 1)
		m.ports[i].turn <- struct{}{}
	}
	return m
}

// State returns what is known about a port. It never touches the card.
func (m *Manager) State(p board.Port) State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ports[p.Index].state
}

// Stats returns the counters. It never touches the card.
func (m *Manager) Stats() Stats {
	return Stats{
		Created: m.created.Load(), Updated: m.updated.Load(), MTUChanges: m.mtuChanges.Load(),
		MACChanges: m.macChanges.Load(), ModeChanges: m.modeChanges.Load(), Bound: m.bound.Load(),
		Refused: m.refused.Load(), Failed: m.failed.Load(), Mismatches: m.mismatches.Load(), DFDiffers: m.dfDiffers.Load(),
		PausedTries: m.paused.Load(),
	}
}

// lock waits for the port or for the end of ctx.
func (m *Manager) lock(ctx context.Context, p board.Port) (*port, error) {
	q := &m.ports[p.Index]
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case <-q.turn:
		return q, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("lif: %s: wait for the command before: %w", p, ctx.Err())
	}
}

func (q *port) unlock() { q.turn <- struct{}{} }

// set changes a port's state; only the holder of the port's turn calls it.
func (m *Manager) set(q *port, f func(*State)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(&q.state)
}

// Provision wants a LIF with this address behind the port and makes it so: L3
// mode, up, MTU 1,500, or mode and MTU of a live entry. Of a port that was provisioned
// before, the address alone is new: its mode and its MTU stay. The address comes
// from NetAgent and is never computed. On failure the want stands and Reconcile
// goes on.
//
// Errors: ErrBadMAC and ErrMACInUse before anything is sent; ErrPaused;
// otherwise an *Error, which is ErrRefused or ErrMismatch or the table's error.
func (m *Manager) Provision(ctx context.Context, p board.Port, mac [6]byte) error {
	if err := checkMAC(mac); err != nil {
		return fmt.Errorf("lif: provision %s: %w", p, err)
	}
	q, err := m.lock(ctx, p)
	if err != nil {
		return err
	}
	defer q.unlock()
	if err := m.claim(q, mac); err != nil {
		return fmt.Errorf("lif: provision %s: %w", p, err)
	}
	_, err = m.try(ctx, q)
	return err
}

// Forget says that the table has started anew and is empty, of all that was read or
// bound: what is wanted of each port stands, and Provision or Reconcile writes it
// again. No command may be under way.
func (m *Manager) Forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.ports {
		q := &m.ports[i]
		q.misses = 0
		s := &q.state
		s.Have, s.Present, s.Bound, s.DFDiffers, s.Err, s.RetryAt = msg.LIF{}, false, false, false, nil, 0
	}
}

// DoubtTags says that a tag may lead to no LIF any more. The map of tags cannot be
// read back, so the next Provision or Reconcile of each port binds its tag anew. It
// never waits for a command.
func (m *Manager) DoubtTags() {
	for i := range m.ports {
		m.ports[i].doubted.Store(true)
	}
}

func checkMAC(mac [6]byte) error {
	if mac == [6]byte{} || mac[0]&1 != 0 {
		return fmt.Errorf("%w: %x", ErrBadMAC, mac)
	}
	return nil
}

// checkFree refuses an address that another port has or is about to have.
// Called with mu.
func (m *Manager) checkFree(q *port, mac [6]byte) error {
	for i := range m.ports {
		o := &m.ports[i]
		if o != q && (o.moving == mac || o.state.Provisioned && o.state.Want.MAC == mac) {
			return fmt.Errorf("%w: %x is wanted by %s", ErrMACInUse, mac, o.Port)
		}
	}
	return nil
}

// claim records the wanted address unless another port has it.
func (m *Manager) claim(q *port, mac [6]byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.checkFree(q, mac); err != nil {
		return err
	}
	if !q.state.Provisioned {
		q.state.Provisioned = true
		q.state.Want = msg.LIF{MTU: board.DefaultMTU, Fwd: msg.FwdL3}
	}
	if q.state.Want.MAC != mac {
		q.state.Want.MAC = mac
		q.state.RetryAt, q.misses = 0, 0
	}
	return nil
}

// Reconcile reads the port's entry, makes it what is wanted, and tells whether
// it had to write. It sends nothing while a port that was refused pauses.
//
// Errors: ErrNotProvisioned; ErrPaused; otherwise an *Error.
func (m *Manager) Reconcile(ctx context.Context, p board.Port) (changed bool, err error) {
	q, err := m.lock(ctx, p)
	if err != nil {
		return false, err
	}
	defer q.unlock()
	if !q.state.Provisioned {
		return false, fmt.Errorf("lif: reconcile %s: %w", p, ErrNotProvisioned)
	}
	return m.try(ctx, q)
}

// ReconcileAll reconciles each provisioned port that does not pause, each round
// starting one port further on, and returns how many it wrote to. A refusal or a
// mismatch ends nothing, it is in State; an error of the command channel ends the
// round and is returned.
func (m *Manager) ReconcileAll(ctx context.Context) (changed int, err error) {
	m.mu.Lock()
	first := m.first
	m.first = (first + 1) % board.Ports
	m.mu.Unlock()
	for i := range board.Ports {
		p := board.ByIndex((first + i) % board.Ports)
		if !m.State(p).Provisioned {
			continue
		}
		wrote, err := m.Reconcile(ctx, p)
		if wrote {
			changed++
		}
		if err != nil && !errors.Is(err, ErrPaused) && !errors.Is(err, ErrMismatch) && !answered(err) {
			return changed, err
		}
	}
	return changed, nil
}

// answered tells whether an error is the target's answer to a command, so that
// the channel itself works.
func answered(err error) bool {
	var rc *msg.RCError
	return errors.As(err, &rc)
}

// try runs one round of read, write, read for a port unless it pauses, and keeps
// the outcome.
func (m *Manager) try(ctx context.Context, q *port) (changed bool, err error) {
	now := m.clock.Now()
	if left := q.state.RetryAt - now; left > 0 {
		m.paused.Add(1)
		return false, &PausedError{Port: q.Port, Left: left, Cause: q.state.Err}
	}
	changed, err = m.converge(ctx, q)
	if err == nil {
		q.misses = 0
		m.set(q, func(s *State) { s.Err, s.RetryAt = nil, 0 })
		return changed, nil
	}
	var pause time.Duration
	switch {
	case errors.Is(err, ErrMismatch):
		q.misses++
		pause = firstPause
		if q.misses > quickTries {
			pause = maxPause
		}
	case answered(err):
		q.misses++
		pause = min(maxPause, firstPause<<min(q.misses-1, 8))
	}
	// An error of the channel is no port's fault: no pause, and none of before that is
	// over and would make the port due at every look. The caller reopens the channel.
	m.set(q, func(s *State) {
		s.Err, s.RetryAt = err, 0
		if pause > 0 {
			s.RetryAt = m.clock.Now() + pause
		}
	})
	m.log.Warn("lif is not as wanted", "port", q.Name, "lif", uint32(q.LIF()), "err", err, "pause", pause)
	return changed, err
}

// converge makes the entry what is wanted and proves it by reading.
func (m *Manager) converge(ctx context.Context, q *port) (changed bool, err error) {
	if q.doubted.Swap(false) {
		m.set(q, func(s *State) { s.Bound = false })
	}
	have, present, err := m.read(ctx, q, "read")
	if err != nil {
		return false, err
	}
	if present && !q.adopted {
		m.adopt(q, have)
	}
	q.adopted = true
	want := q.state.Want

	switch mask := diff(want, have); {
	case !present:
		if err := m.update(ctx, q, "create", want, msg.MaskCreate); err != nil {
			return true, err
		}
		m.set(q, func(s *State) { s.Bound = false })
	case mask != 0:
		m.log.Info("lif differs", "port", q.Name, "lif", uint32(q.LIF()), "diff", difference(want, have, true))
		if err := m.update(ctx, q, "update", want, mask); err != nil {
			return true, err
		}
	case q.state.Bound:
		m.compareDF(q, have)
		return false, nil
	}
	// The LIF first, then the tag that leads to it.
	if !q.state.Bound {
		changed = true
		if err := m.bind(ctx, q); err != nil {
			return true, err
		}
	}
	have, present, err = m.read(ctx, q, "read back")
	if err != nil {
		return true, err
	}
	if !present || diff(want, have) != 0 {
		m.mismatches.Add(1)
		return true, m.fail(q, "read back", want, ErrMismatch)
	}
	m.compareDF(q, have)
	return true, nil
}

// compareDF notes that the DF bit differs, and logs it when it begins to: no
// update is for that bit alone, so nothing is sent for it.
func (m *Manager) compareDF(q *port, have msg.LIF) {
	differs := have.DF != q.state.Want.DF
	if differs && !q.state.DFDiffers {
		m.dfDiffers.Add(1)
		m.log.Warn("lif df bit differs and cannot be set", "port", q.Name, "lif", uint32(q.LIF()), "df", have.DF, "want", q.state.Want.DF)
	}
	m.set(q, func(s *State) { s.DFDiffers = differs })
}

// adopt takes over what an earlier owner of a live entry set and oxpd does not
// decide, or not yet: a port in a bridge that goes through another mode drops frames.
func (m *Manager) adopt(q *port, have msg.LIF) {
	m.set(q, func(s *State) {
		if have.Fwd == msg.FwdL2 || have.Fwd == msg.FwdL3 {
			s.Want.Fwd = have.Fwd
		}
		if board.CheckMTU(int(have.MTU)) == nil {
			s.Want.MTU = have.MTU
		}
		s.Want.Representor, s.Want.DF = have.Representor, have.DF
	})
}

func (m *Manager) read(ctx context.Context, q *port, op string) (have msg.LIF, present bool, err error) {
	have, present, err = m.table.LIFRead(ctx, uint32(q.LIF()))
	if err != nil {
		return have, present, m.fail(q, op, q.state.Want, err)
	}
	m.set(q, func(s *State) {
		if s.Present && !present {
			s.Lost++
		}
		s.Have, s.Present = have, present
	})
	return have, present, nil
}

func (m *Manager) update(ctx context.Context, q *port, op string, want msg.LIF, mask msg.LIFMask) error {
	if err := m.table.LIFUpdate(ctx, msg.LIFUpdateReq{Index: uint32(q.LIF()), LIF: want, Mask: mask}); err != nil {
		return m.fail(q, op, want, err)
	}
	if mask == msg.MaskCreate {
		m.created.Add(1)
	} else {
		m.updated.Add(1)
	}
	return nil
}

func (m *Manager) bind(ctx context.Context, q *port) error {
	if err := m.table.PPort(ctx, msg.PPort{Iface: q.Iface, Tag: uint16(q.Tag)}); err != nil {
		return m.fail(q, "bind tag", q.state.Want, err)
	}
	m.bound.Add(1)
	m.set(q, func(s *State) { s.Bound = true })
	return nil
}

// fail makes an *Error and counts it; try and change log it.
func (m *Manager) fail(q *port, op string, want msg.LIF, err error) error {
	var rc *msg.RCError
	switch {
	case errors.As(err, &rc) && rc.RC == msg.RCRefused:
		m.refused.Add(1)
		m.set(q, func(s *State) { s.Refusals++ })
		err = fmt.Errorf("%w: %w", ErrRefused, err)
	case !errors.Is(err, ErrMismatch):
		m.failed.Add(1)
	}
	return &Error{Op: op, Port: q.Port, Want: want, Have: q.state.Have, Present: q.state.Present, Err: err}
}

// SetMTU changes the MTU of a port's LIF: one LIF_ADD_UPDATE of the MTU alone,
// then a read that must show it. When it returns nil the caller may change the
// interface; otherwise the old MTU stays wanted, here and on the interface. An
// entry that already reads the value is left alone.
//
// Errors: *board.MTURangeError and ErrNotProvisioned before anything is sent;
// otherwise an *Error with the entry that stays wanted, which is ErrRefused,
// ErrMismatch or the table's error.
func (m *Manager) SetMTU(ctx context.Context, p board.Port, mtu int) error {
	if err := board.CheckMTU(mtu); err != nil {
		return fmt.Errorf("lif: set mtu of %s: %w", p, err)
	}
	c := change{"set mtu", msg.MaskMTU, msg.LIF{MTU: uint16(mtu)}, &m.mtuChanges}
	return m.change(ctx, p, c, nil)
}

// SetMAC changes the address that unicast must carry to pass the LIF in L3 mode,
// as SetMTU changes the MTU. The port's own filter is NetAgent's.
//
// Errors: ErrBadMAC, ErrNotProvisioned and ErrMACInUse before anything is sent;
// otherwise as SetMTU.
func (m *Manager) SetMAC(ctx context.Context, p board.Port, mac [6]byte) error {
	if err := checkMAC(mac); err != nil {
		return fmt.Errorf("lif: set mac of %s: %w", p, err)
	}
	c := change{"set mac", msg.MaskMAC, msg.LIF{MAC: mac}, &m.macChanges}
	return m.change(ctx, p, c, func(q *port) error { return m.reserve(q, mac) })
}

// SetMode changes the forwarding mode, as SetMTU changes the MTU: msg.FwdL3
// drops unicast to foreign addresses, msg.FwdL2 lets it pass, which bridge members
// and promiscuous ports need.
//
// Errors: ErrBadMode and ErrNotProvisioned before anything is sent; otherwise as
// SetMTU.
func (m *Manager) SetMode(ctx context.Context, p board.Port, mode uint8) error {
	if mode != msg.FwdL2 && mode != msg.FwdL3 {
		return fmt.Errorf("lif: set mode of %s: %w: %d", p, ErrBadMode, mode)
	}
	c := change{"set mode", msg.MaskFwd, msg.LIF{Fwd: mode}, &m.modeChanges}
	return m.change(ctx, p, c, nil)
}

// reserve keeps an address from the other ports until SetMAC has ended.
func (m *Manager) reserve(q *port, mac [6]byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.checkFree(q, mac); err != nil {
		return err
	}
	q.moving = mac
	return nil
}

func (m *Manager) release(q *port) {
	m.mu.Lock()
	defer m.mu.Unlock()
	q.moving = [6]byte{}
}

// change is one field of an entry to be set by itself.
type change struct {
	op    string
	mask  msg.LIFMask
	value msg.LIF // the field that mask names
	count *atomic.Uint64
}

// change waits for the port's turn and makes a change. admit may refuse it
// before anything is sent; nil refuses nothing.
func (m *Manager) change(ctx context.Context, p board.Port, c change, admit func(*port) error) error {
	q, err := m.lock(ctx, p)
	if err != nil {
		return err
	}
	defer q.unlock()
	if !q.state.Provisioned || !q.adopted {
		return fmt.Errorf("lif: %s of %s: %w", c.op, p, ErrNotProvisioned)
	}
	if admit != nil {
		if err := admit(q); err != nil {
			return fmt.Errorf("lif: %s of %s: %w", c.op, p, err)
		}
	}
	defer m.release(q)
	err = m.write(ctx, q, c)
	var e *Error
	if errors.As(err, &e) {
		e.Field, e.Stays = c.mask, q.state.Want
		m.log.Warn("lif is not changed", "port", q.Name, "lif", uint32(q.LIF()), "err", err)
	}
	return err
}

// write sends the update of a change and proves it by reading.
func (m *Manager) write(ctx context.Context, q *port, c change) error {
	want := merge(q.state.Want, c.value, c.mask)
	if want == q.state.Want {
		have, present, err := m.read(ctx, q, c.op+": read")
		if err != nil {
			return err
		}
		if present && diff(want, have)&c.mask == 0 {
			return nil
		}
	}
	// Fields outside the mask carry what the entry holds, so that even a target
	// that took them would change nothing.
	entry := want
	if q.state.Present {
		entry = merge(q.state.Have, c.value, c.mask)
	}
	if err := m.update(ctx, q, c.op, entry, c.mask); err != nil {
		return err
	}
	have, present, err := m.read(ctx, q, c.op+": read back")
	if err != nil {
		return err
	}
	if !present || diff(entry, have)&c.mask != 0 {
		m.mismatches.Add(1)
		return m.fail(q, c.op+": read back", entry, ErrMismatch)
	}
	m.set(q, func(s *State) { s.Want = want })
	c.count.Add(1)
	return nil
}

// merge is an entry with the fields of a mask taken from another one. Only the
// fields that are changed by themselves are taken.
func merge(entry, from msg.LIF, mask msg.LIFMask) msg.LIF {
	if mask&msg.MaskMAC != 0 {
		entry.MAC = from.MAC
	}
	if mask&msg.MaskMTU != 0 {
		entry.MTU = from.MTU
	}
	if mask&msg.MaskFwd != 0 {
		entry.Fwd = from.Fwd
	}
	return entry
}
