package divert

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/frame"
)

// INS-2: an engine that says nothing about every seventh id, and garbage about others.
func TestEachIDEndsOnce(t *testing.T) {
	r := newRig(t, nil)
	r.Attach()
	for i := range byte(100) {
		require.Equal(t, Taken, r.offer(udp(1, 100, i)))
	}
	ids := r.take(100)
	for i, id := range ids {
		if i%7 != 0 {
			r.clock.now += time.Millisecond
			r.Settle([]Verdict{{ID: id, Code: CodeAccept}, {ID: id, Code: CodeDrop}})
		}
	}
	r.clock.now += time.Second
	for range 20 {
		r.Expire()
	}
	assert.Equal(t, Counts{Seen: 100, Accepted: 85, DropStall: 15}, r.Counts(0, In))
	r.empty()
}

// INS-3: a second verdict, and one that comes after the policy has acted, change nothing;
// nor do they reach the frame that has the place of the old one.
func TestSecondVerdictIsForNobody(t *testing.T) {
	r := newRig(t, nil)
	r.Attach()
	r.offer(udp(1, 100, 0))
	old := r.take(1)[0]
	r.Settle([]Verdict{{ID: old, Code: CodeAccept}, {ID: old, Code: CodeDrop}})
	r.offer(udp(1, 100, 1))
	fresh := r.take(1)[0]
	require.Equal(t, old&slotMask, fresh&slotMask, "the place is used again")
	r.Settle([]Verdict{{ID: old, Code: CodeDrop}})
	assert.Equal(t, Counts{Seen: 2, Accepted: 1, Queued: 1}, r.Counts(0, In))
	r.clock.now += time.Second
	r.Expire()
	r.Settle([]Verdict{{ID: fresh, Code: CodeAccept}})
	assert.Equal(t, Counts{Seen: 2, Accepted: 1, DropStall: 1}, r.Counts(0, In))
	assert.Equal(t, uint64(3), r.Stats().Events.Late)
}

// An engine that repeats one id for ever does not keep its queue from stalling.
func TestRepeatedIDIsNoLife(t *testing.T) {
	r := newRig(t, nil)
	r.Attach()
	r.offer(udp(1, 100, 0))
	id := r.take(1)[0]
	r.Settle([]Verdict{{ID: id, Code: CodeAccept}})
	r.offer(udp(1, 100, 1))
	for range 12 {
		r.clock.now += 100 * time.Millisecond
		r.Settle([]Verdict{{ID: id, Code: CodeAccept}})
		r.Expire()
	}
	assert.Equal(t, Stalled, r.Stats().State)
	assert.Equal(t, Counts{Seen: 2, Accepted: 1, DropStall: 1}, r.Counts(0, In))
}

// datagram is a UDP datagram of two hosts cut into fragments of most bytes; host tells
// hosts apart.
func datagram(v6 bool, host, n, most int) (frames [][]byte) {
	for at := 0; at < n; at += most {
		size := min(most, n-at)
		more := uint16(0)
		if at+size < n {
			more = 1
		}
		var ip []byte
		if v6 {
			ip = make([]byte, 48)
			ip[0], ip[6], ip[7] = 0x60, 44, 64
			binary.BigEndian.PutUint16(ip[4:], uint16(8+size))
			binary.BigEndian.PutUint16(ip[22:], uint16(host))
			binary.BigEndian.PutUint16(ip[38:], uint16(host)+1)
			ip[40] = 17
			binary.BigEndian.PutUint16(ip[42:], uint16(at)|more)
		} else {
			ip = make([]byte, 20)
			ip[0], ip[8], ip[9], ip[12], ip[16] = 0x45, 64, 17, 10, 10
			binary.BigEndian.PutUint16(ip[2:], uint16(20+size))
			binary.BigEndian.PutUint16(ip[6:], uint16(at/8)|more<<13)
			binary.BigEndian.PutUint16(ip[14:], uint16(host))
			binary.BigEndian.PutUint16(ip[18:], uint16(host)+1)
		}
		kind := []byte{0x08, 0}
		if v6 {
			kind = []byte{0x86, 0xdd}
		}
		data := bytes.Repeat([]byte{byte(at >> 4)}, size) // the first has ports, and others bytes in their place
		frames = append(frames, bytes.Join([][]byte{make([]byte, 12), kind, ip, data}, nil))
	}
	return frames
}

// answer is the frame as its receiver would answer it: addresses and ports the other way.
func answer(b []byte, v6 bool) []byte {
	b = bytes.Clone(b)
	at, n := 14+12, 4
	if v6 {
		at, n = 14+8, 16
	}
	src := bytes.Clone(b[at : at+n])
	copy(b[at:], b[at+n:at+2*n])
	copy(b[at+n:], src)
	return b
}

// INS-7: all pieces of a datagram, the answers, and what was not cut go to one listener.
func TestOneEngineForTwoHosts(t *testing.T) {
	for name, v6 := range map[string]bool{"IPv4": false, "IPv6": true} {
		t.Run(name, func(t *testing.T) {
			var queues []*Queue
			for range 4 {
				q := NewQueue(QueueConfig{Settings: Defaults(), Outlet: &count{}, Limit: func(int) int { return 1500 }, Clock: &handClock{}})
				queues = append(queues, q)
			}
			in := NewInspector(queues)
			where := func(b []byte) (at int) {
				var head frame.Packet
				before := make([]uint64, len(queues))
				for i, q := range queues {
					before[i] = q.Counts(0, In).Seen
				}
				in.Offer(0, &Offered{Pieces: [][]byte{b}, Bytes: len(b), Head: &head})
				at = -1
				for i, q := range queues {
					if q.Counts(0, In).Seen != before[i] {
						at = i
					}
				}
				return at
			}
			share := make([]int, len(queues))
			for host := range 1000 {
				pieces := datagram(v6, 2*host, 8000, 1480)
				require.Len(t, pieces, 6)
				want := where(pieces[0])
				share[want]++
				for _, p := range append(pieces[1:], datagram(v6, 2*host, 100, 1480)[0], answer(pieces[0], v6), answer(pieces[3], v6)) {
					require.Equal(t, want, where(p))
				}
			}
			for i, n := range share {
				assert.InDelta(t, 250, n, 100, "listener %d", i)
			}
		})
	}
}

// A dead listener's share goes by on-absent and is not given to the others.
func TestDeadListener(t *testing.T) {
	s := Defaults()
	s.OnAbsent = Pass
	var queues []*Queue
	for range 2 {
		queues = append(queues, NewQueue(QueueConfig{Settings: s, Outlet: &count{}, Limit: func(int) int { return 1500 }, Clock: &handClock{}}))
	}
	queues[0].Attach()
	in := NewInspector(queues)
	for host := range 100 {
		var head frame.Packet
		b := datagram(false, 2*host, 100, 1480)[0]
		in.Offer(0, &Offered{Pieces: [][]byte{b}, Bytes: len(b), Head: &head})
	}
	c := in.Counts(0, In)
	assert.Equal(t, uint64(100), c.Seen)
	assert.Equal(t, queues[0].Counts(0, In).Seen, c.Queued)
	assert.Equal(t, queues[1].Counts(0, In).Seen, c.PassAbsent)
	assert.NotZero(t, c.Queued)
	assert.NotZero(t, c.PassAbsent)
}

// TestReports: the first loss is spoken of at once, with what to change, and then at most
// once a second.
func TestReports(t *testing.T) {
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	s := Defaults()
	s.QueueLen, s.Stall = 1, 10*time.Second
	clock := &handClock{now: time.Hour}
	q := NewQueue(QueueConfig{Name: "ips", Settings: s, Outlet: &count{}, Limit: func(int) int { return 1500 }, Clock: clock, Log: log})
	b := udp(1, 100, 0)
	var head frame.Packet
	head.Parse(b, len(b))
	offer := func() { q.Offer(clock.now, &Offered{Pieces: [][]byte{b}, Bytes: len(b), Head: &head}) }
	said := func() string {
		defer text.Reset()
		q.Expire()
		return text.String()
	}
	assert.Empty(t, said())
	offer()
	line := said()
	assert.Contains(t, line, "queue=ips")
	assert.Contains(t, line, `why="no engine is attached" dropped=1 passed_uninspected=0`)
	assert.Contains(t, line, "on-absent")
	q.Attach()
	for range 6 {
		offer()
	}
	clock.now += reportPeriod - 1
	assert.Empty(t, said(), "not twice in a second")
	clock.now++
	line = said()
	assert.Contains(t, line, `why="queue full: frames" dropped=5`)
	assert.Contains(t, line, "raise queue-len (now 1 frames)")
	assert.Equal(t, 1, bytes.Count([]byte(line), []byte("\n")))
	clock.now += time.Hour
	assert.Contains(t, said(), "raise stall-ms (now 10000)")
	clock.now += time.Hour
	offer()
	var taken [1]Ticket
	require.Equal(t, 1, q.Take(taken[:]))
	q.Settle([]Verdict{{ID: taken[0].ID, Code: CodeShortened}})
	line = said()
	assert.Contains(t, line, `why="the engine gave them back cut" dropped=1`)
	assert.Contains(t, line, "raise the engine's snaplen to 9022 bytes")
	clock.now += time.Hour
	assert.Empty(t, said(), "nothing new")
}

// TestSetKeepsWhatIsQueued: a queue above a new bound takes nothing until it has drained.
func TestSetKeepsWhatIsQueued(t *testing.T) {
	r := newRig(t, nil)
	r.Attach()
	for i := range byte(10) {
		require.Equal(t, Taken, r.offer(udp(1, 1500, i)))
	}
	s := Defaults()
	s.QueueLen = 5
	r.Set(s)
	ids := r.take(20)
	require.Len(t, ids, 10)
	for i, id := range ids {
		want := Lost
		if i > 5 {
			want = Taken
		}
		assert.Equal(t, want, r.offer(udp(1, 1500, 0)), "%d decided", i)
		if want == Taken {
			r.Settle([]Verdict{{ID: r.take(1)[0], Code: CodeDrop}})
		}
		r.Settle([]Verdict{{ID: id, Code: CodeAccept}})
	}
	assert.Equal(t, Counts{Seen: 20, Accepted: 10, Dropped: 4, DropFull: 6}, r.Counts(0, In))
}

// FuzzSettle: whatever an engine says, each frame ends once.
func FuzzSettle(f *testing.F) {
	f.Add(uint64(1<<slotBits), uint8(1), uint64(0), uint8(3), []byte{})
	f.Fuzz(func(t *testing.T, id1 uint64, code1 uint8, id2 uint64, code2 uint8, other []byte) {
		r := newRig(t, nil)
		r.Attach()
		for i := range byte(3) {
			r.offer(udp(1, 100, i))
		}
		r.take(2)
		r.Settle([]Verdict{{ID: id1, Code: Code(code1), Frame: other}, {ID: id2, Code: Code(code2), Frame: other}, {ID: id1, Code: Code(code2)}})
		r.Detach()
		c := r.Counts(0, In)
		require.Equal(t, uint64(3), c.Passed()+c.Lost())
		require.Equal(t, uint64(len(r.out.frames)), c.Passed())
		r.empty()
	})
}
