package pfil

import (
	"fmt"
	"runtime"
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

// Copies of one pass have one time: their order is that of the frames, around the
// ring's end too.
func TestSamplesOfOnePassAreInOrder(t *testing.T) {
	r := newRig(t)
	r.load("s", "sample 1 udp from any to any")
	r.link("s", In, "oxp2")
	for i := range samplesKept + samplesKept/2 {
		r.Judge(0, 1, In, udp(0, uint16(i)), 60, &r.pkt)
	}
	r.Leave(0)
	kept, over, err := r.Samples("")
	require.NoError(t, err)
	assert.EqualValues(t, samplesKept/2, over)
	require.Len(t, kept, samplesKept)
	for i := range kept {
		require.Equal(t, udp(0, uint16(samplesKept/2+i)), kept[i].Bytes)
	}
}

func TestReplaceGoesOnCountingToTheNextSample(t *testing.T) {
	r := newRig(t)
	rules := "sample 4 udp from any to any"
	r.load("s", rules)
	r.link("s", In, "oxp2")
	for i := range 20 {
		r.judge(0, "oxp2", In, udp(byte(i), 1))
		switch i {
		case 1, 2, 3, 9: // in the middle, and with a copy just made
			rules = "count tcp from any to any\n" + rules
			r.load("s", rules)
		}
	}
	kept, _, err := r.Samples("s")
	require.NoError(t, err)
	var at []byte
	for _, s := range kept {
		at = append(at, s.Bytes[29])
	}
	assert.Equal(t, []byte{3, 7, 11, 15, 19}, at)
	r.load("s", "sample 5 udp from any to any") // another rule: begins at 0
	for i := range 5 {
		r.judge(0, "oxp2", In, udp(byte(100+i), 1))
	}
	kept, _, err = r.Samples("s")
	require.NoError(t, err)
	assert.Equal(t, udp(104, 1), kept[len(kept)-1].Bytes)
	assert.Equal(t, []any{5, 1, 6}, []any{kept[4].Line, kept[5].Line, len(kept)}, "each has the line of its time")
}

// A program with its sets may be large: nothing holds it when another is in its place.
func TestReplacedProgramIsFreed(t *testing.T) {
	r := newRig(t)
	r.load("s", "sample 1 udp from any to any")
	r.link("s", In, "oxp2")
	r.judge(0, "oxp2", In, udp(1, 1))
	var freed atomic.Bool
	runtime.SetFinalizer(r.filters["s"].now.Load().program, func(*Program) { freed.Store(true) })
	r.load("s", "sample 1 udp from any to any")
	require.Eventually(t, func() bool { runtime.GC(); return freed.Load() }, 30*time.Second, 10*time.Millisecond)
	kept, _, err := r.Samples("s")
	require.NoError(t, err)
	assert.Len(t, kept, 1, "its copies stay")
}

func TestJudgeAllocatesNothing(t *testing.T) {
	for _, tc := range []struct{ name, rules string }{
		{"a drop", "set bad file bad.txt\nsample 2 udp from set bad to any\ndrop udp from not set bad to any port 1-9,53"},
		{"copies", "sample 1 udp from any to any"},
		{"no rule", "drop tcp from any to any"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			r.load("a", tc.rules)
			r.link("a", In, "oxp1")
			b := udp(1, 53)
			assert.Zero(t, testing.AllocsPerRun(1000, func() {
				r.Judge(0, 0, In, b, len(b), &r.pkt)
				r.Leave(0)
			}))
			v, err := r.Show("a")
			require.NoError(t, err)
			assert.EqualValues(t, 1001, v.Matched.Hits+v.Unmatched.Hits)
		})
	}
}

// The clock is read once for a pass that meets a hook, and for no other.
func TestTimeIsThatOfThePass(t *testing.T) {
	clock := new(ticker)
	r := &rig{T: t, Table: NewTable(2, clock.now)}
	r.load("a", "count udp from any to any port 1\ncount udp from any to any port 2")
	r.link("a", In, "oxp1")
	loaded := clock.n.Load()
	pass := func(port string, to ...uint16) {
		for _, p := range to {
			r.Judge(0, ports(port)[0].Index, In, udp(1, p), 60, &r.pkt)
		}
		r.Leave(0)
	}
	pass("oxp2", 1, 2, 1)
	assert.Equal(t, loaded, clock.n.Load(), "nothing is linked there")
	pass("oxp1", 1, 2, 1)
	pass("oxp1", 2, 2)
	assert.Equal(t, loaded+2, clock.n.Load())
	v, err := r.Show("a")
	require.NoError(t, err)
	assert.Equal(t, []any{time.Unix(loaded+1, 0), time.Unix(loaded+2, 0)}, []any{v.Rules[0].Last, v.Rules[1].Last})
	assert.Equal(t, time.Unix(loaded+2, 0), v.Matched.Last)
	assert.True(t, v.Unmatched.Last.IsZero())
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
	for r.hooks[0].Load() != nil { // the hook is empty, the pass still open
		time.Sleep(time.Millisecond)
	}
	select {
	case <-done:
		require.Fail(t, "unlink did not wait for the pass")
	default:
	}
	assert.Equal(t, Drop, r.Judge(0, 0, In, b, 60, &r.pkt))
	r.Leave(0)
	require.NoError(t, <-done)
	assert.Equal(t, Pass, r.judge(0, "oxp1", In, b))
}

// A link in the middle of a pass holds for the next frame, and the pass ends as others.
func TestLinkInThePass(t *testing.T) {
	r := newRig(t)
	r.load("a", "drop udp from any to any")
	assert.Equal(t, Pass, r.Judge(0, 0, In, udp(1, 1), 60, &r.pkt))
	r.link("a", In, "oxp1")
	assert.Equal(t, Drop, r.Judge(0, 0, In, udp(1, 1), 60, &r.pkt))
	r.Leave(0)
	r.Leave(0) // a pass that has met no hook
	require.NoError(t, r.Unlink("a", ports("oxp1"), In))
	assert.Equal(t, Pass, r.judge(0, "oxp1", In, udp(1, 1)))
}

// A pass that has seen a filter at a hook, and then waits for its shard, does not meet it
// when it was unlinked meanwhile: nobody would wait for that pass.
func TestHookIsReadInsideThePass(t *testing.T) {
	r := newRig(t)
	r.load("a", "drop udp from any to any")
	for range 20 {
		r.link("a", In, "oxp1")
		verdict := make(chan Verdict, 1)
		r.shards[0].between(func() {
			go func() { verdict <- r.judge(0, "oxp1", In, udp(1, 1)) }()
			time.Sleep(time.Millisecond) // enough for most rounds to wait; for the rest it does not matter
			r.hooks[0].Store(nil)
		})
		assert.Equal(t, Pass, <-verdict)
	}
}

// A shard that stays in a pass holds up whoever replaces a filter, and no other shard:
// they judge by the new program at once, this one when its pass is over.
func TestReplaceWaitsAndJudgingDoesNot(t *testing.T) {
	for open := range 2 {
		t.Run(fmt.Sprint("shard=", open), func(t *testing.T) {
			r := newRig(t)
			r.load("a", "drop udp from any to any port 1\npass udp from any to any")
			r.link("a", In, "oxp1")
			require.Equal(t, Drop, r.Judge(open, 0, In, udp(1, 1), 60, &r.pkt))
			f := r.filters["a"]
			old := f.now.Load()
			done := make(chan error, 1)
			go func() {
				_, err := r.Load("a", source("drop udp from any to any port 1-2\ndrop udp from any to any port 1\npass udp from any to any"))
				done <- err
			}()
			require.Eventually(t, func() bool { return f.now.Load() != old }, 30*time.Second, time.Millisecond)
			other := frame.Packet{}
			for range 10 {
				require.Equal(t, Drop, r.Judge(1-open, 0, In, udp(1, 2), 60, &other))
				if open == 1 { // shard 0 has been asked already
					r.Leave(1 - open)
				}
			}
			require.Equal(t, Pass, r.Judge(open, 0, In, udp(1, 2), 60, &r.pkt))
			select {
			case <-done:
				require.Fail(t, "the load did not wait for the pass")
			default:
			}
			r.Leave(open)
			r.Leave(1 - open)
			require.NoError(t, <-done)
			hits, unmatched, gone := r.hits("a")
			assert.Equal(t, []uint64{10, 1, 1}, hits)
			assert.Zero(t, unmatched+gone)
		})
	}
}

// Nine callers judge while filters are loaded, replaced, linked, unlinked and read by
// others. Each frame is counted once, by the filter of its port, and what the drop rules
// have counted is what the callers were told.
func TestSumsUnderChange(t *testing.T) {
	const (
		callers = 9
		pass    = 32
		dropped = "drop udp from any to any port 1\n" // twice in each program: never gone
	)
	changes := 150
	if raceEnabled {
		changes = 50
	}
	programs := []string{
		dropped + dropped + "sample 7 udp from any to any port 4\n",
		"count udp from any to any port 2\n" + dropped + "set bad file bad.txt\ncount ip from set bad to any\n" + dropped,
		dropped + dropped,
	}
	table := NewTable(callers, time.Now)
	all := board.All()
	half := map[string][]board.Port{"low": all[:6], "high": all[6:]}
	for name, at := range half {
		_, err := table.Load(name, source(programs[0]))
		require.NoError(t, err)
		require.NoError(t, table.Link(name, at, Both))
	}

	var (
		stop    atomic.Bool
		judging sync.WaitGroup
		begun   sync.WaitGroup // a pass of each caller is over
		told    [callers][board.Ports][directions]uint64
		judged  [callers][board.Ports]uint64
	)
	for n := range callers {
		judging.Add(1)
		begun.Add(1)
		go func() {
			defer judging.Done()
			var pkt frame.Packet
			b := udp(1, 0)
			for i := 0; i == 0 || !stop.Load(); i++ {
				for j := range pass {
					b[37] = byte((i + j) % 5)
					port, dir := (i+j)%board.Ports, Direction(1+(i+j)/3%2)
					pkt.Have = 0
					v := table.Judge(n, port, dir, b, 60, &pkt)
					if v == Drop {
						told[n][port][dir-1]++
					}
					if pkt.Have != 0 {
						judged[n][port]++
					}
				}
				table.Leave(n)
				if i == 0 {
					begun.Done()
				}
				runtime.Gosched()
			}
		}()
	}
	begun.Wait()
	var changing sync.WaitGroup
	for name, at := range half {
		changing.Add(1)
		go func() {
			defer changing.Done()
			for i := range changes {
				_, err := table.Load(name, source(programs[i%len(programs)]))
				assert.NoError(t, err)
				assert.NoError(t, table.Unlink(name, at[i%4:i%4+2], In))
				assert.NoError(t, table.Link(name, at, Both))
			}
		}()
	}
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		var before uint64
		for !stop.Load() {
			v, err := table.Show("low")
			assert.NoError(t, err)
			now := v.Matched.Hits + v.Unmatched.Hits
			assert.LessOrEqual(t, before, now, "never less than what was seen before")
			before = now
			table.List()
			_, _, err = table.Samples("")
			assert.NoError(t, err)
			runtime.Gosched()
		}
	}()
	changing.Wait()
	stop.Store(true)
	judging.Wait()
	<-reading

	var drops, rules uint64
	for p := range all {
		for d := range directions {
			sum := uint64(0)
			for n := range callers {
				sum += told[n][p][d]
			}
			drops += sum
			assert.Equal(t, Drops{sum, 60 * sum}, table.Dropped(all[p], Direction(d+1)))
		}
	}
	for name, at := range half {
		v, err := table.Show(name)
		require.NoError(t, err)
		met := uint64(0)
		for _, p := range at {
			for n := range callers {
				met += judged[n][p.Index]
			}
		}
		sum := v.Gone.Hits + v.Unmatched.Hits
		for _, x := range v.Rules {
			sum += x.Hits
			if x.Verdict == Drop {
				rules += x.Hits
			}
			assert.Equal(t, 60*x.Hits, x.Bytes)
		}
		assert.Equal(t, met, sum, "%s: hits and unmatched are the frames that met it", name)
		assert.Equal(t, met, v.Matched.Hits+v.Unmatched.Hits)
		assert.NotZero(t, v.Gone.Hits)
	}
	assert.Equal(t, drops, rules)
	assert.NotZero(t, drops)
}

// A filter is linked and unlinked ten thousand times beside the judging: what is judged
// while it is linked is dropped, and nothing else.
func TestLinkTenThousandTimes(t *testing.T) {
	times := 10_000
	if raceEnabled {
		times = 2_000
	}
	table := NewTable(2, time.Now)
	_, err := table.Load("a", source("drop udp from any to any"))
	require.NoError(t, err)
	at := ports("oxp1")

	// state goes up before and after each change: 4n nothing is linked, 4n+2 the
	// filter is; odd while that changes.
	var state atomic.Uint64
	var stop atomic.Bool
	var told, known [2]uint64
	var judging, begun sync.WaitGroup
	for n := range told {
		judging.Add(1)
		begun.Add(1)
		go func() {
			defer judging.Done()
			var pkt frame.Packet
			b := udp(1, 1)
			for i := 0; i == 0 || !stop.Load(); i++ {
				for range 32 {
					before := state.Load()
					v := table.Judge(n, 0, In, b, 60, &pkt)
					if v == Drop {
						told[n]++
					}
					if before%2 == 0 && before == state.Load() {
						known[n]++
						if linked := before%4 == 2; linked != (v == Drop) {
							assert.Fail(t, "judged wrongly", "linked %v: %v", linked, v)
							stop.Store(true)
						}
					}
				}
				table.Leave(n)
				if i == 0 {
					begun.Done()
				}
				runtime.Gosched()
			}
		}()
	}
	begun.Wait()
	for range times {
		state.Add(1)
		require.NoError(t, table.Link("a", at, In))
		state.Add(1)
		runtime.Gosched()
		state.Add(1)
		require.NoError(t, table.Unlink("a", at, In))
		state.Add(1)
	}
	stop.Store(true)
	judging.Wait()
	assert.NotZero(t, known[0]+known[1])
	v, err := table.Show("a")
	require.NoError(t, err)
	assert.Equal(t, told[0]+told[1], v.Rules[0].Hits)
	assert.Equal(t, Drops{told[0] + told[1], 60 * (told[0] + told[1])}, table.Dropped(at[0], In))
}

// blank is a judge that does nothing, behind a call that is not inlined.
type blank struct{}

//go:noinline
func (blank) Judge(int, int, Direction, []byte, int, *frame.Packet) Verdict { return Pass }

// BenchmarkJudge is one frame in passes of 32: a call alone, the table without a link
// at the port, and with rules.
func BenchmarkJudge(b *testing.B) {
	const burst = 32
	f, pkt := udp(1, 53), frame.Packet{}
	b.Run("frame=60/burst=32/call", func(b *testing.B) {
		var j blank
		for range b.N {
			j.Judge(0, 0, In, f, len(f), &pkt)
		}
	})
	for _, tc := range []struct{ name, rules string }{
		{"linked=no", ""},
		{"rules=1", "drop udp from 10.0.0.1 to any"},
		{"rules=2", "drop udp from 10.0.0.2 to any\ndrop udp from 10.0.0.1 to any"},
		{"rules=1,every=1", "sample 1 udp from 10.0.0.1 to any"},
	} {
		b.Run("frame=60/burst=32/"+tc.name, func(b *testing.B) {
			table := NewTable(9, time.Now)
			if tc.rules != "" {
				_, err := table.Load("a", source(tc.rules))
				require.NoError(b, err)
				require.NoError(b, table.Link("a", ports("oxp1"), In))
			}
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				table.Judge(0, 0, In, f, len(f), &pkt)
				if i%burst == burst-1 {
					table.Leave(0)
				}
			}
			table.Leave(0)
		})
	}
}

func TestHooksText(t *testing.T) {
	all := board.All()
	for _, tc := range []struct {
		want string
		at   []Hook
	}{
		{"", nil},
		{"oxp1 in", []Hook{{all[0], In}}},
		{"oxp1, oxp9 out", []Hook{{all[0], In}, {all[0], Out}, {all[8], Out}}},
		{"all", append(every(In), every(Out)...)},
		{"all in", every(In)},
		{"all out, oxp2 in", append(every(Out), Hook{all[1], In})},
	} {
		assert.Equal(t, tc.want, hooksText(tc.at))
	}
}

// every is the hooks of all ports in one direction.
func every(d Direction) (at []Hook) {
	for _, p := range board.All() {
		at = append(at, Hook{p, d})
	}
	return at
}
