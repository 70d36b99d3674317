package tcpstats

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// sink keeps the loops of measurements from being optimised away.
var sink uint64

// scan is what every parser does at least: each byte is looked at once, in order.
func scan(text string) {
	n := uint64(0)
	for i := 0; i < len(text); i++ {
		n = n*31 + uint64(text[i])
	}
	sink += n
}

// perCall is the nanoseconds of one call of fn, the median of several turns.
func perCall(calls int, fn func()) float64 {
	var all []float64
	for range 9 {
		began := time.Now()
		for range calls {
			fn()
		}
		all = append(all, float64(time.Since(began).Nanoseconds())/float64(calls))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// most is the most that parsing may take beside a scan of the same bytes, by workload, with
// room for a machine that does other things: it took 4 to 9 times as long. Of one without
// bytes there is nothing beside it.
const most = 20

// TestCostOfParsing prints the ten workloads beside a scan of the same bytes and the peer's
// figures. OXPD_BENCH=1, or make bench.
func TestCostOfParsing(t *testing.T) {
	if os.Getenv("OXPD_BENCH") == "" {
		t.Skip("a measurement: OXPD_BENCH=1, or make bench")
	}
	const calls = 200_000
	for _, w := range workloads {
		parse := perCall(calls, func() {
			f, _ := Parse(w.text)
			sink += uint64(f.States)
		})
		bare := perCall(calls, func() { scan(w.text) })
		t.Logf("%-16s %3d bytes: %6.1f ns, %5.1f times a scan of its bytes (%5.1f ns); published %3.0f ns, %.2f of it",
			w.name, len(w.text), parse, parse/bare, bare, w.published, parse/w.published)
		if len(w.text) > 0 {
			assert.Less(t, parse/bare, float64(most), w.name)
		}
	}
}
