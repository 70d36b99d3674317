package daemon

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"oxpd/internal/board"
	"oxpd/internal/port"
	"oxpd/ring"
)

// Invariant 4 of datapath.md 4: whatever a port counts a frame as is an addend,
// under that name, once.
func TestSumsHaveEveryDispositionOfAPort(t *testing.T) {
	ends := map[string]port.Stats{
		"rx_packets": {RxPackets: 3}, "rx_malformed": {RxMalformed: 3}, "rx_toolong": {RxTooLong: 3},
		"rx_nobuf": {RxNoBuf: 3}, "tap_down": {TapDown: 3}, "tap_err": {TapErr: 3},
	}
	for d := port.Delivered; d.String() != "unknown"; d++ {
		assert.Contains(t, ends, d.String(), "a disposition without a case here")
	}
	for name, s := range ends {
		t.Run(name, func(t *testing.T) {
			var ports [board.Ports]port.Stats
			ports[3], ports[9] = s, s
			got := sums(ring.Stats{OQStats: ring.OQStats{Done: 6}}, ports, true)
			assert.EqualValues(t, 6, got.Addends[name])
			assert.True(t, got.Accounted, "%v", got)
			shown := portStats(board.ByIndex(3), s)
			assert.EqualValues(t, 3, shown.Counters[name])
			rx := shown.Stats64.RX
			assert.EqualValues(t, 3, rx.Packets+rx.Errors+rx.Dropped, "in the names of ip, once")
		})
	}
}
