package divert

import (
	"bytes"
	"encoding/binary"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/divert/proto"
	"oxpd/internal/frame"
)

// offerAll offers n frames, all of which are taken, and which the caller's memory keeps
// nothing of.
func (r *socketRig) offerAll(n int) {
	scratch := make([]byte, 1514)
	for i := range n {
		copy(scratch, udp(byte(i>>8), len(scratch), byte(i)))
		require.Equal(r, Taken, r.offer(scratch))
		for k := range scratch {
			scratch[k] = 0xee
		}
	}
}

// flood offers frames until the engine's socket is full.
func (r *socketRig) flood(n int) {
	before := r.l.Stats().SendAgain
	r.offerAll(n)
	r.eventually("socket is full", func() bool { return r.l.Stats().SendAgain > before })
}

// frames reads n.
func (p *peer) frames(n int) []proto.Frame {
	all := make([]proto.Frame, n)
	for i := range all {
		all[i] = p.frame()
	}
	return all
}

// records are verdicts of one kind.
func records(frames []proto.Frame, code proto.Code) []proto.Record {
	all := make([]proto.Record, len(frames))
	for i := range all {
		all[i] = proto.Record{ID: frames[i].ID, Code: code}
	}
	return all
}

// An engine that reads nothing is in nobody's way.
func TestShutdownWithAFullSocket(t *testing.T) {
	r := newSocketRig(t, nil, nil)
	r.attach()
	r.flood(700)
	r.stop()
	assert.Equal(t, Counts{Seen: 700, DropAbsent: 700}, r.Counts(0, In))
}

func TestShutdownIsSaid(t *testing.T) {
	r := newSocketRig(t, func(s *Settings) { s.OnAbsent = Pass }, nil)
	p := r.attach()
	r.offerAll(3)
	p.frames(3)
	r.stop()
	bye, err := proto.ParseBye(p.read())
	require.NoError(t, err)
	assert.Equal(t, proto.ReasonShutdown, bye.Reason)
	assert.Equal(t, Counts{Seen: 3, PassAbsent: 3}, r.Counts(0, In))
	assert.Equal(t, 3, r.out.len())
}

// What an engine said before it went holds, though it left frames unread.
func TestLastWords(t *testing.T) {
	r := newSocketRig(t, nil, nil)
	r.out.gate = make(chan struct{})
	p := r.attach()
	r.flood(700)
	frames := p.frames(11)
	p.say(records(frames[:1], proto.Accept)...)
	r.eventually("the reader is busy with the first", func() bool { return r.Queue.Stats().Frames < 700 })
	p.say(records(frames[1:], proto.Accept)...)
	require.NoError(t, p.Close())
	time.Sleep(20 * time.Millisecond) // the writer sees it first
	close(r.out.gate)
	r.eventually("gone", func() bool { return r.l.Engine() == nil })
	assert.Equal(t, Counts{Seen: 700, Accepted: 11, DropAbsent: 689}, r.Counts(0, In))
}

// An engine that is restarted finds its place, though the last of the one before is in
// work yet.
func TestRestartedEngine(t *testing.T) {
	r := newSocketRig(t, nil, nil)
	r.out.gate = make(chan struct{})
	p := r.attach()
	r.offerAll(1)
	p.say(records(p.frames(1), proto.Accept)...)
	r.eventually("the reader is busy", func() bool { return r.Queue.Stats().Frames == 0 })
	require.NoError(t, p.Close())
	next := r.dial()
	require.NoError(t, next.SetDeadline(time.Now().Add(50*time.Millisecond)))
	_, err := next.Read(make([]byte, proto.MaxMessage))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "neither a Hello nor a Bye")
	require.NoError(t, next.SetDeadline(time.Now().Add(hang)))
	close(r.out.gate)
	r.greet(next)
	r.offerAll(1)
	next.say(records(next.frames(1), proto.Accept)...)
	r.eventually("settled", func() bool { return r.out.len() == 2 })
	assert.Equal(t, uint64(2), r.Queue.Stats().Events.Attached)
}

// Connections that say nothing keep no engine away.
func TestSilentConnections(t *testing.T) {
	r := newSocketRig(t, nil, nil)
	for range handshakes - 1 {
		r.dial()
	}
	r.attach()
	r.dial()
	bye, err := proto.ParseBye(r.dial().read())
	require.NoError(t, err)
	assert.Equal(t, proto.ReasonBusy, bye.Reason)
}

// INS-1: frames that wait while the queue goes round ten times stay as they were.
func TestHeldFramesStayAsTheyWere(t *testing.T) {
	const room = 64
	r := newSocketRig(t, func(s *Settings) { s.QueueLen = room }, nil)
	p := r.attach()
	r.offerAll(room / 2)
	held := p.frames(room / 2)
	for range 20 {
		r.offerAll(room / 2)
		p.say(records(p.frames(room/2), proto.Drop)...)
		r.eventually("settled", func() bool { return r.Queue.Stats().Frames == room/2 })
	}
	p.say(records(held, proto.Accept)...)
	r.eventually("settled", func() bool { return r.out.len() == room/2 })
	for i, b := range r.out.frames {
		require.Equal(t, udp(0, 1514, byte(i)), b)
		require.Equal(t, b, held[i].Bytes)
	}
}

// INS-2: an engine that skips frames, says what is none, and goes with 500 unanswered.
func TestEveryFrameIsInOneCounter(t *testing.T) {
	r := newSocketRig(t, nil, nil)
	p := r.attach()
	r.offerAll(700)
	answered := uint64(0)
	for i := range 200 {
		f := p.frame()
		if i%7 == 0 {
			continue
		}
		p.say(proto.Record{ID: f.ID, Code: proto.Accept})
		answered++
	}
	p.write([]byte("error"))
	r.eventually("heard", func() bool { return r.out.len() == int(answered) && r.l.Stats().BadMessages == 1 })
	assert.Equal(t, Counts{Seen: 700, Accepted: answered, Queued: 700 - answered}, r.Counts(0, In))
	p.Close()
	r.eventually("gone", func() bool { return r.l.Engine() == nil })
	assert.Equal(t, Counts{Seen: 700, Accepted: answered, DropAbsent: 700 - answered}, r.Counts(0, In))
}

// INS-3: of two verdicts the first holds, and a late one changes nothing, also not about
// the frame that has the place now.
func TestTwoVerdicts(t *testing.T) {
	r := newSocketRig(t, func(s *Settings) { s.OnStall = Pass }, nil)
	p := r.attach()
	r.offerAll(1)
	first := p.frame().ID
	p.say(proto.Record{ID: first, Code: proto.Drop}, proto.Record{ID: first, Code: proto.Accept})
	r.eventually("late", func() bool { return r.Queue.Stats().Events.Late == 1 })
	r.offerAll(1)
	second := p.frame().ID
	r.clock.pass(r.Settings().Stall)
	r.Expire()
	require.Equal(t, Counts{Seen: 2, Dropped: 1, PassStall: 1}, r.Counts(0, In))
	r.clock.pass(r.Settings().Stall)
	require.Equal(t, Taken, r.offer(udp(7, 1514, 7)), "the trial, in the place of the second")
	third := p.frame().ID
	p.say(proto.Record{ID: second, Code: proto.Drop}, proto.Record{ID: third + 1<<slotBits, Code: proto.Drop})
	r.eventually("late", func() bool { return r.Queue.Stats().Events.Late == 2 })
	assert.Equal(t, uint64(1), r.Queue.Stats().Events.Unknown)
	assert.Equal(t, 1, r.Queue.Stats().Frames)
	p.say(proto.Record{ID: third, Code: proto.Accept})
	r.eventually("settled", func() bool { return r.out.len() == 2 })
	assert.Equal(t, udp(7, 1514, 7), r.out.frames[1])
}

// INS-4: the last frames of a burst need no further ones to come back.
func TestBurstsComeBackWhole(t *testing.T) {
	r := newSocketRig(t, nil, nil)
	p := r.attach()
	all := 0
	for _, n := range []int{sendBatch + 1, 1, sendBatch - 1} {
		r.offerAll(n)
		all += n
		p.say(records(p.frames(n), proto.Accept)...)
		r.eventually("all are back", func() bool { return r.out.len() == all })
	}
}

// INS-6: a message is used whole or not at all.
func TestMalformedMessages(t *testing.T) {
	for name, spoil := range map[string]func(b []byte) []byte{
		"7 bytes":                      func(b []byte) []byte { return b[:7] },
		"9 bytes":                      func(b []byte) []byte { return b[:9] },
		"unknown code at the last":     func(b []byte) []byte { b[len(b)-8] = 0xff; return b },
		"replacement longer than said": func(b []byte) []byte { b[len(b)-8] = byte(proto.Replace); return append(b, 1, 2, 3) },
		"replacement cut":              func(b []byte) []byte { b[len(b)-8], b[len(b)-4] = byte(proto.Replace), 4; return append(b, 1, 2, 3) },
		"longer than any":              func(b []byte) []byte { return append(b, make([]byte, proto.MaxMessage)...) },
		"empty":                        func(b []byte) []byte { return nil },
		"hello again":                  func(b []byte) []byte { return proto.AppendHello(nil, &proto.Hello{Version: proto.Version}) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newSocketRig(t, nil, nil)
			p := r.attach()
			r.offerAll(5)
			b := proto.BeginVerdicts(nil)
			for _, rec := range records(p.frames(5), proto.Accept) {
				b, _ = proto.AppendRecord(b, &rec)
			}
			p.write(spoil(b))
			r.eventually("counted", func() bool { return r.l.Stats().BadMessages == 1 })
			assert.Equal(t, Counts{Seen: 5, Queued: 5}, r.Counts(0, In))
			r.clock.pass(r.Settings().Stall)
			r.Expire()
			assert.Equal(t, Counts{Seen: 5, DropStall: 5}, r.Counts(0, In))
			assert.NotNil(t, r.l.Engine(), "it stays")
			r.clock.pass(r.Settings().Stall)
			r.offerAll(1)
			p.say(records(p.frames(1), proto.Accept)...)
			r.eventually("the next message is used", func() bool { return r.out.len() == 1 })
		})
	}
}

func TestLongerReplacement(t *testing.T) {
	r := newSocketRig(t, nil, nil)
	p := r.attach()
	r.offerAll(3)
	f := p.frames(3)
	p.say(proto.Record{ID: f[0].ID, Code: proto.Replace, Frame: udp(1, 9014, 1)}, proto.Record{ID: f[1].ID, Code: proto.Replace, Frame: udp(1, 9015, 1)},
		proto.Record{ID: f[2].ID, Code: proto.Replace, Frame: make([]byte, 13)})
	r.eventually("settled", func() bool { return r.Queue.Stats().Frames == 0 })
	assert.Equal(t, Counts{Seen: 3, Replaced: 1, Oversize: 2}, r.Counts(0, In))
	assert.Equal(t, udp(1, 9014, 1), r.out.frames[0])
}

// refusing is a kernel without memory for some sends.
func refusing(errs ...error) func(m messages, fd, from, end int) (int, error) {
	return func(m messages, fd, from, end int) (int, error) {
		if len(errs) > 0 {
			err := errs[0]
			errs = errs[1:]
			return 0, err
		}
		return m.Send(fd, from, end)
	}
}

func TestNoBuffersEndNothing(t *testing.T) {
	r := newSocketRig(t, nil, func(c *ListenerConfig) { c.Send = refusing(unix.ENOBUFS, unix.ENOMEM, unix.EINTR, unix.ENOBUFS) })
	p := r.attach()
	r.offerAll(40)
	for i, f := range p.frames(40) {
		require.Equal(t, udp(0, 1514, byte(i)), f.Bytes, "each once, in order")
		p.say(proto.Record{ID: f.ID, Code: proto.Accept})
	}
	r.eventually("settled", func() bool { return r.out.len() == 40 })
	assert.Equal(t, uint64(3), r.l.Stats().SendNoBufs)
}

func TestNoBuffersForEver(t *testing.T) {
	r := newSocketRig(t, nil, func(c *ListenerConfig) {
		c.Send = func(messages, int, int, int) (int, error) { return 0, unix.ENOBUFS }
	})
	r.attach()
	r.offerAll(40)
	r.eventually("tried", func() bool { return r.l.Stats().SendNoBufs > 3 })
	r.clock.pass(r.Settings().Stall)
	r.Expire()
	assert.Equal(t, Counts{Seen: 40, DropStall: 40}, r.Counts(0, In))
	assert.NotNil(t, r.l.Engine())
	r.stop()
}

// A socket that cannot be written to ends the engine, and loses nothing uncounted.
func TestSendFails(t *testing.T) {
	r := newSocketRig(t, nil, func(c *ListenerConfig) { c.Send = refusing(unix.EMSGSIZE) })
	p := r.attach()
	r.offerAll(1)
	r.eventually("gone", func() bool { return r.l.Engine() == nil })
	assert.Equal(t, Counts{Seen: 1, DropAbsent: 1}, r.Counts(0, In))
	_, err := p.Read(make([]byte, 10))
	assert.Error(t, err)
	r.attach()
}

func TestListenErrors(t *testing.T) {
	r := newSocketRig(t, nil, nil)
	cfg := ListenerConfig{Path: r.l.Path(), Queue: r.Queue, Clock: r.clock}
	_, err := Listen(cfg)
	assert.ErrorContains(t, err, "listens there already")
	cfg.Path = r.l.Path() + ".file"
	require.NoError(t, os.WriteFile(cfg.Path, []byte("mine"), 0o600))
	_, err = Listen(cfg)
	assert.ErrorContains(t, err, "no socket is in its place")
	b, err := os.ReadFile(cfg.Path)
	require.NoError(t, err)
	assert.True(t, bytes.Equal([]byte("mine"), b))
}

// Listeners share the frames by their hosts. The share of one whose engine goes follows
// the policy, and is nobody else's.
func TestListenersShare(t *testing.T) {
	const hosts = 60
	var rigs [3]*socketRig
	var queues []*Queue
	for i := range rigs {
		rigs[i] = newSocketRig(t, func(s *Settings) { s.OnAbsent = Pass }, nil)
		queues = append(queues, rigs[i].Queue)
	}
	in := NewInspector(queues)
	offer := func(want func(host int) Fate) {
		for host := range hosts {
			for _, back := range []bool{false, true} {
				b := udp(byte(host), 1514, byte(host))
				from, to := b[26:30], b[30:34]
				if back {
					from, to = to, from
				}
				copy(from, []byte{10, 0, 0, 1})
				copy(to, []byte{10, 0, 1, byte(host)})
				require.Equal(t, want(host), in.Offer(rigs[0].clock.Now(), &Offered{Pieces: [][]byte{b}, Bytes: len(b), Head: &frame.Packet{}}))
			}
		}
	}
	var engines [3]*peer
	for i := range rigs {
		engines[i] = rigs[i].attach()
	}
	offer(func(int) Fate { return Taken })
	engineOf := map[byte]int{}
	for i, r := range rigs {
		n := r.Queue.Stats().Frames
		assert.NotZero(t, n)
		frames := engines[i].frames(n)
		for _, f := range frames {
			host := f.Bytes[len(f.Bytes)-1]
			if other, ok := engineOf[host]; ok {
				assert.Equal(t, other, i, "both directions of host %d", host)
			}
			engineOf[host] = i
		}
		engines[i].say(records(frames, proto.Accept)...)
		r.eventually("accepted", func() bool { return r.out.len() == n })
	}
	assert.Len(t, engineOf, hosts)

	engines[1].Close()
	rigs[1].eventually("gone", func() bool { return rigs[1].l.Engine() == nil })
	offer(func(host int) Fate {
		if engineOf[byte(host)] == 1 {
			return Passed
		}
		return Taken
	})
	share := rigs[1].Counts(0, In)
	assert.Equal(t, Counts{Seen: share.Seen, Accepted: share.Seen / 2, PassAbsent: share.Seen / 2}, share)
	assert.Equal(t, uint64(4*hosts), in.Counts(0, In).Seen)
}

// Engines come and go while frames are offered: each frame is in one
// counter, and those that went on are as they were, each once.
func TestEnginesComeAndGo(t *testing.T) {
	r := newSocketRig(t, func(s *Settings) { s.OnAbsent, s.OnFull, s.QueueLen = Pass, Pass, 200 }, nil)
	ended := make(chan struct{})
	stop := sync.OnceFunc(func() { close(ended) })
	fates := make(chan [Lost + 1]uint64, 1)
	go func() {
		var n [Lost + 1]uint64
		scratch := make([]byte, 1514)
		for i := uint32(0); ; i++ {
			select {
			case <-ended:
				fates <- n
				return
			default:
			}
			copy(scratch, udp(byte(i), len(scratch), 0))
			for k := 42; k+4 <= len(scratch); k += 4 {
				binary.LittleEndian.PutUint32(scratch[k:], i)
			}
			n[r.offer(scratch)]++
			if i%64 == 63 {
				time.Sleep(time.Millisecond)
			}
		}
	}()
	t.Cleanup(stop)
	var accepted, dropped int
	for round := range 20 {
		p := r.attach()
		frames := p.frames(round % 40)
		half := len(frames) / 2
		if half > 0 {
			p.say(records(frames[:half], proto.Accept)...)
			p.say(records(frames[half:], proto.Drop)...)
			accepted, dropped = accepted+half, dropped+len(frames)-half
		}
		require.NoError(t, p.Close())
		r.eventually("gone", func() bool { return r.l.Engine() == nil })
	}
	stop()
	n := <-fates
	c := r.Counts(0, In)
	assert.Equal(t, Counts{
		Seen: n[Passed] + n[Taken], Accepted: uint64(accepted), Dropped: uint64(dropped), PassAbsent: c.PassAbsent, PassFull: c.PassFull, Reordered: c.Reordered,
	}, c, "what an engine said before it went holds")
	assert.Equal(t, n[Taken], uint64(r.out.len()+dropped))
	last := int64(-1)
	for _, b := range r.out.frames {
		mark := binary.LittleEndian.Uint32(b[42:])
		require.Greater(t, int64(mark), last, "each once, in order")
		last = int64(mark)
		for k := 42; k+4 <= len(b); k += 4 {
			require.Equal(t, mark, binary.LittleEndian.Uint32(b[k:]))
		}
	}
}
