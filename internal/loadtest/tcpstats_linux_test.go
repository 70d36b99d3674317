package loadtest

import (
	"context"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/internal/daemon/config"
	"oxpd/internal/netlab"
	"oxpd/internal/tcpstats"
	statsclient "oxpd/internal/tcpstats/client"
)

// statistics reads TCP statistics of a lab by its socket, once, and closes their books.
func (l *lab) statistics(filter string) []tcpstats.Record {
	l.t.Helper()
	v, err := l.client.TCPStats(l.ctx)
	require.NoError(l.t, err)
	ctx, cancel := context.WithTimeout(l.ctx, hang)
	defer cancel()
	c, err := statsclient.Dial(ctx, v.Socket)
	require.NoError(l.t, err)
	defer c.Close()
	_, err = c.Filter(ctx, filter)
	require.NoError(l.t, err)
	var all []tcpstats.Record
	end, err := c.Read(ctx, func(chunk []byte, _ int) error {
		return statsclient.Records(chunk, func(r *tcpstats.Record) error {
			all = append(all, *r)
			return nil
		})
	})
	require.NoError(l.t, err)
	assert.False(l.t, end.Partial, "%s", end.Reason)
	sum := end.Emitted + end.Aborted
	for _, n := range end.Skipped {
		sum += n
	}
	assert.Equal(l.t, end.Visited, sum)
	assert.EqualValues(l.t, len(all), end.Emitted)
	return all
}

// only is the only record that a filter finds.
func (l *lab) only(filter string) *tcpstats.Record {
	l.t.Helper()
	all := l.statistics(filter)
	require.Len(l.t, all, 1, filter)
	return &all[0]
}

// causes are what a record's numbers show, in a line each.
func causes(r *tcpstats.Record, mtu int) map[tcpstats.Cause]string {
	out := map[tcpstats.Cause]string{}
	for _, d := range tcpstats.Diagnose(r, mtu) {
		out[d.Cause] = d.Text
	}
	return out
}

func number(t *testing.T, r *tcpstats.Record, f tcpstats.Field) uint64 {
	t.Helper()
	v, ok := r.Uint(f)
	require.True(t, ok, "field %#x", uint32(f))
	return v
}

// following is a lab that follows flows.
func following(t *testing.T) *lab {
	return newLab(t, func(c *config.Config) { c.TCPStats.Flow = true })
}

// TestJumboDoesNotHelpWhereThePeerClampsTheMSS is the case that was published: the port, its
// LIF and the path take 9,000 bytes, and a transfer is no faster, for the other end, behind
// a tunnel, has announced an MSS of 1,406. Both sources must find it, and must find nothing
// of the kind where nobody clamps.
func TestJumboDoesNotHelpWhereThePeerClampsTheMSS(t *testing.T) {
	l := following(t)
	clamped, plain := board.ByIndex(8), board.ByIndex(9)
	for _, p := range []board.Port{clamped, plain} {
		l.setMTU(p, board.MaxMTU)
		require.NoError(t, l.farOf(p).SetMTU(p.Label, board.MaxMTU))
	}
	require.NoError(t, l.far.Do(func() error {
		return exec.Command("ip", "route", "replace", netip.PrefixFrom(farAddr(clamped), prefixBits).Masked().String(), "dev", clamped.Label, "src", farAddr(clamped).String(), "advmss", "1406").Run()
	}))
	ctx, cancel := context.WithTimeout(l.ctx, hang)
	defer cancel()
	const bytes = 8 << 20
	for _, p := range []board.Port{clamped, plain} {
		s, err := netlab.Connect(ctx, l.host, l.far, farAddr(p), false)
		require.NoError(t, err)
		defer s.Close()
		_, err = s.Send(ctx, bytes)
		require.NoError(t, err)
	}

	r := l.only("via=oxp9 include_state=established fields=all")
	assert.EqualValues(t, clamped.Index, number(t, r, tcpstats.FieldPort))
	assert.EqualValues(t, 1406-tcpTimestamps, number(t, r, tcpstats.FieldSndMSS))
	assert.EqualValues(t, bytes, number(t, r, tcpstats.FieldBytesAcked)-1) // the SYN counts
	assert.Contains(t, causes(r, board.MaxMTU)[tcpstats.CauseMSS], "clamped the MSS to 1,406, the port's MTU of 9,000 allows 8,960")
	t.Logf("host: %s", tcpstats.Line(tcpstats.Diagnose(r, board.MaxMTU)))

	f := l.only("via=oxp9 source=flow fields=all")
	assert.EqualValues(t, 1406, number(t, f, tcpstats.FieldPeerMSS))
	assert.EqualValues(t, 1406-tcpTimestamps, number(t, f, tcpstats.FieldMaxSegOut))
	assert.EqualValues(t, tcpstats.DirectionOut, number(t, f, tcpstats.FieldDirection))
	assert.Contains(t, causes(f, board.MaxMTU)[tcpstats.CauseMSS], "announced an MSS of 1,406 where the port's MTU of 9,000 allows 8,960")
	t.Logf("flow: %s", tcpstats.Line(tcpstats.Diagnose(f, board.MaxMTU)))

	// What the wire shows is what the sender's kernel says.
	assert.Equal(t, r.Addr(tcpstats.FieldRemoteAddr), f.Addr(tcpstats.FieldRemoteAddr))
	for field, of := range map[tcpstats.Field]tcpstats.Field{
		tcpstats.FieldRemotePort: tcpstats.FieldRemotePort, tcpstats.FieldLocalPort: tcpstats.FieldLocalPort, tcpstats.FieldBytesSent: tcpstats.FieldBytesSent,
		tcpstats.FieldSndWScale: tcpstats.FieldSndWScale, tcpstats.FieldRcvWScale: tcpstats.FieldRcvWScale, tcpstats.FieldSegsOut: tcpstats.FieldSegsOut,
		tcpstats.FieldDataSegsOut: tcpstats.FieldDataSegsOut, tcpstats.FieldSndWnd: tcpstats.FieldSndWnd, tcpstats.FieldRetrans: tcpstats.FieldRetrans,
	} {
		assert.Equal(t, number(t, r, of), number(t, f, field), "field %#x", uint32(field))
	}

	assert.Equal(t, number(t, r, tcpstats.FieldAdvMSS)+tcpTimestamps, number(t, f, tcpstats.FieldAdvMSS), "the kernel takes its own options off")

	for _, text := range []string{"via=oxp10 include_state=established fields=all", "via=oxp10 source=flow fields=all"} {
		r := l.only(text)
		assert.NotContains(t, causes(r, board.MaxMTU), tcpstats.CauseMSS, text)
	}
	assert.Empty(t, l.statistics("via=oxp1 include_state=established"))
}

// TestSlowReaderAtTheWire: the far end does not read, and the sender waits for its window.
func TestSlowReaderAtTheWire(t *testing.T) {
	l := following(t)
	p := board.ByIndex(8)
	var ln net.Listener
	require.NoError(t, l.far.Do(func() (err error) {
		ln, err = net.Listen("tcp4", netip.AddrPortFrom(farAddr(p), 0).String())
		return err
	}))
	defer ln.Close()
	var c net.Conn
	require.NoError(t, l.host.Do(func() (err error) { c, err = net.Dial("tcp4", ln.Addr().String()); return err }))
	defer c.Close()
	quiet, err := ln.Accept()
	require.NoError(t, err)
	defer quiet.Close()
	go func() {
		_ = c.SetWriteDeadline(time.Now().Add(hang))
		for {
			if _, err := c.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	}()
	var host, flow string
	l.wait("both sources see that the window holds the sender up", func() bool {
		host = causes(l.only("via=oxp9 include_state=established fields=all"), board.DefaultMTU)[tcpstats.CauseRecvWindow]
		flow = causes(l.only("via=oxp9 source=flow fields=all"), board.DefaultMTU)[tcpstats.CauseRecvWindow]
		return host != "" && flow != ""
	})
	t.Logf("host: %s", host)
	t.Logf("flow: %s", flow)
	assert.True(t, strings.Contains(flow, "closed its window") || strings.Contains(flow, "in flight"))
}
