package inetdiag

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/cputime"
	"oxpd/internal/netlab"
	"oxpd/internal/sys"
	"oxpd/internal/tcpstats"
	"oxpd/internal/tcpstats/tcpload"
)

func TestMain(m *testing.M) {
	if tcpload.Child() {
		return
	}
	os.Exit(m.Run())
}

// readLoads are the read workloads of the benchmarks, by name, and what they may cost of a
// bare dump.
var readLoads = []struct {
	name, text string
	readers    int
	most       float64
}{
	{"none", "", 1, 1.15},
	{"ports", "local_port=10000,10001,10002", 1, 1.15},
	{"states", "exclude=listen,time_wait,close_wait", 1, 1.15},
	{"family_only", "ipv4_only", 1, 1.15},
	{"few_fields", "fields=rtt", 1, 1.15},
	{"all_fields", "fields=all", 1, 1.15},
	{"via", "via=any", 1, 1.3}, // with a route for each pair of addresses, of which there are few
	{"readers_1", "", 1, 1.15},
	{"readers_4", "", 4, 1.15},
	{"readers_16", "", 16, 1.15},
}

// drain reads everything and returns how many records there were.
func drain(s *Source, q *tcpstats.Query, buf []byte) (records int, err error) {
	c, err := s.Open(context.Background(), q)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	for {
		_, n, err := c.Next(context.Background(), buf)
		if err == io.EOF {
			return records, nil
		}
		if err != nil {
			return records, err
		}
		records += n
	}
}

// bare is the dump that a read is measured against: the same requests, whose replies are
// received and not looked at but for their end.
func bare(s *Source, q *tcpstats.Query, room []byte) error {
	c, err := s.Open(context.Background(), q)
	if err != nil {
		return err
	}
	cur := c.(*cursor)
	if err := cur.ask(); err != nil {
		return err
	}
	for room[nlType] = 0; room[nlType] != msgDone; {
		if _, err := sys.Receive(cur.fd, room); err != nil {
			return err
		}
	}
	cur.under = false
	return c.Close()
}

// concurrently runs fn so many times at once, each with a buffer of its own.
func concurrently(t *testing.T, n int, bufs [][]byte, fn func(buf []byte) error) {
	t.Helper()
	if n == 1 {
		require.NoError(t, fn(bufs[0]))
		return
	}
	var wg sync.WaitGroup
	for i := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			assert.NoError(t, fn(bufs[i]))
		}()
	}
	wg.Wait()
}

// used is the CPU time and the time that fn takes.
func used(t *testing.T, fn func()) (cpu, elapsed time.Duration) {
	t.Helper()
	began := time.Now()
	before, err := cputime.Process()
	require.NoError(t, err)
	fn()
	after, err := cputime.Process()
	require.NoError(t, err)
	return after - before, time.Since(began)
}

func median(all []time.Duration) time.Duration {
	all = slices.Clone(all)
	slices.Sort(all)
	return all[len(all)/2]
}

// quiet is the lower quartile: other work on the machine only ever adds to a time.
func quiet(all []time.Duration) time.Duration {
	all = slices.Clone(all)
	slices.Sort(all)
	return all[len(all)/4]
}

// costs measures a workload beside the bare dump, in turns, each first every other time, and
// returns the ratio of their CPU times.
func costs(t *testing.T, s *Source, text string, readers, rounds int) (ratio float64, records int, cpu, elapsed time.Duration) {
	t.Helper()
	f, err := tcpstats.Parse(text)
	require.NoError(t, err)
	q := &tcpstats.Query{Filter: f}
	plain := *q
	plain.Filter.Via = 0 // which is no part of the request
	var bufs [][]byte
	for range readers {
		bufs = append(bufs, make([]byte, 0, tcpstats.ChunkBytes))
	}
	var ours, dumps, times []time.Duration
	var count sync.Mutex
	for round := range 2 * rounds {
		if round%4 == 1 || round%4 == 2 {
			cpu, _ := used(t, func() {
				concurrently(t, readers, bufs, func(buf []byte) error { return bare(s, &plain, buf[:datagramBytes]) })
			})
			dumps = append(dumps, cpu)
			continue
		}
		records = 0
		cpu, took := used(t, func() {
			concurrently(t, readers, bufs, func(buf []byte) error {
				n, err := drain(s, q, buf)
				count.Lock()
				defer count.Unlock()
				records += n
				return err
			})
		})
		ours, times = append(ours, cpu), append(times, took)
	}
	cpu, elapsed = quiet(ours), median(times)
	return float64(cpu) / float64(quiet(dumps)), records, cpu, elapsed
}

// grown is how much memory a read allocates.
func grown(t *testing.T, s *Source) uint64 {
	t.Helper()
	buf := make([]byte, 0, tcpstats.ChunkBytes)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := drain(s, &tcpstats.Query{Filter: tcpstats.Default()}, buf)
	require.NoError(t, err)
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// loaded makes a namespace with so many sockets of connections.
func loaded(t *testing.T, sockets int) (*netlab.NS, *Source) {
	t.Helper()
	ns, p := namespace(t)
	l, err := tcpload.Start(ns, sockets/2)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return ns, New(Config{NetNS: p})
}

// flat is the most that a read of any size allocates: its cursor, and a thread that enters
// the namespace.
const flat = 64 << 10

// TestReadingIsCheap measures one size in short, so that a read that has become expensive is
// seen by every run of the tests. TestCostOfReading has the bounds.
func TestReadingIsCheap(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes a read several times as expensive, and the kernel's part no more")
	}
	_, s := loaded(t, 2000)
	ratio, records, _, _ := costs(t, s, "fields=all", 1, 25)
	assert.Equal(t, 2001, records)
	assert.Less(t, ratio, 2.0, "of the CPU time of a bare dump")
	assert.Less(t, grown(t, s), uint64(flat))
}

// TestCostOfReading: at most 1.15 times the CPU time of a bare dump of the same request, at
// least five times as fast as ss, with memory that does not grow. OXPD_BENCH=1, or make bench.
func TestCostOfReading(t *testing.T) {
	if os.Getenv("OXPD_BENCH") == "" {
		t.Skip("a measurement: OXPD_BENCH=1, or make bench")
	}
	for _, sockets := range []int{1000, 10_000, 100_000} {
		t.Run(fmt.Sprintf("sockets=%d", sockets), func(t *testing.T) {
			ns, s := loaded(t, sockets)
			rounds := min(max(400_000/sockets, 9), 101)
			for _, w := range readLoads {
				ratio := w.most
				for try := 0; try < 3 && ratio >= w.most; try++ { // what others do meanwhile may be in one
					var records int
					var cpu, took time.Duration
					ratio, records, cpu, took = costs(t, s, w.text, w.readers, max(rounds/w.readers, 5))
					t.Logf("%-12s %7d records, %.3f of a bare dump, %4.0f ns CPU a record, %.2f million records/s", w.name, records, ratio,
						float64(cpu.Nanoseconds())/float64(records), float64(records)/took.Seconds()/1e6)
				}
				assert.Less(t, ratio, w.most, w.name)
			}
			var ss, ours []time.Duration
			buf := make([]byte, 0, tcpstats.ChunkBytes)
			list := func() {
				require.NoError(t, ns.Do(func() error {
					out, err := exec.Command("ss", "-tin").Output() // somebody reads it
					if n := bytes.Count(out, []byte("ESTAB")); err == nil && n != sockets {
						err = fmt.Errorf("ss has %d sockets, want %d", n, sockets)
					}
					return err
				}))
			}
			same, err := tcpstats.Parse("exclude=listen,closed") // the sockets that ss lists
			require.NoError(t, err)
			all := func() {
				n, err := drain(s, &tcpstats.Query{Filter: same}, buf)
				require.NoError(t, err)
				require.Equal(t, sockets, n)
			}
			for range 9 { // each after one of its own, which finds the other's caches
				list()
				_, took := used(t, list)
				ss = append(ss, took)
				all()
				_, took = used(t, all)
				ours = append(ours, took)
			}
			t.Logf("ss -tin takes %v, a read %v: %.1f times as fast", median(ss), median(ours), float64(median(ss))/float64(median(ours)))
			assert.Greater(t, float64(median(ss)), 5*float64(median(ours)))
			memory := grown(t, s)
			t.Logf("a read allocates %d bytes", memory)
			assert.Less(t, memory, uint64(flat))
		})
	}
}
