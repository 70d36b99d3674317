package loadtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/divert/proto"
	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/frame"
	"oxpd/internal/netlab"
)

const (
	// shortStall is for engines that are to be found stalled, longStall for those that
	// are not, on a machine as busy as it may be.
	shortStall, longStall = "stall-ms=500", "stall-ms=60000"

	// Frames of these tests are numbered behind their UDP headers.
	countAt       = frame.HeaderSize + ipHeader + udpHeader
	numberedBytes = 128
)

// rawEngine is an engine that says what it is told to, be it right or wrong.
type rawEngine struct {
	t      *testing.T
	conn   *net.UnixConn
	frames []taken // so far
	buf    []byte
}

// taken is a frame that the engine got.
type taken struct {
	id    uint64
	frame []byte
}

// connect makes one, which has said Hello.
func (l *lab) connect(p board.Port) *rawEngine {
	l.t.Helper()
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: l.socket(), Net: "unixpacket"})
	require.NoError(l.t, err)
	l.t.Cleanup(func() { _ = conn.Close() })
	e := &rawEngine{t: l.t, conn: conn, buf: make([]byte, proto.MaxMessage)}
	require.NoError(l.t, conn.SetDeadline(time.Now().Add(hang)))
	_, err = proto.ParseHello(e.read())
	require.NoError(l.t, err)
	e.send(proto.AppendHello(nil, &proto.Hello{Version: proto.Version, Name: "raw"}))
	l.attached(p, true)
	return e
}

func (e *rawEngine) read() []byte {
	e.t.Helper()
	n, err := e.conn.Read(e.buf)
	require.NoError(e.t, err)
	return e.buf[:n]
}

func (e *rawEngine) send(b []byte) {
	e.t.Helper()
	_, err := e.conn.Write(b)
	require.NoError(e.t, err)
}

// take reads frames until it has n in all.
func (e *rawEngine) take(n int) []taken {
	e.t.Helper()
	for len(e.frames) < n {
		f, err := proto.ParseFrame(e.read())
		require.NoError(e.t, err)
		e.frames = append(e.frames, taken{f.ID, bytes.Clone(f.Bytes)})
	}
	return e.frames
}

// message is verdicts as bytes.
func (e *rawEngine) message(records ...proto.Record) []byte {
	e.t.Helper()
	b, ok := proto.BeginVerdicts(nil), true
	for i := range records {
		b, ok = proto.AppendRecord(b, &records[i])
		require.True(e.t, ok)
	}
	return b
}

// say gives verdicts, all in one message.
func (e *rawEngine) say(records ...proto.Record) {
	e.t.Helper()
	e.send(e.message(records...))
}

// each gives one verdict about each of some frames.
func (e *rawEngine) each(code proto.Code, frames []taken) {
	e.t.Helper()
	var r []proto.Record
	for _, f := range frames {
		r = append(r, proto.Record{ID: f.id, Code: code})
	}
	e.say(r...)
}

// inline is one port with numbered frames on its way in, and what of them comes to the host.
type inline struct {
	*lab
	p       board.Port
	blank   []byte // a frame without number
	packets *netlab.Packets
	sent    int
}

// number makes frame n.
func (b *inline) number(n int) []byte {
	f := bytes.Clone(b.blank)
	binary.BigEndian.PutUint32(f[countAt:], uint32(n))
	return f
}

// put sends the next n frames into the port.
func (b *inline) put(n int) {
	for range n {
		b.inject(b.p, b.number(b.sent))
		b.sent++
	}
}

// from receives n frames at the host and returns their numbers, in order. Each is as it was
// sent, but for those that the caller has changed.
func (b *inline) from(n int, changed map[int][]byte) []int {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, hang)
	defer cancel()
	numbers := []int{}
	for range n {
		f, err := b.packets.Next(ctx)
		require.NoError(b.t, err, "%d of %d frames came", len(numbers), n)
		k := int(binary.BigEndian.Uint32(f[countAt:]))
		want, ok := changed[k]
		if !ok {
			want = b.number(k)
		}
		require.Equal(b.t, want, f, "frame %d", k)
		numbers = append(numbers, k)
	}
	return numbers
}

// none asserts that nothing is left to receive.
func (b *inline) none() {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Millisecond)
	defer cancel()
	f, err := b.packets.Next(ctx)
	assert.ErrorIs(b.t, err, context.DeadlineExceeded, "an unexpected frame: % x", f)
}

// numbers are those from a to below z, in order.
func numbers(a, z int) []int {
	n := []int{}
	for ; a < z; a++ {
		n = append(n, a)
	}
	return n
}

func reversed[T any](v []T) []T {
	v = slices.Clone(v)
	slices.Reverse(v)
	return v
}

// grown is a frame with zeros up to what an MTU allows.
func grown(f []byte, mtu int) []byte {
	return append(bytes.Clone(f), make([]byte, mtu+frame.HeaderSize-len(f))...)
}

// Whatever an engine does, nothing hangs, and each frame is in exactly one counter: by the
// verdict that it got, or by the policy that is set.
func TestEngineThatMisbehaves(t *testing.T) {
	t.Parallel()
	const n = 98 // frames of each case
	l := newLab(t, calmly)
	p := cage(t)
	host, err := l.host.Link(p.Name)
	require.NoError(t, err)
	far, err := l.farOf(p).Link(p.Label)
	require.NoError(t, err)
	packets, err := l.host.Packets(p.Name)
	require.NoError(t, err)
	defer packets.Close()
	b := &inline{lab: l, p: p, packets: packets, blank: sourceFrame(host.MAC, far.MAC, strange, numberedBytes, 7)}
	l.inspect(p, client.FramesAll)

	type outcome struct {
		counts counts // without seen
		events counts // of the queue
		arrive []int  // of the case's frames, in order
		grown  int    // so many of those, the first, are as long as the port takes
	}
	short := bytes.Repeat([]byte{0xee}, 60)
	for _, tc := range []struct {
		name     string
		settings []string
		absent   bool // there is no engine from the start
		play     func(t *testing.T, e *rawEngine)
		want     outcome
	}{
		{
			name: "all is accepted", settings: []string{longStall},
			play: func(t *testing.T, e *rawEngine) { e.each(proto.Accept, e.take(n)) },
			want: outcome{counts: counts{"accepted": n}, arrive: numbers(0, n)},
		},
		{
			name: "all is dropped", settings: []string{longStall},
			play: func(t *testing.T, e *rawEngine) { e.each(proto.Drop, e.take(n)) },
			want: outcome{counts: counts{"dropped": n}},
		},
		{
			name: "verdicts in the opposite order", settings: []string{longStall},
			play: func(t *testing.T, e *rawEngine) {
				e.each(proto.Accept, reversed(e.take(n)))
			},
			want: outcome{counts: counts{"accepted": n}, arrive: reversed(numbers(0, n))},
		},
		{
			name: "none is there", settings: []string{longStall, "on-absent=drop"}, absent: true,
			want: outcome{counts: counts{"drop_absent": n}},
		},
		{
			name: "none is there, and frames pass", settings: []string{longStall, "on-absent=pass"}, absent: true,
			want: outcome{counts: counts{"pass_absent": n}, arrive: numbers(0, n)},
		},
		{
			name: "killed with frames", settings: []string{longStall, "on-absent=drop"},
			play: func(t *testing.T, e *rawEngine) { e.take(n); assert.NoError(t, e.conn.Close()) },
			want: outcome{counts: counts{"drop_absent": n}},
		},
		{
			name: "killed with frames, which pass", settings: []string{longStall, "on-absent=pass"},
			play: func(t *testing.T, e *rawEngine) { e.take(n); assert.NoError(t, e.conn.Close()) },
			want: outcome{counts: counts{"pass_absent": n}, arrive: numbers(0, n)},
		},
		{
			name: "killed with frames unread and some accepted", settings: []string{longStall, "on-absent=pass"},
			play: func(t *testing.T, e *rawEngine) {
				e.each(proto.Accept, e.take(10)[5:10])
				require.Equal(t, numbers(b.sent-n+5, b.sent-n+10), b.from(5, nil))
				assert.NoError(t, e.conn.Close())
			},
			want: outcome{counts: counts{"accepted": 5, "pass_absent": n - 5}, arrive: slices.Concat(numbers(0, 5), numbers(10, n))},
		},
		{
			name: "stopped", settings: []string{shortStall, "on-stall=drop"},
			play: func(*testing.T, *rawEngine) {},
			want: outcome{counts: counts{"drop_stall": n}, events: counts{"stalls": 1}},
		},
		{
			name: "stopped, and frames pass; its verdicts come too late", settings: []string{shortStall, "on-stall=pass"},
			play: func(t *testing.T, e *rawEngine) {
				l.decided(p)
				e.each(proto.Drop, e.take(n))
			},
			want: outcome{counts: counts{"pass_stall": n}, events: counts{"stalls": 1, "verdicts_late": n}, arrive: numbers(0, n)},
		},
		{
			name: "skips every seventh frame", settings: []string{"stall-ms=1000", "on-stall=drop"},
			play: func(t *testing.T, e *rawEngine) {
				const last = n - 6 // behind the last that it skips
				for i, f := range e.take(n) {
					if i == last {
						l.wait("the verdicts before have come", func() bool { return l.inspection(p).in["queued"] == n/7+n-last })
					}
					if i%7 != 0 {
						e.say(proto.Record{ID: f.id, Code: proto.Accept})
					}
				}
			},
			want: outcome{
				counts: counts{"accepted": n * 6 / 7, "drop_stall": n / 7},
				arrive: slices.DeleteFunc(numbers(0, n), func(k int) bool { return k%7 == 0 }),
			},
		},
		{
			name: "garbage, then verdicts", settings: []string{longStall},
			play: func(t *testing.T, e *rawEngine) {
				id := e.take(n)[0].id
				e.send([]byte("GET / HTTP/1.1\r\n\r\n"))
				e.send(bytes.Repeat([]byte{0xff}, proto.MaxMessage/2))
				e.send([]byte{byte(proto.TypeVerdicts)})
				cut := e.message(proto.Record{ID: id, Code: proto.Accept})
				e.send(cut[:len(cut)-1])
				e.send(append(cut, 0))
				wrong := bytes.Clone(cut)
				wrong[proto.VerdictsHead+8] = 0xff // the code
				e.send(wrong)
				longer := e.message(proto.Record{ID: id, Code: proto.Replace, Frame: short})
				e.send(longer[:len(longer)-1])
				e.send(proto.AppendHello(nil, &proto.Hello{Version: proto.Version, Name: "again"}))
				e.each(proto.Accept, e.frames)
			},
			want: outcome{counts: counts{"accepted": n}, events: counts{"bad_messages": 8}, arrive: numbers(0, n)},
		},
		{
			name: "ids that nobody has", settings: []string{longStall},
			play: func(t *testing.T, e *rawEngine) {
				e.take(n)
				e.say(proto.Record{ID: 0, Code: proto.Accept}, proto.Record{ID: ^uint64(0), Code: proto.Accept}, proto.Record{ID: e.frames[n-1].id + 1<<40, Code: proto.Drop})
				e.each(proto.Accept, e.frames)
			},
			want: outcome{counts: counts{"accepted": n}, events: counts{"verdicts_unknown": 3}, arrive: numbers(0, n)},
		},
		{
			name: "a second verdict, which changes nothing", settings: []string{longStall},
			play: func(t *testing.T, e *rawEngine) {
				first := e.take(n)[0]
				e.say(proto.Record{ID: first.id, Code: proto.Drop}, proto.Record{ID: first.id, Code: proto.Accept})
				e.each(proto.Accept, e.frames[1:])
				e.each(proto.Drop, e.frames)
			},
			want: outcome{counts: counts{"dropped": 1, "accepted": n - 1}, events: counts{"verdicts_late": n + 1}, arrive: numbers(1, n)},
		},
		{
			name: "other frames: one that fits, one too long, one that is none", settings: []string{longStall},
			play: func(t *testing.T, e *rawEngine) {
				f := e.take(n)
				e.say(proto.Record{ID: f[0].id, Code: proto.Replace, Frame: grown(f[0].frame, board.DefaultMTU)})
				e.say(proto.Record{ID: f[1].id, Code: proto.Replace, Frame: grown(f[1].frame, board.DefaultMTU+1)})
				e.say(proto.Record{ID: f[2].id, Code: proto.Replace, Frame: f[2].frame[:frame.HeaderSize-1]})
				e.each(proto.Accept, f[3:])
			},
			want: outcome{
				counts: counts{"replaced": 1, "oversize": 2, "accepted": n - 3}, arrive: slices.Concat(numbers(0, 1), numbers(3, n)),
				grown: 1,
			},
		},
		{
			name: "takes nothing, and the queue is full", settings: []string{longStall, "queue-len=40", "on-full=drop"},
			play: func(t *testing.T, e *rawEngine) {
				l.wait("the queue has seen all", func() bool { i := l.inspection(p); return i.in["queued"] == 40 && i.queue.Queued == 40 })
				e.each(proto.Accept, e.take(40))
			},
			want: outcome{counts: counts{"accepted": 40, "drop_full": n - 40}, arrive: numbers(0, 40)},
		},
		{
			name: "takes nothing, and what has no room passes", settings: []string{longStall, "queue-len=40", "on-full=pass"},
			play: func(t *testing.T, e *rawEngine) {
				require.Equal(t, numbers(b.sent-n+40, b.sent), b.from(n-40, nil))
				e.each(proto.Accept, e.take(40))
			},
			want: outcome{counts: counts{"accepted": 40, "pass_full": n - 40, "reordered": n - 40}, arrive: numbers(0, 40)},
		},
		{
			name: "takes nothing, and what has no room may not overtake", settings: []string{longStall, "queue-len=40", "on-full=pass", "order=keep"},
			play: func(t *testing.T, e *rawEngine) { e.each(proto.Accept, e.take(40)) },
			want: outcome{counts: counts{"accepted": 40, "drop_full": n - 40}, arrive: numbers(0, 40)},
		},
		{
			name: "the queue is made shorter than it is", settings: []string{longStall},
			play: func(t *testing.T, e *rawEngine) {
				l.divert("queue-len=10", "queue-bytes=16kb")
				e.each(proto.Accept, e.take(n))
			},
			want: outcome{counts: counts{"accepted": n}, arrive: numbers(0, n)},
		},
		{
			name: "another comes while one is there", settings: []string{longStall},
			play: func(t *testing.T, e *rawEngine) {
				conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: l.socket(), Net: "unixpacket"})
				require.NoError(t, err)
				defer conn.Close()
				other := &rawEngine{t: t, conn: conn, buf: make([]byte, proto.MaxMessage)}
				require.NoError(t, conn.SetDeadline(time.Now().Add(hang)))
				bye, err := proto.ParseBye(other.read())
				require.NoError(t, err)
				assert.Equal(t, proto.ReasonBusy, bye.Reason)
				assert.Contains(t, bye.Text, "raw")
				e.each(proto.Accept, e.take(n))
			},
			want: outcome{counts: counts{"accepted": n}, events: counts{"refused": 1}, arrive: numbers(0, n)},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			whole := l.t
			l.t = t
			defer func() { l.t = whole }()
			l.divert("queue-len=1024", "queue-bytes=4mb", "order=any", "on-full=drop", "on-absent=drop", "on-stall=drop")
			l.divert(tc.settings...)
			l.attached(p, false)
			var e *rawEngine
			if !tc.absent {
				e = l.connect(p)
			}
			before := l.decided(p)
			first := b.sent
			b.put(n)
			if e != nil {
				l.wait("all are there", func() bool { return l.inspection(p).in.since(before.in)["seen"] == n })
				tc.play(t, e)
			}
			changed := map[int][]byte{}
			for _, k := range tc.want.arrive[:tc.want.grown] {
				changed[first+k] = grown(b.number(first+k), board.DefaultMTU)
			}
			want := []int{}
			for _, k := range tc.want.arrive {
				want = append(want, first+k)
			}
			assert.Equal(t, want, b.from(len(want), changed))
			var now inspection
			l.wait("all were seen, and none waits", func() bool {
				now = l.decided(p)
				return now.in["seen"]-before.in["seen"] == n
			})
			if e != nil {
				_ = e.conn.Close() // it may have been killed
				l.attached(p, false)
			}
			b.none()
			tc.want.counts["seen"] = n
			now.in.since(before.in).only(t, tc.want.counts, "frames")
			now = l.decided(p)
			for _, name := range []string{"stalls", "verdicts_late", "verdicts_unknown", "bad_messages", "refused"} {
				require.Contains(t, now.queue.Counters, name)
				assert.Equal(t, tc.want.events[name], now.queue.Counters[name]-before.queue.Counters[name], name)
			}
		})
	}
	l.inspect(p, client.FramesFilter)
}

// program starts oxpd inspect, which ends with the test at the latest.
func (l *lab) program(p board.Port, args ...string) *exec.Cmd {
	t := l.t
	t.Helper()
	rules := filepath.Join(t.TempDir(), "engine.rules")
	require.NoError(t, os.WriteFile(rules, []byte("pass any from any to any\n"), 0o600))
	cmd := exec.Command(program(), append([]string{"inspect", "--rules", rules, "--at", l.socket()}, args...)...)
	cmd.Stderr = l.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has ended, but for a failed test
		_ = cmd.Wait()
	})
	l.attached(p, true)
	return cmd
}

// An engine as a process, beside a stream that never breaks: it is killed, started again,
// stopped and woken, and ended, and each time what passes does so by the policy for that.
func TestEngineProcess(t *testing.T) {
	t.Parallel()
	l := newLab(t, calmly)
	p := cage(t)
	l.lossBased(p)
	l.divert("stall-ms=200", "on-full=pass", "on-stall=pass", "on-absent=pass")
	s := l.newPour(p)
	// grows waits until a counter has grown, with the stream going on.
	grows := func(counter string) {
		t.Helper()
		before := l.inspection(p).in[counter]
		l.wait(counter+" grows", func() bool { return l.inspection(p).in[counter] > before })
		s.moves(1 << 20)
	}
	l.inspect(p, client.FramesAll)
	grows("pass_absent")
	e := l.program(p)
	grows("accepted")
	require.NoError(t, e.Process.Signal(unix.SIGKILL))
	require.Error(t, e.Wait())
	grows("pass_absent")
	e = l.program(p)
	grows("accepted")
	require.NoError(t, e.Process.Signal(unix.SIGSTOP))
	grows("pass_stall")
	assert.Equal(t, client.QueueStalled, l.inspection(p).queue.State)
	require.NoError(t, e.Process.Signal(unix.SIGCONT))
	grows("accepted")
	require.NoError(t, e.Process.Signal(unix.SIGTERM))
	require.NoError(t, e.Wait(), "the engine's end")
	grows("pass_absent")
	l.inspect(p, client.FramesFilter)
	end := l.decided(p)
	s.stop()
	assert.Zero(t, end.both["drop_full"]+end.both["drop_stall"]+end.both["drop_absent"]+end.both["dropped"], "the policy is to pass: %v", end.both)
	t.Logf("%v", end.both)
}

// A rule diverts the frames of one protocol on their way in, and the engine lets each
// connection past after its first frames: of a stream it sees those and no more.
func TestAcceptedFlow(t *testing.T) {
	t.Parallel()
	const first = 10
	l := newLab(t, calmly)
	p := cage(t)
	l.divert(longStall, "queue-len=65536", "queue-bytes=256mb")
	_, err := l.client.LoadFilter(l.ctx, &client.FilterSource{Schema: client.Schema, Name: filterName, File: "divert.rules", Rules: []byte("divert tcp from any to any in\n")})
	require.NoError(t, err)
	l.link(p)
	e := l.program(p, "--accept-flow-after", strconv.Itoa(first))
	l.copyTo(p, 10<<20)
	_, err = l.host.Ping(l.ctx, farAddr(p), smallPing, answer)
	require.NoError(t, err)
	end := l.decided(p)
	frames := end.in["seen"]
	assert.Greater(t, frames, uint64(10<<20/board.DefaultMTU), "all of the stream is on its way in")
	assert.Positive(t, end.in["flow_passed"])
	assert.GreaterOrEqual(t, end.in["accepted"], uint64(first))
	assert.Less(t, end.in["accepted"], frames/10, "the engine sees the beginning alone")
	assert.Equal(t, frames, end.in["accepted"]+end.in["flow_passed"])
	assert.Positive(t, end.queue.Counters["flows_accepted"])
	end.out.only(t, counts{}, "no rule diverts what the host sends")
	require.NoError(t, e.Process.Signal(unix.SIGTERM))
	require.NoError(t, e.Wait())
	t.Logf("%v", end.in)
}
