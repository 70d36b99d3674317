package divert

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/frame"
)

// waiting is a frame without a verdict, in the model.
type waiting struct {
	mark   uint64 // in the frame
	id     uint64 // once it was handed out
	due    time.Duration
	flow   byte
	bytes  int
	handed bool
}

// model is the queue as a list that is searched, with the rules of the manual. It knows
// frames by marks that they carry.
type model struct {
	set          Settings
	list         []*waiting
	attached     bool
	stalled      bool
	trial        time.Duration
	lastVerdict  time.Duration
	lateAbove    uint64
	given        []uint64 // ids that were handed out, in order
	accepted     map[byte]time.Duration
	c            Counts
	late, stalls uint64
	out          [][]byte // what has to come out, in order
}

func (m *model) bytes() (n int64) {
	for _, w := range m.list {
		n += int64(w.bytes) + EntryOverhead
	}
	return n
}

func (m *model) busy(flow byte) bool {
	return slices.ContainsFunc(m.list, func(w *waiting) bool { return w.flow == flow })
}

func (m *model) offer(now time.Duration, flow byte, mark uint64, n int) Fate {
	m.c.Seen++
	if last, ok := m.accepted[flow]; ok && now-last < flowIdle {
		if !m.busy(flow) || m.set.Order == Any {
			if m.busy(flow) {
				m.c.Reordered++
			}
			m.accepted[flow] = now
			m.c.FlowPassed++
			return Passed
		}
		m.accepted[flow] = now
	} else {
		delete(m.accepted, flow)
	}
	var pass, drop *uint64
	p := Drop
	switch {
	case !m.attached:
		pass, drop, p = &m.c.PassAbsent, &m.c.DropAbsent, m.set.OnAbsent
	case m.stalled && now < m.trial:
		pass, drop, p = &m.c.PassStall, &m.c.DropStall, m.set.OnStall
	case len(m.list) >= m.set.QueueLen || m.bytes()+int64(n)+EntryOverhead > m.set.QueueBytes:
		pass, drop, p = &m.c.PassFull, &m.c.DropFull, m.set.OnFull
	default:
		if m.stalled {
			m.trial = now + m.set.Stall
		}
		m.list = append(m.list, &waiting{mark: mark, due: now, flow: flow, bytes: n})
		return Taken
	}
	switch {
	case p == Pass && m.busy(flow) && m.set.Order == Keep, p == Drop:
		*drop++
		return Lost
	case m.busy(flow):
		m.c.Reordered++
	}
	*pass++
	return Passed
}

// remove takes a frame out; what is behind it waited for it.
func (m *model) remove(i int, until time.Duration) *waiting {
	w := m.list[i]
	if i+1 < len(m.list) {
		m.list[i+1].due = max(m.list[i+1].due, w.due, until)
	}
	m.list = slices.Delete(m.list, i, i+1)
	return w
}

func (m *model) verdict(now time.Duration, id uint64, code Code, other []byte) {
	i := slices.IndexFunc(m.list, func(w *waiting) bool { return w.handed && w.id == id })
	if i < 0 {
		m.late++
		if id>>slotBits > m.lateAbove {
			m.lateAbove = id >> slotBits
			m.lastVerdict, m.stalled = now, false
			if len(m.list) > 0 && (!m.list[0].handed || id < m.list[0].id) {
				m.list[0].due = max(m.list[0].due, now)
			}
		}
		return
	}
	m.lastVerdict, m.stalled = now, false
	w := m.remove(i, now)
	switch code {
	case CodeDrop:
		m.c.Dropped++
	case CodeReplace:
		if len(other) < 14 || len(other) > 1514 {
			m.c.Oversize++
			return
		}
		m.c.Replaced++
		m.out = append(m.out, other)
	default:
		m.c.Accepted++
		if code == CodeAcceptFlow {
			m.accepted[w.flow] = now
		}
		m.out = append(m.out, marked8(w.flow, w.bytes, w.mark))
	}
}

func (m *model) policy(p Policy, pass, drop *uint64) {
	w := m.remove(0, 0)
	if p == Pass {
		*pass++
		m.out = append(m.out, marked8(w.flow, w.bytes, w.mark))
		return
	}
	*drop++
}

func (m *model) expire(now time.Duration) {
	for len(m.list) > 0 && now-m.list[0].due >= m.set.Stall {
		if m.lastVerdict > m.list[0].due {
			m.policy(m.set.OnStall, &m.c.PassStall, &m.c.DropStall)
			continue
		}
		if !m.stalled {
			m.stalls++
		}
		m.stalled, m.trial = true, now+m.set.Stall
		for len(m.list) > 0 {
			m.policy(m.set.OnStall, &m.c.PassStall, &m.c.DropStall)
		}
	}
}

// marked8 is a frame of a flow with a mark in its last eight bytes.
func marked8(flow byte, n int, mark uint64) []byte {
	b := udp(flow, n, 0)
	binary.BigEndian.PutUint64(b[n-8:], mark)
	return b
}

// held is what a taker has not given back.
type held struct {
	tickets []Ticket
	copies  [][]byte
}

// TestModel runs the queue beside the model. The memory of what was taken must stay as it
// was until it is given back, whatever is decided meanwhile (known bug INS-1).
func TestModel(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { runModel(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

func runModel(t *testing.T, rnd *rand.Rand) {
	pick := func() Settings {
		return Settings{
			QueueLen: 1 + rnd.IntN(40), QueueBytes: MinQueueBytes + rnd.Int64N(40000), Stall: time.Duration(100+rnd.IntN(900)) * time.Millisecond,
			OnFull: Policy(rnd.IntN(2)), OnAbsent: Policy(rnd.IntN(2)), OnStall: Policy(rnd.IntN(2)), Order: Order(rnd.IntN(2)),
		}
	}
	m := &model{set: pick(), accepted: map[byte]time.Duration{}}
	r := newRig(t, func(s *Settings) { *s = m.set })
	var hands []held
	took, mark := 0, uint64(0)
	for step := range 3000 {
		now := r.clock.now
		switch op := rnd.IntN(100); {
		case op < 45:
			flow, n := byte(rnd.IntN(6)), 60+rnd.IntN(1454)
			mark++
			require.Equal(t, m.offer(now, flow, mark, n), r.offer(marked8(flow, n, mark)), "step %d", step)
		case op < 60 && m.attached && len(hands) < 3:
			hands = append(hands, takeBoth(t, r, m, 1+rnd.IntN(12)))
			took++
		case op < 68 && len(hands) > 0:
			giveBack(t, r, m, &hands, rnd)
		case op < 88 && len(m.given) > 0:
			verdictBoth(r, m, rnd)
		case op < 96:
			r.clock.now += time.Duration(rnd.IntN(200)) * time.Millisecond
			r.Expire()
			m.expire(r.clock.now)
		case op < 97:
			m.set = pick()
			r.Set(m.set)
		case op < 98:
			r.Attach()
			m.stalled = m.stalled && m.attached
			m.attached = true
		case op < 99 && rnd.IntN(4) == 0:
			r.Detach()
			m.attached, m.stalled = false, false
			for len(m.list) > 0 {
				m.policy(m.set.OnAbsent, &m.c.PassAbsent, &m.c.DropAbsent)
			}
		}
		m.c.Queued = uint64(len(m.list))
		require.Equal(t, m.c, r.Counts(0, In), "step %d", step)
		s := r.Stats()
		require.Equal(t, m.bytes(), s.Bytes)
		require.Equal(t, len(m.list), s.Frames)
		require.Equal(t, m.stalls, s.Events.Stalls)
		require.Equal(t, m.late, s.Events.Late, "step %d", step)
		for _, h := range hands {
			for i := range h.tickets {
				require.True(t, bytes.Equal(h.copies[i], h.tickets[i].Frame), "memory of a frame that is held")
			}
		}
	}
	require.Equal(t, len(m.out), len(r.out.frames))
	for i := range m.out {
		require.True(t, bytes.Equal(m.out[i], r.out.frames[i]), "frame %d of those that went on", i)
	}
	assert.Greater(t, took, 20, "the test does something")
	for len(hands) > 0 {
		giveBack(t, r, m, &hands, rnd)
	}
	r.Detach()
	r.empty()
}

// takeBoth takes frames, which must be those that are next in the model.
func takeBoth(t *testing.T, r *rig, m *model, most int) held {
	h := held{tickets: make([]Ticket, most)}
	h.tickets = h.tickets[:r.Take(h.tickets)]
	n := 0
	for _, w := range m.list {
		if w.handed || n == most {
			continue
		}
		require.Less(t, n, len(h.tickets))
		tk := &h.tickets[n]
		require.True(t, bytes.Equal(marked8(w.flow, w.bytes, w.mark), tk.Frame), "frame %d of those that are next", n)
		w.id, w.handed = tk.ID, true
		m.given = append(m.given, tk.ID)
		h.copies = append(h.copies, bytes.Clone(tk.Frame))
		n++
	}
	require.Equal(t, n, len(h.tickets))
	return h
}

// giveBack ends the last of the hands, of which a part did not go out: earlier ones are
// ahead of it, and an engine gets frames in order.
func giveBack(t *testing.T, r *rig, m *model, hands *[]held, rnd *rand.Rand) {
	h := (*hands)[len(*hands)-1]
	*hands = (*hands)[:len(*hands)-1]
	sent := len(h.tickets)
	if sent > 0 && h.tickets[sent-1].ID == m.given[len(m.given)-1] && rnd.IntN(2) == 0 {
		sent = rnd.IntN(sent + 1)
	}
	for _, tk := range h.tickets[sent:] {
		m.given = slices.DeleteFunc(m.given, func(id uint64) bool { return id == tk.ID })
		for _, w := range m.list {
			if w.id == tk.ID {
				w.handed = false
			}
		}
	}
	r.Sent(h.tickets, sent)
}

// verdictBoth decides about one of the frames that were ever handed out.
func verdictBoth(r *rig, m *model, rnd *rand.Rand) {
	id := m.given[rnd.IntN(len(m.given))]
	if rnd.IntN(3) > 0 { // mostly one of the last
		id = m.given[len(m.given)-1-rnd.IntN(min(8, len(m.given)))]
	}
	v := Verdict{ID: id, Code: Code(1 + rnd.IntN(3))}
	if rnd.IntN(20) == 0 {
		v.Code = CodeAcceptFlow
	}
	if v.Code == CodeReplace {
		v.Frame = make([]byte, rnd.IntN(2000))
	}
	m.verdict(r.clock.now, v.ID, v.Code, v.Frame)
	r.Settle([]Verdict{v})
}

// empty checks that nothing is left behind a queue without frames.
func (r *rig) empty() {
	assert.Equal(r, len(r.chunks)*chunk, len(r.spare), "entries")
	assert.Equal(r, r.mem.held, r.mem.spare, "memory")
	for i, n := range r.buckets {
		if n != 0 {
			assert.Zero(r, n, "bucket %d", i)
		}
	}
	assert.Equal(r, int32(noEntry), r.first)
	assert.Equal(r, int32(noEntry), r.last)
	assert.Equal(r, int32(noEntry), r.unsent)
}

func TestPathAllocatesNothing(t *testing.T) {
	r := newRig(t, nil)
	r.Attach()
	b := udp(1, 1514, 0)
	var head frame.Packet
	head.Parse(b, len(b))
	f := &Offered{Pieces: [][]byte{b}, Bytes: len(b), Head: &head}
	tickets, verdicts := make([]Ticket, 32), make([]Verdict, 32)
	out := &count{}
	r.Queue.cfg.Outlet = out
	turn := func() {
		for range 32 {
			r.Queue.Offer(0, f)
		}
		n := r.Take(tickets)
		for i := range n {
			verdicts[i] = Verdict{ID: tickets[i].ID, Code: CodeAccept}
		}
		r.Sent(tickets[:n], n)
		r.Settle(verdicts[:n])
	}
	turn()
	assert.Zero(t, testing.AllocsPerRun(100, turn))
	assert.Equal(t, r.Counts(0, In).Seen, out.n)
}

// count is an outlet that counts.
type count struct{ n uint64 }

func (c *count) Release(f []Released) { c.n += uint64(len(f)) }

func BenchmarkQueue(b *testing.B) {
	for _, n := range []int{64, 1514, 9014} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			q := NewQueue(QueueConfig{Settings: Defaults(), Outlet: &count{}, Limit: func(int) int { return 9000 }, Clock: &handClock{}})
			q.Attach()
			f := udp(1, n, 0)
			var head frame.Packet
			head.Parse(f, n)
			o := &Offered{Pieces: [][]byte{f}, Bytes: n, Head: &head}
			tickets, verdicts := make([]Ticket, 32), make([]Verdict, 32)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for range b.N/32 + 1 {
				for range 32 {
					q.Offer(0, o)
				}
				n := q.Take(tickets)
				for i := range n {
					verdicts[i] = Verdict{ID: tickets[i].ID, Code: CodeAccept}
				}
				q.Sent(tickets[:n], n)
				q.Settle(verdicts[:n])
			}
		})
	}
}
