package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	realclock "oxpd/internal/clock"
	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/internal/divert"
	"oxpd/internal/frame"
	"oxpd/internal/pfil"
)

// nowhere is an outlet whose frames nobody wants.
type nowhere struct{}

func (nowhere) Release([]divert.Released) {}

// handEngines are engines that a test says things of.
type handEngines struct {
	in    *divert.Inspector
	view  map[string]engineView
	pairs map[int]*divert.Queue
	fail  error
	set   []divert.Settings // that pairs were made with
}

func (e *handEngines) engine(q *divert.Queue) engineView { return e.view[q.Stats().Name] }

func (e *handEngines) setPair(p board.Port, on bool, s divert.Settings) error {
	if e.fail != nil {
		return e.fail
	}
	if !on {
		e.in.SetPair(p.Index, nil)
		return nil
	}
	if e.pairs[p.Index] == nil {
		e.pairs[p.Index] = handQueue(p.Name)
	}
	e.set = append(e.set, s)
	e.pairs[p.Index].Set(s)
	e.in.SetPair(p.Index, e.pairs[p.Index])
	return nil
}

func handQueue(name string) *divert.Queue {
	return divert.NewQueue(divert.QueueConfig{Name: name, Settings: divert.Defaults(), Outlet: nowhere{}, Limit: func(int) int { return 1500 }, Clock: realclock.NewReal()})
}

// divertRig is a service over listeners without sockets, and what it logs.
type divertRig struct {
	*divertService
	engines *handEngines
	log     bytes.Buffer
}

func newDivertRig(listeners ...string) *divertRig {
	var queues []*divert.Queue
	for _, l := range listeners {
		queues = append(queues, handQueue(l))
	}
	in := divert.NewInspector(queues)
	r := &divertRig{engines: &handEngines{in: in, view: map[string]engineView{}, pairs: map[int]*divert.Queue{}}}
	r.divertService = newDivertService(in, r.engines, slog.New(slog.NewTextHandler(&r.log, nil)))
	return r
}

func divertConfig(t *testing.T, text string) *config.Divert {
	t.Helper()
	c, err := config.Parse("f", []byte("divert: {"+text+"}\n"))
	require.NoError(t, err)
	return &c.Divert
}

// offer offers a frame of a port's.
func (r *divertRig) offer(p board.Port, dir divert.Direction) {
	b := make([]byte, 100)
	r.in.Offer(time.Hour, &divert.Offered{Port: p.Index, Dir: dir, Pieces: [][]byte{b}, Bytes: len(b), Head: new(frame.Packet)})
}

func TestDivertFollowsTheConfiguration(t *testing.T) {
	f1, first := board.ByIndex(8), board.ByIndex(0)
	const text = "queue-len: 8, on-absent: pass, ports: {F1: {frames: all}, oxp1: {frames: all, engine: tap-pair}}"
	r := newDivertRig("a", "b")
	was := divertConfig(t, text)
	require.NoError(t, r.boot(was))
	assert.Equal(t, was.Settings(), r.in.Listeners()[1].Settings())
	assert.Equal(t, []divert.Settings{was.Settings()}, r.engines.set, "the pair's queue has them from its begin")
	assert.True(t, r.in.Wants(f1.Index))
	assert.NotNil(t, r.in.Pair(first.Index))
	assert.False(t, r.in.Wants(1))

	require.NoError(t, r.set([]divert.Setting{{Key: "order", Value: "keep"}, {Key: "queue-len", Value: "9"}}))
	require.NoError(t, r.setPort(board.ByIndex(1), true, nil))
	t.Run("one that says the same leaves what commands have set", func(t *testing.T) {
		r.reload(was, divertConfig(t, text))
		v := r.view(nil)
		assert.Equal(t, 9, v.Settings.QueueLen)
		assert.Equal(t, "keep", v.Settings.Order)
		assert.Equal(t, client.FramesAll, v.Ports[1].Frames)
	})
	t.Run("what has changed is in force, and nothing else", func(t *testing.T) {
		r.reload(was, divertConfig(t, "queue-len: 16, on-absent: pass, ports: {F1: {frames: filter}, oxp1: {frames: all}}"))
		v := r.view(nil)
		assert.Equal(t, 16, v.Settings.QueueLen)
		assert.Equal(t, "keep", v.Settings.Order)
		assert.Equal(t, 16, r.in.Listeners()[0].Settings().QueueLen)
		assert.False(t, r.in.Wants(f1.Index))
		assert.Nil(t, r.in.Pair(first.Index))
		assert.True(t, r.in.Wants(first.Index))
		assert.Equal(t, client.FramesAll, v.Ports[1].Frames)
	})
	t.Run("a pair that cannot be made is an error", func(t *testing.T) {
		r := newDivertRig("a")
		r.engines.fail = errors.New("no TAPs here")
		require.ErrorContains(t, r.boot(was), "inspect oxp1 by tap-pair: no TAPs here")
		r.reload(divertConfig(t, ""), was)
		assert.Contains(t, r.log.String(), "inspection is not as configured")
		assert.True(t, r.in.Wants(f1.Index), "it keeps no other port from its own")
	})
	t.Run("a buffer-size that cannot be is warned of, until it is gone", func(t *testing.T) {
		r := newDivertRig("a")
		bad := divertConfig(t, "buffer-size: 65535, queue-len: 4")
		require.NoError(t, r.boot(bad))
		assert.Contains(t, r.log.String(), "level=WARN")
		v := r.view(nil)
		assert.Zero(t, v.Settings.BufferSize)
		assert.Equal(t, 4, v.Settings.QueueLen)
		require.Len(t, v.Warnings, 1)
		assert.Contains(t, v.Warnings[0], "divert.buffer-size 65535: want 64kb to 64mb")
		r.reload(bad, divertConfig(t, "buffer-size: 64kb, queue-len: 4"))
		v = r.view(nil)
		assert.Empty(t, v.Warnings)
		assert.EqualValues(t, 64<<10, v.Settings.BufferSize)
	})
}

func TestDivertSettingsAllOrNone(t *testing.T) {
	r := newDivertRig("a")
	before := r.view(nil).Settings
	for _, tc := range []struct {
		name string
		set  []divert.Setting
		want string
	}{
		{"the second is refused", []divert.Setting{{Key: "queue-len", Value: "9"}, {Key: "buffer-size", Value: "65535"}}, "buffer-size 65535: want 64kb to 64mb"},
		{"the first is unknown", []divert.Setting{{Key: "que-len", Value: "9"}, {Key: "order", Value: "keep"}}, `no setting is called "que-len"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := r.set(tc.set)
			require.ErrorContains(t, err, tc.want)
			assert.Equal(t, client.CodeUsage, describe(err).Code)
			assert.Equal(t, before, r.view(nil).Settings)
			assert.Equal(t, divert.Defaults(), r.in.Listeners()[0].Settings())
		})
	}
}

func TestDivertModeOfAPort(t *testing.T) {
	pair, socket := divert.TapPair, divert.Socket
	p := board.ByIndex(3)
	r := newDivertRig("a")
	require.NoError(t, r.setPort(p, true, &pair))
	require.NoError(t, r.setPort(p, false, nil))
	v := r.view(&p)
	require.Len(t, v.Ports, 1)
	assert.Equal(t, client.EngineTapPair, v.Ports[0].Engine, "nothing was said of it")
	assert.Equal(t, client.FramesFilter, v.Ports[0].Frames)
	r.engines.fail = errors.New("busy")
	require.ErrorContains(t, r.setPort(p, true, &socket), "inspect oxp4 by socket: busy")
	assert.Equal(t, v, r.view(&p), "and nothing has changed")
}

func TestDivertView(t *testing.T) {
	p := board.ByIndex(8)
	r := newDivertRig("a", "b")
	require.NoError(t, r.set([]divert.Setting{{Key: "on-stall", Value: "pass"}}))
	r.engines.view["a"] = engineView{name: "reference", pid: 7, buffer: 131072, counters: map[string]uint64{"send_again": 3}, warning: "a: it got less"}
	r.in.Listeners()[0].Attach()
	assert.Equal(t, []string{"a: it got less"}, r.view(nil).Warnings, "nothing is behind b")
	assert.Equal(t, []client.DivertEngine{{Queue: "a", Kind: "socket", State: "idle", Engine: "reference"}}, r.brief())
	assert.Contains(t, r.restartCost(r.brief()), "what they are to inspect is dropped until they have connected again")
	assert.Empty(t, r.restartCost([]client.DivertEngine{{State: client.QueueAbsent}}), "nothing is inspected that would not be")
	require.NoError(t, r.setPort(p, true, nil))
	r.offer(p, divert.In)
	r.in.Listeners()[1].Attach()
	r.offer(p, divert.Out)
	v := r.view(nil)
	require.Len(t, v.Queues, 2)
	a := v.Queues[0]
	assert.Equal(t, "reference", a.Engine)
	assert.Equal(t, 131072, a.SocketBuffer)
	assert.EqualValues(t, 3, a.Counters["send_again"])
	assert.Equal(t, v.Queues[1].Queued+a.Queued, 1+int(v.Ports[8].In["divert_queued"]))
	for i := range v.Ports {
		q := &v.Ports[i]
		assert.Equal(t, q.Total("divert_seen"), q.Total("divert_queued")+q.Total("divert_drop_absent"), q.IfName)
	}
	assert.EqualValues(t, 2, v.Ports[8].Total("divert_seen"))
	r.in.Listeners()[0].SetStalled(true)
	r.in.Listeners()[1].Detach()
	v = r.view(&p)
	assert.Equal(t, []string{
		"a: it got less",
		"a: the engine gives no verdicts: its share of the frames of oxp9 passes uninspected",
		"b: no engine is attached: its share of the frames of oxp9 is dropped",
	}, v.Warnings)
	assert.Len(t, r.brief(), 2)
}

// serveDivert serves the requests about inspection alone.
func serveDivert(t *testing.T, d diverting) *client.Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	mux := http.NewServeMux()
	divertRoutes(mux, d)
	srv := &http.Server{Handler: whole(mux), ReadHeaderTimeout: hang}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close(); <-done })
	return client.New(path)
}

func TestDivertOverTheSocket(t *testing.T) {
	t.Parallel()
	r := newDivertRig("a")
	c := serveDivert(t, r)
	ctx := context.Background()
	v, err := c.Divert(ctx, "")
	require.NoError(t, err)
	assert.Len(t, v.Ports, board.Ports)
	assert.Equal(t, divertSettings(divert.Defaults()), v.Settings)
	v, err = c.SetDivert(ctx, client.DivertSetting{Key: "on-full", Value: "pass"}, client.DivertSetting{Key: "queue-bytes", Value: "64kb"})
	require.NoError(t, err)
	assert.Equal(t, "pass", v.Settings.OnFull)
	assert.EqualValues(t, 65536, v.Settings.QueueBytes)
	v, err = c.SetDivertPort(ctx, "F1", client.SetDivertPort{Frames: client.FramesAll, Engine: client.EngineTapPair})
	require.NoError(t, err)
	require.Len(t, v.Ports, 1)
	assert.Equal(t, "all", v.Ports[0].Frames)
	assert.Equal(t, "oxp9", v.Queues[1].Name)
	v, err = c.Divert(ctx, "PortF1")
	require.NoError(t, err)
	require.Len(t, v.Ports, 1)
	assert.Equal(t, "tap-pair", v.Ports[0].Engine)

	for _, tc := range []struct {
		name string
		do   func() error
		want string
		code client.Code
	}{
		{"no such port", func() error { _, err := c.Divert(ctx, "oxp13"); return err }, `unknown port "oxp13"`, client.CodeUnknownPort},
		{"no such port to set", func() error {
			_, err := c.SetDivertPort(ctx, "all", client.SetDivertPort{Frames: "all"})
			return err
		}, `unknown port "all"`, client.CodeUnknownPort},
		{"no such frames", func() error { _, err := c.SetDivertPort(ctx, "F1", client.SetDivertPort{Frames: "some"}); return err }, `frames "some": want all or filter`, client.CodeUsage},
		{"no such engine", func() error {
			_, err := c.SetDivertPort(ctx, "F1", client.SetDivertPort{Frames: "all", Engine: "nfq"})
			return err
		}, `engine: found "nfq", want socket or tap-pair`, client.CodeUsage},
		{"nothing to set", func() error { _, err := c.SetDivert(ctx); return err }, "nothing is to be set", client.CodeUsage},
		{"one key twice", func() error {
			_, err := c.SetDivert(ctx, client.DivertSetting{Key: "order", Value: "any"}, client.DivertSetting{Key: "order", Value: "keep"})
			return err
		}, "order is set twice", client.CodeUsage},
		{"a size that cannot be", func() error {
			_, err := c.SetDivert(ctx, client.DivertSetting{Key: "buffer-size", Value: "67108865"})
			return err
		}, "buffer-size 67108865: want 64kb to 64mb", client.CodeUsage},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := r.view(nil)
			err := tc.do()
			var e *client.Error
			require.ErrorAs(t, err, &e)
			assert.Contains(t, e.Message, tc.want)
			assert.Equal(t, tc.code, e.Code)
			assert.Equal(t, before, r.view(nil))
		})
	}
}

func TestDivertModeInAPortsView(t *testing.T) {
	pair := divert.TapPair
	p := board.ByIndex(2)
	r := newDivertRig("a")
	assert.Nil(t, r.of(p))
	require.NoError(t, r.setPort(p, true, nil))
	assert.Equal(t, &client.DivertMode{Frames: "all", Engine: "socket"}, r.of(p))
	require.NoError(t, r.setPort(p, false, &pair))
	assert.Equal(t, &client.DivertMode{Frames: "filter", Engine: "tap-pair"}, r.of(p))
}

// The datapath does not wait for a socket that nobody has asked for.
func TestListenersThatCannotBe(t *testing.T) {
	inspecting := func(t *testing.T, listeners ...string) (*inspection, *config.Config, *bytes.Buffer) {
		cfg := config.Default()
		cfg.Socket = filepath.Join(t.TempDir(), "oxpd.sock")
		for _, l := range listeners {
			cfg.Divert.Listeners = append(cfg.Divert.Listeners, filepath.Join(filepath.Dir(cfg.Socket), l))
		}
		log := &bytes.Buffer{}
		fan := newFanout(pfil.NewTable(filterShards, time.Now), realclock.NewReal())
		s := newInspection(cfg, "", fan, realclock.NewReal(), slog.New(slog.NewTextHandler(log, nil)))
		require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(cfg.Socket), "inspect.sock"), nil, 0o600))
		return s, &cfg, log
	}
	t.Run("one that is not named is missed, and that is said", func(t *testing.T) {
		s, cfg, log := inspecting(t)
		require.NoError(t, s.start(&cfg.Divert))
		assert.Contains(t, log.String(), "there is no inspection socket")
		v := s.view(nil)
		require.Len(t, v.Warnings, 1)
		assert.Contains(t, v.Warnings[0], "no engine can connect: ")
		assert.Contains(t, v.Warnings[0], cfg.Listeners()[0])
		assert.Equal(t, client.QueueAbsent, v.Queues[0].State)
		s.stop()
	})
	t.Run("one that is named is an error, and nothing is left", func(t *testing.T) {
		s, cfg, _ := inspecting(t, "first.sock", "inspect.sock")
		require.ErrorContains(t, s.start(&cfg.Divert), cfg.Listeners()[1])
		assert.NoFileExists(t, cfg.Listeners()[0])
	})
	t.Run("neither is missed", func(t *testing.T) {
		s, cfg, _ := inspecting(t, "first.sock", "second.sock")
		require.NoError(t, s.start(&cfg.Divert))
		assert.Empty(t, s.view(nil).Warnings)
		s.stop()
		assert.NoFileExists(t, cfg.Listeners()[1])
	})
}

func TestBufferWarning(t *testing.T) {
	for _, tc := range []struct {
		name          string
		asked, buffer int
		set           int64
		want          string
	}{
		{"the kernel's default", 0, 212992, 0, ""},
		{"as asked", 64 << 10, 128 << 10, 64 << 10, ""},
		{"less than asked", 4 << 20, 425984, 4 << 20, "s: the engine's socket got 208kb of the 4mb of buffer-size: raise net.core.wmem_max to 8388608 or more, and start the engine again"},
		{"set afterwards", 0, 212992, 4 << 20, "s: the engine connected before buffer-size was set to 4mb: its socket has it when it connects again"},
		{"taken back afterwards", 4 << 20, 8 << 20, 0, "s: the engine connected before buffer-size was set to 0: its socket has it when it connects again"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			assert.Equal(t, tc.want, bufferWarning("s", &divert.Engine{Asked: tc.asked, Buffer: tc.buffer}, tc.set))
		})
	}
}

// Documents have the words of the settings.
func TestDivertWords(t *testing.T) {
	for have, want := range map[fmt.Stringer]string{
		divert.Absent: client.QueueAbsent, divert.Idle: client.QueueIdle, divert.Busy: client.QueueBusy, divert.Stalled: client.QueueStalled,
		divert.Socket: client.EngineSocket, divert.TapPair: client.EngineTapPair,
	} {
		assert.Equal(t, want, have.String())
	}
}
