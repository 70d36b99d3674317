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
	"oxpd/internal/divert"
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
		"pfil_dropped":   {filtered: pfil.Drops{Frames: 3}},
		"rx_divert_lost": inspectedIn(divert.Counts{Seen: 3, DropStall: 1, Oversize: 2}),
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

func inspectedIn(c divert.Counts) portCounts {
	return portCounts{inspected: [divert.Directions]divert.Counts{divert.In: c}}
}

// A frame that waits for its verdict is accounted for, and so are those that engines make.
func TestSumsHaveWhatEnginesHave(t *testing.T) {
	var ports [board.Ports]portCounts
	ports[3] = inspectedIn(divert.Counts{Seen: 9, Accepted: 4, Queued: 3, DropFull: 2, Injected: 5})
	ports[3].RxPackets = 9
	ports[3].inspected[divert.Out] = divert.Counts{Seen: 7, Queued: 3, Dropped: 4, Injected: 8}
	ports[3].TxDrops = 1
	got := sums(ring.Stats{OQStats: ring.OQStats{Done: 9}}, ports, true)
	assert.True(t, got.Accounted, "%+v", got)
	assert.EqualValues(t, []uint64{5, 3, 2}, []uint64{got.Injected, got.Addends["rx_divert_queued"], got.Addends["rx_divert_lost"]})
	shown := portStats(board.ByIndex(3), ports[3])
	for name, want := range map[string]uint64{
		"divert_seen": 16, "divert_queued": 6, "divert_injected": 13, "rx_divert_lost": 2, "rx_divert_queued": 3, "tx_divert_lost": 4, "tx_divert_queued": 3, "tx_drops": 5,
	} {
		assert.Equal(t, want, shown.Counters[name], name)
	}
	assert.EqualValues(t, []uint64{2, 5}, []uint64{shown.Stats64.RX.Dropped, shown.Stats64.TX.Dropped})
	s := client.Stats{Ports: []client.PortStats{shown}}
	assert.NoError(t, s.CheckInspected())
	for name := range shown.Counters {
		if !strings.HasPrefix(name, "divert_") || name == "divert_reordered" || name == "divert_injected" {
			continue
		}
		shown.Counters[name]++
		assert.ErrorContains(t, s.CheckInspected(), "oxp4: divert_seen", name)
		shown.Counters[name]--
	}
}

// What filters dropped in the rings is a port's, once, under either set of names.
func TestDroppedByFiltersIsShown(t *testing.T) {
	got := portStats(board.ByIndex(3), portCounts{Stats: port.Stats{RxTooLong: 1}, filtered: pfil.Drops{Frames: 5, Bytes: 300}})
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
