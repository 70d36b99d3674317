// Package inspect is oxpd's own inspection engine: it decides about frames by the rules
// that filters have, and may accept connections whole. It is small on purpose: an example
// of an engine, and a tool for tests.
package inspect

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"oxpd/divert/client"
	"oxpd/divert/proto"
	"oxpd/internal/frame"
	"oxpd/internal/pfil"
)

// mostFlows bounds the connections that are counted. With more, counting begins again.
const mostFlows = 1 << 16

// Config is how an engine decides.
type Config struct {
	Program *pfil.Program // pass, count and sample accept, drop drops; nil accepts all
	Rules   []pfil.Rule   // of Program

	// FlowAfter is after how many frames of a connection the rest is accepted without
	// being looked at; 0: never. FlowPorts are the ports that this holds for, none: all.
	FlowAfter int
	FlowPorts []uint16

	Delay time.Duration // before each verdict: an engine that is slow
	Name  string        // as oxpd shows it
}

// Totals is what an engine has done.
type Totals struct {
	Frames   uint64 `json:"frames"`
	Bytes    uint64 `json:"bytes"`
	Accepted uint64 `json:"accepted"`
	Dropped  uint64 `json:"dropped"`
	Flows    uint64 `json:"flows"` // frames that were accepted with the rest of their connection
}

// Engine decides about frames. Serve may run for several sockets at once.
type Engine struct {
	cfg                                      Config
	ports                                    map[uint16]bool
	frames, bytes, accepted, dropped, flowed atomic.Uint64
	connected                                atomic.Bool
}

// New makes an engine. A rule that diverts is refused: there is nothing behind an engine
// that could decide.
func New(cfg Config) (*Engine, error) {
	for i := range cfg.Rules {
		if cfg.Rules[i].Verdict == pfil.Divert {
			return nil, fmt.Errorf("rule of line %d diverts: an engine decides itself, with pass or drop", cfg.Rules[i].Line)
		}
	}
	e := &Engine{cfg: cfg, ports: map[uint16]bool{}}
	for _, p := range cfg.FlowPorts {
		e.ports[p] = true
	}
	return e, nil
}

// Totals are those of all sockets.
func (e *Engine) Totals() Totals {
	return Totals{Frames: e.frames.Load(), Bytes: e.bytes.Load(), Accepted: e.accepted.Load(), Dropped: e.dropped.Load(), Flows: e.flowed.Load()}
}

// Connected tells whether it has been at a socket yet.
func (e *Engine) Connected() bool { return e.connected.Load() }

// conn is a connection at one port.
type conn struct {
	frame.Conn
	port int
}

// server is what one socket needs.
type server struct {
	*Engine
	head frame.Packet
	seen map[conn]int // frames of each connection
}

// Serve answers at one socket until ctx ends, whose error it returns, or oxpd has gone.
func (e *Engine) Serve(ctx context.Context, path string) error {
	c, err := client.Dial(ctx, path, client.Options{Name: e.cfg.Name})
	if err != nil {
		return err
	}
	defer c.Close()
	e.connected.Store(true)
	s := &server{Engine: e, seen: map[conn]int{}}
	for {
		f, err := c.Next()
		if err != nil {
			return fmt.Errorf("inspect at %s: %w", path, err)
		}
		code := s.decide(&f)
		if e.cfg.Delay > 0 {
			if err := sleep(ctx, e.cfg.Delay); err != nil {
				return err
			}
		}
		if err := say(c, f.ID, code); err != nil {
			return fmt.Errorf("inspect at %s: %w", path, err)
		}
		if e.cfg.Delay > 0 {
			if err := c.Flush(); err != nil {
				return fmt.Errorf("inspect at %s: %w", path, err)
			}
		}
	}
}

func say(c *client.Engine, id uint64, code proto.Code) error {
	//exhaustive:enforce
	switch code {
	case proto.Accept:
		return c.Accept(id)
	case proto.AcceptFlow:
		return c.AcceptFlow(id)
	case proto.Drop, proto.Replace:
	}
	return c.Drop(id)
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// decide counts a frame and says what becomes of it.
func (s *server) decide(f *client.Frame) proto.Code {
	s.frames.Add(1)
	s.bytes.Add(uint64(len(f.Data)))
	s.head.Parse(f.Data, len(f.Data))
	if s.drops(f) {
		s.dropped.Add(1)
		return proto.Drop
	}
	s.accepted.Add(1)
	if s.flowOver(f) {
		s.flowed.Add(1)
		return proto.AcceptFlow
	}
	return proto.Accept
}

func (s *server) drops(f *client.Frame) bool {
	if s.cfg.Program == nil {
		return false
	}
	dir := pfil.In
	if f.Out {
		dir = pfil.Out
	}
	rule := s.cfg.Program.Match(dir, f.Port, f.Data, len(f.Data), &s.head)
	return rule >= 0 && s.cfg.Rules[rule].Verdict == pfil.Drop
}

// flowOver tells whether enough of a frame's connection was seen.
func (s *server) flowOver(f *client.Frame) bool {
	h := &s.head
	c, ok := h.Conn()
	if s.cfg.FlowAfter == 0 || !ok {
		return false
	}
	if len(s.ports) > 0 && !s.ports[h.SrcPort] && !s.ports[h.DstPort] {
		return false
	}
	k := conn{c, f.Port}
	s.seen[k]++
	if s.seen[k] >= s.cfg.FlowAfter {
		delete(s.seen, k)
		return true
	}
	if len(s.seen) > mostFlows {
		clear(s.seen)
	}
	return false
}

// ServeAll answers at several sockets until one of them ends, and returns its error.
func (e *Engine) ServeAll(ctx context.Context, paths []string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for _, p := range paths {
		all.Add(1)
		go func() {
			defer all.Done()
			cancel(e.Serve(ctx, p))
		}()
	}
	all.Wait()
	return context.Cause(ctx)
}
