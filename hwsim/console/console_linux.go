package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"oxpd/hwsim"
)

// Console is a console that lives until Close. Safe for concurrent use.
type Console struct {
	card Card
	o    Options
	log  *slog.Logger
	line *line

	// The world is made for the first login, and serves all of them.
	world *world

	ctx     context.Context
	cancel  context.CancelFunc
	threads sync.WaitGroup
	news    chan struct{} // something is in moments

	mu      sync.Mutex
	moments []hwsim.BootEvent
	session *session // of whoever types; nil: nobody would hear it
	stopped bool     // the boot loader has been stopped and has said so
}

// New makes the console of a card and shows it at Path. The card must live until Close.
func New(card Card, o Options) (*Console, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	l, err := newLine(card, o.Baud)
	if err != nil {
		return nil, err
	}
	c := &Console{card: card, o: o, log: o.Logger, line: l, news: make(chan struct{}, 1)}
	if err := c.link(); err != nil {
		return nil, errors.Join(err, l.pty.Close())
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	card.SetConsole(c.tell)
	c.catchUp()
	c.start(l.send)
	c.start(l.keep)
	c.start(func(ctx context.Context) { l.receive(ctx, c.typed) })
	c.start(c.live)
	return c, nil
}

// catchUp has what happened before anybody was told happen first. A kernel that has come
// up in between may be told of twice, and starts its login twice.
func (c *Console) catchUp() {
	before := []hwsim.BootEvent{hwsim.BootLoader}
	if c.card.KernelUp() {
		before = append(before, hwsim.BootKernel)
	}
	c.mu.Lock()
	c.moments = append(before, c.moments...)
	c.mu.Unlock()
}

func (c *Console) start(fn func(ctx context.Context)) {
	c.threads.Add(1)
	go func() {
		defer c.threads.Done()
		fn(c.ctx)
	}()
}

// Path is the terminal at the host's end of the line.
func (c *Console) Path() string { return c.line.pty.Path() }

// link makes the symbolic link; it replaces one that leads to a terminal that is no more.
func (c *Console) link() error {
	if c.o.Link == "" {
		return nil
	}
	err := os.Symlink(c.Path(), c.o.Link)
	if errors.Is(err, fs.ErrExist) && left(c.o.Link) {
		if err = os.Remove(c.o.Link); err == nil {
			err = os.Symlink(c.Path(), c.o.Link)
		}
	}
	if err != nil {
		return fmt.Errorf("console: %w", err)
	}
	return nil
}

// left tells whether a link is one that a console has left behind: its terminal has gone,
// or is one that was made since, with the same number.
func left(link string) bool {
	to, err := os.Readlink(link)
	if err != nil || !strings.HasPrefix(to, terminals) {
		return false
	}
	made, err := os.Lstat(link)
	if err != nil {
		return false
	}
	var terminal unix.Stat_t
	if err := unix.Stat(to, &terminal); err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	return time.Unix(terminal.Ctim.Unix()).After(made.ModTime())
}

// terminals is where the host's ends are.
const terminals = "/dev/pts/"

// Close ends the console: the shell with all its children, the terminal, the link and
// the shell's folder.
func (c *Console) Close() error {
	c.card.SetConsole(nil)
	c.cancel()
	var errs []error
	if c.o.Link != "" {
		if to, err := os.Readlink(c.o.Link); err == nil && to == c.Path() {
			errs = append(errs, os.Remove(c.o.Link))
		}
	}
	errs = append(errs, c.line.pty.Close())
	c.threads.Wait()
	if c.world != nil {
		errs = append(errs, c.world.close())
	}
	return errors.Join(errs...)
}

// tell takes a moment of the coprocessor's life.
func (c *Console) tell(e hwsim.BootEvent) {
	c.mu.Lock()
	c.moments = append(c.moments, e)
	c.mu.Unlock()
	signal(c.news)
}

// live lets the coprocessor's life happen.
func (c *Console) live(ctx context.Context) {
	end := func() {}
	defer func() { end() }()
	for {
		c.mu.Lock()
		moments := c.moments
		c.moments = nil
		c.mu.Unlock()
		for _, e := range moments {
			end()
			end = c.begin(ctx, e)
		}
		select {
		case <-c.news:
		case <-ctx.Done():
			return
		}
	}
}

// begin lets one part of that life begin, and returns what ends it.
func (c *Console) begin(ctx context.Context, e hwsim.BootEvent) (end func()) {
	switch e {
	case hwsim.BootOff:
		c.line.clear()
	case hwsim.BootLoader:
		c.line.clear()
		if c.world != nil {
			c.world.restart(c.card.ConsoleFaults().ConsoleLoseFiles)
		}
		c.mu.Lock()
		c.stopped = false
		c.mu.Unlock()
		c.line.put(loaderText)
	case hwsim.BootKernel:
		c.line.put(kernelText)
		c.log.Debug("the kernel of the simulated coprocessor runs")
		return c.logins(ctx)
	}
	return func() {}
}

// logins lets one login follow the other until it is ended.
func (c *Console) logins(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if err := c.login(ctx); err != nil && ctx.Err() == nil {
				c.log.Warn("the console's login failed", "err", err)
				pause(ctx, loginPause)
			}
		}
	}()
	return func() { cancel(); <-done }
}

// typed takes bytes that have arrived at the coprocessor.
func (c *Console) typed(b []byte) {
	if !c.card.KernelUp() {
		for range b {
			c.card.ConsoleByte()
		}
		c.mu.Lock()
		said := c.stopped
		c.stopped = true
		c.mu.Unlock()
		if !said {
			c.line.put(stoppedText)
		}
		return
	}
	c.mu.Lock()
	s := c.session
	c.mu.Unlock()
	if s != nil {
		s.typed(b)
	}
}

// hear says who hears what is typed.
func (c *Console) hear(s *session) {
	c.mu.Lock()
	c.session = s
	c.mu.Unlock()
}
