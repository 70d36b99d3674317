package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
)

// links are the places of a filter that is linked to all ports one way.
func links(direction string) (out []client.FilterLink) {
	for _, p := range board.All() {
		out = append(out, client.FilterLink{IfName: p.Name, Label: p.Label, Direction: direction})
	}
	return out
}

func TestFilterOutput(t *testing.T) {
	at := time.Date(2026, 5, 4, 10, 0, 0, 0, time.UTC)
	hit := at.Add(90 * time.Second)
	f1 := client.FilterLink{IfName: "oxp9", Label: "PortF1", Direction: "out"}
	both(t, "filter-load", &client.FilterLoaded{Schema: 1, Name: "flood", Rules: 3, Added: 3, Links: []client.FilterLink{}, Warnings: []string{}}, printFilterLoaded)
	both(t, "filter-load-again", &client.FilterLoaded{
		Schema: 1, Name: "flood", Rules: 3, Replaced: true, Kept: 2, Added: 1, Removed: 4, Links: append(links("in"), f1),
		Warnings: []string{"flood.rules:3: this rule never matches: the rule of line 2 takes all of its frames (count ip from any to any)"},
	}, printFilterLoaded)
	flood := client.Filter{
		Name: "flood", File: "flood.rules", Origin: client.OriginCommand, Rules: 3, Loaded: at, Links: append(links("in"), f1),
		Judged: client.FilterCount{Frames: 1_000_007, Bytes: 60_000_420}, Gone: client.FilterCount{Frames: 2, Bytes: 120}, Unmatched: client.FilterCount{Frames: 5, Bytes: 300},
	}
	both(t, "filter-list", &client.Filters{
		Schema: 1, Filters: []client.Filter{{Name: "dns", File: "/etc/oxpd/dns.rules", Origin: client.OriginConfig, Rules: 1, Loaded: at, Links: []client.FilterLink{f1}}, flood,
			{Name: "spare", File: "spare.rules", Origin: client.OriginCommand, Loaded: at, Links: []client.FilterLink{}}},
		Order: []client.FilterOrder{{FilterLink: f1, Filters: []string{"dns", "flood"}}},
	}, printFilters)
	both(t, "filter-list-none", &client.Filters{Schema: 1, Filters: []client.Filter{}}, printFilters)
	view := &client.FilterView{
		Schema: 1, Filter: flood, Now: at.Add(2 * time.Minute),
		List: []client.FilterRule{
			{Line: 4, Verdict: "drop", Rule: "drop udp from set bad to any port 53 in", Hits: 1_000_000, Bytes: 60_000_000, LastHit: &hit},
			{Line: 5, Verdict: "sample", Rule: "sample 100 icmp from any to any", Hits: 0},
			{Line: 9, Verdict: "count", Rule: "count ip6 from any to any frag", Hits: 0},
		},
		Warnings: []string{},
	}
	both(t, "filter-show", view, printFilter)
	both(t, "filter-link", view, printFilterLinks)
	both(t, "filter-compile", &compiled{
		Schema: 1, File: "flood.rules", Rules: []compiledRule{{2, "drop ip from set bad to any"}}, Sets: []compiledSet{{"bad", 1_000_000}}, Programs: []string{"syn"}, Warnings: []string{},
	}, printCompiled)
	both(t, "filter-test", &judged{
		Schema: 1, Filter: "flood", File: "flood.rules", Capture: "x.pcap", IfName: "oxp9", Direction: "in",
		Frames: []judgedFrame{
			{Frame: 1, Bytes: 1514, Captured: 96, Verdict: "drop", Line: 4, Rule: "drop udp from any to any", Headers: "udp 192.0.2.1:9 > 198.51.100.2:53"},
			{Frame: 2, Bytes: 60, Captured: 60, Verdict: "pass", Headers: "ethertype 0x0806"},
		},
		Verdicts: map[string]int{"drop": 1}, Unmatched: 1, Cut: 1,
	}, printJudged)
}

func TestLinkWords(t *testing.T) {
	f1 := client.FilterLink{IfName: "oxp9", Direction: "in"}
	for _, tc := range []struct {
		name  string
		links []client.FilterLink
		want  string
	}{
		{"none", nil, "nowhere"},
		{"all both ways", append(links("out"), links("in")...), "all"},
		{"all one way", links("out"), "all out"},
		{"all one way and one", append(links("out"), f1), "all out, oxp9 in"},
		{"all but one", links("in")[1:3], "oxp2 in, oxp3 in"},
	} {
		t.Run(tc.name, func(t *testing.T) { assert.Equal(t, tc.want, linked(tc.links)) })
	}
}

// rules writes files to a folder of the test, and returns the path of the first.
func rules(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(files); i += 2 {
		require.NoError(t, os.WriteFile(filepath.Join(dir, files[i]), []byte(files[i+1]), 0o600))
	}
	return filepath.Join(dir, files[0])
}

func TestFilterUsage(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none.sock")
	good := rules(t, "good.rules", "drop udp from any to any\n")
	bad := rules(t, "bad.rules", "set bad file bad.txt\n\tdrop udp fro any to any\ndrop ip from set bad to any\n", "bad.txt", "192.0.2.0/24\n192.0.2.1/24\n")
	pcap := "../../testdata/captures/dns.pcap"
	for _, tc := range []struct {
		name string
		args []string
		code int
		err  string // on standard error
		out  string // on standard output
	}{
		{"nothing asked", []string{"filter"}, 0, "", "Available Commands:"},
		{"unknown command", []string{"filter", "lod"}, 2, `unknown command "lod" of oxpd filter`, ""},
		{"load without a file", []string{"filter", "load", "x"}, 2, "oxpd: filter load: FILE is missing", ""},
		{"load under no name", []string{"filter", "load", "a b", good}, 2, `name of a filter "a b": want letters`, ""},
		{"load of no file", []string{"filter", "load", "x", ""}, 2, "the name of the rule file is empty", ""},
		{"load of a file that is not there", []string{"filter", "load", "x", good + "~"}, 1, good + "~: no such file or directory", ""},
		{"load of a folder", []string{"filter", "load", "x", filepath.Dir(good)}, 1, "is not a regular file", ""},
		{"no daemon: load", []string{"filter", "load", "x", good, "--socket", none}, 1, "no daemon answers on " + none, ""},
		{"no daemon: unload", []string{"filter", "unload", "x", "--socket", none}, 1, none, ""},
		{"no daemon: link", []string{"filter", "link", "x", "all", "--socket", none}, 1, none, ""},
		{"no daemon: unlink", []string{"filter", "unlink", "x", "F1", "in", "--socket", none}, 1, none, ""},
		{"no daemon: list", []string{"filter", "list", "--socket", none}, 1, none, ""},
		{"no daemon: show", []string{"filter", "show", "x", "--socket", none}, 1, none, ""},
		{"no daemon: source", []string{"filter", "show", "x", "--source", "--socket", none}, 1, none, ""},
		{"no daemon: test of a loaded filter", []string{"filter", "test", "x", "--pcap", pcap, "--socket", none}, 1, none, ""},
		{"no daemon: samples", []string{"filter", "samples", "--out", "-", "--socket", none}, 1, none, ""},
		{"samples to nowhere", []string{"filter", "samples"}, 2, "where to? --out is missing", ""},
		{"link to no port", []string{"filter", "link", "x", "oxp13"}, 2, `unknown port "oxp13"`, ""},
		{"link in no direction", []string{"filter", "link", "x", "oxp1", "up"}, 2, `direction "up": want in or out, or nothing for both`, ""},
		{"link to two ports", []string{"filter", "link", "x", "oxp1", "in", "oxp2"}, 2, `filter link: "oxp2" is one argument too many`, ""},
		{"link of nothing", []string{"filter", "link", "x"}, 2, "filter link: PORT|all is missing", ""},
		{"compile", []string{"filter", "compile", good}, 0, "", good + ": 1 rule\n"},
		{"compile of rules that are wrong, each with its line", []string{"filter", "compile", bad}, 2,
			bad + ":2:11: found \"fro\", expected", ""},
		{"dump", []string{"filter", "compile", good, "--dump"}, 0, "", "rules 1, sets 0, programs 0\n"},
		{"a caret beneath, behind the tab of the line", []string{"filter", "compile", bad}, 2, "\n  \tdrop udp fro any to any\n  \t         ^\n", ""},
		{"the same by load, without a daemon", []string{"filter", "load", "x", bad, "--socket", none}, 1, none, ""},
		{"test of two filters", []string{"filter", "test", "x", "--file", good, "--pcap", pcap}, 2, "NAME and --file are two filters: give one", ""},
		{"test of no filter", []string{"filter", "test", "--pcap", pcap}, 2, "want NAME, a loaded filter, or --file, a rule file", ""},
		{"test of no frames", []string{"filter", "test", "--file", good}, 2, "of which frames? --pcap is missing", ""},
		{"test in no direction", []string{"filter", "test", "--file", good, "--pcap", pcap, "--direction", "both"}, 2, `--direction "both": want in or out`, ""},
		{"test at no port", []string{"filter", "test", "--file", good, "--pcap", pcap, "--port", "all"}, 2, `unknown port "all"`, ""},
		{"test of what is no capture", []string{"filter", "test", "--file", good, "--pcap", good}, 2, good, ""},
		{"test by rules that are wrong", []string{"filter", "test", "--file", bad, "--pcap", pcap}, 2, bad + ":2:11: ", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := oxpd(t, program(), tc.args...)
			assert.Equal(t, tc.code, r.code, "%+v", r)
			assert.Contains(t, r.err, tc.err)
			assert.Contains(t, r.out, tc.out)
		})
	}
}

// TestFilterTest: verdicts on captures, with no daemon and no port.
func TestFilterTest(t *testing.T) {
	const captures = "../../testdata/captures/"
	run := func(t *testing.T, text, capture string, more ...string) (string, *judged) {
		t.Helper()
		file := rules(t, "x.rules", text)
		args := append([]string{"filter", "test", "--file", file, "--pcap", captures + capture}, more...)
		r := oxpd(t, program(), args...)
		require.Equal(t, 0, r.code, "%+v", r)
		doc := oxpd(t, program(), append(args, "--json")...)
		require.Equal(t, 0, doc.code, "%+v", doc)
		out := new(judged)
		require.NoError(t, json.Unmarshal([]byte(doc.out), out))
		assert.Equal(t, client.Schema, out.Schema)
		return r.out, out
	}
	sum := func(d *judged) (n int) {
		for _, v := range d.Verdicts {
			n += v
		}
		return n + d.Unmatched
	}
	t.Run("pcap, by port and protocol", func(t *testing.T) {
		text, d := run(t, "drop udp from any to any port 53\ncount udp from any port 53 to any\n", "dns.pcap")
		assert.Equal(t, len(d.Frames), sum(d))
		assert.NotZero(t, d.Verdicts["drop"])
		assert.NotZero(t, d.Verdicts["count"])
		assert.Equal(t, 2, d.Unmatched, "ARP")
		assert.Contains(t, text, "VERDICT")
		assert.Contains(t, text, " drop ")
		assert.Contains(t, text, " frames in at oxp1: ")
	})
	t.Run("pcapng, other way and port", func(t *testing.T) {
		const text = "drop tcp from any to any out on oxp9\n"
		_, d := run(t, text, "tcp.pcapng", "--direction", "out", "--port", "F1")
		assert.Equal(t, len(d.Frames)-2, d.Verdicts["drop"], "all but ARP")
		_, d = run(t, text, "tcp.pcapng")
		assert.Equal(t, len(d.Frames), d.Unmatched)
	})
	t.Run("tags", func(t *testing.T) {
		text, d := run(t, "drop any from any to any vlan 1-4094\n", "qinq.pcapng")
		assert.NotZero(t, d.Verdicts["drop"])
		assert.Contains(t, text, "vlan ")
	})
}

// pcap writes a capture of frames, of each as many bytes as are given and the length that
// it had on the wire.
func pcap(t *testing.T, frames ...struct {
	bytes []byte
	wire  int
}) string {
	t.Helper()
	le := binary.LittleEndian
	b := le.AppendUint32(nil, 0xa1b2c3d4)
	b = le.AppendUint32(b, 2|4<<16)
	b = append(b, make([]byte, 8)...)
	b = le.AppendUint32(b, 65535)
	b = le.AppendUint32(b, 1) // Ethernet
	for _, f := range frames {
		b = append(b, make([]byte, 8)...)
		b = le.AppendUint32(b, uint32(len(f.bytes)))
		b = le.AppendUint32(b, uint32(f.wire))
		b = append(b, f.bytes...)
	}
	path := filepath.Join(t.TempDir(), "x.pcap")
	require.NoError(t, os.WriteFile(path, b, 0o600))
	return path
}

// TestFilterTestSees: of a frame that is not there whole, what is there and its length.
func TestFilterTestSees(t *testing.T) {
	type frame = struct {
		bytes []byte
		wire  int
	}
	udp := append([]byte{0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 5, 0xdc, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 198, 51, 100, 2, 0, 9, 0, 53}, make([]byte, 1476)...)
	ones := bytes.Repeat([]byte{1}, 2000)
	file := pcap(t, frame{udp, len(udp)}, frame{udp[:36], 1514}, frame{ones, 2000})
	text := "drop udp from any to any port 53\ncount any from any to any length 1514\ndrop program far\n"
	byFile := rules(t, "x.rules", "program far file far.bpf\n"+text, "far.bpf", "2\n48 0 0 1600\n22 0 0 0\n")
	for _, tc := range []struct {
		direction string
		far       string
	}{{"in", "-  ethertype 0x0101"}, {"out", "4  ethertype 0x0101"}} {
		t.Run(tc.direction, func(t *testing.T) {
			r := oxpd(t, program(), "filter", "test", "--file", byFile, "--pcap", file, "--direction", tc.direction)
			require.Equal(t, 0, r.code, "%+v", r)
			assert.Contains(t, r.out, "      1   1514  drop        2  udp 192.0.2.1:9 > 198.51.100.2:53\n")
			assert.Contains(t, r.out, "      2   1514  count       3  udp 192.0.2.1 > 198.51.100.2 (36 bytes captured)\n")
			assert.Contains(t, r.out, tc.far+"\n")
			assert.Contains(t, r.out, "; of 1 the capture has only the beginning\n")
		})
	}
}
