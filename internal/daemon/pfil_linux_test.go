package daemon

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/pfil"
)

// What filters drop is in the counters of the rings, of the ports, and of the rules, the
// same in each; and all of it goes on when the card is lost and comes back: the table
// lives as long as the daemon.
func TestFiltersAndTheirCountersOutliveTheCard(t *testing.T) {
	t.Parallel()
	card := sharedCard(t, hwsim.Compressed())
	r := start(t, rigOptions{shared: card}).running()
	ports := []string{"oxp9", "oxp10"}
	rules := "drop any from any to any in ethertype 0x88b5 length 100-9014\ndrop any from any to any out ethertype 0x88b5 length 200\n"
	_, err := r.d.filters.table.Load("x", pfil.Source{Name: "x", Rules: []byte(rules)})
	require.NoError(t, err)
	all := board.All()
	require.NoError(t, r.d.filters.table.Link("x", all[:], pfil.Both))
	up := func() {
		for _, p := range ports {
			r.mustIP("link", "set", p, "up")
			r.wait("link", func() bool { return r.port(p).OperState == client.OperUp })
		}
	}
	up()
	require.NoError(t, r.setMTU("oxp9", 9000))

	var want struct{ in, inBytes, bufs, out, outBytes uint64 }
	round := func() {
		for _, n := range []int{60, 100, 1514, 9014} {
			for range 5 {
				r.wire("oxp9").Send(frameOf(n))
			}
			if n >= 100 {
				want.in, want.inBytes = want.in+5, want.inBytes+5*uint64(n)
				want.bufs += 5 * map[int]uint64{100: 1, 1514: 1, 9014: 6}[n]
			}
		}
		r.wire("oxp10").Send(frameOf(100))
		want.in, want.inBytes, want.bufs = want.in+1, want.inBytes+100, want.bufs+1
		for _, p := range ports {
			r.send(p, frameOf(200), frameOf(201), frameOf(200))
			want.out, want.outBytes = want.out+2, want.outBytes+400
		}
	}
	check := func() {
		t.Helper()
		read := func() (s *client.Stats, in, inBytes, out, outBytes uint64) {
			s, err := r.client.Stats(context.Background(), "")
			require.NoError(t, err)
			for _, p := range s.Ports {
				c := p.Counters
				in, inBytes = in+c["pfil_dropped"], inBytes+c["pfil_dropped_bytes"]
				out, outBytes = out+c["tx_pfil_dropped"], outBytes+c["tx_pfil_dropped_bytes"]
				require.GreaterOrEqual(t, c["tx_drops"], c["tx_pfil_dropped"], "%s: part of the drops", p.IfName)
			}
			return s, in, inBytes, out, outBytes
		}
		r.wait("all that is to be dropped", func() bool {
			_, in, _, out, _ := read()
			return in == want.in && out == want.out
		})
		var s *client.Stats
		var inBytes, outBytes uint64
		r.wait("counters that belong together", func() bool { s, _, inBytes, _, outBytes = read(); return s.Sums.Quiet })
		assert.Equal(t, []uint64{want.inBytes, want.outBytes}, []uint64{inBytes, outBytes})
		assert.Equal(t, []uint64{want.in, want.inBytes, want.bufs},
			[]uint64{s.Device["pfil_dropped"], s.Device["pfil_dropped_bytes"], s.Device["pfil_recycled_bufs"]}, "the rings say the same")
		assert.True(t, s.Sums.Accounted, "%+v", s.Sums)
		assert.Equal(t, want.in, s.Sums.Addends["pfil_dropped"])
		v, err := r.d.filters.table.Show("x")
		require.NoError(t, err)
		assert.Equal(t, []uint64{want.in, want.out}, []uint64{v.Rules[0].Hits, v.Rules[1].Hits}, "and the rules")
		assert.Equal(t, []uint64{want.inBytes, want.outBytes}, []uint64{v.Rules[0].Bytes, v.Rules[1].Bytes})
	}
	round()
	check()
	r.away()
	check()
	card.Reboot()
	r.wait("running", func() bool { return r.state() == client.StateRunning })
	up()
	r.wait("the MTU", func() bool { return r.effective("oxp9") == 9000 })
	round()
	check()
}
