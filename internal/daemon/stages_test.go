package daemon

import (
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/ring"
)

func TestStages(t *testing.T) {
	clk := &leapClock{}
	tr := newTracker(clk, slog.New(slog.NewTextHandler(io.Discard, nil)))
	assert.Len(t, tr.snapshot(), int(stages))

	tr.begin(stageRPC, "the rpc facility")
	clk.now += 140 * time.Second
	assert.Empty(t, tr.overdue(), "within what the reference allows")
	clk.now++
	assert.Len(t, tr.overdue(), 1)
	tr.refused(stageRPC, errors.New("not yet"))
	tr.await(stageRPC, "the target")
	g := tr.snapshot()[stageRPC]
	assert.Equal(t, client.Stage{Name: "rpc", State: client.StageActive, Awaiting: "the target", Error: "not yet", Seconds: 140.000000001}, g)
	tr.done(stageRPC, "configured")
	assert.Empty(t, tr.overdue(), "over")
	assert.Equal(t, client.Stage{Name: "rpc", State: client.StageDone, Detail: "configured", Seconds: 140.000000001}, tr.snapshot()[stageRPC])

	tr.begin(stagePorts, "the ports")
	clk.now += time.Hour
	assert.Empty(t, tr.overdue(), "not every stage has a limit")
	tr.fail(stagePorts, errors.New("gone"))
	assert.Equal(t, client.StageFailed, tr.snapshot()[stagePorts].State)
}

func TestFanoutVerdict(t *testing.T) {
	f := newFanout()
	for _, p := range board.All() {
		assert.Equal(t, ring.Unowned, f.verdict(nil, 60, uint16(p.Tag)), "%s has no interface yet", p)
		f.live[p.Index].Store(true)
		assert.Equal(t, ring.Pass, f.verdict(nil, 60, uint16(p.Tag)))
	}
	for _, tag := range []board.Tag{0, 3, board.TagControl, board.TagUplink, 0x8b00, 0xffff} {
		assert.Equal(t, ring.Unowned, f.verdict(nil, 60, uint16(tag)), "%s", tag)
	}
}

func TestOrderOfPorts(t *testing.T) {
	var got []string
	for _, p := range order() {
		got = append(got, p.Label)
	}
	assert.Equal(t, []string{"PortF1", "PortF2", "Port1", "Port2", "Port3", "Port4", "Port5", "Port6", "Port7", "Port8", "PortF3", "PortF4"}, got)
}
