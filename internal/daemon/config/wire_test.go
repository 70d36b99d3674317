package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
)

func TestParseWire(t *testing.T) {
	oxp2 := board.ByIndex(1)
	for _, tc := range []struct {
		name, text string
		want       Wire
	}{
		{"TAP", "tap:far1", Wire{Kind: WireTAP, TAP: "far1"}},
		{"TAP in a namespace", "tap:far1@/run/netns/lab", Wire{Kind: WireTAP, TAP: "far1", NetNS: "/run/netns/lab"}},
		{"TAP with the longest name", "tap:123456789012345", Wire{Kind: WireTAP, TAP: "123456789012345"}},
		{"replay", "pcap:in.pcap", Wire{Kind: WirePcap, In: "in.pcap", Pace: PaceCapture}},
		{"replay and record", "pcap:/a b/in.pcap,out.pcapng", Wire{Kind: WirePcap, In: "/a b/in.pcap", Out: "out.pcapng", Pace: PaceCapture}},
		{"record", "pcap:,out.pcapng", Wire{Kind: WirePcap, Out: "out.pcapng", Pace: PaceCapture}},
		{"at line rate", "pcap:in.pcap@wire", Wire{Kind: WirePcap, In: "in.pcap", Pace: PaceWire}},
		{
			"every option", "pcap:in.pcap,out@wire,start=1m30s,rewrite-mac",
			Wire{Kind: WirePcap, In: "in.pcap", Out: "out", Pace: PaceWire, Start: 90 * time.Second, RewriteMAC: true},
		},
		{"options in another order", "pcap:in.pcap@rewrite-mac,capture", Wire{Kind: WirePcap, In: "in.pcap", Pace: PaceCapture, RewriteMAC: true}},
		{"path with @", "pcap:a@b.pcap@capture", Wire{Kind: WirePcap, In: "a@b.pcap", Pace: PaceCapture}},
		{"colon in a path", "pcap:c:in.pcap", Wire{Kind: WirePcap, In: "c:in.pcap", Pace: PaceCapture}},
		{"socket", "unix:/run/f1.sock", Wire{Kind: WireUnix, Socket: "/run/f1.sock"}},
		{"loop by name", "loop:oxp2", Wire{Kind: WireLoop, Peer: oxp2}},
		{"loop by label", "loop:port2", Wire{Kind: WireLoop, Peer: oxp2}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ParseWire(tc.text)
			require.NoError(t, err)
			assert.Equal(t, tc.want, got)
		})
	}
}

func TestParseWireRefuses(t *testing.T) {
	const (
		forms = "want tap:NAME[@PATH], pcap:IN[,OUT][@OPTIONS], unix:PATH or loop:PORT"
		pcap  = "want pcap:IN[,OUT][@OPTIONS] or pcap:,OUT"
		words = "want capture, wire, start=DURATION, rewrite-mac; a path with @ needs options behind it, such as @capture"
	)
	for _, tc := range []struct{ name, text, want string }{
		{"nothing", "", forms},
		{"no kind", "far", forms},
		{"unknown kind", "veth:far", forms},
		{"kind in capitals", "TAP:far", forms},
		{"TAP without a name", "tap:", `no interface name: want tap:NAME or tap:NAME@PATH`},
		{"TAP with a slash", "tap:a/b", `"a/b" is no interface name: no / : % or space may be in it`},
		{"TAP name one too long", "tap:1234567890123456", `interface name "1234567890123456" is longer than 15 bytes`},
		{"no capture", "pcap:", "no file: " + pcap},
		{"only options", "pcap:@wire", "no file: " + pcap},
		{"nothing behind the comma", "pcap:in,", "nothing behind the comma: " + pcap},
		{"only a comma", "pcap:,", "nothing behind the comma: " + pcap},
		{"three files", "pcap:a,b,c", "more than two files: " + pcap},
		{"the recording is the capture", "pcap:./a,a", "./a would be overwritten while it is read: name another file behind the comma"},
		{"options for a recording", "pcap:,out@wire", `options "wire" without a capture to replay: want pcap:,OUT`},
		{"no options behind @", "pcap:in@", `option "": ` + words},
		{"path with @ and no options", "pcap:a@b.pcap", `option "b.pcap": ` + words},
		{"unknown option", "pcap:in@wire,fast", `option "fast": ` + words},
		{"two paces", "pcap:in@wire,capture", `option "capture": pace is said twice`},
		{"an option twice", "pcap:in@rewrite-mac,rewrite-mac", `option "rewrite-mac": rewrite-mac is said twice`},
		{"value of an option that has none", "pcap:in@rewrite-mac=1", `option "rewrite-mac=1": ` + words},
		{"start without a unit", "pcap:in@start=5", `option "start=5": want start=DURATION, 0s to 1h0m0s`},
		{"start before the link", "pcap:in@start=-1s", `option "start=-1s": want start=DURATION, 0s to 1h0m0s`},
		{"start next day", "pcap:in@start=24h", `option "start=24h": want start=DURATION, 0s to 1h0m0s`},
		{"socket without a path", "unix:", "empty: want a path"},
		{"socket that is a directory", "unix:/run/", "ends in /: want the path of a socket and not of its directory"},
		{"loop to nowhere", "loop:", `unknown port "": want oxp1 to oxp12, Port1 to Port8, PortF1 to PortF4, or F1 to F4`},
		{"loop to an unknown port", "loop:oxp13", `unknown port "oxp13": want oxp1 to oxp12, Port1 to Port8, PortF1 to PortF4, or F1 to F4`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := ParseWire(tc.text)
			assert.EqualError(t, err, "wire \""+tc.text+"\": "+tc.want)
		})
	}
}

func TestWiresTogether(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"loop said at one end", "oxp1: loop:oxp2", ""},
		{"loop said at both ends", "oxp1: loop:oxp2\n    Port2: loop:Port1", ""},
		{"two loops", "oxp1: loop:oxp2\n    oxp3: loop:oxp4", ""},
		{"one capture for two ports", "oxp1: pcap:in\n    oxp2: pcap:in", ""},
		{"loop to itself", "oxp1: loop:Port1", "f:3: sim.wires.oxp1: a cable from oxp1 (Port1) to itself: name another port"},
		{
			"the other end has a TAP", "oxp1: loop:oxp2\n    Port2: tap:far",
			"f:3: sim.wires.oxp1: the other end, oxp2 (Port2), has a wire of its own (tap:far): take one of the two away",
		},
		{
			"the other end goes elsewhere", "oxp1: loop:oxp2\n    oxp2: loop:oxp3",
			"f:3: sim.wires.oxp1: the other end, oxp2 (Port2), has a wire of its own (loop:oxp3): take one of the two away",
		},
		{
			"two cables in one port", "oxp1: loop:oxp3\n    oxp2: loop:oxp3",
			"f:4: sim.wires.oxp2: oxp3 (Port3) is the other end of the cable at oxp1 already",
		},
		{
			"two recordings in one file", "oxp1: pcap:,out\n    oxp2: pcap:in,./out",
			"f:4: sim.wires.oxp2: ./out is recorded at oxp1 already: name another file",
		},
		{
			"a recording over another port's capture", "oxp1: pcap:in\n    oxp2: pcap:,in",
			"f:3: sim.wires.oxp1: in is overwritten by the recording at oxp2: name another file",
		},
		{
			"two ports on one socket", "oxp1: unix:s\n    oxp2: unix:./s",
			"f:4: sim.wires.oxp2: socket ./s is that of oxp1 already: name another one",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Parse("f", []byte("sim:\n  wires:\n    "+tc.text+"\n"))
			if tc.want == "" {
				assert.NoError(t, err)
			} else {
				assert.EqualError(t, err, tc.want)
			}
		})
	}
}

// FuzzParseWire: what is accepted is printed as something that means the same.
func FuzzParseWire(f *testing.F) {
	for _, s := range []string{
		"tap:far@/run/netns/lab", "pcap:a@b,c@wire,start=1s,rewrite-mac", "pcap:,out", "loop:F1", "pcap:in,out", "veth:x", "pcap:a@start=1h", "unix:/run/s",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		w, err := ParseWire(s)
		if err != nil {
			return
		}
		again, err := ParseWire(w.String())
		if err != nil || again != w {
			t.Fatalf("%q is %+v, printed as %q, which is %+v (%v)", s, w, w, again, err)
		}
	})
}
