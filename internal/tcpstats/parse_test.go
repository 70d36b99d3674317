package tcpstats

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// workloads are the ten texts that the peer's parser was measured with: its page has their
// names, lengths and what is in them.
var workloads = []struct {
	name, text string
	published  float64 // nanoseconds a call in C
}{
	{"empty", "", 11},
	{"single_port", "local_port=443", 61},
	{"multi_port", "local_port=22,443,8080,8443,3306,5432,9000,6379", 161},
	{"exclude_states", "exclude=listen,timewait,closing,syn_sent", 173},
	{"ipv4_cidr", "local_addr=10.1.0.0/24 local_port=443", 108},
	{"ipv6_compressed", "remote_addr=2001:db8::1 local_port=443", 111},
	{"ipv6_full", "remote_addr=2001:db8:0000:0000:0000:0000:0000:0001", 116},
	{"complex_combo", "local_port=443,8443 exclude=listen,timewait local_addr=10.1.2.0/24 ipv4_only format=full", 280},
	{"worst_case", "local_port=1,2,3,4,5,6,7,8 remote_port=1,2,3,4,5,6,7,8 exclude=listen,closed,established,timewait,close_wait local_addr=10.0.0.0/8 remote_addr=192.168.0.0/16 format=full fields=all", 675},
	{"uppercase_stress", "LOCAL_PORT=443,8443 EXCLUDE=LISTEN,TIMEWAIT LOCAL_ADDR=10.1.2.0/24 IPV4_ONLY FORMAT=FULL", 278},
}

func TestWorkloadsAreThePublishedOnes(t *testing.T) {
	bytes := []int{0, 14, 47, 40, 37, 38, 50, 88, 180, 88}
	require.Len(t, workloads, len(bytes))
	for i, w := range workloads {
		assert.Len(t, w.text, bytes[i], w.name)
		_, err := Parse(w.text)
		assert.NoError(t, err, w.name)
	}
}

func TestParseAndBack(t *testing.T) {
	for text, want := range map[string]string{
		"":                            "",
		"   ":                         "",
		"local_port=,,22,,":           "local_port=22",
		" REMOTE_PORT=80,443  ":       "remote_port=80,443",
		"exclude=TimeWait,syn_rcvd":   "exclude=syn_received,time_wait",
		"include_state=closewait":     "include_state=close_wait",
		"local_addr=::ffff:102:304":   "local_addr=::ffff:102:304",
		"local_addr=::ffff:0:0/96":    "local_addr=::ffff:0:0/96",
		"remote_addr=2001:DB8::/32":   "remote_addr=2001:db8::/32",
		"remote_addr=1:2:3:4:5:6:7::": "remote_addr=1:2:3:4:5:6:7:0",
		"local_addr=0.0.0.0/0":        "local_addr=0.0.0.0/0",
		"via=ANY":                     "via=any",
		"via=f1 source=FLOW":          "via=oxp9 source=flow",
		"fields=rtt,rtt,names":        "fields=identity,rtt,names",
		"fields=default":              "",
		"fields=all format=full":      "format=full fields=all",
		"ipv4_only ipv4_only":         "ipv4_only",
		"exclude=" + strings.Join(stateNames[:], ","): "exclude=" + strings.Join(stateNames[:], ","),
	} {
		f, err := Parse(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, f.String(), text)
		again, err := Parse(want)
		require.NoError(t, err, want)
		assert.Equal(t, f, again, text)
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]SyntaxError{
		"local_port=0":                         {11, "0", "no port: want 1 to 65535 without leading zeros", false},
		"local_port=22,022":                    {14, "022", "no port: want 1 to 65535 without leading zeros", false},
		"local_port=65536":                     {11, "65536", "no port: want 1 to 65535", false},
		"local_port=1,2,3,4,5,6,7,8,9":         {27, "9", "more than 8 ports", false},
		"exclude=,":                            {8, ",", reasonEmpty, false},
		"exclude=listen exclude=closed":        {15, "exclude=closed", reasonTwice, false},
		"exclude=listen include_state=closed":  {15, "include_state=closed", "exclude= is there already", false},
		"local_addr=1.2.3.4:80":                {11, "1.2.3.4:80", "no dotted form within IPv6: write its last four bytes in hex", false},
		"local_addr=::/0 remote_addr=1.2.3.4":  {16, "remote_addr=1.2.3.4", reasonConflict, false},
		"ipv6_only local_addr=0.0.0.0/0":       {10, "local_addr=0.0.0.0/0", reasonConflict, false},
		"local_addr=10.0.0.1/24":               {11, "10.0.0.1/24", reasonHostBits, false},
		"local_port=22\tremote_port=1":         {13, "", "a tab: directives are separated by spaces", false},
		"ipv4_only=1":                          {0, "ipv4_only=1", "this word stands alone, without =", false},
		strings.Repeat("ipv4_only ", 16) + "x": {160, "x", "more than 16 directives", false},
		strings.Repeat(" ", 512):               {511, "", "the filter is longer than 511 bytes", true},
	} {
		_, err := Parse(text)
		var got *SyntaxError
		require.ErrorAs(t, err, &got, text)
		assert.Equal(t, want, *got, text)
		assert.LessOrEqual(t, len(err.Error()), maxMessage)
	}
}

func TestParseAllocatesNothing(t *testing.T) {
	for _, w := range workloads {
		assert.Zero(t, testing.AllocsPerRun(100, func() { _, _ = Parse(w.text) }), w.name)
	}
}

func BenchmarkParse(b *testing.B) {
	for _, w := range workloads {
		b.Run("workload="+w.name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				if _, err := Parse(w.text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
