package daemon

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/internal/frame"
	"oxpd/internal/pfil"
	"oxpd/internal/tcpstats"
	statsclient "oxpd/internal/tcpstats/client"
)

// statsOf reads at the daemon's socket.
func (r *rig) statsOf(filter string) (out []tcpstats.Record, end tcpstats.End) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	c, err := statsclient.Dial(ctx, filepath.Join(filepath.Dir(r.client.Socket()), "tcpstats.sock"))
	require.NoError(r.t, err)
	defer c.Close()
	_, err = c.Filter(ctx, filter)
	require.NoError(r.t, err)
	end, err = c.Read(ctx, func(chunk []byte, _ int) error {
		return statsclient.Records(chunk, func(rec *tcpstats.Record) error { out = append(out, *rec); return nil })
	})
	require.NoError(r.t, err)
	require.False(r.t, end.Partial, "%+v", end)
	return out, end
}

func number(t *testing.T, r *tcpstats.Record, f tcpstats.Field) uint64 {
	t.Helper()
	v, ok := r.Uint(f)
	assert.True(t, ok, "%#x is there", uint32(f))
	return v
}

// A connection whose frames cross a port is a flow of it: with what came and went, and
// without what a filter dropped. The flows, the profiles and the settings live as long as
// the daemon, and not as long as the card.
func TestFlowsOfThePorts(t *testing.T) {
	t.Parallel()
	card := sharedCard(t, hwsim.Compressed())
	r := start(t, rigOptions{shared: card}).running()
	ctx := context.Background()
	const host, peer = "192.0.2.1:5001", "198.51.100.7:40000"
	up := func() {
		for _, p := range []string{"oxp9", "oxp10"} {
			r.mute(p)
			r.mustIP("link", "set", p, "up")
			r.wait("link", func() bool { return r.port(p).OperState == client.OperUp })
		}
	}
	up()
	segments := func() uint64 {
		v, err := r.client.TCPStats(ctx)
		require.NoError(t, err)
		if v.Flow == nil {
			return 0
		}
		return v.Flow.Counters["segments"]
	}
	r.wire("oxp9").Send(tcpFrame(peer, host, frame.TCPSYN, 0))
	r.wait("a frame before flows are followed", func() bool { return r.rxPackets("oxp9") > 0 })
	_, err := r.client.SetTCPStats(ctx, client.TCPStatsSetting{Key: "flow", Value: "on"})
	require.NoError(t, err)
	_, err = r.client.SetTCPStatsProfile(ctx, "mine", "source=flow")
	require.NoError(t, err)
	assert.Zero(t, segments(), "what was before is unknown")
	// exchange sends frames one by one, so that their order is that of the wire.
	exchange := func(n uint64) {
		t.Helper()
		for i, step := range []struct {
			out   bool
			flags uint8
			bytes int
		}{{false, frame.TCPSYN, 0}, {true, frame.TCPSYN | frame.TCPACK, 0}, {false, frame.TCPACK, 0}, {false, frame.TCPACK, 100}, {true, frame.TCPACK, 1000}} {
			if step.out {
				r.send("oxp9", tcpFrame(host, peer, step.flags, step.bytes))
			} else {
				r.wire("oxp9").Send(tcpFrame(peer, host, step.flags, step.bytes))
			}
			r.wait("a segment", func() bool { return segments() == n+uint64(i)+1 })
		}
	}
	exchange(0)
	check := func(segmentsEach uint64) {
		t.Helper()
		all, end := r.statsOf("source=flow via=F1 fields=all local_port=5001")
		require.Len(t, all, 1)
		rec := &all[0]
		assert.Equal(t, netip.MustParseAddr("192.0.2.1"), rec.Addr(tcpstats.FieldLocalAddr))
		assert.Equal(t, netip.MustParseAddr("198.51.100.7"), rec.Addr(tcpstats.FieldRemoteAddr))
		assert.EqualValues(t, 40000, number(t, rec, tcpstats.FieldRemotePort))
		assert.EqualValues(t, board.ByIndex(8).Index, number(t, rec, tcpstats.FieldPort))
		assert.EqualValues(t, tcpstats.DirectionIn, number(t, rec, tcpstats.FieldDirection), "the remote end opened it")
		assert.EqualValues(t, tcpstats.Established, number(t, rec, tcpstats.FieldState))
		assert.Equal(t, segmentsEach*3, number(t, rec, tcpstats.FieldSegsIn))
		assert.Equal(t, segmentsEach*2, number(t, rec, tcpstats.FieldSegsOut))
		assert.Equal(t, end.Visited, end.Emitted+end.Skipped["via"]+end.Skipped["port"])
		last := time.Unix(0, int64(number(t, rec, tcpstats.FieldLastSeen)))
		assert.WithinDuration(t, time.Now(), last, hang, "by the calendar")
		none, _ := r.statsOf("source=flow via=F2")
		assert.Empty(t, none)
	}
	check(1)

	t.Run("what a filter drops is no part of it", func(t *testing.T) {
		_, err := r.d.filters.table.Load("x", pfil.Source{Name: "x", Rules: []byte("drop tcp from any port 40000 to any in\ndrop tcp from any to any port 40000 out\n")})
		require.NoError(t, err)
		ports := board.All()
		require.NoError(t, r.d.filters.table.Link("x", ports[:], pfil.Both))
		r.wire("oxp9").Send(tcpFrame(peer, host, frame.TCPACK, 100))
		r.send("oxp9", tcpFrame(host, peer, frame.TCPACK, 100))
		r.wait("both are dropped", func() bool { c := r.counters("oxp9"); return c["pfil_dropped"] == 1 && c["tx_pfil_dropped"] == 1 })
		check(1)
		require.NoError(t, r.d.filters.table.Unlink("x", ports[:], pfil.Both))
	})
	r.away()
	check(1)
	card.Reboot()
	r.wait("running", func() bool { return r.state() == client.StateRunning })
	up()
	check(1)
	v, err := r.client.TCPStats(ctx)
	require.NoError(t, err)
	assert.Equal(t, []client.TCPStatsProfile{{Name: "mine", Filter: "source=flow"}}, v.Profiles)
	r.wire("oxp9").Send(tcpFrame(peer, host, frame.TCPACK, 10))
	r.wait("a segment behind the new rings", func() bool { return segments() == 6 })
	r.reload(func(c *config.Config) {
		c.TCPStats.MaxOpenFDs = 5
		c.TCPStats.Profiles = map[string]string{"file": "ipv4_only"}
	})
	v, err = r.client.TCPStats(ctx)
	require.NoError(t, err)
	assert.Len(t, v.Profiles, 2)
	assert.NotNil(t, v.Flow, "a command has turned it on, and no file off")
	socket := v.Socket
	assert.FileExists(t, socket)
	r.cancel()
	require.NoError(t, r.end())
	assert.NoFileExists(t, socket)
}

// Sockets are those of the namespace where the daemon has its interfaces, and via finds
// the ports that they send by.
func TestSocketsOfTheDaemonsNamespace(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{}).running()
	here, err := net.Listen("tcp4", "127.0.0.1:0") // of the test's own namespace
	require.NoError(t, err)
	defer here.Close()
	r.mustIP("link", "set", "lo", "up")
	r.mustIP("addr", "add", "192.0.2.1/24", "dev", "oxp9")
	r.mustIP("link", "set", "oxp9", "up")
	r.wait("link", func() bool { return r.port("oxp9").OperState == client.OperUp })
	r.carrier("oxp9", true)
	var l net.Listener
	require.NoError(t, r.ns.Do(func() (err error) { l, err = net.Listen("tcp4", "127.0.0.1:5001"); return err }))
	defer l.Close()
	var near net.Conn
	require.NoError(t, r.ns.Do(func() (err error) { near, err = net.Dial("tcp4", "127.0.0.1:5001"); return err }))
	defer near.Close()
	// Nobody answers at the wire: the socket stays in syn_sent.
	ctx, cancel := context.WithCancel(context.Background())
	dialed := make(chan struct{})
	go func() {
		defer close(dialed)
		_ = r.ns.Do(func() error {
			c, err := new(net.Dialer).DialContext(ctx, "tcp4", "192.0.2.9:443")
			if err == nil {
				_ = c.Close()
			}
			return nil
		})
	}()
	defer func() { cancel(); <-dialed }()

	states := func(filter string) map[tcpstats.State]int {
		out := map[tcpstats.State]int{}
		all, _ := r.statsOf(filter)
		for i := range all {
			out[tcpstats.State(number(t, &all[i], tcpstats.FieldState))]++
		}
		return out
	}
	r.wait("the socket that connects", func() bool { return states("")[tcpstats.SynSent] == 1 })
	assert.Equal(t, map[tcpstats.State]int{tcpstats.Listen: 1, tcpstats.Established: 2, tcpstats.SynSent: 1}, states(""), "and none of the test's namespace")
	assert.Equal(t, map[tcpstats.State]int{tcpstats.SynSent: 1}, states("via=oxp9"))
	assert.Empty(t, states("via=oxp1"))
	all, _ := r.statsOf("remote_port=443 via=any")
	require.Len(t, all, 1)
	assert.EqualValues(t, 8, number(t, &all[0], tcpstats.FieldPort))
	assert.EqualValues(t, os.Getuid(), number(t, &all[0], tcpstats.FieldUID))
}
