package daemon

import (
	"fmt"
	"log/slog"
	"regexp"
	"sync"
	"time"

	"oxpd/internal/daemon/client"
)

// stage is one step of the bring-up. The order is that of endpoint.md 7.1 and
// rpc-lif.md 8: rings before the handshake, everything else behind it.
type stage int

const (
	stageDevice stage = iota
	stageBusMaster
	stageRings
	stageReady
	stageHandshake
	stageLevels
	stageRPC
	stagePlatform
	stageNetAgent
	stageUplinks
	stageSwitch
	stagePorts
	stageLinks
	stages
)

var stageNames = [stages]string{
	"device", "bus-master", "rings", "ready", "handshake", "interrupt-levels", "rpc", "platform", "netagent", "uplinks", "switch", "ports", "links",
}

// patience is how long a stage may take before it is worth a warning; 0 is for
// ever. rpc has been seen about four minutes after the handshake and the reference
// allows 140 s, then 40 s for NetAgent (rpc-lif.md 1).
func (s stage) patience() time.Duration {
	switch s {
	case stageRPC:
		return 140 * time.Second
	case stageNetAgent:
		return 40 * time.Second
	}
	return 0
}

func (s stage) String() string { return stageNames[s] }

// Stages returns the names of the bring-up's stages in their order.
func Stages() []string { return append([]string(nil), stageNames[:]...) }

// tracker keeps what `oxpd status` shows of the bring-up. Safe for concurrent use.
type tracker struct {
	clock clock
	log   *slog.Logger
	watch func(stage) // tests: called when a stage begins, without the lock

	mu     sync.Mutex
	stages [stages]client.Stage
	began  [stages]time.Duration
}

func newTracker(c clock, log *slog.Logger) *tracker {
	t := &tracker{clock: c, log: log}
	t.restart()
	return t
}

// restart begins the list anew: the card was lost, and nothing of it holds.
func (t *tracker) restart() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.stages {
		t.stages[i] = client.Stage{Name: stage(i).String(), State: client.StagePending}
	}
}

// begin makes a stage the active one; awaiting is what it waits for.
func (t *tracker) begin(s stage, awaiting string) {
	t.mu.Lock()
	t.stages[s].State, t.stages[s].Awaiting = client.StageActive, awaiting
	t.began[s] = t.clock.Now()
	t.mu.Unlock()
	t.log.Debug("stage begins", "stage", s.String(), "awaiting", awaiting)
	if t.watch != nil {
		t.watch(s)
	}
}

// await changes what the active stage waits for.
func (t *tracker) await(s stage, awaiting string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stages[s].Awaiting = awaiting
}

// refused notes why the last attempt of a stage that tries again did not do.
func (t *tracker) refused(s stage, err error) {
	t.mu.Lock()
	again := reason(t.stages[s].Error) == reason(err.Error())
	t.stages[s].Error = err.Error()
	t.mu.Unlock()
	if !again {
		t.log.Warn("stage is tried again", "stage", s.String(), "err", err)
	}
}

// reason is the text of an error without the times in it: how long was waited
// differs with each try, and is no news.
func reason(text string) string {
	return regexp.MustCompile(`\d+(\.\d+)?(h|ms|m|s|µs|ns)`).ReplaceAllString(text, "")
}

// done ends a stage; detail is what it found.
func (t *tracker) done(s stage, detail string) {
	t.mu.Lock()
	st := &t.stages[s]
	st.State, st.Awaiting, st.Error, st.Detail = client.StageDone, "", "", detail
	st.Seconds = (t.clock.Now() - t.began[s]).Seconds()
	t.mu.Unlock()
	t.log.Info("stage done", "stage", s.String(), "detail", detail)
}

// fail ends the bring-up in this stage.
func (t *tracker) fail(s stage, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	st := &t.stages[s]
	st.State, st.Error = client.StageFailed, err.Error()
	st.Seconds = (t.clock.Now() - t.began[s]).Seconds()
}

// snapshot copies the list.
func (t *tracker) snapshot() []client.Stage {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := t.stages
	for i := range out {
		if out[i].State == client.StageActive {
			out[i].Seconds = (t.clock.Now() - t.began[i]).Seconds()
		}
	}
	return out[:]
}

// overdue returns a warning for each active stage that takes longer than the
// reference allows it.
func (t *tracker) overdue() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []string
	for i := range t.stages {
		limit := stage(i).patience()
		if t.stages[i].State == client.StageActive && limit > 0 && t.clock.Now()-t.began[i] > limit {
			out = append(out, fmt.Sprintf("stage %s takes more than %v: the coprocessor's fast path may not have started", stage(i), limit))
		}
	}
	return out
}
