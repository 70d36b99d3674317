package daemon

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/divert"
	"oxpd/internal/frame"
	"oxpd/internal/pfil"
	"oxpd/internal/port"
	"oxpd/ring"
	"oxpd/rpc"
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

// A stage that is tried again for hours says so once a reason.
func TestRefusalsOfAStage(t *testing.T) {
	late := func(waited time.Duration) error {
		return fmt.Errorf("open: %w", &rpc.TimeoutError{What: "configuration", Waited: waited, Config: 0x2d7d3ab00})
	}
	for _, tc := range []struct {
		name   string
		errs   []error
		logged int
	}{
		{"the same", []error{errors.New("not yet"), errors.New("not yet")}, 1},
		{"waited for otherwise", []error{late(3000775176), late(3 * time.Second), late(61500 * time.Millisecond), late(950)}, 1},
		{"another reason", []error{late(3 * time.Second), rpc.ErrPending, late(3 * time.Second)}, 3},
		{"another number", []error{errors.New("status 1"), errors.New("status 2")}, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			log := &syncBuffer{}
			tr := newTracker(&leapClock{}, slog.New(slog.NewTextHandler(log, nil)))
			tr.begin(stageRPC, "the rpc facility")
			for _, err := range tc.errs {
				tr.refused(stageRPC, err)
				assert.Equal(t, err.Error(), tr.snapshot()[stageRPC].Error, "as it was last")
			}
			assert.Equal(t, tc.logged, strings.Count(log.String(), "stage is tried again"))
		})
	}
}

// inspectedFanout is a fanout whose frames for engines go to one queue without any.
func inspectedFanout(filters *pfil.Table) *fanout {
	f := newFanout(filters, &leapClock{})
	f.inspector = divert.NewInspector([]*divert.Queue{handQueue("q")})
	return f
}

func TestFanoutJudges(t *testing.T) {
	f := inspectedFanout(pfil.NewTable(filterShards, time.Now))
	for _, p := range board.All() {
		assert.Equal(t, ring.Unowned, f.Judge(0, nil, 60, uint16(p.Tag), nil), "%s has no interface yet", p)
		f.live[p.Index].Store(true)
		assert.Equal(t, ring.Pass, f.Judge(0, nil, 60, uint16(p.Tag), nil))
	}
	for _, tag := range []board.Tag{0, 3, board.TagControl, board.TagUplink, 0x8b00, 0xffff} {
		assert.Equal(t, ring.Unowned, f.Judge(0, nil, 60, uint16(tag), nil), "%s", tag)
	}
}

// A frame of a port meets the filters of that port and way, and each verdict is one of
// the rings'.
func TestFanoutAsksFilters(t *testing.T) {
	filters := pfil.NewTable(filterShards, time.Now)
	f := inspectedFanout(filters)
	out := &outward{fanout: f}
	p := board.ByIndex(8)
	f.live[8].Store(true)
	f.live[9].Store(true)
	b := frameOf(60)
	for _, tc := range []struct {
		verdict string
		want    ring.Verdict
	}{{"pass", ring.Pass}, {"drop", ring.Drop}, {"divert", ring.Divert}, {"count", ring.Pass}, {"sample 1", ring.Pass}} {
		t.Run(tc.verdict, func(t *testing.T) {
			_, err := filters.Load("x", pfil.Source{Name: "x", Rules: []byte(tc.verdict + " any from any to any")})
			require.NoError(t, err)
			require.NoError(t, filters.Link("x", []board.Port{p}, pfil.In))
			var head frame.Packet
			assert.Equal(t, tc.want, f.Judge(7, b, 9014, uint16(p.Tag), &head))
			assert.Equal(t, 14, header(&head), "the header is read once")
			assert.Equal(t, ring.Pass, f.Judge(7, b, 60, uint16(board.ByIndex(9).Tag), &frame.Packet{}), "another port")
			f.Leave(7)
			assert.Equal(t, port.Pass, out.Judge(p, b), "another way")
			out.Leave()
			require.NoError(t, filters.Unlink("x", []board.Port{p}, pfil.In))
			require.NoError(t, filters.Link("x", []board.Port{p}, pfil.Out))
			assert.Equal(t, map[ring.Verdict]port.Outcome{ring.Pass: port.Pass, ring.Drop: port.Drop, ring.Divert: port.Take}[tc.want], out.Judge(p, b))
			out.Leave()
			require.NoError(t, filters.Unlink("x", []board.Port{p}, pfil.Out))
		})
	}
	assert.Equal(t, pfil.Drops{Frames: 1, Bytes: 9014}, filters.Dropped(p, pfil.In))
	assert.Equal(t, pfil.Drops{Frames: 1, Bytes: 60}, filters.Dropped(p, pfil.Out))
}

func TestOrderOfPorts(t *testing.T) {
	var got []string
	for _, p := range order() {
		got = append(got, p.Label)
	}
	assert.Equal(t, []string{"PortF1", "PortF2", "Port1", "Port2", "Port3", "Port4", "Port5", "Port6", "Port7", "Port8", "PortF3", "PortF4"}, got)
}
