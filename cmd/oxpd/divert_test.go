package main

import (
	"bytes"
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"

	"oxpd/internal/daemon/client"
)

func TestDivertOutput(t *testing.T) {
	f1 := client.DivertPort{
		IfName: "oxp9", Label: "PortF1", DivertMode: client.DivertMode{Frames: client.FramesAll, Engine: client.EngineSocket},
		In: map[string]uint64{"divert_seen": 1_000_000, "divert_accepted": 999_000, "divert_pass_full": 900, "divert_drop_stall": 92, "divert_queued": 8, "divert_reordered": 3},
		Out: map[string]uint64{
			"divert_seen": 21, "divert_accepted": 1, "divert_dropped": 2, "divert_replaced": 3, "divert_flow_passed": 4, "divert_pass_absent": 5, "divert_drop_full": 6,
		},
	}
	first := client.DivertPort{
		IfName: "oxp1", Label: "Port1", DivertMode: client.DivertMode{Frames: client.FramesFilter, Engine: client.EngineTapPair}, In: map[string]uint64{}, Out: map[string]uint64{},
	}
	settings := client.DivertSettings{QueueLen: 1024, QueueBytes: 4 << 20, OnFull: "pass", OnAbsent: "drop", OnStall: "drop", StallMS: 1000, Order: "any"}
	d := &client.Divert{
		Schema: 1, Settings: settings, Warnings: []string{"/run/b.sock: no engine is attached: its share of the frames of oxp9 is dropped"},
		Queues: []client.DivertQueue{
			{
				Name: "/run/oxpd/inspect.sock", Kind: "socket", State: "busy", Engine: "oxpd inspect", PID: 4711, SocketBuffer: 425984,
				Queued: 8, QueuedBytes: 12_624, MostQueued: 1024, MostBytes: 1_615_872, Flows: 2, DelayP50US: 43, DelayP99US: 1_875, DelayMaxUS: 1_000_250,
				Counters: map[string]uint64{"handed": 999_108, "verdicts_late": 2, "stalls": 1, "bad_messages": 0},
			},
			{Name: "/run/b.sock", Kind: "socket", State: "absent", Counters: map[string]uint64{}},
			{Name: "oxp1", Kind: "tap-pair", State: "stalled", Counters: map[string]uint64{"stalls": 1}},
		},
		Ports: []client.DivertPort{first, f1},
	}
	both(t, "divert-show", d, printDivert)
	both(t, "divert-port", &client.Divert{Schema: 1, Settings: settings, Queues: []client.DivertQueue{}, Ports: []client.DivertPort{f1}, Warnings: d.Warnings}, printDivertPort)
	both(t, "divert-mode", &client.Divert{Schema: 1, Settings: settings, Queues: []client.DivertQueue{}, Ports: []client.DivertPort{first}, Warnings: []string{}}, printDivertMode)
	sized := *d
	sized.Settings.BufferSize, sized.Settings.QueueBytes = 64<<10, 70_000
	both(t, "divert-set", &sized, printDivertSettings)
}

func TestEngineLines(t *testing.T) {
	assert.Empty(t, engineLines(nil))
	assert.Equal(t, "engines /run/oxpd/inspect.sock: busy (oxpd inspect), 8 queued\n        oxp1: absent, 0 queued\n", engineLines([]client.DivertEngine{
		{Queue: "/run/oxpd/inspect.sock", State: client.QueueBusy, Engine: "oxpd inspect", Queued: 8}, {Queue: "oxp1", State: client.QueueAbsent},
	}))
}

// What is wrong with a command line is said without a daemon.
func TestDivertUsage(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{"no such command", []string{"divert", "sow"}, `unknown command "sow" of oxpd divert`},
		{"nothing to set", []string{"divert", "set"}, "divert set: KEY=VALUE... is missing"},
		{"no value", []string{"divert", "set", "on-full=pass", "order"}, `"order": want KEY=VALUE, such as queue-len=4096`},
		{"no such port to show", []string{"divert", "show", "oxp13"}, `unknown port "oxp13"`},
		{"two ports to show", []string{"divert", "show", "oxp1", "oxp2"}, `divert show: "oxp2" is one argument too many`},
		{"no frames", []string{"divert", "port", "F1"}, "divert port: all|filter is missing"},
		{"no such frames", []string{"divert", "port", "F1", "none"}, `"none": want all or filter`},
		{"no such port", []string{"divert", "port", "all", "all"}, `unknown port "all"`},
		{"no such engine", []string{"divert", "port", "F1", "all", "--engine", "nfq"}, `--engine "nfq": want socket or tap-pair`},
		{"an empty engine", []string{"divert", "port", "F1", "all", "--engine="}, `--engine "": want socket or tap-pair`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			assert.Equal(t, exitUsage, (&app{out: &out, err: &errs}).main(context.Background(), append(tc.args, "--socket", filepath.Join(t.TempDir(), "none"))))
			assert.Contains(t, errs.String(), tc.want)
			assert.Empty(t, out.String())
		})
	}
}
