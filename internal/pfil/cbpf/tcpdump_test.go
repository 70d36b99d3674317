package cbpf

import (
	"testing"

	"github.com/stretchr/testify/require"

	"oxpd/internal/pfil/pfiltest"
)

// needTCPDump leaves a test out where there is no tcpdump. `make test` sees to it.
func needTCPDump(t *testing.T) {
	t.Helper()
	if !pfiltest.HasTCPDump() {
		t.Skip("needs tcpdump, which `make test` installs")
	}
}

// expressions are pcap expressions of every kind that has a meaning for Ethernet.
func expressions() []string {
	return []string{
		"ip", "ip6", "arp", "tcp", "udp", "icmp", "icmp6", "sctp", "esp", "igmp", "stp", "ether proto 0x88cc",
		"ether host 02:00:00:00:00:01", "ether src 02:00:00:00:00:01", "ether multicast", "ether broadcast", "not ether broadcast",
		"ip proto 47", "ip6 proto 17", "proto 6", "ether proto 0x0800",
		"host 192.0.2.1", "src host 192.0.2.1", "dst host 198.51.100.7", "net 192.0.2.0/24", "src net 2001:db8::/32", "dst net 198.51.0.0/16",
		"host 2001:db8::1", "not host 192.0.2.1", "arp host 192.0.2.1", "ip host 192.0.2.1 and udp",
		"port 53", "udp port 53", "src port 5353", "dst port 443", "tcp dst port 443", "portrange 1-1023", "udp src portrange 5000-6000", "not port 53",
		"src host 192.0.2.1 and (dst port 53 or dst port 443)", "tcp and (src port 443 or dst port 443) and not src net 10.0.0.0/8",
		"less 60", "greater 1000", "len >= 60 and len <= 90", "len > 9000", "greater 61 and udp",
		"tcp[tcpflags] & (tcp-syn|tcp-ack) == tcp-syn", "tcp[13] & 4 != 0", "tcp[tcpflags] == tcp-fin|tcp-ack", "tcp[2:2] > 400",
		"icmp[icmptype] == icmp-echo", "icmp[0] != 8", "icmp6[icmp6type] == icmp6-echo", "icmp6[0] = 135", "icmp[icmptype] = icmp-unreach and icmp[icmpcode] = 4",
		"ip[6:2] & 0x3fff != 0", "ip[6:2] & 0x1fff = 0", "ip[8] < 65", "ip[0] & 0xf != 5", "ip6[6] == 44", "ip6[4:2] > 16", "ip[2:2] - ((ip[0] & 0xf) << 2) > 100",
		"ether[0] & 1 == 0", "ether[12:2] <= 1500", "udp[4:2] > 20", "udp[8:4] = 0", "ip[12:4] ^ 0xc0000201 = 0", "ip[2:2] % 7 = 3", "ip[2:2] * 3 / 2 > 200",
		"(ip[16:4] | 0xff) >> 8 = 0xc63364", "ether[len - 1] = 0", "ip[ip[0] & 0xf] > 0",
		"vlan", "vlan 100", "vlan 100 and ip", "vlan 7 and vlan 100 and udp", "vlan and ip6", "vlan 100 and udp port 53", "not vlan",
		"udp and host (192.0.2.1 or 198.51.100.7 or 203.0.113.9) and port (53 or 5353 or 443 or 8443 or 1000 or 2000 or 3000)",
	}
}

// TestTCPDumpAgrees compares with tcpdump over a capture file, in which a frame may be
// shorter than it was on the wire: the two lengths of a frame in a ring.
func TestTCPDumpAgrees(t *testing.T) {
	needTCPDump(t)
	frames, err := pfiltest.Frames(4)
	require.NoError(t, err)
	file := pfiltest.PCAP(frames)
	for _, expression := range expressions() {
		text, err := pfiltest.Compile(expression)
		require.NoError(t, err)
		p, err := Parse(text)
		require.NoError(t, err)
		takes, err := pfiltest.Judge(file, len(frames), expression)
		require.NoError(t, err)
		for i, f := range frames {
			if got := p.Run(f.Bytes, f.Wire) != 0; got != takes[i] {
				t.Fatalf("%q: taken %v, by tcpdump %v: %v\n%v", expression, got, takes[i], f, p)
			}
		}
	}
}

// TestRefusesLoops: tcpdump makes a program that jumps back for protochain, and runs
// it itself. No kernel takes it.
func TestRefusesLoops(t *testing.T) {
	needTCPDump(t)
	text, err := pfiltest.Compile("ip protochain 17")
	require.NoError(t, err)
	_, err = Parse(text)
	require.ErrorContains(t, err, "a jump over less than 4 instructions")
}
