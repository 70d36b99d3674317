package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"oxpd/internal/board"
	"oxpd/internal/capture"
	"oxpd/internal/daemon/client"
	"oxpd/internal/frame"
	"oxpd/internal/pfil"
	"oxpd/ring/wire"
)

// compiled is `oxpd filter compile --json`.
type compiled struct {
	Schema   int            `json:"schema"`
	File     string         `json:"file"`
	Rules    []compiledRule `json:"rules"`
	Sets     []compiledSet  `json:"sets"`
	Programs []string       `json:"programs"`
	Warnings []string       `json:"warnings"`
	Dump     string         `json:"dump,omitempty"` // with --dump
}

type compiledRule struct {
	Line int    `json:"line"`
	Rule string `json:"rule"`
}

type compiledSet struct {
	Name     string `json:"name"`
	Prefixes int    `json:"prefixes"`
}

func (a *app) filterCompileCommand() *cobra.Command {
	dump := false
	cmd := a.jsonFlag(&cobra.Command{
		Use: "compile FILE", Short: "say whether the rules of a file compile, without a daemon", Args: args(1, 1),
		Long: "Compiles a rule file and the files that it names, with the daemon's own code, and loads nothing. --dump says what they became:\n" +
			"for each place which rules are asked there, which are looked up in tables and which compared one after the other; sets; programs.",
		RunE: func(cmd *cobra.Command, args []string) error {
			src, err := readRules(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			rules, program, err := compileRules(src)
			if err != nil {
				return err
			}
			doc := &compiled{Schema: client.Schema, File: src.Name, Rules: []compiledRule{}, Sets: []compiledSet{}, Programs: []string{}, Warnings: append([]string{}, rules.Warnings...)}
			for i := range rules.Rules {
				doc.Rules = append(doc.Rules, compiledRule{rules.Rules[i].Line, rules.Rules[i].String()})
			}
			for i := range rules.Sets {
				doc.Sets = append(doc.Sets, compiledSet{rules.Sets[i].Name, len(rules.Sets[i].Prefixes)})
			}
			for i := range rules.Programs {
				doc.Programs = append(doc.Programs, rules.Programs[i].Name)
			}
			if dump {
				var b bytes.Buffer
				if err := program.Dump(&b); err != nil {
					return err
				}
				doc.Dump = b.String()
			}
			for _, w := range doc.Warnings {
				fmt.Fprintf(a.err, "warning: %s\n", w)
			}
			return show(a, doc, printCompiled)
		},
	})
	cmd.Flags().BoolVar(&dump, "dump", false, "print what the rules were made into")
	return cmd
}

func printCompiled(w io.Writer, d *compiled) {
	if d.Dump != "" {
		fmt.Fprint(w, d.Dump)
		return
	}
	fmt.Fprintf(w, "%s: %s", d.File, several(len(d.Rules), "rule"))
	for _, s := range d.Sets {
		fmt.Fprintf(w, ", set %s of %d prefixes", s.Name, s.Prefixes)
	}
	for _, p := range d.Programs {
		fmt.Fprintf(w, ", program %s", p)
	}
	fmt.Fprintln(w)
}

// judged is `oxpd filter test --json`.
type judged struct {
	Schema    int            `json:"schema"`
	Filter    string         `json:"filter,omitempty"` // of the daemon; absent with --file
	File      string         `json:"file"`             // of the rules
	Capture   string         `json:"capture"`
	IfName    string         `json:"ifname"`
	Direction string         `json:"direction"`
	Frames    []judgedFrame  `json:"frames"`
	Verdicts  map[string]int `json:"verdicts"`  // frames by the verdict of a rule
	Unmatched int            `json:"unmatched"` // that no rule matched: they pass
	Cut       int            `json:"cut"`       // of which the capture has only the beginning
}

type judgedFrame struct {
	Frame    int    `json:"frame"` // in the capture, from 1
	Bytes    int    `json:"bytes"` // of the frame on the wire, without FCS
	Captured int    `json:"captured"`
	Verdict  string `json:"verdict"`        // pass when no rule matches
	Line     int    `json:"line,omitempty"` // of the rule; absent: none
	Rule     string `json:"rule,omitempty"`
	Headers  string `json:"headers"`
}

// testOptions are the flags of `oxpd filter test`.
type testOptions struct{ pcap, file, port, direction string }

func (a *app) filterTestCommand() *cobra.Command {
	var o testOptions
	cmd := a.jsonFlag(&cobra.Command{
		Use: "test [NAME] --pcap FILE", Short: "what a filter would do to the frames of a capture", Args: args(0, 1),
		Long: "Says for each frame of a capture (pcap or pcapng) which rule decides, and what. NAME is a loaded filter; with --file it is a rule file,\n" +
			"and no daemon is asked. Nothing is loaded, linked or counted. A frame of which the capture kept only the beginning is judged by\n" +
			"what is there and its length on the wire. With in, as on the card, rules see the first " + fmt.Sprint(wire.FirstPayload) + " bytes of a frame, with out all of it.",
		RunE: func(cmd *cobra.Command, args []string) error {
			doc, err := o.document(cmd, args)
			if err != nil {
				return err
			}
			port, err := board.Parse(o.port)
			if err != nil {
				return err
			}
			doc.IfName = port.Name
			if o.direction != client.DirectionIn && o.direction != client.DirectionOut {
				return &usageError{fmt.Errorf("--direction %q: want in or out", o.direction), cmd.UseLine()}
			}
			src, err := a.testSource(cmd, doc)
			if err != nil {
				return err
			}
			doc.File = src.Name
			_, program, err := compileRules(src)
			if err != nil {
				return err
			}
			dir := pfil.In
			if o.direction == client.DirectionOut {
				dir = pfil.Out
			}
			frames := frameRow(a.out)
			if a.json {
				frames = func(f judgedFrame) { doc.Frames = append(doc.Frames, f) }
			}
			if err := judge(cmd.Context(), program, dir, port, doc, frames); err != nil {
				return err
			}
			return show(a, doc, printJudged)
		},
	})
	f := cmd.Flags()
	f.StringVar(&o.pcap, "pcap", "", "capture to judge")
	f.StringVar(&o.file, "file", "", "rule file to judge by, instead of a loaded filter")
	f.StringVar(&o.port, "port", board.ByIndex(0).Name, "port that the frames are taken to be at")
	f.StringVar(&o.direction, "direction", client.DirectionIn, "way that the frames are taken to go: in, from the wire to the host, or out")
	return cmd
}

// document checks what was asked for and begins the answer.
func (o *testOptions) document(cmd *cobra.Command, args []string) (*judged, error) {
	doc := &judged{Schema: client.Schema, File: o.file, Capture: o.pcap, Direction: o.direction, Frames: []judgedFrame{}, Verdicts: map[string]int{}}
	switch {
	case len(args) == 1 && o.file != "":
		return nil, &usageError{errors.New("filter test: NAME and --file are two filters: give one"), cmd.UseLine()}
	case len(args) == 0 && o.file == "":
		return nil, &usageError{errors.New("filter test: want NAME, a loaded filter, or --file, a rule file"), cmd.UseLine()}
	case o.pcap == "":
		return nil, &usageError{errors.New("filter test: of which frames? --pcap is missing"), cmd.UseLine()}
	case len(args) == 1:
		doc.Filter = args[0]
		return doc, filterName(cmd, args[0])
	}
	return doc, nil
}

// testSource is the source of the rules: of a file, or of a loaded filter.
func (a *app) testSource(cmd *cobra.Command, doc *judged) (pfil.Source, error) {
	if doc.Filter == "" {
		return readRules(cmd.Context(), doc.File)
	}
	ctx, cancel := ask(cmd, filterLimit)
	defer cancel()
	s, err := a.client().FilterSource(ctx, doc.Filter)
	if err != nil {
		return pfil.Source{}, err
	}
	return pfil.Source{Name: s.File, Rules: s.Rules, Files: s.Files}, nil
}

// judge has a program judge the frames of doc's capture, tells of each, and counts.
func judge(ctx context.Context, program *pfil.Program, dir pfil.Direction, port board.Port, doc *judged, tell func(judgedFrame)) error {
	f, err := capture.Open(ctx, doc.Capture)
	if err != nil {
		return err
	}
	defer f.Close()
	rules := program.Rules()
	texts := make([]string, len(rules))
	for i := range rules {
		texts[i] = rules[i].String()
	}
	var pkt frame.Packet
	for n := 1; ctx.Err() == nil; n++ {
		r, err := f.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		first := r.Frame
		if dir == pfil.In {
			first = first[:min(len(first), wire.FirstPayload)]
		}
		pkt.Parse(first, r.WireBytes)
		out := judgedFrame{Frame: n, Bytes: r.WireBytes, Captured: len(r.Frame), Verdict: pfil.Pass.String(), Headers: headers(&pkt)}
		if i := program.Match(dir, port.Index, first, r.WireBytes, &pkt); i >= 0 {
			out.Verdict, out.Line, out.Rule = rules[i].Verdict.String(), rules[i].Line, texts[i]
			doc.Verdicts[out.Verdict]++
		} else {
			doc.Unmatched++
		}
		if r.Cut() {
			doc.Cut++
		}
		tell(out)
	}
	return ctx.Err()
}

// frameRow prints frames as they come.
func frameRow(w io.Writer) func(judgedFrame) {
	begun := false
	return func(f judgedFrame) {
		if !begun {
			begun = true
			fmt.Fprintf(w, "%7s %6s  %-7s %5s  %s\n", "FRAME", "BYTES", "VERDICT", "LINE", "HEADERS")
		}
		line, cut := "-", ""
		if f.Line != 0 {
			line = fmt.Sprint(f.Line)
		}
		if f.Captured < f.Bytes {
			cut = fmt.Sprintf(" (%d bytes captured)", f.Captured)
		}
		fmt.Fprintf(w, "%7d %6d  %-7s %5s  %s%s\n", f.Frame, f.Bytes, f.Verdict, line, f.Headers, cut)
	}
}

// printJudged prints the summary; the frames were printed as they came.
func printJudged(w io.Writer, d *judged) {
	total := d.Unmatched
	var words []string
	for v := pfil.Pass; v <= pfil.Count; v++ {
		if n := d.Verdicts[v.String()]; n > 0 {
			total += n
			words = append(words, fmt.Sprintf("%d %v", n, v))
		}
	}
	words = append(words, fmt.Sprintf("%d matched by no rule", d.Unmatched))
	fmt.Fprintf(w, "%s %s at %s: %s", several(total, "frame"), d.Direction, d.IfName, strings.Join(words, ", "))
	if d.Cut > 0 {
		fmt.Fprintf(w, "; of %d the capture has only the beginning", d.Cut)
	}
	fmt.Fprintln(w)
}

// headers is what a filter sees of a frame, for people.
func headers(p *frame.Packet) string {
	var words []string
	for _, id := range p.VLAN[:p.VLANs] {
		words = append(words, fmt.Sprintf("vlan %d", id))
	}
	switch {
	case p.Have&frame.HaveL2 == 0:
		return "no whole Ethernet header"
	case p.Have&frame.HaveIP == 0:
		return strings.Join(append(words, fmt.Sprintf("ethertype 0x%04x", p.EtherType)), " ")
	case p.Have&frame.HaveProto == 0:
		words = append(words, "ip6")
	default:
		words = append(words, protocolName(p.Proto))
	}
	src, dst := p.Src().String(), p.Dst().String()
	if p.Have&frame.HavePorts != 0 {
		src, dst = netip.AddrPortFrom(p.Src(), p.SrcPort).String(), netip.AddrPortFrom(p.Dst(), p.DstPort).String()
	}
	words = append(words, src, ">", dst)
	if p.Have&frame.HaveICMP != 0 {
		words = append(words, fmt.Sprintf("type %d", p.ICMPType))
	}
	switch {
	case p.Have&frame.HaveLater != 0:
		words = append(words, "later fragment")
	case p.Have&frame.HaveFrag != 0:
		words = append(words, "first fragment")
	}
	return strings.Join(words, " ")
}

func protocolName(proto uint8) string {
	switch proto {
	case frame.ProtoICMP:
		return "icmp"
	case frame.ProtoICMPv6:
		return "icmp6"
	case frame.ProtoTCP:
		return "tcp"
	case frame.ProtoUDP:
		return "udp"
	case frame.ProtoSCTP:
		return "sctp"
	}
	return fmt.Sprintf("protocol %d", proto)
}
