package daemon

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	realclock "oxpd/internal/clock"
	"oxpd/internal/cputime"
	"oxpd/internal/dma"
	"oxpd/internal/frame"
	"oxpd/internal/pfil"
	"oxpd/octep/csr"
	"oxpd/ring"
	"oxpd/ring/wire"
)

// memoryCard is the cheapest far end that the ring can be measured against: it fills the
// whole of output queue 0 at once, prefix and frame, as the block would, and its registers
// are fields. It judges nothing; hwsim does.
type memoryCard struct {
	count, credit uint64 // of queue 0
	other         map[uint32]uint64
	mem           map[uint64][]byte // by bus address
	bufs          [][]byte          // of queue 0, in the list's order
	at            int               // entry that the next packet begins at
}

func newMemoryCard() *memoryCard {
	return &memoryCard{other: map[uint32]uint64{}, mem: map[uint64][]byte{}}
}

// MapDMA implements dma.Mapper.
func (c *memoryCard) MapDMA(bus uint64, mem []byte) error { c.mem[bus] = mem; return nil }

// UnmapDMA implements dma.Mapper.
func (c *memoryCard) UnmapDMA(bus uint64, _ int) error { delete(c.mem, bus); return nil }

// reach is n bytes at a bus address.
func (c *memoryCard) reach(bus uint64, n int) []byte {
	for start, mem := range c.mem {
		if bus >= start && bus+uint64(n) <= start+uint64(len(mem)) {
			return mem[bus-start:][:n]
		}
	}
	panic(fmt.Sprintf("%d bytes at %#x were never mapped", n, bus))
}

// follow reads the list of queue 0.
func (c *memoryCard) follow() {
	list := c.reach(c.other[uint32(csr.OutSlistBaddr.Queue(0))], wire.OQEntries*wire.ListEntry)
	for i := range wire.OQEntries {
		c.bufs = append(c.bufs, c.reach(binary.LittleEndian.Uint64(list[i*wire.ListEntry:]), wire.BufSize))
	}
}

// fill writes frames of one length, each in its turn, until no other would fit, and
// returns how many.
func (c *memoryCard) fill(frames [][]byte, tag uint16) (packets int) {
	length := len(frames[0]) + wire.LenOverhead
	each := wire.Buffers(length)
	for ; (packets+1)*each <= wire.OQEntries; packets++ {
		rest := frames[packets%len(frames)]
		for i := range each {
			b := c.bufs[c.at]
			c.at = (c.at + 1) % wire.OQEntries
			if i == 0 {
				wire.PutPrefix(b, tag, 0)
				binary.BigEndian.PutUint64(b, uint64(length))
				rest = rest[copy(b[wire.PrefixSize:], rest):]
			} else {
				rest = rest[copy(b, rest):]
			}
		}
	}
	c.count += uint64(packets)
	c.credit -= uint64(packets * each)
	return packets
}

// Size implements mmio.Space, as do all below.
func (c *memoryCard) Size() uint64                 { return csr.BAR0Size }
func (c *memoryCard) Load32(off uint32) uint32     { return uint32(c.Load64(off)) }
func (c *memoryCard) Store32(off uint32, v uint32) { c.Store64(off, uint64(v)) }

func (c *memoryCard) Load64(off uint32) uint64 {
	switch csr.Reg64(off) {
	case csr.OutCnts.Queue(0):
		return c.count
	case csr.OutSlistDBell.Queue(0):
		return c.credit & 0xffffffff
	case csr.OutIntStatus.Queue(0):
		return 0
	}
	v := c.other[off]
	switch info, _, _ := csr.Lookup(off); info.Name {
	case "OUT_CONTROL":
		v |= csr.OutControlIdle
	case "IN_CONTROL":
		v |= csr.InControlIdle
	}
	return v
}

func (c *memoryCard) Store64(off uint32, v uint64) {
	switch csr.Reg64(off) {
	case csr.OutCnts.Queue(0):
		c.count -= v
	case csr.OutSlistDBell.Queue(0):
		if c.credit += v; v == csr.DBellDrain {
			c.credit = 0
		}
	case csr.InInstrDBell.Queue(0):
	default:
		c.other[off] = v
	}
}

// dropAll is the loop without rules: it drops and does nothing else.
type dropAll struct{}

// Judge implements ring.Judge.
func (dropAll) Judge(int, []byte, int, uint16, *frame.Packet) ring.Verdict { return ring.Drop }

// Leave implements ring.Judge.
func (dropAll) Leave(int) {}

// costArm is one way to drop frames, on rings of its own.
type costArm struct {
	name   string
	most   float64 // times what the loop without rules takes
	rings  *ring.Rings
	card   *memoryCard
	frames [][]byte
	each   []float64 // ns a frame, of each round
	filled uint64
}

// costPort is the port that the frames are of.
func costPort() board.Port { return board.ByIndex(8) }

func newCostArm(t *testing.T, name string, most float64, judge ring.Judge, frames [][]byte) *costArm {
	t.Helper()
	a := &costArm{name: name, most: most, card: newMemoryCard(), frames: frames}
	var err error
	a.rings, err = ring.New(ring.Config{BAR0: a.card, DMA: dma.NewInProcess(a.card, 0), Clock: realclock.NewReal(), Sink: inspectedFanout(nil), Judge: judge})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, a.rings.Free()) })
	require.NoError(t, a.rings.Program(context.Background()))
	a.card.follow()
	return a
}

// round fills the ring and drops all of it. The time is that of the thread, in the driver
// alone: a machine that is busy otherwise makes it no longer.
func (a *costArm) round(t *testing.T, th cputime.Thread) {
	n := a.card.fill(a.frames, uint16(costPort().Tag))
	before, err := th.Used()
	require.NoError(t, err)
	for left := n; left > 0; {
		took, err := a.rings.OQ(0).Visit(ring.VisitBound)
		if err != nil || took == 0 {
			t.Fatal("nothing taken", left, err)
		}
		left -= took
	}
	after, err := th.Used()
	require.NoError(t, err)
	a.each = append(a.each, float64(after-before)/float64(n))
	a.filled += uint64(n)
}

// median is what an arm takes, ns a frame.
func (a *costArm) median() float64 {
	each := slices.Clone(a.each)
	slices.Sort(each)
	return each[len(each)/2]
}

// floodFrame is a UDP datagram from 10.66.N, of port 9 to port 9.
func floodFrame(frameBytes int, n uint16) []byte {
	b := make([]byte, frameBytes)
	p := costPort()
	copy(b, []byte{2, 0, 0, 0, 0, byte(p.Tag), 2, 0, 0, 0, 1, byte(p.Tag), 8, 0})
	ip := b[frame.HeaderSize:]
	copy(ip, []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, frame.ProtoUDP, 0, 0, 10, 66, byte(n >> 8), byte(n), 10, 67, 0, 1, 0, 9, 0, 9})
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	binary.BigEndian.PutUint16(ip[24:], uint16(len(ip)-20))
	return b
}

// floodFrames are those of a ring full of 64 bytes, each from another source.
func floodFrames(frameBytes int) (frames [][]byte) {
	for n := range uint16(wire.OQEntries) {
		frames = append(frames, floodFrame(frameBytes, n))
	}
	return frames
}

// filterJudge is the daemon's judge with a filter linked to the port, and how to read the
// filter's counters.
func filterJudge(t *testing.T, rules string, files map[string][]byte) (ring.Judge, func() pfil.View) {
	t.Helper()
	table := pfil.NewTable(wire.OQs+1, time.Now)
	_, err := table.Load("flood", pfil.Source{Name: "flood.rules", Rules: []byte(rules), Files: files})
	require.NoError(t, err)
	require.NoError(t, table.Link("flood", []board.Port{costPort()}, pfil.In))
	f := inspectedFanout(table)
	f.live[costPort().Index].Store(true)
	return f, func() pfil.View {
		v, err := table.Show("flood")
		require.NoError(t, err)
		return v
	}
}

// hundredRules are 99 that look at other things of the frames, and one that drops them.
func hundredRules() string {
	var b strings.Builder
	for i := range 99 {
		switch i % 3 {
		case 0:
			fmt.Fprintf(&b, "drop udp from 10.%d.0.0/16 to any\n", 100+i)
		case 1:
			fmt.Fprintf(&b, "drop udp from any to any port %d\n", 1000+i)
		case 2:
			fmt.Fprintf(&b, "pass tcp from any to 10.67.%d.1 port 443\n", i)
		}
	}
	return b.String() + "drop udp from 10.66.0.0/16 to any\n"
}

// prefixes are n of them, those of all frames of the flood among them, on their own and in
// the middle.
func prefixes(n int) []byte {
	var b bytes.Buffer
	r := rand.New(rand.NewSource(1))
	for i := range n {
		if i%2 == 0 {
			fmt.Fprintf(&b, "10.66.%d.%d/32\n", i/2>>8&255, i/2&255)
			continue
		}
		bits := 16 + r.Intn(17)
		addr := netip.AddrFrom4([4]byte{byte(11 + r.Intn(200)), byte(r.Intn(256)), byte(r.Intn(256)), byte(r.Intn(256))})
		fmt.Fprintln(&b, netip.PrefixFrom(addr, bits).Masked())
	}
	return b.Bytes()
}

// benchmarks tells whether bounds of the CPU's time are asked for, as by make bench.
func benchmarks() bool { return os.Getenv("OXPD_BENCH") != "" }

// What dropping a frame costs the driver on a ring that is full, by rules beside the same
// loop without any: twice with one rule, four times with a hundred or with a hundred
// thousand prefixes, and never memory.
func TestCostOfRules(t *testing.T) {
	rounds, many := 20, 10_000
	if benchmarks() {
		rounds, many = 1000, 100_000
	}
	for _, frameBytes := range []int{64, board.MaxMTU + frame.HeaderSize} {
		t.Run(fmt.Sprintf("frame=%d", frameBytes), func(t *testing.T) {
			th := cputime.Bind() // it ends with the subtest
			frames := floodFrames(frameBytes)
			arms := []*costArm{newCostArm(t, "no rules", 1, dropAll{}, frames)}
			views := []func() pfil.View{nil}
			for _, set := range []struct {
				name  string
				most  float64
				rules string
				files map[string][]byte
			}{
				{"1 rule", 2, "drop ip from 10.66.0.0/16 to any in\n", nil},
				{"100 rules", 4, hundredRules(), nil},
				{fmt.Sprintf("%d prefixes", many), 4, "set bad file bad\ndrop udp from set bad to any in\n", map[string][]byte{"bad": prefixes(many)}},
			} {
				judge, view := filterJudge(t, set.rules, set.files)
				arms, views = append(arms, newCostArm(t, set.name, set.most, judge, frames)), append(views, view)
			}
			for _, a := range arms { // everything has been touched once
				a.round(t, th)
				a.each = make([]float64, 0, rounds)
			}
			for range rounds {
				for _, a := range arms {
					a.round(t, th)
				}
			}
			base := arms[0].median()
			for i, a := range arms {
				ratio := a.median() / base
				t.Logf("frame=%d %-15s %6.1f ns a frame, %4.2f times, at most %.0f", frameBytes, a.name, a.median(), ratio, a.most)
				if benchmarks() {
					assert.LessOrEqual(t, ratio, a.most, "%s: CPU time a dropped frame, times that without rules", a.name)
				}
				assert.Equal(t, a.filled, a.rings.Stats().Dropped, "%s: every frame was dropped", a.name)
				if views[i] != nil {
					v := views[i]()
					assert.Equal(t, a.filled, v.Rules[len(v.Rules)-1].Hits, "%s: by the last rule", a.name)
				}
				assert.Zero(t, testing.AllocsPerRun(5, func() { a.round(t, th) }), "%s: allocations in a round", a.name)
			}
		})
	}
}
