package replay

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/capture"
	"oxpd/internal/frame"
	"oxpd/internal/netlab"
	"oxpd/internal/port"
)

// writeCaptures replaces the committed captures by what the tests below make:
// go test ./internal/replay -run TestMake -args -write-captures
var writeCaptures = flag.Bool("write-captures", false, "replace testdata/captures")

// committed is where the captures are.
const committed = "../../testdata/captures"

// hang bounds waits by the wall clock.
const hang = 60 * time.Second

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces and TAP interfaces")
	}
}

// machine is one of two with a cable between them.
type machine struct {
	*netlab.NS
	v4, v6 netip.Addr
}

// cable is two kernels that speak over TAP interfaces, and everything that they
// said. A TAP has no offloads: checksums are complete and no segment is longer
// than the MTU, as on a cable.
type cable struct {
	t        *testing.T
	one, two machine
	mu       sync.Mutex
	frames   [][]byte
	times    []time.Time
}

const wireName = "wire0"

// lay makes two machines with an MTU and starts to record.
func lay(t *testing.T, mtu int, ipv6 bool) *cable {
	t.Helper()
	c := &cable{t: t}
	ends := [2]*port.Wire{}
	for i, m := range []*machine{&c.one, &c.two} {
		ns, err := netlab.New()
		require.NoError(t, err)
		t.Cleanup(func() { ns.Close() })
		off := map[bool]string{true: "0", false: "1"}[ipv6]
		for _, which := range []string{"all", "default"} {
			require.NoError(t, ns.Sysctl("ipv6/conf/"+which+"/disable_ipv6", off))
		}
		ends[i], err = port.OpenWire(wireName, netlab.FDPath(int(ns.File().Fd())), mtu)
		require.NoError(t, err)
		t.Cleanup(func() { ends[i].Close() })
		*m = machine{ns, netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", i+1))}
		m.ip(t, "link set "+wireName+" down")
		m.ip(t, fmt.Sprintf("link set %s address 02:00:00:00:00:%02x", wireName, i+1))
		m.ip(t, "link set "+wireName+" up")
		m.ip(t, fmt.Sprintf("addr add %s/24 dev %s", m.v4, wireName))
		if ipv6 {
			m.ip(t, fmt.Sprintf("addr add %s/64 dev %s nodad", m.v6, wireName))
		}
	}
	for i := range ends {
		go c.carry(ends[i], ends[1-i])
	}
	c.warm(ipv6)
	return c
}

// warm waits until each machine hears the other: what a kernel sends in the first
// moment of an interface may be lost before it is a frame, and a datagram is not
// sent again. Then both forget their neighbour, and the recording begins anew.
func (c *cable) warm(ipv6 bool) {
	require.Eventually(c.t, func() bool {
		_, err := c.one.Ping(context.Background(), c.two.v4, 0, time.Second)
		return err == nil && (!ipv6 || c.ping6(0, time.Second) == nil)
	}, hang, time.Millisecond)
	for _, m := range []machine{c.one, c.two} {
		m.ip(c.t, "neigh flush dev "+wireName)
	}
	c.mu.Lock()
	c.frames, c.times = nil, nil
	c.mu.Unlock()
}

// carry moves frames from one end to the other, each filled up to what a MAC sends.
func (c *cable) carry(from, to *port.Wire) {
	b := make([]byte, 1<<14)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		f := append([]byte(nil), b[:n]...)
		f = append(f, make([]byte, max(0, frame.MinSize-n))...)
		c.mu.Lock()
		c.frames, c.times = append(c.frames, f), append(c.times, time.Now())
		c.mu.Unlock()
		if _, err := to.Write(f); err != nil {
			return
		}
	}
}

func (m machine) ip(t *testing.T, args string) {
	t.Helper()
	require.NoError(t, m.Do(func() error {
		out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ip %s: %w: %s", args, err, out)
		}
		return nil
	}))
}

// listen opens a socket of a machine.
func listen[T any](t *testing.T, m machine, open func() (T, error)) (s T) {
	t.Helper()
	require.NoError(t, m.Do(func() (err error) { s, err = open(); return err }))
	return s
}

// echo answers every datagram with the same.
func echo(c net.PacketConn) {
	b := make([]byte, 1<<16)
	for {
		n, from, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		_, _ = c.WriteTo(b[:n], from)
	}
}

// datagrams sends UDP of some sizes and waits for each to come back.
func (c *cable) datagrams(to netip.Addr, sizes ...int) {
	t := c.t
	at := net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 0))
	server := listen(t, c.two, func() (*net.UDPConn, error) { return net.ListenUDP("udp", at) })
	defer server.Close()
	go echo(server)
	conn := listen(t, c.one, func() (*net.UDPConn, error) {
		return net.DialUDP("udp", nil, server.LocalAddr().(*net.UDPAddr))
	})
	defer conn.Close()
	for _, n := range sizes {
		want := bytes.Repeat([]byte{byte(n), byte(n >> 8), 0xa5}, n/3+1)[:n]
		got := make([]byte, 1<<16)
		require.NoError(t, conn.SetDeadline(time.Now().Add(hang)))
		_, err := conn.Write(want)
		require.NoError(t, err)
		m, err := conn.Read(got)
		require.NoError(t, err)
		require.Equal(t, want, got[:m])
	}
}

// pings sends ICMP echo requests with DF.
func (c *cable) pings(sizes ...int) {
	for _, n := range sizes {
		_, err := c.one.Ping(context.Background(), c.two.v4, n, hang)
		require.NoError(c.t, err)
	}
}

// ping6 sends one ICMPv6 echo request and waits for its answer.
func (c *cable) ping6(dataBytes int, timeout time.Duration) error {
	conn := listen(c.t, c.one, func() (net.Conn, error) { return net.Dial("ip6:ipv6-icmp", c.two.v6.String()) })
	defer conn.Close()
	const request, reply = 128, 129
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	if _, err := conn.Write(append([]byte{request, 0, 0, 0, 0x12, 0x34, 0, 1}, make([]byte, dataBytes)...)); err != nil {
		return err
	}
	for b := make([]byte, 1<<14); ; {
		if n, err := conn.Read(b); err != nil || b[0] == reply && n == 8+dataBytes {
			return err
		}
	}
}

// pings6 is pings of IPv6.
func (c *cable) pings6(sizes ...int) {
	for _, n := range sizes {
		require.NoError(c.t, c.ping6(n, hang))
	}
}

// stream opens a connection, sends bytes and closes it.
func (c *cable) stream(to netip.Addr, size int) {
	t := c.t
	at := net.TCPAddrFromAddrPort(netip.AddrPortFrom(to, 0))
	l := listen(t, c.two, func() (*net.TCPListener, error) { return net.ListenTCP("tcp", at) })
	defer l.Close()
	done := make(chan int, 1)
	go func() {
		n := 0
		if conn, err := l.Accept(); err == nil {
			b := make([]byte, 1<<14)
			for err == nil {
				var m int
				m, err = conn.Read(b)
				n += m
			}
			_, _ = conn.Write([]byte("bye"))
			_ = conn.Close()
		}
		done <- n
	}()
	conn := listen(t, c.one, func() (*net.TCPConn, error) { return net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr)) })
	require.NoError(t, conn.SetDeadline(time.Now().Add(hang)))
	_, err := conn.Write(make([]byte, size))
	require.NoError(t, err)
	require.NoError(t, conn.CloseWrite())
	_, err = conn.Read(make([]byte, 8))
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.Equal(t, size, <-done)
}

// lookUp asks a name server for an address of a name.
func (c *cable) lookUp() {
	t := c.t
	const name, answer = "oxp9.example.", "198.51.100.9"
	server := listen(t, c.two, func() (*net.UDPConn, error) {
		return net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(c.two.v4, 53)))
	})
	defer server.Close()
	go func() {
		b := make([]byte, 1500)
		for {
			n, from, err := server.ReadFrom(b)
			if err != nil {
				return
			}
			// The question as it came, and one answer that points to its name.
			const header, typeA = 12, 1
			end := header + bytes.IndexByte(b[header:n], 0) + 5
			r := append([]byte(nil), b[:end]...)
			binary.BigEndian.PutUint16(r[2:], 0x8580) // an authoritative answer
			binary.BigEndian.PutUint16(r[6:], 0)
			clear(r[8:header])
			if binary.BigEndian.Uint16(b[end-4:]) == typeA {
				r[7] = 1
				r = append(r, 0xc0, header, 0, typeA, 0, 1, 0, 0, 0x0e, 0x10, 0, 4)
				r = append(r, netip.MustParseAddr(answer).AsSlice()...)
			}
			_, _ = server.WriteTo(r, from)
		}
	}()
	resolver := &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (conn net.Conn, err error) {
		err = c.one.Do(func() error { conn, err = net.Dial("udp", server.LocalAddr().String()); return err })
		return conn, err
	}}
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	got, err := resolver.LookupNetIP(ctx, "ip4", name)
	require.NoError(t, err)
	require.Equal(t, []netip.Addr{netip.MustParseAddr(answer)}, got)
}

// save writes what was said.
func (c *cable) save(path string) {
	t := c.t
	time.Sleep(50 * time.Millisecond) // the last acknowledgement; nothing depends on it
	c.mu.Lock()
	defer c.mu.Unlock()
	save(t, path, c.frames, c.times)
}

// save writes pcap, with the library's writer, or pcapng, with our own.
func save(t *testing.T, path string, frames [][]byte, times []time.Time) {
	t.Helper()
	if filepath.Ext(path) == ".pcapng" {
		r, err := capture.Create(path, wireName)
		require.NoError(t, err)
		for i, f := range frames {
			require.NoError(t, r.Record(times[i], f))
		}
		require.NoError(t, r.Close())
		return
	}
	var b bytes.Buffer
	w := pcapgo.NewWriterNanos(&b)
	require.NoError(t, w.WriteFileHeader(capture.MaxFrame, layers.LinkTypeEthernet))
	for i, f := range frames {
		require.NoError(t, w.WritePacket(gopacket.CaptureInfo{Timestamp: times[i], CaptureLength: len(f), Length: len(f)}, f))
	}
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o644))
}

// kernelCaptures are the files and how each comes about.
var kernelCaptures = []struct {
	file string
	mtu  int
	ipv6 bool
	talk func(c *cable)
}{
	{"ipv4.pcap", 1500, false, func(c *cable) { c.pings(0, 18, 56, 1000, 1472); c.datagrams(c.two.v4, 1, 512, 1472) }},
	{"ipv6.pcapng", 1500, true, func(c *cable) { c.pings6(0, 1452); c.datagrams(c.two.v6, 1, 1452); c.stream(c.two.v6, 3000) }},
	{"fragments.pcap", 1500, true, func(c *cable) { c.datagrams(c.two.v4, 1473, 3000, 8000); c.datagrams(c.two.v6, 1453, 3000, 8000) }},
	{"jumbo.pcapng", 9000, false, func(c *cable) { c.pings(18, 1472, 1473, 1478, 3000, 8971, 8972) }},
	{"dns.pcap", 1500, false, func(c *cable) { c.lookUp() }},
	{"tcp.pcapng", 1500, false, func(c *cable) { c.stream(c.two.v4, 12000) }},
	{"tcp-jumbo.pcap", 9000, false, func(c *cable) { c.stream(c.two.v4, 30000) }},
}

// target is where captures are made.
func target(t *testing.T, file string) string {
	if *writeCaptures {
		return filepath.Join(committed, file)
	}
	return filepath.Join(t.TempDir(), file)
}

// TestMakeKernelCaptures makes each capture from what two kernels say.
func TestMakeKernelCaptures(t *testing.T) {
	needRoot(t)
	for _, k := range kernelCaptures {
		t.Run(k.file, func(t *testing.T) {
			c := lay(t, k.mtu, k.ipv6)
			k.talk(c)
			path := target(t, k.file)
			c.save(path)
			assert.Subset(t, traits(t, path), wanted[k.file])
		})
	}
}

// TestMakeTaggedCaptures builds the ones with VLAN tags.
func TestMakeTaggedCaptures(t *testing.T) {
	for file, tags := range map[string][]layers.EthernetType{
		"vlan.pcap":   {layers.EthernetTypeDot1Q},
		"qinq.pcapng": {layers.EthernetTypeQinQ, layers.EthernetTypeDot1Q},
	} {
		t.Run(file, func(t *testing.T) {
			var frames [][]byte
			var times []time.Time
			for i, l3 := range []int{46, 576, 1499, 1500, 3000, 9000} {
				for _, id := range []uint16{0, 1, 100, 4094} { // 0: a priority tag
					frames = append(frames, tagged(t, tags, id, l3, uint16(i)))
					times = append(times, time.Unix(1_700_000_000, int64(len(times))*1_000_000))
				}
			}
			path := target(t, file)
			save(t, path, frames, times)
			assert.Subset(t, traits(t, path), wanted[file])
			if !*writeCaptures {
				made, err := os.ReadFile(path)
				require.NoError(t, err)
				kept, err := os.ReadFile(filepath.Join(committed, file))
				require.NoError(t, err)
				assert.True(t, bytes.Equal(kept, made), "the committed file is what this test makes")
			}
		})
	}
}

// tagged builds a UDP frame of l3 bytes behind its tags.
func tagged(t *testing.T, tags []layers.EthernetType, id uint16, l3 int, seq uint16) []byte {
	t.Helper()
	const headers = 20 + 8
	eth := &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, EthernetType: tags[0]}
	stack := []gopacket.SerializableLayer{eth}
	for i := range tags {
		next := layers.EthernetTypeIPv4
		if i+1 < len(tags) {
			next = tags[i+1]
		}
		stack = append(stack, &layers.Dot1Q{VLANIdentifier: id + uint16(i), Priority: uint8(5 - i), Type: next})
	}
	ip := &layers.IPv4{Version: 4, TTL: 64, Id: seq, Protocol: layers.IPProtocolUDP, SrcIP: net.IP{192, 0, 2, 1}, DstIP: net.IP{192, 0, 2, 2}}
	udp := &layers.UDP{SrcPort: 1000 + layers.UDPPort(id), DstPort: 7}
	require.NoError(t, udp.SetNetworkLayerForChecksum(ip))
	payload := make([]byte, l3-headers)
	for i := range payload {
		payload[i] = byte(i) ^ byte(seq)
	}
	b := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	require.NoError(t, gopacket.SerializeLayers(b, opts, append(stack, ip, udp, gopacket.Payload(payload))...))
	return b.Bytes()
}

// wanted is what each capture is there for.
var wanted = map[string][]string{
	"ipv4.pcap":      {"ARP", "ICMPv4", "UDP", "60 bytes", "1514 bytes"},
	"ipv6.pcapng":    {"IPv6", "ICMPv6NeighborSolicitation", "ICMPv6Echo", "UDP", "TCP", "1514 bytes"},
	"fragments.pcap": {"ARP", "first IPv4 fragment", "later IPv4 fragment", "first IPv6 fragment", "later IPv6 fragment", "1514 bytes"},
	"jumbo.pcapng":   {"ICMPv4", "60 bytes", "1514 bytes", "1515 bytes", "9013 bytes", "9014 bytes"},
	"dns.pcap":       {"DNS", "DNS answer", "UDP"},
	"tcp.pcapng":     {"TCP", "option MSS", "option WindowScale", "option SACKPermitted", "option Timestamps", "SYN", "FIN", "1514 bytes"},
	"tcp-jumbo.pcap": {"TCP", "option MSS", "option Timestamps", "9014 bytes"},
	"vlan.pcap":      {"Dot1Q", "64 bytes", "1518 bytes", "9018 bytes"},
	"qinq.pcapng":    {"QinQ", "Dot1Q", "68 bytes", "1522 bytes", "9022 bytes"},
}

// traits are what a capture has, by another reader than ours.
func traits(t *testing.T, path string) (out []string) {
	t.Helper()
	has := map[string]bool{}
	for _, f := range otherReader(t, path) {
		p := gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.Default)
		require.Nil(t, p.ErrorLayer(), "%v", p)
		has[fmt.Sprintf("%d bytes", len(f))] = true
		for _, l := range p.Layers() {
			has[l.LayerType().String()] = true
			switch l := l.(type) {
			case *layers.Ethernet:
				has["QinQ"] = has["QinQ"] || l.EthernetType == layers.EthernetTypeQinQ
			case *layers.IPv4:
				has["first IPv4 fragment"] = has["first IPv4 fragment"] || l.Flags&layers.IPv4MoreFragments != 0 && l.FragOffset == 0
				has["later IPv4 fragment"] = has["later IPv4 fragment"] || l.FragOffset != 0
			case *layers.IPv6Fragment:
				has["first IPv6 fragment"] = has["first IPv6 fragment"] || l.FragmentOffset == 0
				has["later IPv6 fragment"] = has["later IPv6 fragment"] || l.FragmentOffset != 0
			case *layers.DNS:
				has["DNS answer"] = has["DNS answer"] || len(l.Answers) > 0
			case *layers.TCP:
				has["SYN"], has["FIN"] = has["SYN"] || l.SYN, has["FIN"] || l.FIN
				for _, o := range l.Options {
					has["option "+o.OptionType.String()] = true
				}
			}
		}
	}
	for k, v := range has {
		if v {
			out = append(out, k)
		}
	}
	return out
}

// otherReader reads a capture with gopacket's own code.
func otherReader(t *testing.T, path string) (frames [][]byte) {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	var r gopacket.PacketDataSource
	if filepath.Ext(path) == ".pcapng" {
		r, err = pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions)
	} else {
		r, err = pcapgo.NewReader(f)
	}
	require.NoError(t, err)
	for {
		b, _, err := r.ReadPacketData()
		if err != nil {
			return frames
		}
		frames = append(frames, b)
	}
}
