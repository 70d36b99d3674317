package octep

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"oxpd/internal/mmio"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
	"oxpd/rpc/msg"
)

// Results of Handshake.Run that callers branch on. Each but ErrHandshakeDone comes
// as a *HandshakeError, which says what to do.
var (
	// ErrHandshakeDone says that this coprocessor boot has had its handshake, about
	// the rings that the card had then: a success only for who adopts those, and
	// without a clock rate (csr.ClocksPerUS is the board's).
	ErrHandshakeDone = errors.New("handshake is already done")
	// ErrHandshakeInFlight says that somebody else has begun an exchange.
	ErrHandshakeInFlight = errors.New("an exchange that another program began is in flight")
	// ErrHandshakeForeign says that the register holds a word of no handshake.
	ErrHandshakeForeign = errors.New("the register holds a word that is not of the handshake")
	// ErrHandshakeSilent says that no offer was answered. Run may be called again.
	ErrHandshakeSilent = errors.New("the coprocessor answered no offer")
	// ErrHandshakeStuck says that the target stopped in the middle and was released.
	ErrHandshakeStuck = errors.New("the coprocessor stopped in the middle of the exchange")
	// ErrHandshakeSpoiled says that the target took a withdrawn offer for an answer.
	ErrHandshakeSpoiled = errors.New("the coprocessor took the withdrawal for the host's answer")
	// ErrHandshakeReset says that the coprocessor restarted in the middle.
	ErrHandshakeReset = errors.New("the coprocessor restarted during the exchange")
)

// HandshakeError is a handshake that did not come about.
type HandshakeError struct {
	Err   error  // one of the sentinels
	Value uint64 // the register when it was decided
}

func (e *HandshakeError) Error() string {
	return fmt.Sprintf("octep: handshake: %v=0x%016x: %v", csr.SLIScratch, e.Value, e.Err)
}

// Unwrap gives the sentinel to errors.Is.
func (e *HandshakeError) Unwrap() error { return e.Err }

// Hint is what an operator can do.
func (e *HandshakeError) Hint() string {
	switch e.Err {
	case ErrHandshakeInFlight:
		return "stop the other program; if there is none, its exchange is lost and a coprocessor core spins: reboot the coprocessor"
	case ErrHandshakeForeign:
		return "another driver uses the card; stop it and reboot the coprocessor"
	case ErrHandshakeSilent:
		return "try again; if an earlier handshake of this boot completed, wait for the fast path, else reboot the coprocessor"
	case ErrHandshakeSpoiled:
		return "reboot the coprocessor: it believes in a host without rings"
	case ErrHandshakeReset:
		return "wait for the coprocessor to boot and bring the card up from the start"
	default:
		return "reboot the coprocessor"
	}
}

// HandshakeState is where the exchange stands, for status output.
type HandshakeState uint32

// States in order; doc.go has the diagram.
const (
	HandshakeIdle       HandshakeState = iota // nothing offered, or withdrawn
	HandshakeOffering                         // HOST_LOADED written
	HandshakeAnswering                        // info word written, the target spins
	HandshakeCompleting                       // COMPLETED written, the target may go on
	HandshakeDone
)

func (s HandshakeState) String() string {
	return [...]string{"idle", "offering", "answering", "completing", "done"}[s]
}

// Times of the exchange (endpoint.md 4.4).
const (
	handshakePoll   = 20 * time.Millisecond // 50 Hz
	offerDeadline   = 5 * time.Second       // an offer stands this long
	offerInterval   = 6 * time.Second       // from offer to offer, 0 in between
	answerDeadline  = 2 * time.Second       // for the reply, and for the final 0
	withdrawLinger  = 100 * time.Millisecond
	maxExchangePoll = 2 * int(2*answerDeadline/handshakePoll) // holds even when the clock stands still
)

// Progress is how far an exchange has come, for a process after one that dies in it:
// idle, or the state that is entered next.
type Progress struct {
	State       HandshakeState // up to HandshakeCompleting
	ClocksPerUS uint64         // of the coprocessor, known from HandshakeCompleting on
}

// Handshake offers the host to the coprocessor, once per coprocessor boot, after
// the rings have been programmed. One Run at a time.
type Handshake struct {
	e     *Endpoint
	done  func() bool
	from  Progress       // of an earlier process
	note  func(Progress) // never nil
	run   sync.Mutex
	state atomic.Uint32
}

// InfoWord is the host's promise: no virtual functions, wire.OQs rings from
// ring 0, NIC mode (endpoint.md 4.2).
func InfoWord() uint64 {
	w := csr.InfoRPPF.Put(0, wire.OQs)
	return csr.InfoAppMode.Put(w, csr.AppModeNIC)
}

// NewHandshake prepares the exchange. done is the second witness: it tells whether
// the coprocessor's fast path shows signs of life, which it does only after a
// handshake. nil means FastPathUp.
func (e *Endpoint) NewHandshake(done func() bool) *Handshake {
	if done == nil {
		done = e.FastPathUp
	}
	return &Handshake{e: e, done: done, note: func(Progress) {}}
}

// Resume makes Run go on from where an earlier process had come, on rings that this one
// goes on with; the zero Progress is that of a first one. note writes down each step
// before the register shows it, so that the next process can do the same. It may be
// called while the coprocessor waits, and does not wait itself.
func (h *Handshake) Resume(from Progress, note func(Progress)) { h.from, h.note = from, note }

// FastPathUp tells whether the rpc or the NetAgent window is alive. Both appear
// only after a handshake (endpoint.md 3.2), some minutes later.
func (e *Endpoint) FastPathUp() bool {
	if f, err := e.Facility(csr.FacRPC); err == nil && f.Size() >= msg.StateSize {
		w := f.Load64(msg.StateMagic)
		if w == msg.ConfigIdle || msg.UnpackConfig(w).Magic == msg.ConfigMagic {
			return true
		}
	}
	f, err := e.Facility(csr.FacNWA)
	return err == nil && f.Size() >= msg.NWAHeadBytes && f.Load32(msg.NWACookie) == msg.NWAMagic
}

// State tells where the exchange stands. Safe at any time.
func (h *Handshake) State() HandshakeState { return HandshakeState(h.state.Load()) }

func (h *Handshake) enter(s HandshakeState) { h.state.Store(uint32(s)) }

// Run offers until the target answers, finishes the exchange, and returns the
// coprocessor's clock in cycles per microsecond.
//
// When ctx ends, an offer is withdrawn; but once the target has answered, Run
// ignores ctx and finishes (at most 4 s more), and then reports success. So a
// caller that shuts down cancels ctx and waits for Run: when Run has returned, no
// coprocessor core waits for this host.
//
// Errors: ErrHandshakeDone, *HandshakeError, mmio.ErrGone, the context's error.
func (h *Handshake) Run(ctx context.Context) (clocksPerUS uint64, err error) {
	h.run.Lock()
	defer h.run.Unlock()
	defer func() {
		if h.State() == HandshakeOffering { // the clock failed or somebody panicked
			h.store(0)
		}
		if h.State() != HandshakeDone {
			h.enter(HandshakeIdle)
		}
	}()
	clocksPerUS, err = h.offerLoop(ctx)
	if err == nil || errors.Is(err, ErrHandshakeDone) {
		h.enter(HandshakeDone)
		h.e.cfg.Logger.Info("handshake done", "dev", h.e.dev.Name(), "clocks_per_us", clocksPerUS, "earlier", err != nil)
	}
	return clocksPerUS, err
}

// word sorts what the register can hold.
type word uint8

const (
	wordIdle word = iota
	wordOffer
	wordAsk
	wordInfo
	wordReply
	wordCompleted
	wordStarted // bitmap of started ports: the handshake is history
	wordForeign
)

func sortWord(v uint64) word {
	switch {
	case v == 0:
		return wordIdle
	case v == csr.HostLoaded:
		return wordOffer
	case v == csr.GetHostInfo:
		return wordAsk
	case v == InfoWord():
		return wordInfo
	case v>>csr.HostInfoShift == csr.HostInfoReceived:
		return wordReply
	case v == csr.HandshakeCompleted:
		return wordCompleted
	case v <= csr.StartedPorts:
		return wordStarted
	default:
		return wordForeign
	}
}

// describe is a state's name for output and its sentence for people.
func (w word) describe() (name, words string) {
	switch w {
	case wordIdle:
		return "idle", "nothing is offered; so it reads after a reset, and again from the end of a handshake until the fast path opens its port, minutes later"
	case wordOffer:
		return "offered", "a host has offered itself and nobody has answered yet"
	case wordAsk:
		return "asked", "the coprocessor asks who its host is: an exchange is under way, and a core of it spins until it is answered"
	case wordInfo:
		return "answered", "a host has answered, and the coprocessor has not taken it yet"
	case wordReply:
		return "received", "the coprocessor has taken the answer: an exchange is under way, and a core of it spins until the host completes it"
	case wordCompleted:
		return "completed", "a host has completed the handshake, and the coprocessor has only to say so"
	case wordStarted:
		return "started", "the handshake is history: the register shows the ports that the fast path has started"
	default:
		return "foreign", "the word is not of the handshake: another driver uses the register"
	}
}

// HandshakeWord says what SLI_EPF_SCRATCH shows: the state's name (idle, offered,
// asked, answered, received, completed, started, foreign) and a sentence about it.
func HandshakeWord(v uint64) (name, words string) { return sortWord(v).describe() }

func (h *Handshake) load() (uint64, word, error) {
	v, err := h.e.load(csr.SLIScratch)
	return v, sortWord(v), err
}

func (h *Handshake) store(v uint64) { mmio.Store64(h.e.dev.BAR0(), csr.SLIScratch, v) }

// begin judges what it finds in the register. It returns true when an offer, left
// behind by a process that died, stands or has just been answered: it is taken
// over. An answer counts only to an offer that CheckFresh saw standing, when the
// rings were as after a reset: the host that made it has promised nothing yet, and
// who goes on promises rings that are there. The target spins meanwhile, and
// refusing would leave it so (design.md, rule 8). An exchange that the process before
// had begun, about the rings that this one goes on with, is taken over in its middle.
func (h *Handshake) begin(ctx context.Context) (standing bool, err error) {
	v, w, err := h.load()
	if err != nil {
		return false, err
	}
	switch w {
	case wordIdle, wordOffer:
		if h.from.State >= HandshakeAnswering { // the answer was never taken
			return false, &HandshakeError{Err: ErrHandshakeStuck, Value: v}
		}
		if h.done() {
			return false, ErrHandshakeDone
		}
		return w == wordOffer, nil
	case wordCompleted: // the target has only to say so
		if _, err := h.exchange(ctx, true); err != nil {
			return false, err
		}
		return false, ErrHandshakeDone
	case wordStarted:
		return false, ErrHandshakeDone
	case wordForeign:
		return false, &HandshakeError{Err: ErrHandshakeForeign, Value: v}
	case wordAsk:
		if h.e.takeOffer() || h.from.State == HandshakeOffering || h.from.State == HandshakeAnswering {
			return true, nil
		}
		return false, &HandshakeError{Err: ErrHandshakeInFlight, Value: v}
	default:
		if h.from.State == HandshakeAnswering || h.from.State == HandshakeOffering && w == wordReply {
			return true, nil
		}
		return false, &HandshakeError{Err: ErrHandshakeInFlight, Value: v}
	}
}

// completing tells whether the process before was about to write COMPLETED, or has, and
// the register shows what follows from that.
func (h *Handshake) completing() bool {
	if h.from.State != HandshakeCompleting {
		return false
	}
	_, w, err := h.load()
	return err == nil && (w == wordReply || w == wordCompleted || w == wordIdle || w == wordStarted)
}

// takeOffer tells, once, whether CheckFresh saw an offer standing.
func (e *Endpoint) takeOffer() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	was := e.offer
	e.offer = false
	return was
}

// offerLoop is the part before the target has answered. Each turn looks at the
// register first, then at the clock and the context, so the last look comes after
// the last wait.
func (h *Handshake) offerLoop(ctx context.Context) (uint64, error) {
	h.enter(HandshakeIdle)
	if h.completing() {
		return h.exchange(ctx, true)
	}
	inherited, err := h.begin(ctx)
	if err != nil {
		return 0, err
	}
	var (
		clk       = h.e.cfg.Clock
		offers    = 0
		next      = clk.Now()                  // of the next offer
		until     = clk.Now() + offerDeadline  // of the standing offer
		withdrawn = clk.Now() - withdrawLinger // of the last one
	)
	if inherited {
		offers, next = 1, clk.Now()+offerInterval
		h.enter(HandshakeOffering)
	}
	for {
		v, w, err := h.load()
		standing := h.State() == HandshakeOffering
		if standing && w != wordOffer {
			h.enter(HandshakeIdle) // the register is not ours to withdraw from any more
		}
		if err != nil {
			return 0, err
		}
		switch {
		case w == wordIdle: // also when a coprocessor that restarted took the offer away
		case w == wordOffer && standing:
		case w == wordAsk, h.from.State == HandshakeAnswering && (w == wordInfo || w == wordReply):
			return h.exchange(ctx, false)
		case w == wordReply:
			return 0, h.spoiled(ctx, v)
		case w == wordStarted:
			return 0, ErrHandshakeDone
		case w == wordForeign:
			return 0, &HandshakeError{Err: ErrHandshakeForeign, Value: v}
		default:
			return 0, &HandshakeError{Err: ErrHandshakeInFlight, Value: v}
		}

		now := clk.Now()
		switch {
		case w == wordOffer && now < until && ctx.Err() == nil:
		case w == wordOffer:
			h.store(0)
			withdrawn = now
			h.enter(HandshakeIdle)
		case now-withdrawn < withdrawLinger:
		case ctx.Err() != nil:
			return 0, fmt.Errorf("octep: handshake: %w", ctx.Err())
		case now < next:
		case offers == h.e.cfg.Offers:
			return 0, &HandshakeError{Err: ErrHandshakeSilent, Value: v}
		case offers > 0 && h.done():
			return 0, ErrHandshakeDone
		default:
			offers++
			until, next = now+offerDeadline, now+offerInterval
			h.e.progress(StageHandshake, fmt.Sprintf("the coprocessor's answer to offer %d of %d", offers, h.e.cfg.Offers))
			h.note(Progress{State: HandshakeOffering})
			h.store(csr.HostLoaded)
			h.enter(HandshakeOffering)
		}
		// Not ctx: a withdrawal is watched for a moment even when ctx has ended.
		if err := clk.Sleep(context.WithoutCancel(ctx), handshakePoll); err != nil {
			return 0, fmt.Errorf("octep: handshake: %w", err)
		}
	}
}

// spoiled handles the race that withdrawing cannot exclude: the target asked just
// before the 0 arrived and took it for an info word. It is released, and nothing is
// written down: a process that goes on from here shall meet the same.
func (h *Handshake) spoiled(ctx context.Context, v uint64) error {
	h.note = func(Progress) {}
	if _, err := h.exchange(ctx, false); err != nil {
		return err
	}
	return &HandshakeError{Err: ErrHandshakeSpoiled, Value: v}
}

// exchange is the part between GET_HOST_INFO and the final 0, in which the target
// spins. It ignores the end of ctx, calls nobody back, and whatever happens leaves
// COMPLETED in the register: that releases either spin, and 0 does not.
// completed says that COMPLETED has been written by an earlier process, or was about to
// be.
func (h *Handshake) exchange(ctx context.Context, completed bool) (clocksPerUS uint64, err error) {
	ctx = context.WithoutCancel(ctx)
	clk := h.e.cfg.Clock
	deadline := clk.Now() + answerDeadline
	stuck := false
	safe := false
	defer func() {
		if !safe {
			h.release()
		}
	}()
	if completed {
		clocksPerUS = h.from.ClocksPerUS
	}
	h.enter(HandshakeAnswering)
	for polls := 0; ; polls++ {
		v, w, err := h.load()
		if err != nil {
			safe = true // nothing is there to be released
			return 0, err
		}
		late := clk.Now() >= deadline || polls >= maxExchangePoll
		switch w {
		case wordAsk:
			h.note(Progress{State: HandshakeAnswering})
			h.store(InfoWord())
		case wordReply:
			if !completed {
				clocksPerUS = h.clocks(v & (1<<csr.HostInfoShift - 1))
				completed, deadline, late = true, clk.Now()+answerDeadline, false
				h.note(Progress{HandshakeCompleting, clocksPerUS})
			}
			h.complete()
		case wordIdle, wordStarted:
			safe = true
			switch {
			case stuck:
				return 0, &HandshakeError{Err: ErrHandshakeStuck, Value: v}
			case !completed:
				return 0, &HandshakeError{Err: ErrHandshakeReset, Value: v}
			}
			return clocksPerUS, nil
		}
		if late {
			if completed {
				return 0, &HandshakeError{Err: ErrHandshakeStuck, Value: v}
			}
			// Released too early, a slow target takes COMPLETED for the info word
			// and waits once more: its reply is completed above.
			h.complete()
			completed, stuck, deadline, polls = true, true, clk.Now()+answerDeadline, 0
		}
		if err := clk.Sleep(ctx, handshakePoll); err != nil {
			return 0, fmt.Errorf("octep: handshake: %w", err)
		}
	}
}

func (h *Handshake) complete() {
	h.store(csr.HandshakeCompleted)
	h.enter(HandshakeCompleting)
}

// release lets a target that may be spinning go on, with one last look: a target
// that has reached 0 or the bitmap owns the register.
func (h *Handshake) release() {
	if _, w, err := h.load(); err == nil && w != wordIdle && w != wordStarted && w != wordCompleted {
		h.store(csr.HandshakeCompleted)
	}
}

// clocks checks the rate that the target reported before anybody divides by it.
func (h *Handshake) clocks(reported uint64) uint64 {
	if reported != 0 {
		return reported
	}
	h.e.cfg.Logger.Warn("coprocessor reported no clock rate, using the board's", "dev", h.e.dev.Name(), "clocks_per_us", csr.ClocksPerUS)
	return csr.ClocksPerUS
}
