package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/daemon/client"
	"oxpd/octep"
	"oxpd/ring"
	"oxpd/rpc/msg"
)

// A port of the process before: the interface stays as it is, and what the card has is
// what it was to be.
func TestProvisionOfAnAdoptedPort(t *testing.T) {
	ctx := context.Background()
	own, other := ownMAC(0x0001), [6]byte{2, 0, 0, 0, 9, 9}
	in := portSettings{mtu: 9000}.String()
	for _, tc := range []struct {
		name  string
		rec   portRecord
		iface fakeIface
		lif   msg.LIF
		want  []string // in this order
		not   []string
	}{
		{
			"as it was", portRecord{Own: hwAddr(own), Up: true, Settings: in},
			fakeIface{mtu: 3000, limit: 3000, mac: own, isUp: true}, msg.LIF{MAC: own, MTU: 3000, Fwd: msg.FwdL3},
			[]string{"state 0x0001 true", "rejoin"}, []string{"lif", "interface", "attach", "limit"},
		},
		{
			"an address and a bridge", portRecord{Own: hwAddr(own), Up: true, Settings: in},
			fakeIface{mtu: 1500, limit: 1500, mac: other, isUp: true, bridge: "br0"}, msg.LIF{MAC: other, MTU: 1500, Fwd: msg.FwdL2},
			[]string{"set mac 0x0001", "rejoin", "promisc 0x0001 true"}, []string{"lif", "interface", "attach"},
		},
		{
			"lowered", portRecord{Own: hwAddr(own), Settings: in},
			fakeIface{mtu: 1500, limit: 1500, mac: own}, msg.LIF{MAC: own, MTU: 1500, Fwd: msg.FwdL3},
			[]string{"rejoin", "state 0x0001 false"}, []string{"state 0x0001 true", "interface"},
		},
		{
			"set down while nobody served it", portRecord{Own: hwAddr(own), Up: true, Iface: "up", Settings: in},
			fakeIface{mtu: 1500, limit: 1500, mac: own}, msg.LIF{MAC: own, MTU: 1500, Fwd: msg.FwdL3},
			[]string{"rejoin", "state 0x0001 false"}, []string{"state 0x0001 true", "lif", "interface", "attach"},
		},
		{
			"set up while nobody served it", portRecord{Own: hwAddr(own), Iface: "down", Settings: in},
			fakeIface{mtu: 1500, limit: 1500, mac: own, isUp: true}, msg.LIF{MAC: own, MTU: 1500, Fwd: msg.FwdL3},
			[]string{"state 0x0001 true", "rejoin"}, []string{"state 0x0001 false", "lif", "interface", "attach"},
		},
		{
			"never set up, and raised", portRecord{Own: hwAddr(own), Up: true, Iface: "down", Settings: in},
			fakeIface{mtu: 1500, limit: 1500, mac: own}, msg.LIF{MAC: own, MTU: 1500, Fwd: msg.FwdL3},
			[]string{"state 0x0001 true", "rejoin"}, []string{"state 0x0001 false", "interface", "attach"},
		},
		{
			"an MTU set while nobody served it", portRecord{Own: hwAddr(own), Up: true, Iface: "up", Settings: in},
			fakeIface{mtu: 2000, limit: 2000, mac: own, isUp: true}, msg.LIF{MAC: own, MTU: 1500, Fwd: msg.FwdL3},
			[]string{"rejoin", "lif mask 0x2 mtu 2000"}, []string{"interface", "attach"},
		},
		{
			"down, and the record does not say what it was", portRecord{Own: hwAddr(own), Up: true, Settings: in},
			fakeIface{mtu: 1500, limit: 1500, mac: own}, msg.LIF{MAC: own, MTU: 1500, Fwd: msg.FwdL3},
			[]string{"state 0x0001 true", "rejoin"}, []string{"state 0x0001 false"},
		},
		{
			"an address set while nobody served it", portRecord{Own: hwAddr(own), Up: true, Settings: in},
			fakeIface{mtu: 1500, limit: 1500, mac: other, isUp: true}, msg.LIF{MAC: own, MTU: 1500, Fwd: msg.FwdL3},
			[]string{"set mac 0x0001", fmt.Sprintf("lif mask 0x1 mac %x", other), "rejoin"}, []string{"interface"},
		},
		{
			"another configuration than before", portRecord{Own: hwAddr(own), Up: true, Settings: portSettings{mtu: 3000}.String()},
			fakeIface{mtu: 3000, limit: 3000, mac: own, isUp: true}, msg.LIF{MAC: own, MTU: 3000, Fwd: msg.FwdL3},
			[]string{"rejoin", "lif mask 0x2 mtu 9000", "interface mtu 9000"}, []string{"attach"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, 8, 9000)
			b.table.present, b.table.entry = true, tc.lif
			i := tc.iface
			i.log = &b.log
			require.NoError(t, b.inherit(&i, tc.rec))
			var noted portRecord
			b.note = func(r portRecord) { noted = r }
			require.NoError(t, b.provision(ctx))
			at := 0
			for _, want := range tc.want {
				for at < len(b.log) && !strings.HasPrefix(b.log[at], want) {
					at++
				}
				require.Less(t, at, len(b.log), "%s in %q", want, b.log)
			}
			for _, line := range b.log {
				for _, not := range tc.not {
					assert.False(t, strings.HasPrefix(line, not), "%s in %q", not, b.log)
				}
			}
			assert.Same(t, &i, b.snapshot().iface)
			up := tc.rec.Up
			if tc.rec.Iface != "" && tc.rec.Iface != upDown(tc.iface.isUp) {
				up = tc.iface.isUp
			}
			assert.Equal(t, up, b.snapshot().want.up)
			assert.Equal(t, portRecord{Own: hwAddr(own), Up: up, Iface: upDown(tc.iface.isUp), Settings: in}, noted, "for the next process")
		})
	}
}

func TestInheritRefuses(t *testing.T) {
	for _, own := range []string{"", "02:00", "02:00:00:00:00:00:00:01"} {
		b := newBench(t, 8, 0)
		assert.ErrorContains(t, b.inherit(b.iface, portRecord{Own: own}), "is recorded as")
		assert.Nil(t, b.snapshot().iface)
	}
	b := newBench(t, 8, 0)
	b.iface.lost = io.EOF
	assert.ErrorIs(t, b.inherit(b.iface, portRecord{Own: hwAddr(ownMAC(1))}), io.EOF)
}

func TestFinal(t *testing.T) {
	for err, want := range map[error]bool{
		&ring.AdoptError{}:           true,
		&RecordError{io.EOF}:         true,
		&octep.EarlierRunError{}:     true,
		octep.ErrHandshakeInFlight:   true,
		octep.ErrHandshakeForeign:    true,
		octep.ErrHandshakeStuck:      true,
		errMasterOff:                 true,
		&OtherCardError{}:            true,
		octep.ErrTimeout:             false,
		&RunningError{}:              false,
		errors.New("something else"): false,
	} {
		assert.Equal(t, want, Final(fmt.Errorf("stage: %w", err)), "%T %v", err, err)
	}
	assert.False(t, Final(nil))
}

func TestRestartWithoutAStore(t *testing.T) {
	d := New(Options{})
	assert.Equal(t, client.Restart{Costs: []string{"the interfaces, with their addresses and routes (not started by a service manager)"}}, d.status().Restart)
}
