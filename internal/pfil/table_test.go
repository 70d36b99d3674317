package pfil

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/internal/frame"
)

// ticker is a clock that goes on by a second with each look.
type ticker struct{ n atomic.Int64 }

func (c *ticker) now() time.Time { return time.Unix(c.n.Add(1), 0) }

// rig is a table and somebody who judges with it.
type rig struct {
	*testing.T
	*Table
	pkt frame.Packet
}

func newRig(t *testing.T) *rig {
	return &rig{T: t, Table: NewTable(2, new(ticker).now)}
}

func source(rules string) Source {
	return Source{Name: "t.rules", Rules: []byte(rules), Files: files}
}

func (r *rig) load(name, rules string) Loaded {
	r.Helper()
	l, err := r.Load(name, source(rules))
	require.NoError(r, err)
	return l
}

func ports(names ...string) (out []board.Port) {
	for _, n := range names {
		p, err := board.Parse(n)
		if err != nil {
			panic(err)
		}
		out = append(out, p)
	}
	return out
}

func (r *rig) link(name string, dir Direction, names ...string) {
	r.Helper()
	require.NoError(r, r.Link(name, ports(names...), dir))
}

// judge judges one frame in a pass of its own.
func (r *rig) judge(shard int, port string, dir Direction, b []byte) Verdict {
	v := r.Judge(shard, ports(port)[0].Index, dir, b, len(b), &r.pkt)
	r.Leave(shard)
	return v
}

// udp is an IPv4 datagram with a destination port.
func udp(from byte, port uint16) []byte {
	b := make([]byte, 60)
	copy(b[12:], []byte{8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, from, 10, 0, 0, 99, 0, 7, byte(port >> 8), byte(port), 0, 26})
	return b
}

func (r *rig) hits(name string) (hits []uint64, unmatched, gone uint64) {
	r.Helper()
	v, err := r.Show(name)
	require.NoError(r, err)
	for _, x := range v.Rules {
		hits = append(hits, x.Hits)
	}
	return hits, v.Unmatched.Hits, v.Gone.Hits
}

func TestHooks(t *testing.T) {
	r := newRig(t)
	r.load("flood", "drop udp from any to any port 53")
	assert.Equal(t, Pass, r.judge(0, "oxp1", In, udp(1, 53)), "loaded, not linked")
	r.link("flood", In, "oxp1", "oxp9")
	for _, tc := range []struct {
		port string
		dir  Direction
		to   uint16
		want Verdict
	}{
		{"oxp1", In, 53, Drop}, {"oxp9", In, 53, Drop}, {"oxp1", In, 54, Pass}, {"oxp1", Out, 53, Pass}, {"oxp2", In, 53, Pass},
	} {
		assert.Equal(t, tc.want, r.judge(1, tc.port, tc.dir, udp(1, tc.to)), "%v", tc)
	}
	assert.Equal(t, Drops{1, 60}, r.Dropped(ports("oxp1")[0], In))
	assert.Equal(t, Drops{1, 60}, r.Dropped(ports("oxp9")[0], In))
	assert.Equal(t, Drops{}, r.Dropped(ports("oxp1")[0], Out))
	hits, unmatched, _ := r.hits("flood")
	assert.Equal(t, []uint64{2}, hits)
	assert.EqualValues(t, 1, unmatched)

	require.NoError(t, r.Unlink("flood", ports("oxp1"), Both))
	assert.Equal(t, Pass, r.judge(0, "oxp1", In, udp(1, 53)))
	assert.Equal(t, Drop, r.judge(0, "oxp9", In, udp(1, 53)))
}

func TestHeadersAreReadOnlyWhereAFilterIs(t *testing.T) {
	r := newRig(t)
	r.judge(0, "oxp1", In, udp(1, 53))
	assert.Zero(t, r.pkt.Have)
	r.load("a", "pass any from any to any")
	r.link("a", Both, "oxp1")
	r.judge(0, "oxp1", Out, udp(1, 53))
	assert.Equal(t, frame.HaveL2|frame.HaveIPv4|frame.HaveProto|frame.HavePorts, r.pkt.Have)
}

func TestChainGoesInOrderOfLinking(t *testing.T) {
	r := newRig(t)
	r.load("first", "pass udp from 10.0.0.1 to any")
	r.load("second", "drop udp from any to any")
	r.link("first", In, "oxp1")
	r.link("second", In, "oxp1")
	r.link("first", In, "oxp1") // again: stays where it is
	assert.Equal(t, Pass, r.judge(0, "oxp1", In, udp(1, 53)))
	assert.Equal(t, Drop, r.judge(0, "oxp1", In, udp(2, 53)))
	hits, unmatched, _ := r.hits("first")
	assert.Equal(t, []any{[]uint64{1}, uint64(1)}, []any{hits, unmatched})
	hits, unmatched, _ = r.hits("second")
	assert.Equal(t, []any{[]uint64{1}, uint64(0)}, []any{hits, unmatched})
}

func TestVerdictsAndWhatTheyCount(t *testing.T) {
	for _, v := range []Verdict{Pass, Drop, Divert, Count} {
		r := newRig(t)
		r.load("a", v.String()+" udp from any to any")
		r.link("a", In, "oxp1")
		assert.Equal(t, v, r.judge(0, "oxp1", In, udp(1, 1)))
		hits, _, _ := r.hits("a")
		assert.Equal(t, []uint64{1}, hits, v)
		want := Drops{}
		if v == Drop {
			want = Drops{1, 60}
		}
		assert.Equal(t, want, r.Dropped(ports("oxp1")[0], In), v)
	}
}

func TestReplaceKeepsCounters(t *testing.T) {
	r := newRig(t)
	r.load("a", "drop udp from any to any port 1\ndrop udp from any to any port 2\ncount udp from any to any\ncount udp from any to any\n")
	r.link("a", In, "oxp1")
	for i, n := range []int{3, 2, 1} { // three to port 1, two to 2, one to none of them
		for s := range n {
			r.judge(s%2, "oxp1", In, udp(1, uint16(i+1)))
		}
	}
	r.judge(0, "oxp1", In, make([]byte, 60))
	l := r.load("a", "drop udp from any to any port 9\n count udp   from any to any\ncount udp from any to any\ndrop udp from any to any port 1")
	assert.Len(t, l.Warnings, 2)
	l.Warnings = nil
	assert.Equal(t, Loaded{Replaced: true, Rules: 4, Kept: 3, Added: 1, Removed: 1}, l)
	hits, unmatched, gone := r.hits("a")
	assert.Equal(t, []uint64{0, 1, 0, 3}, hits)
	assert.EqualValues(t, 1, unmatched)
	assert.EqualValues(t, 2, gone)
	r.judge(0, "oxp1", In, udp(1, 9))
	r.judge(0, "oxp1", In, udp(1, 8))
	hits, _, _ = r.hits("a")
	assert.Equal(t, []uint64{1, 2, 0, 3}, hits, "and they go on")
	v, err := r.Show("a")
	require.NoError(t, err)
	assert.EqualValues(t, 8, v.Matched.Hits)
	assert.EqualValues(t, 8*60, v.Matched.Bytes)
	assert.False(t, v.Rules[3].Last.IsZero())
	assert.True(t, v.Rules[1].Last.After(v.Rules[3].Last))
	assert.True(t, v.Rules[2].Last.IsZero())
}

func TestWhatIsRefusedChangesNothing(t *testing.T) {
	r := newRig(t)
	r.load("a", "drop udp from any to any")
	r.link("a", In, "oxp1")
	r.judge(0, "oxp1", In, udp(1, 1))
	for _, tc := range []struct {
		name string
		do   func() error
		want string
	}{
		{"rules that do not parse", func() error { _, err := r.Load("a", source("dorp")); return err }, `t.rules:1:1: found "dorp"`},
		{"a name", func() error { _, err := r.Load("a b", source("")); return err }, `filter name "a b": want`},
		{"unload of a linked one", func() error { return r.Unload("a") }, "filter a is linked at oxp1 in"},
		{"unload of none", func() error { return r.Unload("b") }, `filter "b" is not loaded: there is a`},
		{"link of none", func() error { return r.Link("b", ports("oxp1"), In) }, `filter "b" is not loaded`},
		{"unlink of none", func() error { return r.Unlink("b", ports("oxp1"), In) }, `filter "b" is not loaded`},
		{"unlink elsewhere", func() error { return r.Unlink("a", ports("oxp1"), Out) }, "filter a is not linked there: it is at oxp1 in"},
		{"show of none", func() error { _, err := r.Show("b"); return err }, `filter "b" is not loaded`},
		{"samples of none", func() error { _, _, err := r.Samples("b"); return err }, `filter "b" is not loaded`},
		{"source of none", func() error { _, err := r.Source("b"); return err }, `filter "b" is not loaded`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.ErrorContains(t, tc.do(), tc.want)
			list := r.List()
			require.Len(t, list, 1)
			assert.EqualValues(t, 1, list[0].Matched.Hits)
			assert.Equal(t, "[oxp1 in]", fmt.Sprint(list[0].Links))
		})
	}
	assert.ErrorContains(t, newRig(t).Unload("x"), "no filter is loaded")
	for i := range MaxFilters - 1 {
		r.load(fmt.Sprint("f", i), "")
	}
	_, err := r.Load("more", source(""))
	assert.ErrorContains(t, err, "there are 64 filters already")
	require.NoError(t, r.Unlink("a", ports("oxp1"), Both))
	assert.ErrorContains(t, r.Unlink("a", ports("oxp1"), Both), "linked nowhere")
	require.NoError(t, r.Unload("a"))
	assert.Len(t, r.List(), MaxFilters-1)
}

func TestSamples(t *testing.T) {
	r := newRig(t)
	kept, over, err := r.Samples("")
	require.NoError(t, err)
	assert.Empty(t, kept)
	assert.Zero(t, over)
	r.load("s", "sample 10 udp from any to any")
	r.load("t", "sample 1 udp from any to any")
	r.link("s", In, "oxp2")
	r.link("t", Out, "oxp2")
	for i := range 35 {
		assert.Equal(t, Sample, r.judge(0, "oxp2", In, udp(byte(i), 1)))
	}
	kept, over, err = r.Samples("s")
	require.NoError(t, err)
	assert.Zero(t, over)
	require.Len(t, kept, 3)
	for i, s := range kept {
		assert.Equal(t, udp(byte(10*i+9), 1), s.Bytes)
		assert.Equal(t, []any{"s", 1, "sample 10 udp from any to any", "oxp2", In, 60}, []any{s.Filter, s.Line, s.Rule, s.Port.Name, s.Dir, s.FrameBytes})
	}
	long := append(udp(1, 1), make([]byte, 9000)...)
	for range samplesKept + 5 {
		r.judge(1, "oxp2", Out, long)
	}
	kept, over, err = r.Samples("t")
	require.NoError(t, err)
	assert.EqualValues(t, 5, over)
	require.Len(t, kept, samplesKept)
	assert.Equal(t, []int{SampleBytes, 9060}, []int{len(kept[0].Bytes), kept[0].FrameBytes})
	assert.True(t, kept[0].Time.Before(kept[1].Time))
}

func TestJudgeAllocatesNothing(t *testing.T) {
	r := newRig(t)
	r.load("a", "set bad file bad.txt\nsample 2 udp from set bad to any\ndrop udp from not set bad to any port 1-9,53")
	r.link("a", In, "oxp1")
	b := udp(1, 53)
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		r.Judge(0, 0, In, b, len(b), &r.pkt)
		r.Leave(0)
	}))
	hits, _, _ := r.hits("a")
	assert.EqualValues(t, 1001, hits[1])
}

// While a shard is inside a pass, a change waits for it, and what the pass has still
// to judge is judged by what was there; afterwards by what is.
func TestChangeWaitsForThePass(t *testing.T) {
	r := newRig(t)
	r.load("a", "drop udp from any to any")
	r.link("a", In, "oxp1")
	b := udp(1, 1)
	require.Equal(t, Drop, r.Judge(0, 0, In, b, 60, &r.pkt))
	done := make(chan error, 1)
	go func() { done <- r.Unlink("a", ports("oxp1"), In) }()
	for r.hooks[0][0].Load() != nil { // the hook is empty, the pass still open
		time.Sleep(time.Millisecond)
	}
	select {
	case <-done:
		require.Fail(t, "unlink did not wait for the pass")
	default:
	}
	assert.Equal(t, Pass, r.Judge(0, 0, In, b, 60, &r.pkt))
	r.Leave(0)
	require.NoError(t, <-done)
}

// Nine callers judge while filters are loaded, replaced, linked, unlinked and read:
// each frame is counted once, and what was dropped is what the callers were told.
func TestSumsUnderChange(t *testing.T) {
	const callers = 9
	each := 200_000
	if raceEnabled {
		each = 20_000
	}
	table := NewTable(callers, time.Now)
	programs := []string{
		"drop udp from any to any port 1-3\nsample 7 udp from any to any port 4\n",
		"count udp from any to any port 2\ndrop udp from any to any port 1-3\nset bad file bad.txt\ndrop ip from set bad to any",
		"",
	}
	_, err := table.Load("a", source(programs[0]))
	require.NoError(t, err)
	all := board.All()
	require.NoError(t, table.Link("a", all[:], Both))

	var told [callers][board.Ports][2]uint64
	var wg sync.WaitGroup
	for n := range callers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			var pkt frame.Packet
			b := udp(1, 0)
			for i := range each {
				b[37] = byte(i % 5)
				port, dir := i%board.Ports, Direction(1+i/3%2)
				if table.Judge(n, port, dir, b, 60, &pkt) == Drop {
					told[n][port][dir-1]++
				}
				if i%32 == 31 {
					table.Leave(n)
				}
			}
			table.Leave(n)
		}()
	}
	judged := make(chan struct{})
	go func() { wg.Wait(); close(judged) }()
	changes := 0
	for going := true; going; changes++ {
		select {
		case <-judged:
			going = false
		default:
		}
		_, err := table.Load("a", source(programs[changes%3]))
		require.NoError(t, err)
		if changes%4 == 0 {
			require.NoError(t, table.Unlink("a", ports("oxp3", "oxp4"), In))
			require.NoError(t, table.Link("a", ports("oxp3", "oxp4"), In))
		}
		table.List()
	}
	require.NoError(t, table.Link("a", ports("oxp3", "oxp4"), In))
	for p := range board.Ports {
		for d := range 2 {
			sum := uint64(0)
			for n := range callers {
				sum += told[n][p][d]
			}
			got := table.Dropped(board.ByIndex(p), Direction(d+1))
			assert.Equal(t, Drops{sum, 60 * sum}, got)
		}
	}
	v, err := table.Show("a")
	require.NoError(t, err)
	seen := v.Matched.Hits + v.Unmatched.Hits
	assert.LessOrEqual(t, seen, uint64(callers*each))
	assert.Greater(t, seen, uint64(callers*each/2), "all but what went past while a hook was empty")
	t.Logf("%d changes beside %d frames", changes, callers*each)
}

func BenchmarkJudge(b *testing.B) {
	for _, tc := range []struct{ name, rules string }{
		{"linked=no", ""},
		{"rules=1", "drop udp from 10.0.0.1 to any"},
		{"rules=2", "drop udp from 10.0.0.2 to any\ndrop udp from 10.0.0.1 to any"},
	} {
		b.Run(tc.name, func(b *testing.B) {
			table := NewTable(9, time.Now)
			if tc.rules != "" {
				_, err := table.Load("a", source(tc.rules))
				require.NoError(b, err)
				require.NoError(b, table.Link("a", ports("oxp1"), In))
			}
			var pkt frame.Packet
			f := udp(1, 53)
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				table.Judge(0, 0, In, f, 60, &pkt)
				if i%32 == 31 {
					table.Leave(0)
				}
			}
			table.Leave(0)
		})
	}
}
