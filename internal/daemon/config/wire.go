package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
)

// WireKind is what hangs at a front port of the simulated card.
type WireKind string

// Kinds of wires.
const (
	WireTAP  WireKind = "tap"  // a TAP interface of this machine
	WirePcap WireKind = "pcap" // captures: one that is replayed, one that is recorded
	WireUnix WireKind = "unix" // another process, by a socket
	WireLoop WireKind = "loop" // a cable to another front port
)

// Pace is how fast a capture is replayed.
type Pace string

// Paces.
const (
	PaceCapture Pace = "capture" // the capture's own time between its frames
	PaceWire    Pace = "wire"    // one behind the other, as fast as the wire carries them
)

// Wire is what hangs at a front port of the simulated card.
type Wire struct {
	Kind WireKind

	TAP   string // name of the interface
	NetNS string // path of a network namespace; empty is that of the process

	In         string // capture that is replayed into the port; empty: none
	Out        string // capture that is made of what leaves the port; empty: none
	Pace       Pace
	Start      time.Duration // from the link's coming up to the first frame
	RewriteMAC bool          // unicast frames get the port's address as their destination

	Socket string // path of the socket of WireUnix

	Peer board.Port // other end of a loop
}

// Forms of a wire, for messages.
const (
	wireForms = "tap:NAME[@PATH], pcap:IN[,OUT][@OPTIONS], unix:PATH or loop:PORT"
	pcapForm  = "pcap:IN[,OUT][@OPTIONS] or pcap:,OUT"
	pcapWords = "capture, wire, start=DURATION, rewrite-mac"
	// maxStart bounds a delay that is surely a mistake.
	maxStart = time.Hour
	// maxIfName is the kernel's IFNAMSIZ less the end.
	maxIfName = 15
)

// ParseWire reads a wire:
//
//	tap:NAME[@PATH]            PATH: a network namespace
//	pcap:IN[,OUT][@OPTIONS]    OPTIONS: words with commas between them
//	pcap:,OUT                  record only
//	unix:PATH                  PATH: a socket that is made
//	loop:PORT
//
// The words are capture or wire (the pace; capture unless said), start=DURATION
// and rewrite-mac. A path with a comma cannot be named; the last @ begins the
// options, so one with an @ needs options behind it.
func ParseWire(s string) (Wire, error) {
	kind, rest, _ := strings.Cut(s, ":")
	w := Wire{Kind: WireKind(kind)}
	var err error
	switch w.Kind {
	case WireTAP:
		err = w.parseTAP(rest)
	case WirePcap:
		err = w.parsePcap(rest)
	case WireUnix:
		w.Socket, err = rest, client.CheckSocket(rest)
	case WireLoop:
		w.Peer, err = board.Parse(rest)
	default:
		err = fmt.Errorf("want %s", wireForms)
	}
	if err != nil {
		return Wire{}, fmt.Errorf("wire %q: %w", s, err)
	}
	return w, nil
}

func (w *Wire) parseTAP(s string) error {
	name, ns, at := strings.Cut(s, "@")
	switch {
	case name == "":
		return fmt.Errorf("no interface name: want tap:NAME or tap:NAME@PATH")
	case at && ns == "":
		return fmt.Errorf("nothing behind @: want tap:NAME@PATH, the path of a network namespace")
	case at && !filepath.IsAbs(ns):
		return fmt.Errorf("%q is no absolute path of a network namespace: want one such as /run/netns/%s", ns, filepath.Base(ns))
	}
	if err := checkIfName(name); err != nil {
		return err
	}
	if p, err := board.Parse(name); err == nil && !at && name == p.Name {
		return fmt.Errorf("%s is the name of the port's own interface: name it otherwise, or put it into another network namespace", name)
	}
	w.TAP, w.NetNS = name, ns
	return nil
}

// checkIfName refuses what the kernel takes for no name of an interface, and what
// it would make another name of.
func checkIfName(name string) error {
	switch {
	case len(name) > maxIfName:
		return fmt.Errorf("interface name %q is longer than %d bytes", name, maxIfName)
	case name == "." || name == "..", strings.ContainsFunc(name, func(r rune) bool {
		return strings.ContainsRune("/:%", r) || unicode.IsSpace(r) || !unicode.IsPrint(r)
	}):
		return fmt.Errorf("%q is no interface name: no / : %% or space may be in it", name)
	case name == "lo":
		return fmt.Errorf("%q is the loopback interface of every network namespace: want another name", name)
	}
	return nil
}

func (w *Wire) parsePcap(s string) error {
	files, options := s, ""
	at := strings.LastIndexByte(s, '@')
	if at >= 0 {
		files, options = s[:at], s[at+1:]
	}
	in, out, two := strings.Cut(files, ",")
	switch {
	case two && out == "":
		return fmt.Errorf("nothing behind the comma: want %s", pcapForm)
	case in == "" && out == "":
		return fmt.Errorf("no file: want %s", pcapForm)
	case strings.Contains(out, ","):
		return fmt.Errorf("more than two files: want %s", pcapForm)
	case in != "" && filepath.Clean(in) == filepath.Clean(out):
		return fmt.Errorf("%s would be overwritten while it is read: name another file behind the comma", in)
	}
	w.In, w.Out, w.Pace = in, out, PaceCapture
	if at < 0 {
		return nil
	}
	if in == "" {
		return fmt.Errorf("options %q without a capture to replay: want pcap:,OUT", options)
	}
	return w.parseOptions(options)
}

func (w *Wire) parseOptions(s string) error {
	seen := map[string]bool{}
	for _, word := range strings.Split(s, ",") {
		key, value, _ := strings.Cut(word, "=")
		switch {
		case word == string(PaceCapture), word == string(PaceWire):
			key, w.Pace = "pace", Pace(word)
		case word == "rewrite-mac":
			w.RewriteMAC = true
		case key == "start":
			d, err := time.ParseDuration(value)
			if err != nil || d < 0 || d > maxStart {
				return fmt.Errorf("option %q: want start=DURATION, 0s to %v", word, maxStart)
			}
			w.Start = d
		default:
			return fmt.Errorf("option %q: want %s; a path with @ needs options behind it, such as @%s", word, pcapWords, PaceCapture)
		}
		if seen[key] {
			return fmt.Errorf("option %q: %s is said twice", word, key)
		}
		seen[key] = true
	}
	return nil
}

// String is the wire as ParseWire reads it.
func (w Wire) String() string {
	switch w.Kind {
	case WireTAP:
		if w.NetNS != "" {
			return "tap:" + w.TAP + "@" + w.NetNS
		}
		return "tap:" + w.TAP
	case WireUnix:
		return "unix:" + w.Socket
	case WireLoop:
		return "loop:" + w.Peer.Name
	}
	s := "pcap:" + w.In
	if w.Out != "" {
		s += "," + w.Out
	}
	if w.In == "" {
		return s
	}
	s += "@" + string(w.Pace)
	if w.Start != 0 {
		s += ",start=" + w.Start.String()
	}
	if w.RewriteMAC {
		s += ",rewrite-mac"
	}
	return s
}

// checkWires refuses wires that cannot all be there at once.
func (c Config) checkWires(bad func(path []string, format string, args ...any)) {
	at := map[int]string{}       // key of the wire at a port
	files := map[string]string{} // key that records a file
	taps := map[string]string{}  // key that has an interface
	socks := map[string]string{} // key that has a socket
	wires := map[string]Wire{}
	for _, k := range keys(c.Sim.Wires) {
		path := []string{"sim", "wires", k}
		p, err := board.Parse(k)
		if err != nil {
			bad(path, "%v", err)
			continue
		}
		if first, ok := at[p.Index]; ok {
			bad(path, "is %s, which is set as %q already", p, first)
		}
		at[p.Index] = k
		w, err := ParseWire(c.Sim.Wires[k])
		if err != nil {
			bad(path, "%v", err)
			continue
		}
		if w.Kind == WireLoop && w.Peer.Index == p.Index {
			bad(path, "a cable from %s to itself: name another port", p)
			continue
		}
		if w.Kind == WireTAP {
			tap := w.TAP + "@"
			if w.NetNS != "" {
				tap += filepath.Clean(w.NetNS)
			}
			if first, ok := taps[tap]; ok {
				bad(path, "interface %s hangs at %s already: name another one", w.TAP, first)
			}
			taps[tap] = k
		}
		if w.Kind == WireUnix {
			sock := filepath.Clean(w.Socket)
			if first, ok := socks[sock]; ok {
				bad(path, "socket %s is that of %s already: name another one", w.Socket, first)
			}
			socks[sock] = k
		}
		if w.Out != "" {
			out := filepath.Clean(w.Out)
			if first, ok := files[out]; ok {
				bad(path, "%s is recorded at %s already: name another file", w.Out, first)
			}
			files[out] = k
		}
		wires[k] = w
	}
	for _, k := range keys(wires) {
		path := []string{"sim", "wires", k}
		w := wires[k]
		if first, ok := files[filepath.Clean(w.In)]; ok && w.In != "" {
			bad(path, "%s is overwritten by the recording at %s: name another file", w.In, first)
		}
		if w.Kind != WireLoop {
			continue
		}
		here, _ := board.Parse(k) // parsed above
		other, ok := at[w.Peer.Index]
		if there := wires[other]; ok && (there.Kind != WireLoop || there.Peer.Index != here.Index) {
			bad(path, "the other end, %s, has a wire of its own (%s): take one of the two away", w.Peer, c.Sim.Wires[other])
			continue
		}
		for _, k2 := range keys(wires) {
			if w2 := wires[k2]; k2 > k && w2.Kind == WireLoop && w2.Peer.Index == w.Peer.Index {
				bad([]string{"sim", "wires", k2}, "%s is the other end of the cable at %s already", w.Peer, k)
			}
		}
	}
}

// Missing names what the configuration needs and this machine does not have at
// the moment: the console, network namespaces and captures. They may still be made before the
// daemon starts, so Check says nothing about them.
func (c Config) Missing() []string {
	var out []string
	if c.Switch.Console != "" {
		if _, err := os.Stat(c.Switch.Console); err != nil {
			out = append(out, fmt.Sprintf("switch.console: %v", err))
		}
	}
	for _, k := range keys(c.Sim.Wires) {
		w, err := ParseWire(c.Sim.Wires[k])
		if err != nil {
			continue // Check's
		}
		for _, f := range []struct{ what, path string }{{"network namespace", w.NetNS}, {"capture", w.In}} {
			if f.path == "" {
				continue
			}
			if _, err := os.Stat(f.path); err != nil {
				out = append(out, fmt.Sprintf("sim.wires.%s: %s: %v", k, f.what, err))
			}
		}
	}
	return out
}
