package loadtest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/board"
	"oxpd/internal/daemon/config"
	"oxpd/internal/frame"
	"oxpd/internal/netlab"
	"oxpd/ring/wire"
)

const (
	floodPings = 12 // of each port
	floodAhead = 512
	pingGap    = 20 * time.Millisecond
	lostAfter  = 150 * time.Millisecond // on the flooded ring, where an answer decides nothing
)

// latency is what the pings of one kind took.
type latency struct {
	lost int
	took []time.Duration
}

func (l latency) String() string {
	if len(l.took) == 0 {
		return "none"
	}
	slices.Sort(l.took)
	return fmt.Sprintf("median %v, longest %v", l.took[len(l.took)/2].Round(time.Microsecond), l.took[len(l.took)-1].Round(time.Microsecond))
}

// pings sends pings from the far side to the host on each of some ports at once.
// A lost one is an answer that has not come by limit.
func (l *lab) pings(ports []board.Port, limit time.Duration) (all latency) {
	l.t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, p := range ports {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range floodPings {
				took, err := l.far.Ping(l.ctx, hostAddr(p), smallPing, limit)
				mu.Lock()
				if err == nil {
					all.took = append(all.took, took)
				} else if all.lost++; !errors.Is(err, netlab.ErrNoReply) {
					assert.NoError(l.t, err)
				}
				mu.Unlock()
				time.Sleep(pingGap)
			}
		}()
	}
	wg.Wait()
	return all
}

// TestOutboundFloodOfOnePortHurtsNoOther: the transmitter gives each port a turn,
// so a port that always has frames delays the others and costs them none.
func TestOutboundFloodOfOnePortHurtsNoOther(t *testing.T) {
	for _, size := range []int{64, board.MaxMTU + frame.HeaderSize} {
		t.Run(fmt.Sprintf("frames of %d bytes", size), func(t *testing.T) {
			l := newLab(t)
			all := board.All()
			flooded, others := all[0], all[1:]
			l.settle(flooded, board.MaxMTU)
			idle := l.pings(others, answer)
			before := l.stats()

			link, err := l.host.Link(flooded.Name)
			require.NoError(t, err)
			remote, err := l.far.Link(flooded.Label)
			require.NoError(t, err)
			b := testFrame(remote.MAC, link.MAC, size, 0)
			flood, stop := context.WithCancel(l.ctx)
			var wg sync.WaitGroup
			for range 2 { // one alone may be kept waiting by its own socket's bound
				socket, err := l.host.Packets(flooded.Name)
				require.NoError(t, err)
				defer socket.Close()
				wg.Add(1)
				go func() {
					defer wg.Done()
					for flood.Err() == nil {
						if err := socket.Send(b); err != nil && !errors.Is(err, unix.ENOBUFS) {
							assert.NoError(t, err)
							return
						}
					}
				}()
			}
			l.wait("the flood", func() bool { return posted(l, flooded) > 10_000 })
			start := time.Now()
			first := posted(l, flooded)
			loaded := l.pings(others, answer)
			rate := float64(posted(l, flooded)-first) / time.Since(start).Seconds()
			stop()
			wg.Wait()

			assert.Zero(t, idle.lost)
			assert.Zero(t, loaded.lost, "pings of the eleven other ports")
			r := l.books()
			full := r.stats.Device["tx_iq_full"] - before.Device["tx_iq_full"]
			assert.Zero(t, full, "what does not fit waits in its own port's queue")
			p, _ := r.stats.Port(flooded.Name)
			t.Logf("pings idle: %v; beside %.0f frames/s on %s, of which %d found its kernel's queue full: %v",
				idle, rate, flooded, p.Counters["tap_kernel_dropped"], loaded)
		})
	}
}

func posted(l *lab, p board.Port) uint64 {
	s, _ := l.stats().Port(p.Name)
	return s.Counters["tx_packets"]
}

// TestInboundFloodOfOneTupleHurtsNoOtherRing: one worker serves every ring, the
// hardest case. What the flooded ring loses the card counts; no other loses any.
func TestInboundFloodOfOneTupleHurtsNoOtherRing(t *testing.T) {
	l := newLab(t, func(c *config.Config) { c.Workers = 1 })
	p, err := board.Parse("F1")
	require.NoError(t, err)
	host, err := l.host.Link(p.Name)
	require.NoError(t, err)
	far, err := l.far.Link(p.Label)
	require.NoError(t, err)
	// The rings are those that the card's counters name: which tuple takes which
	// is not on record.
	rings := map[int][]board.Port{}
	for _, q := range board.All() {
		n := l.ringOf(func() {
			_, err := l.far.Ping(l.ctx, hostAddr(q), smallPing, answer)
			require.NoError(t, err)
		})
		rings[n] = append(rings[n], q)
	}
	b := testFrame(host.MAC, far.MAC, 64, 1)
	target := l.ringOf(func() { l.inject(p, b) })
	for source := uint16(2); rings[target] == nil; source++ { // one that pings take too
		b = testFrame(host.MAC, far.MAC, 64, source)
		target = l.ringOf(func() { l.inject(p, b) })
	}
	var others []board.Port
	for n, ports := range rings {
		if n != target {
			others = append(others, ports...)
		}
	}
	require.NotEmpty(t, others)
	idle := l.pings(others, answer)

	flood, stop := context.WithCancel(l.ctx)
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		for flood.Err() == nil {
			if l.wire(p).Backlog() > floodAhead {
				time.Sleep(50 * time.Microsecond)
				continue
			}
			for range 64 {
				l.inject(p, b)
			}
		}
	}()
	l.wait("the flooded ring full", func() bool { return l.ringFull() > 1000 })
	start, first := time.Now(), l.card.RingState(target).Packets
	var same latency
	var beside sync.WaitGroup
	beside.Add(1)
	go func() {
		defer beside.Done()
		same = l.pings(rings[target], lostAfter)
	}()
	loaded := l.pings(others, answer)
	rate := float64(l.card.RingState(target).Packets-first) / time.Since(start).Seconds()
	beside.Wait()
	stop()
	wg.Wait()

	assert.Zero(t, loaded.lost, "pings that take the %d other rings", len(rings)-1)
	r := l.books()
	full := l.ringFull()
	assert.LessOrEqual(t, uint64(same.lost), full, "a ping of the flooded ring is lost only where the card says so")
	port, _ := r.stats.Port(p.Name)
	assert.Equal(t, r.stats.Device["rx_done"], r.stats.Sums.Addends["rx_packets"], "whatever the rings took arrived")
	t.Logf("pings idle: %v; beside %.0f frames/s on ring %d: %v; on that ring %d of %d lost, %v; of %d frames %d found it full",
		idle, rate, target, loaded, same.lost, same.lost+len(same.took), same, port.Counters["rx_packets"]+full, full)
}

// ringOf is the ring that one more packet takes.
func (l *lab) ringOf(send func()) int {
	l.t.Helper()
	var before [wire.OQs]uint64
	for n := range before {
		before[n] = l.card.RingState(n).Packets
	}
	send()
	ring := -1
	l.wait("a packet in a ring", func() bool {
		for n := range before {
			if l.card.RingState(n).Packets > before[n] {
				ring = n
			}
		}
		return ring >= 0
	})
	return ring
}

// strange is an address that nobody has.
var strange = netip.AddrFrom4([4]byte{10, 66, 200, 2})

// testFrame is a UDP datagram between addresses that nobody has: the kernel that it
// reaches says nothing to it.
func testFrame(dst, src []byte, size int, source uint16) []byte {
	return sourceFrame(dst, src, strange, size, source)
}

// sourceFrame is testFrame from an IPv4 address.
func sourceFrame(dst, src []byte, from netip.Addr, size int, source uint16) []byte {
	b := make([]byte, size)
	copy(b, dst)
	copy(b[6:], src)
	binary.BigEndian.PutUint16(b[12:], 0x0800)
	ip := b[frame.HeaderSize:]
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	copy(ip[12:], from.AsSlice())
	copy(ip[16:], []byte{10, 66, 200, 1})
	sum := uint32(0)
	for i := 0; i < ipHeader; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	udp := ip[ipHeader:]
	binary.BigEndian.PutUint16(udp, source)
	binary.BigEndian.PutUint16(udp[2:], 9)
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	return b
}
