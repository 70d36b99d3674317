package demo

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"oxpd/internal/board"
)

// Schema is the number in the document of `oxpd demo --json`.
const Schema = 1

// Report is the document of `oxpd demo --json`.
type Report struct {
	Schema  int     `json:"schema"`
	OK      bool    `json:"ok"` // every check holds and all were made
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"` // why the demo ended early
	Ports   []Port  `json:"ports"`
	Checks  []Check `json:"checks"`
	Rates   []Rate  `json:"rates"`
}

// Port is a row of the table of ports. One of the checks counts those that are OK.
type Port struct {
	IfName  string `json:"ifname"`
	Label   string `json:"label"`
	Address string `json:"address"`
	Link    string `json:"link"`
	MTU     int    `json:"mtu"`
	OK      bool   `json:"ok"`
}

// Check is one exact comparison.
type Check struct {
	Part string `json:"part"` // ports, jumbo, switch, bridge, tcp, replay, sums
	Name string `json:"name"`
	Got  string `json:"got"`
	Want string `json:"want"`
	OK   bool   `json:"ok"`
}

// Rate is one TCP stream. It decides nothing.
type Rate struct {
	MTU       int     `json:"mtu"`
	Direction string  `json:"direction"` // up: the host sends; down: it receives
	Mbps      float64 `json:"mbps"`
	Published float64 `json:"published_mbps"` // of the card (hardware/datapath.md 6.1)
	MSS       int     `json:"mss"`
	Retrans   int     `json:"retransmits"`
}

// Directions of a stream.
const (
	up   = "up"
	down = "down"
)

// reporter collects the report and prints it as it grows.
type reporter struct {
	start time.Time
	quiet bool // collect only
	out   io.Writer
	part  string
	doc   Report
}

func now() time.Time { return time.Now() }

// say prints a line for people.
func (r *reporter) say(format string, args ...any) {
	if !r.quiet {
		fmt.Fprintf(r.out, format+"\n", args...)
	}
}

// begin opens a part.
func (r *reporter) begin(part, format string, args ...any) {
	r.part = part
	r.say("")
	r.say(format, args...)
}

// Widths of columns.
const (
	wordWidth = 4 // FAIL
	nameWidth = 44
	rateWidth = 30 // a direction and its rate
)

// check records whether got is want.
func (r *reporter) check(name, got, want string) {
	c := Check{Part: r.part, Name: name, Got: got, Want: want, OK: got == want}
	r.doc.Checks = append(r.doc.Checks, c)
	line := fmt.Sprintf("  %-*s  %-*s  %s", wordWidth, word(c.OK), nameWidth, name, got)
	if !c.OK {
		line += ", want " + want
	}
	r.say("%s", line)
}

// count is check for numbers.
func (r *reporter) count(name string, got, want uint64) { r.check(name, group(got), group(want)) }

// grown is check for the growth of a counter.
func (r *reporter) grown(name string, before, after, want uint64) {
	r.check(name, fmt.Sprintf("%+d", int64(after-before)), fmt.Sprintf("%+d", want))
}

// term is one addend of a sum.
type term struct {
	name string
	n    uint64
}

// sum checks that total is the sum of its terms, and shows those that count.
func (r *reporter) sum(name string, total uint64, terms ...term) {
	var got uint64
	var shown []string
	for _, t := range terms {
		got += t.n
		if t.n != 0 {
			shown = append(shown, group(t.n)+" "+t.name)
		}
	}
	c := Check{Part: r.part, Name: name, Got: group(got), Want: group(total), OK: got == total}
	r.doc.Checks = append(r.doc.Checks, c)
	equals := "="
	if !c.OK {
		equals = "is not"
	}
	if shown == nil {
		shown = []string{"0"}
	}
	r.say("  %-*s  %-24s %12s %s %s", wordWidth, word(c.OK), name, group(total), equals, strings.Join(shown, " + "))
}

// each checks a sum for every port by itself and shows it for all together. Of a
// port it shows a sum that does not close.
func (r *reporter) each(name string, of func(board.Port) (uint64, []term)) {
	var total uint64
	var all []term
	for _, p := range board.All() {
		n, terms := of(p)
		var got uint64
		for i, t := range terms {
			if i == len(all) {
				all = append(all, term{name: t.name})
			}
			all[i].n += t.n
			got += t.n
		}
		if total += n; got != n {
			r.sum(p.Label+": "+name, n, terms...)
		}
	}
	r.sum(name, total, all...)
}

// port records a row of the table of ports.
func (r *reporter) port(p Port) {
	r.doc.Ports = append(r.doc.Ports, p)
	r.say("  %-*s  %-6s %-7s %-17s  %-5s %s", wordWidth, word(p.OK), p.IfName, p.Label, p.Address, p.Link, group(uint64(p.MTU)))
}

// rate records a stream.
func (r *reporter) rate(x Rate) {
	r.doc.Rates = append(r.doc.Rates, x)
	way := "host sends"
	if x.Direction == down {
		way = "host receives"
	}
	r.say("  %-*s  %s at %s%*s%s Mbit/s (the card: %s), MSS %s, %d retransmits", wordWidth, "", way, group(uint64(x.MTU)),
		rateWidth-len(way)-len(group(uint64(x.Mbps+0.5))), "", group(uint64(x.Mbps+0.5)), group(uint64(x.Published+0.5)), group(uint64(x.MSS)), x.Retrans)
}

// finish closes the report.
func (r *reporter) finish(err error) *Report {
	d := &r.doc
	d.Ports, d.Checks, d.Rates = some(d.Ports), some(d.Checks), some(d.Rates)
	d.Schema, d.Seconds, d.OK = Schema, time.Since(r.start).Seconds(), err == nil
	if err != nil {
		d.Error = err.Error()
	}
	failed := 0
	for _, c := range d.Checks {
		if !c.OK {
			failed++
		}
	}
	if failed > 0 {
		d.OK = false
	}
	total := len(d.Checks)
	switch {
	case err != nil:
	case failed > 0:
		r.say("\nFAIL  %d of %d checks, %.1f s", failed, total, d.Seconds)
	default:
		r.say("\nok    all %d checks, %.1f s", total, d.Seconds)
	}
	return d
}

// some makes a list that JSON prints as one.
func some[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func word(ok bool) string {
	if ok {
		return "ok"
	}
	return "FAIL"
}

// group prints a number with commas between thousands.
func group(n uint64) string {
	s := strconv.FormatUint(n, 10)
	var parts []string
	for len(s) > 3 {
		parts = append([]string{s[len(s)-3:]}, parts...)
		s = s[:len(s)-3]
	}
	return strings.Join(append([]string{s}, parts...), ",")
}
