package main

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/daemon"
	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/internal/probe"
	"oxpd/internal/probe/staged"
)

// TestProbeOutput is what the command prints at each stage of a boot, with real
// times.
func TestProbeOutput(t *testing.T) {
	for _, tc := range []struct {
		name  string
		host  staged.Host
		after time.Duration
		code  int
		json  bool
	}{
		{"absent", staged.HostAbsent, time.Minute, exitDone, true},
		{"booting", staged.HostFirmware, 10 * time.Second, exitDone, false},
		{"ready", staged.HostFirmware, time.Minute, exitDone, false},
		{"offered", staged.HostOffer, 10 * time.Second, exitDone, false},
		{"asked", staged.HostOffer, time.Minute, exitFailed, false},
		{"rings", staged.HostRings, 10 * time.Second, exitFailed, false},
		{"handshake-over", staged.HostHandshake, time.Minute, exitFailed, false},
		{"fast-path-up", staged.HostHandshake, 5 * time.Minute, exitFailed, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, asJSON := range []bool{false, true} {
				var b bytes.Buffer
				a := &app{out: &b, json: asJSON}
				err := a.probe(context.Background(), staged.Moment{Timeline: hwsim.Real(), Host: tc.host, After: tc.after}, config.TimelineReal)
				assert.Equal(t, tc.code, a.report(err))
				switch {
				case !asJSON:
					golden(t, "probe-"+tc.name+".txt", b.Bytes())
				case tc.json:
					golden(t, "probe-"+tc.name+".json", b.Bytes())
				}
				if asJSON {
					var r probe.Report
					require.NoError(t, json.Unmarshal(b.Bytes(), &r))
					assert.Equal(t, client.Schema, r.Schema)
				}
			}
		})
	}
}

// A card that does not answer, and one that is not the card.
func TestPrintProbe(t *testing.T) {
	c, err := staged.Open(context.Background(), staged.Moment{Timeline: hwsim.Compressed(), Host: staged.HostFirmware, After: time.Second})
	require.NoError(t, err)
	defer c.Close()
	look := func() *probe.Report {
		r, err := probe.Look(context.Background(), c, probe.Options{})
		require.NoError(t, err)
		return r
	}
	c.Card.Faults(func(f *hwsim.Faults) { f.BarmapVersion = 0x00010000 })
	both(t, "probe-barmap-version", look(), printProbe)
	c.Card.Kill()
	both(t, "probe-gone", look(), printProbe)
}

func TestProbeFollowsTheBringUp(t *testing.T) {
	var names []string
	for _, s := range probe.Stages() {
		names = append(names, s.Name)
	}
	assert.Equal(t, daemon.Stages(), names)
}

func TestProbeCommand(t *testing.T) {
	exe := program()
	for _, tc := range []struct {
		name string
		args []string
		code int
		out  string
	}{
		{"nothing in the way", []string{"--sim"}, 0, "handshake         offers this host, once in a coprocessor boot"},
		{"at power-on", []string{"--sim", "--after", "0"}, 0, "waits: for the target's endpoint driver"},
		{"an exchange in flight", []string{"--sim", "--host", "offer"}, 1, "a core of it spins until it is answered"},
		{"as JSON", []string{"--sim", "--json", "--timeline", "real", "--after", "29s"}, 0, `"source": "simulated card, real timeline, host firmware, 29s after the reset"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := oxpd(t, exe, append([]string{"probe"}, tc.args...)...)
			assert.Equal(t, tc.code, r.code)
			assert.Contains(t, r.out, tc.out)
			assert.Empty(t, r.err)
		})
	}
}
