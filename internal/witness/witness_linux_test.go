package witness

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/hwsim/traps"
)

const (
	// fetchLimit bounds what comes before, the first time by a download.
	fetchLimit = 4 * time.Minute
	// limit ends a testpmd, whatever it does: this driver polls an idle bit without end.
	limit = 3 * time.Minute
	// quiet is for how long no frame comes back before those that are missing are lost.
	quiet = 30 * time.Second
	// pages of 2 MiB that testpmd takes, and some.
	pages = 24
)

// all tells whether this is the run of `make witness`: as many packets as the issue says,
// and no excuse.
func all() bool { return os.Getenv("OXPD_WITNESS") == "1" }

// unable ends a test on a machine that cannot run it.
func unable(t *testing.T, reason string, args ...any) {
	t.Helper()
	if all() {
		t.Fatalf(reason, args...)
	}
	t.Skipf(reason, args...)
}

// ready sees to all that a testpmd needs.
func ready(t *testing.T) *Parts {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), fetchLimit)
	defer cancel()
	switch {
	case os.Getenv("OXPD_NO_WITNESS") == "1":
		t.Skip("OXPD_NO_WITNESS=1")
	case runtime.GOARCH != "amd64":
		unable(t, "the driver is a program for amd64, and this is %s", runtime.GOARCH)
	case os.Getuid() != 0:
		unable(t, "needs root: ptrace, mounts, physical addresses of hugepages")
	}
	parts, err := Fetch(ctx)
	if err != nil {
		unable(t, "DPDK is out of reach: %v", err)
	}
	release, err := Reserve(ctx, pages)
	if err != nil {
		unable(t, "%v", err)
	}
	t.Cleanup(func() { assert.NoError(t, release(), "the number of hugepages is what it was") })
	// The thread that is the device never waits for the goroutines that make frames.
	before := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(before + 4)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	return parts
}

// start starts testpmd on a card, unless the kernel does not allow it.
func start(t *testing.T, ctx context.Context, p *Parts, card *hwsim.Card, r Run) *Testpmd {
	t.Helper()
	pmd, err := StartTestpmd(ctx, p, card, r)
	if errors.Is(err, traps.ErrRefused) {
		unable(t, "%v", err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { pmd.process.Kill(); <-pmd.Done() })
	return pmd
}

// commands has each executed.
func commands(t *testing.T, ctx context.Context, pmd *Testpmd, lines ...string) {
	t.Helper()
	for _, l := range lines {
		_, err := pmd.Command(ctx, l)
		require.NoError(t, err)
	}
}

// Registers of a ring (guides of the witness; endpoint.md 5), by hand: this test must not
// agree with the project's own table.
const (
	inControl, inEnable, inBase, inSize, inBell, inCount, inLevels               = 0x10000, 0x10010, 0x10020, 0x10030, 0x10040, 0x10050, 0x10060
	outCount, outLevels, outBase, outSize, outBell, outControl, outEnable        = 0x10100, 0x10110, 0x10120, 0x10130, 0x10140, 0x10150, 0x10160
	inPackets, inBytes, outPackets, outBytes                                     = 0x10080, 0x10090, 0x10180, 0x10190
	drain                                                                 uint64 = 0xffffffff
	instruction                                                                  = 64
	mtu                                                                          = 9000
	bufferSize                                                                   = 2048
)

// names are the registers that this driver uses, and no other.
func names() []string {
	return []string{
		"IN_CNTS[0]", "IN_CONTROL[0]", "IN_ENABLE[0]", "IN_INSTR_BADDR[0]", "IN_INSTR_DBELL[0]", "IN_INSTR_RSIZE[0]", "IN_INT_LEVELS[0]",
		"OUT_CNTS[0]", "OUT_CONTROL[0]", "OUT_ENABLE[0]", "OUT_INT_LEVELS[0]", "OUT_SLIST_BADDR[0]", "OUT_SLIST_DBELL[0]", "OUT_SLIST_RSIZE[0]",
	}
}

// record is what a driver did, from the accesses alone. It is written by the tracing
// thread, and read when that has ended.
type record struct {
	first      []traps.Access            // up to the first instruction
	stores     map[uint64][]traps.Access // of the registers that are no part of the packet path
	posted     uint64
	credited   uint64
	zeroCredit uint64
	gathered   uint64 // instructions with the gather bit
	fragments  uint64 // of those
	tlen       uint64
	orders     [2]uint64 // irh by byte order
	unread     uint64    // instructions that are not where the card reads them
	counts     struct{ loads, stores, sum, unequal uint64 }
	pending    uint64 // a count that was read and not yet acknowledged
}

func (r *record) observe(a traps.Access, read func(uint64, []byte) bool) {
	if r.posted == 0 {
		r.first = append(r.first, a)
	}
	switch {
	case a.Offset == outCount && !a.Store:
		r.counts.loads++
		r.pending = a.Value
	case a.Offset == outCount:
		r.counts.stores++
		r.counts.sum += a.Value
		if a.Value != r.pending {
			r.counts.unequal++
		}
	case !a.Store:
	case a.Offset == inBell && a.Value != drain:
		r.instructions(a.Value, read)
	case a.Offset == outBell && a.Value != drain:
		r.credited += a.Value
		if a.Value == 0 {
			r.zeroCredit++
		}
	default:
		if r.stores == nil {
			r.stores = map[uint64][]traps.Access{}
		}
		r.stores[a.Offset] = append(r.stores[a.Offset], a)
	}
}

// instructions looks at what was posted, where it lies.
func (r *record) instructions(n uint64, read func(uint64, []byte) bool) {
	base, size := r.last(inBase), r.last(inSize)
	var b [instruction]byte
	for range n {
		if !read(base+r.posted%size*instruction, b[:]) {
			r.unread++
		}
		ih3 := binary.LittleEndian.Uint64(b[8:])
		r.tlen += ih3 & 0xffff
		if ih3>>62&1 != 0 {
			r.gathered++
			r.fragments += ih3 >> 48 & 0x3fff
		}
		if irh := binary.LittleEndian.Uint64(b[32:]); irh>>48 == 0 {
			r.orders[0]++
		} else {
			r.orders[1]++
		}
		r.posted++
	}
}

// last is the last value that was written to a register.
func (r *record) last(offset uint64) uint64 {
	s := r.stores[offset]
	if len(s) == 0 {
		return 0
	}
	return s[len(s)-1].Value
}

// TestDPDK sends frames through testpmd to the card and back.
func TestDPDK(t *testing.T) {
	for _, tt := range []struct {
		name       string
		size       int
		quick, all int
		options    []string
		commands   []string
		buffers    uint64        // of a frame with its head, and fragments of it, 1 for none
		pause      time.Duration // at most that long the card works between two accesses, and half the time not at all: nothing of a burst, a part, or several
	}{
		{"64 bytes", 64, 50_000, 1_000_000, nil, nil, 1, 40 * time.Microsecond},
		{"9,014 bytes", mtu + 14, 2_000, 100_000, []string{"--disable-device-start", "--max-pkt-len=9200"},
			[]string{"port config 0 rx_offload scatter on", "port config 0 tx_offload multi_segs on", "port start all"}, 5, 200 * time.Microsecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			parts, dir := ready(t), t.TempDir()
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			n := tt.quick
			if all() {
				n = tt.all
			}
			card := hwsim.New(hwsim.Options{Function: hwsim.VF})
			defer card.Close()
			in, out, err := fifos(dir)
			require.NoError(t, err)
			defer in.Close()
			defer out.Close()
			var seen record
			// testpmd reads the beginning of the capture before it asks for a command.
			fed := make(chan error, 1)
			go func() { fed <- errors.Join(feed(in, n, tt.size), in.Close()) }()
			order := rand.New(rand.NewSource(1))
			pmd := start(t, ctx, parts, card, Run{
				Dir: dir, Arguments: []string{"--vdev", "net_pcap0,rx_pcap=" + inFile + ",tx_pcap=" + outFile}, Options: tt.options, Observe: seen.observe,
				Pause: func() time.Duration { return time.Duration(order.Int63n(2) * order.Int63n(int64(tt.pause))) },
			})
			commands(t, ctx, pmd, tt.commands...)
			commands(t, ctx, pmd, "set fwd io", "start")
			began := time.Now()
			require.NoError(t, check(stream{out, quiet}, n, tt.size))
			took := time.Since(began)
			assert.NoError(t, <-fed)
			commands(t, ctx, pmd, "stop")
			stats, err := pmd.Statistics(ctx, 0)
			require.NoError(t, err)
			commands(t, ctx, pmd, "port stop all", "port close 0")
			accesses := card.Accesses() // before this test's own
			require.NoError(t, pmd.Close())

			frames, size := uint64(n), uint64(tt.size)
			assert.Equal(t, Statistics{
				"RX-packets": frames, "RX-bytes": frames * size, "RX-missed": 0, "RX-errors": 0, "RX-nombuf": 0,
				"TX-packets": frames, "TX-bytes": frames * size, "TX-errors": 0,
			}, stats, "what the driver says")
			for _, r := range []struct {
				name   string
				offset uint64
				want   uint64
			}{
				{"IN_PKT_CNT", inPackets, frames}, {"IN_BYTE_CNT", inBytes, frames * (size + 28)},
				{"OUT_PKT_CNT", outPackets, frames}, {"OUT_BYTE_CNT", outBytes, frames * (size + 8)},
			} {
				assert.Equal(t, r.want, card.Load(0, r.offset, 8), "what the card says: %s", r.name)
			}
			assert.NoError(t, card.CheckConservation(), "the card's own books")
			assert.Empty(t, card.Reports())
			assert.ElementsMatch(t, names(), slices.Collect(maps.Keys(accesses)), "registers that were accessed")
			table(t, &seen, frames)
			if tt.buffers > 1 {
				assert.Equal(t, frames, seen.gathered, "frames in fragments")
				assert.Equal(t, frames*tt.buffers, seen.fragments)
			}
			assert.Equal(t, frames*(size+28), seen.tlen)
			s := card.RingState(0)
			assert.EqualValues(t, seen.credited-frames*tt.buffers, s.Credit+int64(s.Held), "each frame takes %d buffers, and nothing else takes any", tt.buffers)
			t.Logf("%d frames of %d bytes in %v, %d accesses of the packet path", n, tt.size, took.Round(time.Millisecond), path(accesses))
		})
	}
}

// path is how often the registers of the packet path were accessed.
func path(accesses map[string]hwsim.AccessCount) (n uint64) {
	for _, r := range []string{"IN_INSTR_DBELL[0]", "IN_CNTS[0]", "OUT_CNTS[0]", "OUT_SLIST_DBELL[0]"} {
		n += accesses[r].Reads + accesses[r].Writes
	}
	return n
}

// TestRegisterBudget lets bursts go round, as fast as the driver forwards them: it needs
// five accesses for a burst that it has received and sent, and so many a frame.
func TestRegisterBudget(t *testing.T) {
	const setup = 50 // accesses of the same registers before the first burst, and when it ends
	for _, burst := range []uint64{32, 256} {
		t.Run(fmt.Sprintf("bursts of %d", burst), func(t *testing.T) {
			parts, dir := ready(t), t.TempDir()
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			card := hwsim.New(hwsim.Options{Function: hwsim.VF})
			defer card.Close()
			const enough = 100_000
			var seen record
			round := make(chan struct{})
			pmd := start(t, ctx, parts, card, Run{Dir: dir, Observe: func(a traps.Access, read func(uint64, []byte) bool) {
				before := seen.posted
				seen.observe(a, read)
				if before < enough && seen.posted >= enough {
					close(round)
				}
			}})
			commands(t, ctx, pmd, "set fwd io", fmt.Sprintf("set burst %d", burst), "start tx_first")
			select {
			case <-round:
			case <-pmd.Done():
			case <-ctx.Done():
			}
			commands(t, ctx, pmd, "stop")
			stats, err := pmd.Statistics(ctx, 0)
			require.NoError(t, err)
			require.NoError(t, pmd.Close())
			sent := seen.posted
			require.GreaterOrEqual(t, sent, uint64(enough))
			s := card.RingState(0)
			assert.Equal(t, sent, stats["TX-packets"])
			assert.Equal(t, sent, s.Packets, "all came back")
			assert.Equal(t, sent, stats["RX-packets"]+uint64(s.Count), "the driver has them, but for a burst that it was not let fetch any more")
			assert.Equal(t, stats["TX-bytes"], sent*64)
			assert.NoError(t, card.CheckConservation())
			assert.Empty(t, card.Reports())
			n := path(card.Accesses())
			assert.LessOrEqual(t, n, 5*(sent+burst-1)/burst+setup)
			t.Logf("%d frames, %d accesses: %.4f a frame", sent, n, float64(n)/float64(sent))
		})
	}
}

// table compares what the driver did with the table of what it needs, line by line.
func table(t *testing.T, seen *record, frames uint64) {
	t.Helper()
	values := func(offset uint64) (v []uint64) {
		for _, a := range seen.stores[offset] {
			v = append(v, a.Value)
		}
		return v
	}
	first := func(offset uint64, store bool) (found []traps.Access) {
		for _, a := range seen.first {
			if a.Offset == offset && a.Store == store {
				found = append(found, a)
			}
		}
		return found
	}
	after := func(offset, stored uint64) uint64 { // what is read next, once that was stored
		for i, a := range seen.first {
			if a.Offset == offset && a.Store && a.Value == stored {
				for _, b := range seen.first[i:] {
					if b.Offset == offset && !b.Store {
						return b.Value
					}
				}
			}
		}
		return ^uint64(0)
	}
	require.NotEmpty(t, seen.first)
	assert.EqualValues(t, inControl, seen.first[0].Offset, "IN_CONTROL is read first")
	assert.EqualValues(t, 1, seen.first[0].Value>>48&0xf, "and says how many rings there are")
	if set := values(inControl); assert.NotEmpty(t, set) {
		v := set[len(set)-1]
		assert.EqualValues(t, 3, v>>25&3, "RDSIZE")
		assert.NotZero(t, v&(1<<24), "IS_64B")
		assert.NotZero(t, v&(1<<1), "ESR")
	}
	assert.True(t, slices.ContainsFunc(first(inControl, false), func(a traps.Access) bool { return a.Value&(1<<28) != 0 }), "IN idle")
	assert.True(t, slices.ContainsFunc(first(outControl, false), func(a traps.Access) bool { return a.Value&(1<<36) != 0 }), "OUT idle")
	for _, r := range []uint64{inEnable, outEnable} {
		v := values(r)
		assert.EqualValues(t, 0, v[0], "rings are disabled at the probe")
		assert.Contains(t, v, uint64(1))
	}
	assert.Equal(t, []uint64{512}, values(inSize))
	assert.Equal(t, []uint64{2048}, values(outSize))
	assert.Zero(t, after(inBell, drain), "the whole of IN_INSTR_DBELL is 0 after a drain")
	assert.Zero(t, after(outBell, drain)&drain, "OUT_SLIST_DBELL is 0 after a drain")
	assert.Equal(t, []uint64{0}, values(inCount), "IN_CNTS is never acknowledged: it runs freely")
	assert.Equal(t, []uint64{drain}, values(inLevels))
	assert.Equal(t, []uint64{0x3fffffffffffff}, values(outLevels))
	for _, r := range []uint64{inCount, outCount} {
		assert.True(t, slices.ContainsFunc(seen.first, func(a traps.Access) bool { return a.Offset == r && a.Width == 4 }), "%#x is read with 32 bits", r)
	}
	if set := values(outControl); assert.NotEmpty(t, set) {
		v := set[len(set)-1]
		assert.Zero(t, v&(1<<23), "no IMODE")
		assert.NotZero(t, v&(1<<26), "ES_P")
		assert.EqualValues(t, bufferSize, v&0x7fffff, "BSIZE")
	}
	assert.Equal(t, frames, seen.posted)
	assert.Zero(t, seen.unread)
	assert.NotZero(t, seen.orders[0], "irh in both byte orders")
	assert.NotZero(t, seen.orders[1], "irh in both byte orders")
	assert.Equal(t, frames, seen.counts.sum, "read v, write v: v new packets")
	assert.Zero(t, seen.counts.unequal)
	assert.NotZero(t, seen.zeroCredit, "a doorbell of 0 that changes nothing")
}
