package daemon

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/pfil"
	"oxpd/internal/port"
	"oxpd/ring"
	"oxpd/ring/wire"
)

// Invariant 4 of datapath.md 4: whatever a port counts a frame as is an addend,
// under that name, once.
func TestSumsHaveEveryDispositionOfAPort(t *testing.T) {
	of := func(s port.Stats) portCounts { return portCounts{Stats: s} }
	ends := map[string]portCounts{
		"rx_packets": of(port.Stats{RxPackets: 3}), "rx_malformed": of(port.Stats{RxMalformed: 3}), "rx_toolong": of(port.Stats{RxTooLong: 3}),
		"rx_nobuf": of(port.Stats{RxNoBuf: 3}), "tap_down": of(port.Stats{TapDown: 3}), "tap_err": of(port.Stats{TapErr: 3}),
		"pfil_dropped": {filtered: pfil.Drops{Frames: 3}},
	}
	for d := port.Delivered; d.String() != "unknown"; d++ {
		assert.Contains(t, ends, d.String(), "a disposition without a case here")
	}
	for name, s := range ends {
		t.Run(name, func(t *testing.T) {
			var ports [board.Ports]portCounts
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

// What filters dropped in the rings is a port's, once, under either set of names.
func TestDroppedByFiltersIsShown(t *testing.T) {
	got := portStats(board.ByIndex(3), portCounts{port.Stats{RxTooLong: 1}, pfil.Drops{Frames: 5, Bytes: 300}})
	assert.EqualValues(t, 5, got.Counters["pfil_dropped"])
	assert.EqualValues(t, 300, got.Counters["pfil_dropped_bytes"])
	assert.EqualValues(t, 6, got.Stats64.RX.Dropped)
	assert.Zero(t, got.Stats64.RX.Packets)
}

// spelled are the names of datapath.md 4 that are written for people there.
var spelled = map[string]string{
	"quiesce waits": "quiesce_waits", "longest": "quiesce_longest_us",
	"last prefix": "last_prefix", "last frame head": "last_frame_head",
	"last untagged head": "last_untagged_head", "last span head": "last_span_head",
}

// countersOfThePage reads section 4 of datapath.md: the first column of its table,
// and the line of those per interface.
func countersOfThePage(t *testing.T) (device, iface []string) {
	page, err := os.ReadFile("../../docs/hardware/datapath.md")
	require.NoError(t, err)
	_, section, ok := strings.Cut(string(page), "\n## 4. Driver counters and invariants\n")
	require.True(t, ok, "section 4")
	section, _, _ = strings.Cut(section, "\n## ")
	split := func(list string) (names []string) {
		for _, name := range regexp.MustCompile(`, | / `).Split(list, -1) {
			name, _, _ = strings.Cut(strings.TrimSpace(name), " (") // rx_done (datapath)
			if s, ok := spelled[name]; ok {
				name = s
			}
			require.Regexp(t, `^[a-z_]+$`, name, "a name that nobody knows how to write")
			names = append(names, name)
		}
		return names
	}
	for _, row := range regexp.MustCompile(`(?m)^\| ([^|]+) \|`).FindAllStringSubmatch(section, -1) {
		if row[1] != "counter" {
			device = append(device, split(row[1])...)
		}
	}
	line := regexp.MustCompile(`(?m)^Per interface: ([^.]+)\.`).FindStringSubmatch(section)
	require.NotNil(t, line, "the counters per interface")
	return device, split(line[1])
}

// A12: oxpd shows all counters of datapath.md 4 under those names, also before
// there are rings.
func TestEveryCounterOfThePageIsShown(t *testing.T) {
	device, iface := countersOfThePage(t)
	require.Len(t, device, 33, "names in the table")
	require.Len(t, iface, 6, "names per interface")

	d := New(Options{})
	stats := d.stats(nil)
	shown, err := json.Marshal(client.RingInstruments{})
	require.NoError(t, err)
	var instruments map[string]any
	require.NoError(t, json.Unmarshal(shown, &instruments))
	for _, name := range device {
		_, counter := stats.Device[name]
		_, instrument := instruments[name]
		assert.True(t, counter || instrument, "%s is not shown", name)
	}
	require.Len(t, stats.Ports, board.Ports)
	for _, p := range stats.Ports {
		for _, name := range iface {
			assert.Contains(t, p.Counters, name, p.IfName)
		}
	}
	in := d.instruments()
	assert.Len(t, in.Rings, wire.OQs, "also while there are no rings")
	assert.Zero(t, in.PrefixSeq)
}
