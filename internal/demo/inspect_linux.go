package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/netlab"
)

// engineName is the rule file of the engine in the scratch folder.
const engineName = "engine"

// engine is a running `oxpd inspect`.
type engine struct {
	cmd *exec.Cmd
	log tail
}

// startEngine starts an engine with rules and waits until the daemon has it.
func (l *lab) startEngine(ctx context.Context, rules string) (*engine, error) {
	if err := os.WriteFile(l.scratch.Path(engineName), []byte(rules), 0o600); err != nil {
		return nil, fmt.Errorf("write the engine's rules: %w", err)
	}
	dir := netlab.ChildFDPath(extraScratch)
	e := &engine{}
	e.cmd = exec.Command(l.exe, "--socket", dir+"/"+socketName, "inspect", "--rules", dir+"/"+engineName)
	e.cmd.ExtraFiles = []*os.File{extraScratch: l.scratch.File()}
	e.cmd.Stderr = &e.log
	if err := e.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the engine: %w", err)
	}
	if err := l.awaitEngine(ctx, true); err != nil {
		return nil, errors.Join(fmt.Errorf("wait for the engine: %w", err), e.stop())
	}
	return e, nil
}

// stop ends an engine as its user would, and waits for it.
func (e *engine) stop() error {
	_ = e.cmd.Process.Signal(unix.SIGINT) // it may have ended
	late := time.AfterFunc(stopLimit, func() { _ = e.cmd.Process.Kill() })
	defer late.Stop()
	if err := e.cmd.Wait(); err != nil {
		return fmt.Errorf("the engine ended: %w: %s", err, e.log.text())
	}
	return nil
}

// awaitEngine waits until there is an engine, or none.
func (l *lab) awaitEngine(ctx context.Context, there bool) error {
	return await(ctx, settleLimit, func() (bool, error) {
		d, err := l.client.Divert(ctx, "")
		if err != nil {
			return false, err
		}
		return (d.Queues[0].State != client.QueueAbsent) == there, nil
	})
}

// inspected puts an engine behind a port that blocks pings, and one that lets them pass;
// takes it away, with either policy; and puts the port back.
func inspected(ctx context.Context, l *lab, r *reporter, p board.Port) (err error) {
	r.begin("inspect", "An engine behind %s decides about each frame, and what happens without one; %d pings each", p.Label, pingsEach)
	if err := l.oxpd(ctx, "divert", "port", p.Label, client.FramesAll); err != nil {
		return err
	}
	var e *engine
	defer func() {
		if e != nil {
			err = errors.Join(err, e.stop())
		}
	}()
	if e, err = l.startEngine(ctx, fmt.Sprintf("drop icmp from %v to any icmp-type 8\n", farAddr(p))); err != nil {
		return err
	}
	blocked := func() error { return l.unanswered(ctx, r, p, smallPing) }
	answered := func() error { return l.pings(ctx, r, p, smallPing, pingsEach) }
	if err := l.counted(ctx, r, p, "divert_dropped", "blocked by the engine", pingsEach, blocked); err != nil {
		return err
	}
	if e, err = l.otherEngine(ctx, e, "pass ip from any to any\n"); err != nil {
		return err
	}
	if err := l.counted(ctx, r, p, "divert_accepted", "requests and answers", 2*pingsEach, answered); err != nil {
		return err
	}
	if e, err = nil, e.stop(); err != nil {
		return err
	}
	if err := l.awaitEngine(ctx, false); err != nil {
		return err
	}
	if err := l.counted(ctx, r, p, "divert_drop_absent", "the engine has gone", pingsEach, blocked); err != nil {
		return err
	}
	if err := l.oxpd(ctx, "divert", "set", "on-absent=pass"); err != nil {
		return err
	}
	if err := l.counted(ctx, r, p, "divert_pass_absent", "on-absent=pass", 2*pingsEach, answered); err != nil {
		return err
	}
	if err := l.oxpd(ctx, "divert", "set", "on-absent=drop"); err != nil {
		return err
	}
	if err := l.oxpd(ctx, "divert", "port", p.Label, client.FramesFilter); err != nil {
		return err
	}
	return l.inspectedSum(ctx, r, p)
}

// otherEngine takes an engine away and starts one with other rules.
func (l *lab) otherEngine(ctx context.Context, e *engine, rules string) (*engine, error) {
	if err := e.stop(); err != nil {
		return nil, err
	}
	if err := l.awaitEngine(ctx, false); err != nil {
		return nil, err
	}
	return l.startEngine(ctx, rules)
}

// counted checks by how much a counter of a port grows while something is done.
func (l *lab) counted(ctx context.Context, r *reporter, p board.Port, counter, why string, want uint64, do func() error) error {
	read := func() (uint64, error) {
		s, err := l.client.Stats(ctx, p.Name)
		if err != nil {
			return 0, err
		}
		c, _ := s.Port(p.Name)
		return c.Counters[counter], nil
	}
	before, err := read()
	if err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	after, err := read()
	if err != nil {
		return err
	}
	r.grown(counter+": "+why, before, after, want)
	return nil
}

// inspectedSum checks that each frame that was to be inspected is in one counter.
func (l *lab) inspectedSum(ctx context.Context, r *reporter, p board.Port) error {
	s, err := l.client.Stats(ctx, p.Name)
	if err != nil {
		return err
	}
	c, _ := s.Port(p.Name)
	r.sum("divert_seen", c.Counters["divert_seen"], named(c.Counters, "divert_accepted", "divert_dropped", "divert_replaced", "divert_flow_passed",
		"divert_pass_full", "divert_pass_absent", "divert_pass_stall", "divert_drop_full", "divert_drop_absent", "divert_drop_stall",
		"divert_oversize", "divert_shortened", "divert_queued")...)
	return nil
}
