package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/daemon/client"
)

// update rewrites the golden files of oxpd's own output. Vectors of the hardware
// are elsewhere and are never rewritten.
var update = flag.Bool("update", false, "rewrite testdata/*.golden")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(want), string(got))
}

// both compares a document as text and as JSON, and reads the JSON back.
func both[T any](t *testing.T, name string, doc *T, text func(io.Writer, *T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		for _, asJSON := range []bool{false, true} {
			var b bytes.Buffer
			a := &app{out: &b, json: asJSON}
			require.NoError(t, show(a, doc, text))
			if !asJSON {
				golden(t, name+".txt", b.Bytes())
				continue
			}
			golden(t, name+".json", b.Bytes())
			back := new(T)
			require.NoError(t, json.Unmarshal(b.Bytes(), back))
			assert.Equal(t, doc, back)
			var schema struct{ Schema int }
			require.NoError(t, json.Unmarshal(b.Bytes(), &schema))
			assert.Equal(t, client.Schema, schema.Schema)
		}
	})
}

func TestOutput(t *testing.T) {
	both(t, "status-bringup", &client.Status{
		Schema: 1, Version: "0.1.0", PID: 4711, Uptime: 12.25, State: client.StateBringUp,
		Device: client.Device{Name: "sim", Simulated: true, Alive: true, ClockMHz: 800},
		Rings:  8, Workers: 2, PortsTotal: 12,
		Stages: []client.Stage{
			{Name: "device", State: client.StageDone, Detail: "sim, 64 rings", Seconds: 0.001},
			{Name: "rpc", State: client.StageActive, Awaiting: "facility rpc in the barmap", Seconds: 11.5},
			{Name: "platform", State: client.StagePending},
		},
		Restart:  client.Restart{Costs: []string{"the interfaces (not started by a service manager)", "the simulated card, which ends with oxpd"}},
		Warnings: []string{},
	}, printStatus)
	both(t, "status-trouble", &client.Status{
		Schema: 1, Version: "0.1.0", PID: 4711, Uptime: 3725.5, State: client.StateFailed,
		Device: client.Device{Name: "0000:01:00.0", Platform: "XGS_1US", Assembly: "AMDA0202-0004", ClockMHz: 800},
		Rings:  8, Workers: 2, PortsTotal: 12, PortsUp: 11, CPU: &client.CPU{Percent: 31.5, Seconds: 5}, Filters: []string{"dns", "flood"},
		Busy: []client.WorkerBusy{{Rings: []int{0, 2, 4, 6}, Percent: 0.4, Seconds: 5}, {Rings: []int{1, 3, 5, 7}, Percent: 31, Seconds: 5}},
		Stages: []client.Stage{
			{Name: "netagent", State: client.StageActive, Awaiting: "NetAgent to answer", Error: "nwa: no answer in time", Seconds: 40},
			{Name: "ports", State: client.StageFailed, Error: "card is gone (read all ones)", Seconds: 1},
		},
		Restart:  client.Restart{Costs: []string{"a reboot of the coprocessor"}},
		Warnings: []string{"the card is lost", "oxp3 (Port3) waits for the card to name the port's MAC address: refused"},
	}, printStatus)
	both(t, "status-gone", &client.Status{
		Schema: 1, Version: "0.1.0", PID: 4711, Uptime: 3725.5, State: client.StateGone,
		Device: client.Device{Name: "0000:01:00.0", Lost: 2}, CPU: &client.CPU{Percent: 0.4, Seconds: 5},
		Rings: 8, PortsTotal: 12,
		Stages: []client.Stage{
			{Name: "device", State: client.StageActive, Awaiting: "the card to come back: its vendor id reads ffff", Seconds: 40},
			{Name: "ports", State: client.StagePending},
		},
		Restart:  client.Restart{Seamless: true, Costs: []string{}},
		Warnings: []string{"the card is lost, and waited for"},
	}, printStatus)
	yes, no := true, false
	both(t, "port", &client.PortView{
		Schema: 1, IfName: "oxp1", Label: "Port1", State: client.PortUp, CardAddress: "02:00:00:00:00:02", Bridge: "br0", BridgeMTU: 9000,
		Want: client.PortValues{Admin: client.OperUp, Address: "02:00:00:00:99:99", MTU: 1200, Mode: "L2", Promisc: &yes, AllMulti: &no},
		Interface: client.PortValues{
			Admin: client.OperUp, Link: client.LinkUp, Address: "02:00:00:00:99:99", MTU: 1200, Promisc: &yes, AllMulti: &no,
		},
		LIF:      client.PortValues{Address: "02:00:00:00:99:99", MTU: 1200, Mode: "L3"},
		NetAgent: client.PortValues{Admin: client.OperUp, Link: client.LinkUp, Address: "02:00:00:00:99:99", Promisc: &yes, AllMulti: &no},
		Filters:  []client.FilterOrder{{FilterLink: client.FilterLink{IfName: "oxp1", Label: "Port1", Direction: "in"}, Filters: []string{"dns", "flood"}}},
		PutBack:  1, Repaired: 2,
		Warnings: []string{"oxp1 (Port1): lif: set mode of oxp1 (Port1), LIF 0: refused by the fast path: rc 1: refused; the mode stays L3"},
	}, printPort)
	both(t, "port-waiting", &client.PortView{
		Schema: 1, IfName: "oxp3", Label: "Port3", State: client.PortWaiting, Awaiting: "the card to name the port's MAC address", Warnings: []string{},
	}, printPort)
	both(t, "ports", &client.Ports{Schema: 1, Ports: []client.Port{
		{
			IfName: "oxp1", IfIndex: 5, Label: "Port1", Tag: "0x8100", Address: "02:c8:52:00:00:02", MTU: 1500, OperState: "UP", Admin: "UP",
			Link: "up", SpeedMbps: 1000, State: "up", LIF: client.LIF{Present: true, Address: "02:c8:52:00:00:02", MTU: 1500, Mode: "L3"},
		},
		{
			IfName: "oxp3", Label: "Port3", Tag: "0x8300", OperState: "DOWN", Admin: "DOWN", Link: "unknown", SpeedMbps: 1000,
			State: "waiting", Awaiting: "the card to name the port's MAC address: refused (status 1)", LIF: client.LIF{Index: 8192, Error: "absent"},
		},
		{
			IfName: "oxp9", IfIndex: 13, Label: "PortF1", KernelName: "wan0", KernelAddress: "02:00:00:00:99:99", Tag: "0x0001", Address: "02:c8:52:00:00:0a", MTU: 9000, OperState: "DOWN", Admin: "UP",
			Link: "down", SpeedMbps: 10000, State: "up", LIF: client.LIF{Index: 40960, Present: true, Address: "02:c8:52:00:00:0a", MTU: 9000, Mode: "L3"},
		},
	}}, printPorts)
	both(t, "mtu-cage", &client.MTU{Schema: 1, IfName: "oxp9", Label: "PortF1", LIF: 9000, Interface: 9000, Switch: client.SwitchNone, Effective: 9000}, printMTU)
	both(t, "mtu-switch", &client.MTU{
		Schema: 1, IfName: "oxp3", Label: "Port3", LIF: 9000, Interface: 9000, Switch: client.SwitchUnknown, Effective: 9000,
		Note: "the limit of the switch before oxp3 (Port3) is unknown: frames above 1522 bytes with FCS may vanish in it, and no counter moves",
	}, printMTU)
	both(t, "mtu-switch-known", &client.MTU{
		Schema: 1, IfName: "oxp3", Label: "Port3", LIF: 9000, Interface: 9000, Switch: client.SwitchConfig, SwitchMTU: 2030, SwitchFrame: 2048, Effective: 2030,
		Note: "mtu 9000 of oxp3 (Port3) is more than the switch before it passes: longer frames vanish in the switch, and no counter moves",
	}, printMTU)
	both(t, "mtu-switch-read", &client.MTU{
		Schema: 1, IfName: "oxp3", Label: "Port3", LIF: 2026, Interface: 2026, Switch: client.SwitchRead, SwitchMTU: 2026, SwitchFrame: 10240, UplinkFrame: 2048, Effective: 2026,
	}, printMTU)
	both(t, "switch", &client.Switch{Schema: 1, Product: "0x193", Ports: []client.SwitchPort{
		{Port: "sw0", Frame: 10240, MTU: 10218, Register: "0x2080", Link: client.LinkUp, Speed: 10000, State: "forwarding"},
		{Port: "sw1", IfName: "oxp1", Label: "Port1", Frame: 2048, MTU: 2030, Register: "0x1080", Link: client.LinkUp, Speed: 1000, State: "forwarding"},
		{Port: "sw9", IfName: "oxp11", Label: "PortF3", Register: "0x3080", Link: client.LinkDown, State: "disabled"},
	}}, printSwitch)
	both(t, "switch-run", &client.SwitchRun{Schema: 1, Frame: 10240, Ports: []client.SwitchPort{
		{Port: "sw0", Frame: 10240, Before: 10240, Register: "0x2080", Outcome: client.SwitchNotBegun},
		{Port: "sw1", IfName: "oxp1", Label: "Port1", Frame: 10240, Before: 2048, Register: "0x2081", Outcome: client.SwitchChanged},
		{Port: "sw2", IfName: "oxp2", Label: "Port2", Before: 2048, Outcome: client.SwitchFailed, Error: "register 0x08 of oxp2 (Port2, sw2) was written and could not be read back"},
		{Port: "sw9", IfName: "oxp11", Label: "PortF3", Register: "0x3080", Outcome: client.SwitchFailed, Error: "oxp11 (PortF3, sw9) has the reserved frame size, mode 3 (0x3080)"},
	}, Failure: &client.Error{Schema: 1, Code: client.CodeRefused, Message: "not all", Hint: "repeat it"}}, printSwitchRun)
	both(t, "switch-register", &client.SwitchRegister{Schema: 1, Device: "sw9", IfName: "oxp11", Label: "PortF3", Register: 4, Value: "0x007c", Before: "0x007f"}, printSwitchRegister)
	both(t, "mtu-absent", &client.MTU{Schema: 1, IfName: "oxp3", Label: "Port3", Switch: client.SwitchUnknown}, printMTU)

	f1 := client.PortStats{
		IfName: "oxp9", Label: "PortF1",
		Stats64: client.Stats64{
			RX: client.LinkStats{Bytes: 109056, Packets: 12, Errors: 1, Dropped: 2},
			TX: client.LinkStats{Bytes: 720, Packets: 12, Dropped: 3},
		},
		Counters: map[string]uint64{"rx_packets": 12, "rx_bytes": 109056, "rx_malformed": 1, "rx_toolong": 2, "tap_kernel_dropped": 3, "tx_packets": 12, "tx_bytes": 720},
	}
	stats := &client.Stats{
		Schema: 1, Device: map[string]uint64{"rx_done": 15, "rx_spans": 12, "rx_span_bufs": 24, "rx_span_max": 9088}, Ports: []client.PortStats{f1},
		Sums: client.Sums{Accounted: true, Quiet: true, Taken: 15, Addends: map[string]uint64{"rx_packets": 12, "rx_malformed": 1, "rx_toolong": 2}},
	}
	both(t, "stats", stats, printStats)
	both(t, "stats-port", stats, printPortStats)
	lost := *stats
	lost.Sums = client.Sums{Quiet: true, Taken: 16, Addends: map[string]uint64{"rx_packets": 12}, Difference: 4}
	both(t, "stats-unaccounted", &lost, printStats)
	twice := *stats
	twice.Sums = client.Sums{Quiet: true, Taken: 16, Addends: map[string]uint64{"rx_packets": 27}, Difference: -11}
	both(t, "stats-more", &twice, printStats)
	sim := *stats
	sim.Wires = []client.WireStats{
		{IfName: "oxp9", Label: "PortF1", Counters: map[string]uint64{
			"in": 20, "passed": 15, "link_down": 1, "runt": 1, "oversize": 1, "filtered": 2, "out": 12, "out_link_down": 1, "out_refused": 2, "replay_sent": 20, "replay_cut": 3,
		}},
	}
	both(t, "stats-sim", &sim, printStats)
	both(t, "stats-sim-port", &sim, printPortStats)
	rings := *stats
	rings.Rings = []client.RingStats{
		{Ring: 0, Counters: map[string]uint64{"intr_taken": 3, "rx_done": 12, "rx_span_max": 9088}},
		{Ring: 1, Counters: map[string]uint64{"intr_taken": 2, "rx_done": 3, "rx_span_max": 0}},
	}
	rings.Device = map[string]uint64{"intr_taken": 5, "rx_done": 15, "rx_span_max": 9088, "tx_posted": 7}
	both(t, "stats-rings", &rings, printRingStats)
	early := *stats
	both(t, "stats-rings-early", &early, printRingStats)
	prefix := make(client.Hex, 82)
	copy(prefix, []byte{0, 0, 0, 0, 0, 0, 0x06, 0x34, 0, 0, 0, 0, 0, 0, 0x03, 0x80, 0, 1})
	arp := client.Hex{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 1, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1}
	both(t, "instruments", &client.Instruments{Schema: 1, PrefixSeq: 9, Rings: []client.RingInstruments{
		{Ring: 0, PrefixSeq: 9, LastPrefix: prefix, LastFrameHead: arp, LastUntaggedPrefix: prefix, LastUntaggedHead: client.Hex{0xef, 0xef}},
		{Ring: 1},
	}}, printInstruments)
	busy := *stats
	busy.Sums = client.Sums{Taken: 16, Addends: map[string]uint64{"rx_packets": 12}, Difference: 4}
	both(t, "stats-busy", &busy, printStats)

	counters := &client.Counters{
		Schema:   1,
		Counters: []client.Counter{{Index: 0, Name: "RX_WIRE", Value: 14}, {Index: 1, Name: "TX_WIRE"}, {Index: 29, Name: "FROM_WIRE_DROP_MTU_EXCEEDED", Value: 2}},
		Ports:    []client.FastPathPort{{Port: 0, Name: "uplink"}, {Port: 1, Name: "PortF1", RX: 14, TX: 12, TXDropQueueFull: 1}},
	}
	both(t, "counters", counters, printCounters)
	both(t, "counters-all", counters, printAllCounters)
	both(t, "version", &versionDoc{Schema: 1, Version: "0.1.0", Revision: "5a9c85f0b1c2d3e4", Modified: true, Go: "go1.23.0"}, printVersion)
}

func TestStopOutput(t *testing.T) {
	for name, r := range map[string]client.StopResult{
		"stop-kept":     {RingsEnabled: true, MemoryKept: true},
		"stop-released": {RingsEnabled: true, RebootNeeded: true, Warnings: []string{"reboot the coprocessor before the next start"}},
		"stop-teardown": {RebootNeeded: true},
		"stop-left":     {RingsEnabled: true, RebootNeeded: true, TXUnfinished: 100, RXLeft: 5},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			printStop(&b, &r)
			golden(t, name+".txt", b.Bytes())
		})
	}
}

func TestNegatives(t *testing.T) {
	for _, tc := range []struct {
		name     string
		in, want []string
	}{
		{"value", []string{"mtu", "oxp9", "-1"}, []string{"mtu", "oxp9", "--", "-1"}},
		{"flag behind the value", []string{"mtu", "oxp9", "-1", "--json"}, []string{"mtu", "oxp9", "--json", "--", "-1"}},
		{"flags in front", []string{"--socket", "-5", "mtu", "oxp9", "-1"}, []string{"--socket", "-5", "mtu", "oxp9", "--", "-1"}},
		{"said already", []string{"mtu", "oxp9", "--", "-1"}, []string{"mtu", "oxp9", "--", "-1"}},
		{"another command", []string{"stats", "-1"}, []string{"stats", "-1"}},
		{"no number", []string{"mtu", "oxp9", "-x"}, []string{"mtu", "oxp9", "-x"}},
		{"nothing", nil, nil},
	} {
		t.Run(tc.name, func(t *testing.T) { assert.Equal(t, tc.want, negatives(tc.in)) })
	}
}
