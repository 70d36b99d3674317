package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"oxpd/internal/clock"
)

// Options of a Console. Ready is needed; of the others the zero value is that of the card.
type Options struct {
	// Ready is the gate: nil when the coprocessor's console may be written to. It is
	// asked before the device is opened and before every write. Required.
	Ready func(ctx context.Context) error
	// Command is how long a command may take; 20 s.
	Command time.Duration
	// Session is how long it may take to find a shell, login included; 45 s.
	Session time.Duration
	// Clock is the time; nil for the machine's.
	Clock clock.Clock
	// Log is told of each command at the level of debugging; nil for none.
	Log *slog.Logger
}

// Defaults of Options.
const (
	DefaultCommand = 20 * time.Second
	DefaultSession = 45 * time.Second
)

// line is the serial line. Neither call waits: 0 bytes are none now.
type line interface {
	Read(p []byte) (int, error)
	Write(p []byte) (int, error)
	// Others names another process that has the line open, "" for none.
	Others() string
	Close() error
}

// Console runs commands in the coprocessor's shell. Not safe for concurrent use.
type Console struct {
	device string
	line   line
	o      Options
	shell  bool   // the last command was answered
	hung   bool   // it was not, and may still run
	heard  []byte // received since the last thing that was sent
}

// errNoGate says that Options has no Ready.
var errNoGate = errors.New("nothing says when it may be used")

// attach makes a console of an open line.
func attach(device string, l line, o Options) *Console {
	return &Console{device: device, line: l, o: o}
}

// filled returns the options with their defaults.
func (o Options) filled() Options {
	if o.Ready == nil {
		o.Ready = func(context.Context) error { return errNoGate }
	}
	if o.Command <= 0 {
		o.Command = DefaultCommand
	}
	if o.Session <= 0 {
		o.Session = DefaultSession
	}
	if o.Clock == nil {
		o.Clock = clock.NewReal()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	return o
}

// Close gives the line back. Our end's settings stay: raw, no echo. The
// coprocessor's shell, when it answers, echoes again.
func (c *Console) Close() error {
	if c.shell {
		// Without an answer it stays silent, and a person there types "stty echo" unseen.
		_, _ = c.command(context.Background(), fresh(), echoOn, closeWithin)
	}
	return c.line.Close()
}

const (
	// maxLine is what a shell that edits its lines takes.
	maxLine = 1000
	// maxHeard is the most that is kept of what comes back.
	maxHeard = 256 << 10
	// poll is the pause between two looks at the line; its buffer holds 350 ms.
	poll = 5 * time.Millisecond
)

// tries that a command has when it did not run.
const tries = 3

// Run runs one command line, as it was given or not at all, and returns the lines of its
// output and its exit status. It finds a shell first, and logs in, when the last
// command was not answered.
//
// Errors: *Error, of the kinds NotReady, Gone, Stuck, Silent, NoShell, LoginRefused,
// InUse, BadLine, Damaged, Unanswered, Unfinished, Flooded; the context's.
func (c *Console) Run(ctx context.Context, line string) ([]string, int, error) {
	for try := 1; ; try++ {
		m := fresh()
		if err := c.check(m.wrap(line)); err != nil {
			return nil, 0, err
		}
		if !c.shell {
			if err := c.find(ctx); err != nil {
				return nil, 0, c.explain(err)
			}
		}
		r, err := c.command(ctx, m, line, c.o.Command)
		// A shell that has ended, and a login in its place, took the command for a name.
		if try < tries && (errors.Is(err, errLogin) || errors.Is(err, Damaged)) {
			c.o.Log.Debug("console command is sent again", "line", line, "err", err)
			continue
		}
		if errors.Is(err, errLogin) {
			err = c.fail(NoShell, "", err)
		}
		c.o.Log.Debug("console command", "line", line, "status", r.status, "err", err)
		return r.lines, r.status, c.explain(err)
	}
}

// check refuses what the shell could not take as one line.
func (c *Console) check(sent string) error {
	if len(sent) > maxLine {
		return c.fail(BadLine, fmt.Sprintf("%d characters as it is sent, the most is %d", len(sent), maxLine), nil)
	}
	for _, b := range []byte(sent) {
		if b < ' ' || b > '~' {
			return c.fail(BadLine, fmt.Sprintf("it has the character %q", b), nil)
		}
	}
	return nil
}

func (c *Console) fail(k Kind, detail string, err error) error {
	return &Error{c.device, k, detail, err}
}

// explain looks for a second reader when answers do not come as they should.
func (c *Console) explain(err error) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	switch e.Kind {
	case Silent, NoShell, LoginRefused, Damaged, Unanswered, Unfinished:
		if who := c.line.Others(); who != "" {
			return c.fail(InUse, who, err)
		}
	}
	return err
}

// errLogin says that a login stands where a shell was expected.
var errLogin = errors.New("a login asks for a name or a password")

// command runs a command in a shell that is there, as far as is known.
func (c *Console) command(ctx context.Context, m marker, line string, limit time.Duration) (reply, error) {
	c.shell, c.hung = false, true // until it is answered
	end := c.o.Clock.Now() + limit
	if err := c.send(ctx, m.wrap(line)+"\n", end); err != nil {
		return reply{}, err
	}
	var r reply
	in, err := c.wait(ctx, end, func(quiet time.Duration) bool {
		r = scan(c.heard, m)
		return r.done || r.refused || len(c.heard) >= maxHeard || !r.begun && c.notRunning(quiet)
	})
	switch {
	case err != nil:
		return reply{}, err
	case r.done:
		c.shell, c.hung = true, false
		return r, nil
	case r.refused:
		c.shell, c.hung = true, false
		return reply{}, c.fail(Damaged, "", nil)
	case len(c.heard) >= maxHeard:
		return reply{}, c.fail(Flooded, fmt.Sprintf("%d bytes", len(c.heard)), nil)
	case in && asks(c.heard) != promptShell:
		return reply{}, errLogin
	case r.begun:
		return reply{}, c.fail(Unfinished, fmt.Sprintf("within %v; received %s", limit, excerpt(c.heard)), nil)
	case len(c.heard) > 0:
		return reply{}, c.fail(Unanswered, "received "+excerpt(c.heard), nil)
	}
	return reply{}, c.fail(Silent, fmt.Sprintf("for %v", limit), nil)
}

// notRunning says that a command which has not begun will not: a login stands there, or
// the shell has been waiting for the next one for a while.
func (c *Console) notRunning(quiet time.Duration) bool {
	switch asks(c.heard) {
	case promptLogin, promptPassword:
		return quiet > settled
	case promptShell:
		return quiet > idle
	}
	return false
}

// excerpt is the end of what was received, for an error.
func excerpt(b []byte) string {
	const most = 120
	if len(b) <= most {
		return fmt.Sprintf("%q", b)
	}
	return fmt.Sprintf("%d bytes, at the end %q", len(b), b[len(b)-most:])
}

// What is typed before a shell is known to be there. ^U erases what somebody may have
// left behind, and nothing of it is entered; ^C ends what runs.
const (
	eraseLine = "\x15\n"
	interrupt = "\x03\n"
)

// A shell that does not echo, nor edits its lines, takes a line at once. The
// command that makes it so is also the one that a shell is known by.
const (
	echoOff = "stty -echo"
	echoOn  = "stty echo"
)

// Times of a login. None is on record; all are generous and none is needed exactly.
const (
	settled      = 100 * time.Millisecond // a prompt that stands so long is one
	unprompted   = 700 * time.Millisecond // text without a prompt that stands so long is all
	answerWithin = 2 * time.Second        // to the Enter key
	loginWithin  = 6 * time.Second        // a refused login pauses for some seconds
	probeWithin  = 8 * time.Second        // of a line that takes 20 ms for a byte
	closeWithin  = 2 * time.Second
	idle         = 4 * time.Second // a shell that waits so long for the next command has not begun this one
)

// find finds a shell: it presses Enter, answers a login, and believes what answers a
// command.
func (c *Console) find(ctx context.Context) error {
	end := c.o.Clock.Now() + c.o.Session
	if who := c.line.Others(); who != "" {
		return c.fail(InUse, who, nil)
	}
	var any, names bool
	keys := eraseLine
	if c.hung {
		keys = interrupt
	}
	for c.o.Clock.Now() < end {
		if keys != "" {
			if err := c.send(ctx, keys, end); err != nil {
				return err
			}
			if err := c.settle(ctx, min(end, c.o.Clock.Now()+answerWithin)); err != nil {
				return err
			}
		}
		any = any || len(c.heard) > 0
		asked, err := c.logIn(ctx, end)
		if err != nil {
			return err
		}
		names = names || asked
		_, err = c.command(ctx, fresh(), echoOff, min(probeWithin, end-c.o.Clock.Now()))
		if err == nil {
			return nil
		}
		any = any || len(c.heard) > 0
		keys = interrupt
		var e *Error
		switch {
		case errors.Is(err, errLogin):
			keys = "" // what it asks for is in c.heard
		case !errors.As(err, &e) || e.Kind == NotReady || e.Kind == Gone || e.Kind == Stuck:
			return err
		}
	}
	switch {
	case names:
		return c.fail(LoginRefused, fmt.Sprintf("within %v; received %s", c.o.Session, excerpt(c.heard)), nil)
	case any:
		return c.fail(NoShell, fmt.Sprintf("within %v; received %s", c.o.Session, excerpt(c.heard)), nil)
	}
	return c.fail(Silent, fmt.Sprintf("for %v", c.o.Session), nil)
}

// logIn answers what a login asks, until it asks no more, and says whether it
// asked.
func (c *Console) logIn(ctx context.Context, end time.Duration) (asked bool, err error) {
	for range 8 { // a name taken for one, refused, asked again
		answer := ""
		switch asks(c.heard) {
		case promptLogin:
			answer = "root\n"
		case promptPassword:
			answer = "\n"
		default:
			return asked, nil
		}
		asked = true
		if err := c.send(ctx, answer, end); err != nil {
			return asked, err
		}
		if _, err := c.wait(ctx, min(end, c.o.Clock.Now()+loginWithin), func(quiet time.Duration) bool {
			return quiet > settled && asks(c.heard) != promptNone
		}); err != nil {
			return asked, err
		}
	}
	return asked, nil
}

// settle waits until what arrives seems to be all: a prompt, or silence after a text.
func (c *Console) settle(ctx context.Context, end time.Duration) error {
	_, err := c.wait(ctx, end, func(quiet time.Duration) bool {
		return quiet > settled && asks(c.heard) != promptNone || quiet > unprompted && len(c.heard) > 0
	})
	return err
}

// send forgets what was received, asks the gate and writes. It is the only place that
// writes to the line.
func (c *Console) send(ctx context.Context, text string, end time.Duration) error {
	if err := c.drain(); err != nil {
		return err
	}
	for rest := []byte(text); len(rest) > 0; {
		if err := c.gate(ctx); err != nil {
			return err
		}
		n, err := c.line.Write(rest)
		if err != nil {
			return c.fail(Gone, "", err)
		}
		if rest = rest[n:]; n > 0 {
			continue
		}
		if c.o.Clock.Now() >= end {
			return c.fail(Stuck, fmt.Sprintf("%d of %d bytes were taken", len(text)-len(rest), len(text)), nil)
		}
		if err := c.o.Clock.Sleep(ctx, poll); err != nil {
			return err
		}
	}
	return nil
}

// gate asks whether a byte may be written.
func (c *Console) gate(ctx context.Context) error {
	if err := c.o.Ready(ctx); err != nil {
		c.shell = false
		return c.fail(NotReady, "", err)
	}
	return ctx.Err()
}

// drain takes what has arrived and forgets it. Whoever floods the line does not keep us
// here: as much is read as may be kept.
func (c *Console) drain() error {
	c.heard = c.heard[:0]
	err := c.receive()
	c.heard = c.heard[:0]
	return err
}

// wait receives until done says so, which is told how long nothing has arrived,
// or until the end. It looks once more when the end has passed while it slept.
func (c *Console) wait(ctx context.Context, end time.Duration, done func(quiet time.Duration) bool) (bool, error) {
	last := c.o.Clock.Now()
	for {
		now := c.o.Clock.Now()
		before := len(c.heard)
		if err := c.receive(); err != nil {
			return false, err
		}
		if len(c.heard) != before {
			last = now
		}
		if done(now - last) {
			return true, nil
		}
		if now >= end {
			return false, nil
		}
		if err := c.o.Clock.Sleep(ctx, poll); err != nil {
			return false, err
		}
	}
}

// receive appends what has arrived, up to the most that is kept.
func (c *Console) receive() error {
	var b [4096]byte
	for len(c.heard) < maxHeard {
		n, err := c.line.Read(b[:])
		c.heard = append(c.heard, b[:n]...)
		if err != nil {
			return c.fail(Gone, "", err)
		}
		if n == 0 {
			return nil
		}
	}
	return nil
}
