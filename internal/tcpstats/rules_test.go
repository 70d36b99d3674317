package tcpstats

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// rule is a row of the peer's page (docs/guides/tcpstats-filter.md has them): texts that
// are filters, and texts that are none, with what is said of them.
type rule struct {
	name    string
	good    []string
	bad     map[string]string // the beginning of the reason
	tooLong []string
}

func list(n int, of func(i int) string) string {
	var all []string
	for i := range n {
		all = append(all, of(i))
	}
	return strings.Join(all, ",")
}

func number10(i int) string { return itoa(i + 1) }

// rules are the rows, each with its negation.
var rules = []rule{
	{name: "nothing but spaces is the default", good: []string{"", " ", strings.Repeat(" ", MaxText)}},
	{name: "length", good: []string{"ipv4_only" + strings.Repeat(" ", MaxText-9)}, tooLong: []string{strings.Repeat(" ", MaxText+1), strings.Repeat("\t", MaxText+1), strings.Repeat("x ", 300), strings.Repeat("a", 100_000)}},
	{name: "character set", good: []string{" local_port=1 "}, bad: map[string]string{
		"local_port=1\n": "a line end", "local_port=1\r": "a line end", "local_port=1\tremote_port=2": "a tab", "local_port=1\x00": "a character", "local_port=é": "a character", "\x7f": "a character", "\x1f": "a character",
	}},
	{name: "sixteen directives", good: []string{strings.Repeat("ipv4_only ", 16), strings.Repeat("ipv4_only   ", 16)}, bad: map[string]string{
		strings.Repeat("ipv4_only ", 17): "more than 16", strings.Repeat("x ", 17): "more than 16",
	}},
	{name: "keys ignore case", good: []string{"LOCAL_PORT=1", "Remote_Port=1", "EXCLUDE=listen", "Include_State=listen", "LOCAL_ADDR=::1", "REMOTE_ADDR=1.2.3.4", "FORMAT=full", "FIELDS=rtt", "VIA=oxp1", "SOURCE=flow", "IPV4_ONLY", "IPV6_Only"},
		bad: map[string]string{"LOCALPORT=1": "no such directive", "local_ports=1": "no such directive"}},
	{name: "a bare word is a flag", good: []string{"ipv4_only", "ipv6_only"}, bad: map[string]string{
		"established": "no such word", "local_port": "no such word", "!ipv4_only": "no such word", "-": "no such word",
	}},
	{name: "unknown and empty keys", bad: map[string]string{"=1": "no such directive", "=": "no such directive", "port=1": "no such directive", "state=listen": "no such directive", "x=": "no such directive", "exclude_listen=1": "no such directive"}},
	{name: "a value is there", good: []string{"local_port=1"}, bad: map[string]string{
		"local_port=": "nothing stands behind", "exclude=": "nothing stands behind", "include_state=": "nothing stands behind", "local_addr=": "nothing stands behind", "format=": "nothing stands behind", "fields=": "nothing stands behind", "via=": "nothing stands behind", "source=": "nothing stands behind",
	}},
	{name: "the key ends at the first =", bad: map[string]string{"local_port==1": "no port", "local_port=1=2": "no port", "format=full=": "want compact"}},
	{name: "no quoting, comments, ranges, negation", bad: map[string]string{`local_port="1"`: "no port", "local_port=1-2": "no port", "local_port=!1": "no port", "# comment": "no such word", "local_port=1;remote_port=2": "no port"}},
	{name: "ports", good: []string{"local_port=1", "remote_port=65535", "local_port=1,2,3,4,5,6,7,8 remote_port=1,2,3,4,5,6,7,8", "local_port=,,22,,"}, bad: map[string]string{
		"local_port=0": "no port", "local_port=65536": "no port", "local_port=99999": "no port", "local_port=100000": "no port: more than five", "local_port=022": "no port: want 1 to 65535 without leading",
		"local_port=1x": "no port: want digits", "local_port=+1": "no port: want digits", "local_port=22,22": "the port is in the list", "local_port=" + list(9, number10): "more than 8 ports", "local_port=,": "the list has nothing", "local_port=,,,": "the list has nothing",
		"local_port=1 local_port=2": "this directive is there", "remote_port=1 remote_port=1": "this directive is there", "remote_port=00001": "no port", "remote_port=http": "no port",
	}},
	{name: "states", good: []string{
		"exclude=closed,listen,syn_sent,syn_received,established,close_wait,fin_wait_1,closing,last_ack,fin_wait_2,time_wait", "include_state=TIMEWAIT,closewait,syn_rcvd", "exclude=listen,,closed,", "include_state=established",
	}, bad: map[string]string{
		"exclude=estab": "no such state", "exclude=finwait1": "no such state", "exclude=syn_recv": "no such state", "exclude=time-wait": "no such state", "exclude=fin_wait_3": "no such state", "exclude=fin_wait": "no such state", "include_state=x": "no such state", "include_state=established1": "no such state",
		"exclude=listen,listen": "the state is in the list", "exclude=timewait,time_wait": "the state is in the list", "include_state=syn_rcvd,syn_received": "the state is in the list",
		"include_state=,": "the list has nothing", "include_state=listen include_state=closed": "this directive is there",
		"include_state=listen exclude=closed": "include_state= is there", "exclude=listen include_state=closed": "exclude= is there",
	}},
	{name: "strict: exclude once, and not empty", bad: map[string]string{"exclude=listen exclude=closed": "this directive is there", "exclude=,": "the list has nothing", "exclude=, include_state=listen": "the list has nothing"}},
	{name: "strict: format and fields once", good: []string{"format=full", "format=COMPACT", "fields=rtt,rtt", "fields=identity,state,congestion,rtt,sequences,counters,timers,buffers,ecn,names", "fields=all", "fields=default,names", "fields=,rtt"}, bad: map[string]string{
		"format=full format=compact": "this directive is there", "fields=rtt fields=names": "this directive is there", "format=full,compact": "want compact or full", "format=long": "want compact or full", "fields=x": "no such group", "fields=,": "the list has nothing", "fields=rtt,x": "no such group",
	}},
	{name: "addresses of four", good: []string{"local_addr=1.2.3.4", "remote_addr=0.0.0.0", "local_addr=255.255.255.255", "local_addr=10.0.0.0/8", "local_addr=0.0.0.0/0", "local_addr=10.1.2.3/32", "local_addr=128.0.0.0/1"}, bad: map[string]string{
		"local_addr=1.2.3": "no address", "local_addr=1.2.3.4.5": "too long|no address", "local_addr=256.1.1.1": "no address", "local_addr=1.2.3.04": "no address", "local_addr=1.2..4": "no address", "local_addr=.1.2.3": "no address", "local_addr=1.2.3.": "no address",
		"local_addr=1.2.3.x": "no address", "local_addr=localhost": "no address", "local_addr=1.2.3.4/33": "no prefix", "local_addr=1.2.3.4/": "no prefix", "local_addr=1.2.3.4/08": "no prefix", "local_addr=1.2.3.4/x": "no prefix", "local_addr=1.2.3.4/8/8": "no prefix",
		"local_addr=1.2.3.4/24": "bits behind", "local_addr=0.0.0.1/0": "bits behind", "local_addr=1.2.3.4,1.2.3.5": "no address", "local_addr=192.168.100.100.": "too long", "local_addr=0192.168.100.1001": "too long",
		"local_addr=1.1.1.1 local_addr=1.1.1.1": "this directive is there", "remote_addr=1.1.1.1 remote_addr=2.2.2.2": "this directive is there", "local_addr=/8": "no address", "local_addr=1000.1.1.1": "no address",
	}},
	{name: "addresses of six", good: []string{
		"local_addr=::", "local_addr=::1", "local_addr=1::", "local_addr=1:2:3:4:5:6:7:8", "local_addr=0001:0002::", "local_addr=2001:DB8::/32", "local_addr=::/0", "local_addr=::/128", "local_addr=1:2:3:4:5:6:7::", "local_addr=::2:3:4:5:6:7:8", "local_addr=1::8", "local_addr=::ffff:102:304", "local_addr=fe80::/10",
	}, bad: map[string]string{
		"local_addr=:": "no IPv6", "local_addr=:1": "no IPv6", "local_addr=1:": "no IPv6", "local_addr=1:2:3:4:5:6:7": "no IPv6", "local_addr=1:2:3:4:5:6:7:8:": "no IPv6", "local_addr=::1::": ":: is there twice", "local_addr=1:2:3:4::5:6:7:8": ":: must stand", "local_addr=g::": "no IPv6",
		"local_addr=1.2.3.4:80": "no dotted", "local_addr=::ffff:1.2.3.4": "no dotted", "local_addr=fe80::1%eth0": "no IPv6", "local_addr=[::1]": "no IPv6", "local_addr=::1/129": "no prefix", "local_addr=::1/01": "no prefix", "local_addr=::1/": "no prefix", "local_addr=2001:db8::1/32": "bits behind", "local_addr=1::/8": "bits behind",
		"local_addr=0000:0000:0000:0000:0000:0000:0000:0000:00000000": "too long", "local_addr=::/1000": "no prefix",
	}},
	{name: "strict: IPv6 that the peer lets pass", bad: map[string]string{
		"local_addr=1:2:3:4:5:6:7:8:9": "more than eight", "local_addr=1:2:3:4:5:6:7:8::": ":: must stand", "local_addr=1:2:3:4:5:6:7:0008zz": "no IPv6", "local_addr=12345::": "no IPv6", "local_addr=:::5": "no IPv6", "local_addr=::1/0": "bits behind", "local_addr=1:::2": "no IPv6",
	}},
	{name: "families", good: []string{"ipv4_only local_addr=1.2.3.4", "ipv6_only remote_addr=::1", "local_addr=1.1.1.1 remote_addr=2.2.2.2", "ipv6_only local_addr=::ffff:102:304"}, bad: map[string]string{
		"ipv4_only ipv6_only": "ipv4_only and ipv6_only", "ipv6_only ipv4_only": "ipv4_only and ipv6_only", "ipv6_only local_addr=1.2.3.4": "another directive", "local_addr=1.2.3.4 ipv6_only": "another directive", "ipv4_only remote_addr=::1": "another directive", "remote_addr=::1 ipv4_only": "another directive",
		"ipv4_only=": "this word stands alone", "ipv6_only=1": "this word stands alone", "ipv4_only local_addr=::ffff:102:304": "another directive",
	}},
	{name: "strict: all-zero addresses and mixed ends conflict", bad: map[string]string{"ipv6_only local_addr=0.0.0.0/0": "another directive", "ipv4_only local_addr=::/0": "another directive", "local_addr=1.2.3.4 remote_addr=::1": "another directive", "local_addr=::/0 remote_addr=0.0.0.0/0": "another directive"}},
	{name: "ports of the appliance", good: []string{"via=oxp1", "via=OXP12", "via=PortF1", "via=f1", "via=port8", "via=any"}, bad: map[string]string{"via=oxp13": "no such port", "via=oxp0": "no such port", "via=eth0": "no such port", "via=oxp1,oxp2": "no such port", "via=oxp1 via=oxp1": "this directive is there"}},
	{name: "sources", good: []string{"source=host", "source=FLOW"}, bad: map[string]string{"source=x": "want host or flow", "source=host,flow": "want host or flow", "source=host source=host": "this directive is there"}},
	{name: "order of checks", bad: map[string]string{
		strings.Repeat("x ", 17) + "\t":         "a tab",        // the characters before the number
		strings.Repeat("bad ", 16) + "bad":      "more than 16", // the number before the words
		"local_port=0 remote_port=0":            "no port",
		"ipv6_only local_addr=1.2.3.4 x":        "no such word", // words before families
		"format=x ipv6_only local_addr=1.2.3.4": "want compact",
	}},
}

func TestRules(t *testing.T) {
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			for _, text := range r.good {
				f, err := Parse(text)
				require.NoError(t, err, "%q", text)
				assert.NotZero(t, f.Fields&GroupIdentity)
				again, err := Parse(f.String())
				require.NoError(t, err, "canonical form %q of %q", f.String(), text)
				assert.Equal(t, f, again, "%q", text)
				assert.LessOrEqual(t, len(f.String()), MaxText)
			}
			for text, want := range r.bad {
				f, err := Parse(text)
				assert.Equal(t, Filter{}, f)
				var syntax *SyntaxError
				require.ErrorAs(t, err, &syntax, "%q", text)
				ok := false
				for _, w := range strings.Split(want, "|") {
					ok = ok || strings.HasPrefix(syntax.Reason, w)
				}
				assert.True(t, ok, "%q: %s", text, syntax.Reason)
				assert.False(t, syntax.TooLong)
				assert.Equal(t, CodeInvalid, syntax.Code())
				assert.True(t, strings.HasPrefix(text[syntax.Offset:], syntax.Word), "%q: the word is where the offset says", text)
				assert.LessOrEqual(t, len(err.Error()), maxMessage)
			}
			for _, text := range r.tooLong {
				_, err := Parse(text)
				var syntax *SyntaxError
				require.ErrorAs(t, err, &syntax)
				assert.True(t, syntax.TooLong)
				assert.Equal(t, CodeTooLong, syntax.Code())
			}
		})
	}
}

// FuzzFilter: a text is refused with a place and a reason, or has a canonical form that is
// the same filter and its own canonical form.
func FuzzFilter(f *testing.F) {
	for _, r := range rules {
		for _, text := range r.good {
			f.Add(text)
		}
		for text := range r.bad {
			f.Add(text)
		}
	}
	for _, w := range workloads {
		f.Add(w.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := Parse(text)
		if err != nil {
			var syntax *SyntaxError
			if !errors.As(err, &syntax) || got != (Filter{}) {
				t.Fatalf("%v, %v", got, err)
			}
			assert.LessOrEqual(t, len(err.Error()), maxMessage)
			assert.LessOrEqual(t, syntax.Offset, len(text))
			assert.Equal(t, len(text) > MaxText, syntax.TooLong)
			return
		}
		canonical := got.String()
		again, err := Parse(canonical)
		require.NoError(t, err, canonical)
		assert.Equal(t, got, again)
		assert.Equal(t, canonical, again.String())
	})
}
