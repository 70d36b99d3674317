package flows

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/frame"
	"oxpd/internal/tcpstats"
)

// TestStates: the state is that of the local end, as a segment that goes by leaves it.
func TestStates(t *testing.T) {
	const (
		ack = frame.TCPACK
		syn = frame.TCPSYN
		fin = frame.TCPFIN | ack
		rst = frame.TCPRST
	)
	type step struct {
		out      bool
		flags    uint8
		seq, ack uint32
		want     tcpstats.State
	}
	opened := []step{
		{false, syn, 100, 0, tcpstats.SynReceived}, {true, syn | ack, 500, 101, tcpstats.SynReceived}, {false, ack, 101, 501, tcpstats.Established},
	}
	for name, c := range map[string]struct {
		begin, then []step
	}{
		"opened from the wire": {opened, nil},
		"opened by the local end": {nil, []step{
			{true, syn, 100, 0, tcpstats.SynSent}, {false, syn | ack, 500, 101, tcpstats.SynSent}, {true, ack, 101, 501, tcpstats.Established},
		}},
		"both at once": {nil, []step{
			{true, syn, 100, 0, tcpstats.SynSent}, {false, syn, 500, 0, tcpstats.SynSent}, {false, syn | ack, 500, 101, tcpstats.SynSent},
			{true, syn | ack, 100, 501, tcpstats.SynSent}, {true, ack, 101, 501, tcpstats.Established},
		}},
		"refused":          {nil, []step{{true, syn, 100, 0, tcpstats.SynSent}, {false, rst | ack, 0, 101, tcpstats.Closed}}},
		"refused, another": {nil, []step{{true, syn, 100, 0, tcpstats.SynSent}, {false, rst | ack, 0, 102, tcpstats.SynSent}}},
		"the local end closes first": {opened, []step{
			{true, fin, 501, 101, tcpstats.FinWait1}, {false, ack, 101, 502, tcpstats.FinWait2}, {false, fin, 101, 502, tcpstats.TimeWait},
			{true, ack, 502, 102, tcpstats.TimeWait},
		}},
		"its FIN is acknowledged by the other one": {opened, []step{{true, fin, 501, 101, tcpstats.FinWait1}, {false, fin, 101, 502, tcpstats.TimeWait}}},
		"the remote end closes first": {opened, []step{
			{false, fin, 101, 501, tcpstats.CloseWait}, {true, ack, 501, 102, tcpstats.CloseWait}, {true, fin, 501, 102, tcpstats.LastAck},
			{false, ack, 102, 502, tcpstats.Closed},
		}},
		"both close at once": {opened, []step{
			{true, fin, 501, 101, tcpstats.FinWait1}, {false, fin, 101, 501, tcpstats.Closing}, {true, ack, 502, 102, tcpstats.Closing}, {false, ack, 102, 502, tcpstats.TimeWait},
		}},
		"both close at once, the other FIN is here first": {opened, []step{
			{false, fin, 101, 501, tcpstats.CloseWait}, {true, fin, 501, 101, tcpstats.Closing}, {false, ack, 102, 502, tcpstats.TimeWait},
		}},
		"FIN sent again": {opened, []step{
			{true, fin, 501, 101, tcpstats.FinWait1}, {true, fin, 501, 101, tcpstats.FinWait1}, {false, ack, 101, 502, tcpstats.FinWait2},
		}},
		"reset by the remote end":             {opened, []step{{false, rst, 101, 0, tcpstats.Closed}}},
		"reset by the local end, half closed": {opened, []step{{false, fin, 101, 501, tcpstats.CloseWait}, {true, rst, 501, 0, tcpstats.Closed}}},
		"under way, one direction":            {nil, []step{{false, ack, 101, 501, tcpstats.Established}}},
		"a server that has forgotten its first": {nil, []step{
			{false, syn, 100, 0, tcpstats.SynReceived}, {true, syn | ack, 500, 101, tcpstats.SynReceived}, {true, syn | ack, 7500, 101, tcpstats.SynReceived},
			{false, ack, 101, 7501, tcpstats.Established},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			table := New(Config{MaxFlows: LeastFlows})
			for i, s := range append(append([]step(nil), c.begin...), c.then...) {
				p := tcp{src: client, dst: server, seq: s.seq, ack: s.ack, flags: s.flags, wscale: -1, window: 1000}
				if s.out {
					p.src, p.dst = server, client
				}
				see(table, 0, 3, s.out, p)
				got, _ := all(t, table, "")
				require.Len(t, got, 1)
				require.Equal(t, s.want.String(), tcpstats.State(value(t, &got[0], tcpstats.FieldState)).String(), "step %d", i)
				only, _ := all(t, table, "include_state="+s.want.String())
				assert.Len(t, only, 1)
				others, _ := all(t, table, "exclude="+s.want.String())
				assert.Empty(t, others)
			}
		})
	}
}
