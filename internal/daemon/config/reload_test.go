package config

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReload(t *testing.T) {
	running, err := Parse("running", []byte(`
workers: 2
ports: {F1: {mtu: 9000}, oxp1: {up: true}}
sim: {wires: {oxp1: tap:a, F2: loop:F1}}
`))
	require.NoError(t, err)
	for _, tc := range []struct {
		name, file  string
		live, fixed []Change
	}{
		{name: "the same", file: "workers: 2\nports: {PortF1: {mtu: 9000}, oxp1: {up: true}}\nsim: {wires: {Port1: tap:a, oxp10: loop:F1}}"},
		{
			name: "what can change",
			file: "workers: 2\nlink-poll: 2s\nreconcile: 500ms\nswitch: {console: /dev/ttyS2, jumbo: all, size: 2048, watch: 1m}\ndivert: {on-full: pass, stall-ms: 500, ports: {F1: {frames: all}}}\nports: {F1: {mtu: 1500}}\nsim: {wires: {oxp1: tap:a, F2: loop:F1}}",
			live: []Change{{"switch.console", "", "/dev/ttyS2"}, {"switch.jumbo", "", "all"}, {"switch.size", "0", "2048"}, {"switch.watch", "5m0s", "1m0s"}, {"link-poll", "1s", "2s"}, {"reconcile", "1s", "500ms"},
				{"divert.on-full", "drop", "pass"}, {"divert.stall-ms", "1000", "500"}, {"divert.ports.oxp9", "filter by socket", "all by socket"}},
		},
		{
			name: "what cannot",
			file: "socket: /run/other.sock\ndevice: 0000:01:00.0\nworkers: 3\nwatermark: 512\ndma-bits: 48\ndivert: {listeners: [/run/i.sock]}\nsim: {timeline: real, seed: 2, console: /run/con, wires: {oxp1: tap:b, F3: tap:c}}",
			fixed: []Change{
				{"socket", "/run/oxpd/oxpd.sock", "/run/other.sock"},
				{"device", "", "0000:01:00.0"},
				{"workers", "2", "3"},
				{"watermark", "1024", "512"},
				{"dma-bits", "36", "48"},
				{"divert.listeners", "/run/oxpd/inspect.sock", "/run/i.sock"}, {"tcpstats.socket", "/run/oxpd/tcpstats.sock", "/run/other-tcpstats.sock"},
				{"sim.timeline", "compressed", "real"},
				{"sim.seed", "1", "2"},
				{"sim.console", "", "/run/con"},
				{"sim.wires.oxp1", "tap:a", "tap:b"},
				{"sim.wires.oxp10", "loop:F1", "none"},
				{"sim.wires.oxp11", "none", "tap:c"},
			},
		},
		{
			name:  "an empty file means the defaults",
			fixed: []Change{{"workers", "2", "0"}, {"sim.wires.oxp1", "tap:a", "none"}, {"sim.wires.oxp10", "loop:F1", "none"}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file, err := Parse("file", []byte(tc.file))
			require.NoError(t, err)
			now, live, fixed := running.Reload(file)
			assert.Equal(t, tc.live, live)
			assert.Equal(t, tc.fixed, fixed)
			assert.Equal(t, file.Ports, now.Ports)
			_, live, again := now.Reload(file)
			assert.Empty(t, live, "in force")
			assert.Equal(t, tc.fixed, again, "still to be restarted for")
			assert.NoError(t, now.Check())
		})
	}
}
