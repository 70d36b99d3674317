package flows

import (
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/frame"
	"oxpd/internal/tcpstats"
)

// tcp is a segment to be built.
type tcp struct {
	src, dst     netip.AddrPort
	seq, ack     uint32
	flags        uint8
	window       uint16
	mss          uint16
	wscale       int // of a SYN, -1 none
	bytes        int
	more, vlan   int
	timestamps   bool
	sackPermited bool
}

// frame is the segment as a frame.
func (s tcp) frame() []byte {
	var o []byte
	if s.flags&frame.TCPSYN != 0 {
		if s.mss != 0 {
			o = append(o, optMSS, 4, byte(s.mss>>8), byte(s.mss))
		}
		if s.wscale >= 0 {
			o = append(o, optNop, optWScale, 3, byte(s.wscale))
		}
		if s.sackPermited {
			o = append(o, optNop, optNop, optSACK, 2)
		}
		if s.timestamps {
			o = append(o, optNop, optNop, optTime, 10, 0, 0, 0, 0, 0, 0, 0, 0)
		}
	}
	b := make([]byte, 12)
	if s.vlan != 0 {
		b = binary.BigEndian.AppendUint16(append(b, 0x81, 0), uint16(s.vlan))
	}
	size := tcpSize + len(o) + s.bytes
	if s.src.Addr().Is4() {
		b = append(b, 8, 0, 0x45, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(20+size))
		b = append(b, 0, 0, 0, 0, 64, 6, 0, 0)
	} else {
		b = append(b, 0x86, 0xdd, 0x60, 0, 0, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(size))
		b = append(b, 6, 64)
	}
	b = append(append(b, s.src.Addr().AsSlice()...), s.dst.Addr().AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, s.src.Port())
	b = binary.BigEndian.AppendUint16(b, s.dst.Port())
	b = binary.BigEndian.AppendUint32(b, s.seq)
	b = binary.BigEndian.AppendUint32(b, s.ack)
	b = append(b, byte((tcpSize+len(o))/4<<4), s.flags)
	b = binary.BigEndian.AppendUint16(b, s.window)
	b = append(append(b, 0, 0, 0, 0), o...)
	return append(b, make([]byte, s.bytes+s.more)...)
}

// see shows a frame to a table.
func see(t *Table, now time.Duration, port int, out bool, s tcp) {
	b := s.frame()
	var head frame.Packet
	t.Observe(int64(now)+1e18, port, out, &head, b, len(b))
}

// all reads everything that a filter matches.
func all(t *testing.T, table *Table, text string) ([]tcpstats.Record, tcpstats.Walked) {
	t.Helper()
	f, err := tcpstats.Parse(text)
	require.NoError(t, err)
	c, err := table.Open(context.Background(), &tcpstats.Query{Filter: f})
	require.NoError(t, err)
	var got []tcpstats.Record
	for {
		b, n, err := c.Next(context.Background(), make([]byte, 0, tcpstats.ChunkBytes))
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		for range n {
			var r tcpstats.Record
			size, err := r.Decode(b)
			require.NoError(t, err)
			b, got = b[size:], append(got, r)
		}
		require.Empty(t, b)
	}
	require.NoError(t, c.Close())
	w := c.Walked()
	assert.Equal(t, w.Visited, w.Appended+w.SkippedAll())
	return got, w
}

var (
	client = netip.MustParseAddrPort("10.0.0.1:40000")
	server = netip.MustParseAddrPort("192.0.2.9:443")
)

const ms = time.Millisecond

func dur(ns int64) time.Duration { return time.Duration(ns) }

// shake plays a handshake of a client at the wire, 20 ms from here, with a server 5 ms
// behind this host.
func shake(table *Table, port int, from, to netip.AddrPort) {
	see(table, 0, port, false, tcp{src: from, dst: to, seq: 999, flags: frame.TCPSYN, window: 64000, mss: 1406, wscale: 7, timestamps: true})
	see(table, 5*ms, port, true, tcp{src: to, dst: from, seq: 4999, ack: 1000, flags: frame.TCPSYN | frame.TCPACK, window: 65000, mss: 8960, wscale: 9, timestamps: true, sackPermited: true})
	see(table, 25*ms, port, false, tcp{src: from, dst: to, seq: 1000, ack: 5000, flags: frame.TCPACK, window: 500, wscale: -1})
}

func value(t *testing.T, r *tcpstats.Record, f tcpstats.Field) uint64 {
	t.Helper()
	v, ok := r.Uint(f)
	require.True(t, ok)
	return v
}

func TestHandshake(t *testing.T) {
	table := New(Config{MaxFlows: LeastFlows})
	shake(table, 8, client, server)
	got, _ := all(t, table, "fields=all")
	require.Len(t, got, 1)
	r := &got[0]
	for f, want := range map[tcpstats.Field]uint64{
		tcpstats.FieldState: uint64(tcpstats.Established), tcpstats.FieldPort: 8, tcpstats.FieldDirection: tcpstats.DirectionIn,
		tcpstats.FieldLocalPort: 443, tcpstats.FieldRemotePort: 40000, tcpstats.FieldPeerMSS: 1406, tcpstats.FieldAdvMSS: 8960,
		tcpstats.FieldSndWScale: 7, tcpstats.FieldRcvWScale: 9, tcpstats.FieldOptions: tcpstats.OptionTimestamps | tcpstats.OptionWScale,
		tcpstats.FieldHandshakeRTT: 20000, tcpstats.FieldHandshakeLocal: 5000, tcpstats.FieldSndWnd: 500 << 7, tcpstats.FieldRcvWnd: 65000,
		tcpstats.FieldSegsIn: 2, tcpstats.FieldSegsOut: 1, tcpstats.FieldRTT: 20000,
	} {
		assert.Equal(t, want, value(t, r, f), "%#x", f)
	}
	assert.Equal(t, client.Addr(), r.Addr(tcpstats.FieldRemoteAddr))
	assert.Equal(t, 1, table.Stats().Flows)
	for text, n := range map[string]int{"via=oxp9": 1, "via=any": 1, "via=oxp8": 0, "local_port=443": 1, "remote_addr=10.0.0.0/8": 1, "ipv6_only": 0, "include_state=listen": 0} {
		got, w := all(t, table, text)
		assert.Len(t, got, n, text)
		assert.EqualValues(t, 1, w.Visited)
	}
}

func TestObserveAllocatesNothing(t *testing.T) {
	table := New(Config{MaxFlows: LeastFlows})
	shake(table, 0, client, server)
	b := tcp{src: server, dst: client, seq: 5000, ack: 1000, flags: frame.TCPACK, window: 9, bytes: 1000}.frame()
	var head frame.Packet
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		head.Have = 0
		table.Observe(1, 0, true, &head, b, len(b))
	}))
}

func BenchmarkObserve(b *testing.B) {
	table := New(Config{MaxFlows: LeastFlows})
	shake(table, 0, client, server)
	data := tcp{src: server, dst: client, seq: 5000, ack: 1000, flags: frame.TCPACK, window: 9, bytes: 1000}.frame()
	seq := data[14+20+4:]
	var head frame.Packet
	head.Parse(data, len(data))
	b.ReportAllocs()
	for i := range b.N {
		binary.BigEndian.PutUint32(seq, uint32(5000+1000*i))
		table.Observe(int64(i), 0, true, &head, data, len(data))
	}
}

func BenchmarkRead(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		for _, text := range []string{"", "fields=all", "format=full"} {
			b.Run("flows="+itoa(n)+"/filter="+text, func(b *testing.B) {
				table := New(Config{MaxFlows: n})
				for i := range n {
					shake(table, 0, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 4000), server)
				}
				f, _ := tcpstats.Parse(text)
				buf := make([]byte, 0, tcpstats.ChunkBytes)
				b.ResetTimer()
				records := 0
				for range b.N {
					c, _ := table.Open(context.Background(), &tcpstats.Query{Filter: f})
					for {
						_, k, err := c.Next(context.Background(), buf)
						if err == io.EOF {
							break
						}
						records += k
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(records), "ns/record")
			})
		}
	}
}

func itoa(n int) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return itoa(n/10) + string(rune('0'+n%10))
}

// observed is a frame that is shown to a table again and again, each time as the next
// segment.
type observed struct {
	b    []byte
	head frame.Packet
	port int
	seq  uint32
}

func (o *observed) make(s tcp, port int) {
	o.b, o.port, o.seq = s.frame(), port, s.seq
	o.head.Parse(o.b, len(o.b))
}

func (o *observed) next(table *Table) {
	binary.BigEndian.PutUint32(o.b[o.head.L4+tcpSeq:], o.seq)
	o.seq += uint32(len(o.b) - o.head.L4 - tcpSize)
	table.Observe(1e18, o.port, true, &o.head, o.b, len(o.b))
}

// TestPartsAreEven: the flows of one address, which differ in a port only, spread over the
// parts, whatever the seed: no part is full long before the table is.
func TestPartsAreEven(t *testing.T) {
	const flows = 512
	table, seeds := New(Config{MaxFlows: LeastFlows}), rand.New(rand.NewPCG(4, 2))
	for seed := range 300 {
		table.seed = seeds.Uint64()
		for name, frames := range map[string]func(i int) tcp{
			"ports of a client": func(i int) tcp { return tcp{src: netip.AddrPortFrom(client.Addr(), uint16(1024+i)), dst: server} },
			"ports of a server": func(i int) tcp { return tcp{src: client, dst: netip.AddrPortFrom(server.Addr(), uint16(1024+i))} },
			"addresses": func(i int) tcp {
				return tcp{src: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 40000), dst: server}
			},
		} {
			var n [parts]int
			for i := range flows {
				b := frames(i).frame()
				var head frame.Packet
				head.Parse(b, len(b))
				conn, ok := head.Conn()
				require.True(t, ok)
				_, h := table.keyOf(&conn, 1, false, &head)
				n[partOf(h)]++
			}
			most := 0
			for _, k := range n {
				most = max(most, k)
			}
			require.Less(t, most, 3*flows/parts, "%s, seed %d: %v", name, seed, n) // eleven deviations
		}
	}
}

// TestFlowsAreToldApart: by port, outermost VLAN, ends and family; and by nothing else.
func TestFlowsAreToldApart(t *testing.T) {
	at := netip.MustParseAddrPort
	syn := func(src, dst netip.AddrPort, vlan int) tcp {
		return tcp{src: src, dst: dst, vlan: vlan, seq: 1, flags: frame.TCPSYN, wscale: -1}
	}
	type shown struct {
		port int
		s    tcp
	}
	table := New(Config{MaxFlows: LeastFlows})
	for _, c := range []shown{
		{1, syn(client, server, 0)},
		{2, syn(client, server, 0)},
		{1, syn(client, server, 1)},
		{1, syn(client, server, 4094)},
		{1, syn(at("10.0.0.1:40001"), server, 0)},
		{1, syn(at("10.0.0.2:40000"), server, 0)},
		{1, syn(client, at("192.0.2.9:444"), 0)},
		{1, syn(at("[::ffff:10.0.0.1]:40000"), at("[::ffff:192.0.2.9]:443"), 0)}, // IPv6 on the wire
		{1, syn(at("[::a00:1]:40000"), at("[::c000:209]:443"), 0)},               // the same words as IPv4
		{1, syn(at("[2001:db8::1]:40000"), at("[2001:db8::2]:443"), 0)},
	} {
		for range 2 {
			see(table, 0, c.port, false, c.s)
		}
	}
	for text, n := range map[string]int{
		"": 10, "ipv4_only": 7, "ipv6_only": 3, "via=oxp2": 9, "via=oxp3": 1, "remote_port=40001": 1, "local_port=444": 1,
		"remote_addr=10.0.0.2": 1, "remote_addr=2001:db8::/32": 1, "local_addr=2001:db8::1": 0, "include_state=syn_received": 10, "exclude=syn_rcvd": 0,
	} {
		got, w := all(t, table, text+" fields=all")
		assert.Len(t, got, n, text)
		assert.EqualValues(t, 10, w.Visited)
		for i := range got {
			assert.EqualValues(t, 2, value(t, &got[i], tcpstats.FieldSegsIn))
			assert.EqualValues(t, 1, value(t, &got[i], tcpstats.FieldRetransIn), "a SYN that was sent again")
		}
	}
	got, _ := all(t, table, "")
	vlans := make(map[uint64]int)
	for i := range got {
		if v, ok := got[i].Uint(tcpstats.FieldVLAN); ok {
			vlans[v]++
		}
	}
	assert.Equal(t, map[uint64]int{1: 1, 4094: 1}, vlans, "absent without a tag")
}

// TestWhatIsNotKnown: what the segments did not show is absent.
func TestWhatIsNotKnown(t *testing.T) {
	syn := tcp{src: server, dst: client, seq: 999, flags: frame.TCPSYN, window: 100, mss: 1460, wscale: 2}
	answer := tcp{src: client, dst: server, seq: 4999, ack: 1000, flags: frame.TCPSYN | frame.TCPACK, window: 200, mss: 1406, wscale: 5}
	third := tcp{src: server, dst: client, seq: 1000, ack: 5000, flags: frame.TCPACK, window: 100}
	type step struct {
		at  time.Duration
		out bool
		s   tcp
	}
	opened := []tcpstats.Field{tcpstats.FieldDirection, tcpstats.FieldOptions, tcpstats.FieldPeerMSS, tcpstats.FieldAdvMSS, tcpstats.FieldSndWnd, tcpstats.FieldRcvWnd, tcpstats.FieldECN}
	trips := []tcpstats.Field{tcpstats.FieldHandshakeRTT, tcpstats.FieldRTT, tcpstats.FieldMinRTT}
	bare := func(s tcp) tcp { s.wscale, s.mss = -1, 0; return s }
	for name, c := range map[string]struct {
		steps    []step
		there    []tcpstats.Field
		not      []tcpstats.Field
		rtt, own uint64 // of the handshake
	}{
		"opened by the local end": {
			[]step{{0, true, syn}, {20 * ms, false, answer}, {23 * ms, true, third}},
			append(append([]tcpstats.Field{tcpstats.FieldHandshakeLocal, tcpstats.FieldSndWScale}, opened...), trips...), nil, 20_000, 3000,
		},
		"its SYN was sent again": {
			[]step{{0, true, syn}, {time.Second, true, syn}, {1020 * ms, false, answer}, {1023 * ms, true, third}},
			append([]tcpstats.Field{tcpstats.FieldHandshakeLocal, tcpstats.FieldSndWScale}, opened...), trips, 0, 3000,
		},
		"the answer was sent again": {
			[]step{{0, true, syn}, {20 * ms, false, answer}, {time.Second, false, answer}, {1003 * ms, true, third}},
			append(append([]tcpstats.Field{tcpstats.FieldSndWScale}, opened...), trips...), []tcpstats.Field{tcpstats.FieldHandshakeLocal}, 20_000, 0,
		},
		"one end without options": {
			[]step{{0, true, syn}, {20 * ms, false, bare(answer)}, {23 * ms, true, third}},
			[]tcpstats.Field{tcpstats.FieldAdvMSS, tcpstats.FieldSndWnd, tcpstats.FieldHandshakeLocal}, []tcpstats.Field{tcpstats.FieldSndWScale, tcpstats.FieldRcvWScale, tcpstats.FieldPeerMSS}, 20_000, 3000,
		},
		"half-open": {
			[]step{{0, true, syn}},
			[]tcpstats.Field{tcpstats.FieldDirection, tcpstats.FieldAdvMSS},
			append([]tcpstats.Field{tcpstats.FieldHandshakeLocal, tcpstats.FieldSndWScale, tcpstats.FieldOptions, tcpstats.FieldPeerMSS, tcpstats.FieldSndWnd, tcpstats.FieldBytesAcked, tcpstats.FieldBytesReceived}, trips...), 0, 0,
		},
		"under way": {
			[]step{
				{0, true, tcp{src: server, dst: client, seq: 1000, ack: 5000, flags: frame.TCPACK, bytes: 10, window: 9}},
				{20 * ms, false, tcp{src: client, dst: server, seq: 5000, ack: 1010, flags: frame.TCPACK, bytes: 10, window: 9}},
				{21 * ms, true, tcp{src: server, dst: client, seq: 1010, ack: 5010, flags: frame.TCPACK, window: 9}},
			},
			[]tcpstats.Field{tcpstats.FieldRTT, tcpstats.FieldBytesAcked, tcpstats.FieldBytesReceived, tcpstats.FieldSndUna, tcpstats.FieldSndNxt},
			append([]tcpstats.Field{tcpstats.FieldHandshakeRTT, tcpstats.FieldHandshakeLocal, tcpstats.FieldSndWScale, tcpstats.FieldVLAN}, opened...), 0, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			table := New(Config{MaxFlows: LeastFlows})
			for _, s := range c.steps {
				see(table, s.at, 3, s.out, s.s)
			}
			got, _ := all(t, table, "fields=all")
			require.Len(t, got, 1)
			for _, f := range c.there {
				assert.True(t, got[0].Has(f), nameOf(f))
			}
			for _, f := range c.not {
				assert.False(t, got[0].Has(f), nameOf(f))
			}
			for f, want := range map[tcpstats.Field]uint64{tcpstats.FieldHandshakeRTT: c.rtt, tcpstats.FieldHandshakeLocal: c.own} {
				v, ok := got[0].Uint(f)
				assert.Equal(t, want, v, nameOf(f))
				assert.Equal(t, want != 0, ok, nameOf(f))
			}
			if got[0].Has(tcpstats.FieldDirection) {
				assert.EqualValues(t, tcpstats.DirectionOut, value(t, &got[0], tcpstats.FieldDirection))
			}
			for _, f := range []tcpstats.Field{tcpstats.FieldCWnd, tcpstats.FieldUID, tcpstats.FieldInode, tcpstats.FieldSendQueue, tcpstats.FieldAlgorithm} {
				assert.False(t, got[0].Has(f), "no header tells %s", nameOf(f))
			}
		})
	}
}
