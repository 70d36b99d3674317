package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"oxpd/hwsim"
	"oxpd/internal/trace/scene"
	"oxpd/octep/csr"
)

// tracePage is how to make and read a trace.
func tracePage(root string) (string, error) {
	src, err := parse(root, "hwsim")
	if err != nil {
		return "", err
	}
	units := src.enumeration("Unit")
	if len(units) != int(hwsim.Units) {
		return "", fmt.Errorf("hwsim: %d units have a comment, want %d", len(units), hwsim.Units)
	}
	d := head("Traces")
	d.text("`oxpd sim trace` plays a short scenario on a simulated card, with the driver's own code (`octep`, `ring`), and writes what every unit of the card did from " +
		"which cycle to which. It needs no root and touches nothing of the machine.")
	d.code("oxpd sim trace --list\noxpd sim trace jumbo --out jumbo.json\noxpd sim trace ports --seed 7 --out ports.json")
	d.text("Open the file at <https://ui.perfetto.dev> (it stays in the browser) or in `chrome://tracing`. Time is virtual: the same scenario and seed give the same bytes, on " +
		"every machine. What a time is worth says its [constant](constants.md).")

	d.section("Scenarios")
	var rows [][]string
	for _, s := range scene.All() {
		rows = append(rows, []string{quote(s.Name), s.About})
	}
	d.table([]string{"name", "shows"}, rows)
	d.text("A scenario that does not show what it promises fails, and so does one at whose end a frame is in no counter. The seed draws what the card leaves open and, in `ports`, sizes, " +
		"order and moments. Rings are programmed and the handshake is done before a scenario begins, and ports are up; cycles count from there.")

	d.section("A jumbo frame")
	d.text("![A frame of 9,014 bytes on its way to the host](jumbo.svg)")
	d.text("The picture follows from `oxpd sim trace jumbo`. Six buffers are written in order; the length word, in front of the first, is written when the last has its bytes; then the packet is " +
		"counted, once, and the message goes out. What the driver does then is below: it reads the count, poisons, gives credit for six buffers, acknowledges one packet, and looks whether more came.")

	d.section("What is on the screen")
	d.table([]string{"in Perfetto", "is"}, [][]string{
		{"process", "a unit of the card"},
		{"track", "one of several alike: a ring, a port, a vector. Where a unit has many things under way as a rule (data read, fast path) the track is as high as it must be; a second one, `ring 0 (2)`, " +
			"is the same ring at a moment at which two spans overlap"},
		{"slice", "the unit was busy with one packet, batch or access. Without a length: it did something at that moment, or a frame ended there; then its name is the counter's"},
		{"counter track", "`credit` of a descriptor fetch is what the doorbell would show; `count` is `OUT_CNTS`"},
		{"arrow", "the same packet in the next unit (select a slice)"},
		{"`args`", "`cycle` since the begin, exact where Perfetto rounds to nanoseconds; `packet`, its number from end to end; `bytes`; `addr`, a bus address or an offset in the BAR; `value`, of a register"},
	})

	d.section("Units")
	rows = nil
	for i, u := range units {
		what, lane := u.comment, ""
		if at := strings.LastIndex(what, " ["); at >= 0 {
			what, lane = what[:at], strings.Trim(what[at+1:], "[]")
		}
		rows = append(rows, []string{hwsim.Unit(i).String(), what, lane})
	}
	d.table([]string{"unit", "does", "tracks"}, rows)

	d.section("In a test")
	d.text("`Card.SetTracer` tells a function of each step; without one a step costs a comparison. Steps come when their end is known, under the card's lock. " +
		"A test asks for the steps of a unit instead of the picture: `internal/trace/scene` has examples.")
	return d.String(), nil
}

// goldenTrace is what a test compares a fresh trace with.
func goldenTrace(string) (string, error) {
	s, err := scene.Find(scene.Golden)
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	_, err = s.Trace(context.Background(), &b, scene.GoldenSeed)
	return b.String(), err
}

// Measures of the picture.
const (
	picWidth  = 960
	picLabel  = 190 // where times begin
	picRight  = 120 // room for a label behind the last step
	picRow    = 24
	picBar    = 14
	picMargin = 16
)

const picStyle = "text{font:12px sans-serif;fill:#222}.t{font-weight:bold}.n{fill:#555;font-size:11px}.g{stroke:#d5d9de;stroke-width:1}" +
	".w{fill:#9aa7b5}.b{fill:#2f6db3}.k{fill:#c0392b}.m{fill:#7d3c98}.d{fill:#2e8b57}"

// picture is an SVG that grows downwards: rows of bars over an axis of time.
type picture struct {
	strings.Builder
	y        int
	from, to uint64 // cycles at both ends of the axis
}

// x is a place on the axis, whole: fractions would not be the same on every machine.
func (p *picture) x(cycle uint64) int {
	cycle = min(max(cycle, p.from), p.to)
	return picLabel + int((cycle-p.from)*(picWidth-picLabel-picRight)/(p.to-p.from))
}

func (p *picture) text(x int, class, s string) {
	fmt.Fprintf(p, "<text x=\"%d\" y=\"%d\" class=\"%s\">%s</text>\n", x, p.y+picBar-3, class, s)
}

// row begins a row and labels it.
func (p *picture) row(label string) {
	p.y += picRow
	p.text(picMargin, "l", label)
	fmt.Fprintf(p, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" class=\"g\"/>\n", picLabel, p.y+picBar, picWidth-picMargin, p.y+picBar)
}

// bar is a step in the current row; a moment is a thin one.
func (p *picture) bar(class string, s hwsim.Step) {
	a, b := p.x(s.Start), p.x(s.End)
	fmt.Fprintf(p, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" class=\"%s\"/>\n", a, p.y, max(b-a, 2), picBar, class)
}

// note stands behind a step.
func (p *picture) note(s hwsim.Step, text string) { p.text(p.x(s.End)+6, "n", text) }

// axis begins a part of the picture with its title and the times at its ends.
func (p *picture) axis(title string, from, to uint64) {
	p.from, p.to = from, max(to, from+1)
	p.y += picRow + picRow/2
	p.text(picMargin, "t", title)
	p.y += picRow - 6
	p.text(picLabel, "n", micros(p.from)+" us")
	p.text(p.x(p.to)-40, "n", micros(p.to)+" us")
	p.y -= 6
}

// micros is a time of the scene.
func micros(cycles uint64) string {
	return fmt.Sprintf("%d.%02d", cycles/csr.ClocksPerUS, cycles%csr.ClocksPerUS*100/csr.ClocksPerUS)
}

// jumbo is the steps of one jumbo frame.
type jumbo struct{ in, program, entries, buffers, length, counts, message, loads, stores []hwsim.Step }

func playJumbo() (j jumbo, err error) {
	s, err := scene.Find("jumbo")
	if err != nil {
		return j, err
	}
	_, err = s.Run(context.Background(), scene.GoldenSeed, func(s hwsim.Step) {
		for _, k := range []struct {
			u    hwsim.Unit
			what string
			to   *[]hwsim.Step
		}{
			{hwsim.UnitMACIn, "frame", &j.in}, {hwsim.UnitToHost, "", &j.program}, {hwsim.UnitDescriptor, "16 entries", &j.entries},
			{hwsim.UnitWrite, hwsim.WhatBuffer, &j.buffers}, {hwsim.UnitWrite, hwsim.WhatLength, &j.length}, {hwsim.UnitCount, hwsim.WhatCount, &j.counts},
			{hwsim.UnitMessage, "message", &j.message}, {hwsim.UnitLoad, "", &j.loads}, {hwsim.UnitStore, "", &j.stores},
		} {
			if s.Unit == k.u && (k.what == "" || k.what == s.What) {
				*k.to = append(*k.to, s)
			}
		}
	})
	if err == nil && (len(j.in) != 1 || len(j.program) == 0 || len(j.buffers) != 6 || len(j.length) != 1 || len(j.counts) != 2 || len(j.message) != 1) {
		err = fmt.Errorf("scene jumbo: %d buffers, %d length words, %d counts, %d messages: not what the picture shows", len(j.buffers), len(j.length), len(j.counts), len(j.message))
	}
	return j, err
}

// jumboPicture shows when the six buffers of a jumbo frame are written.
func jumboPicture(string) (string, error) {
	j, err := playJumbo()
	if err != nil {
		return "", err
	}
	p := &picture{y: -picMargin}
	end := func(all []hwsim.Step) (last uint64) {
		for _, s := range all {
			last = max(last, s.End)
		}
		return last
	}
	rows := func(label, class string, steps []hwsim.Step, note string) {
		p.row(label)
		for _, s := range steps {
			p.bar(class, s)
		}
		if note != "" && len(steps) > 0 {
			p.note(steps[len(steps)-1], note)
		}
	}

	p.axis("From the wire to the driver", 0, max(end(j.loads), end(j.stores)))
	rows("MAC in", "w", j.in, "9,014 bytes")
	rows("fast path", "w", j.program, "MTU, ring")
	rows("six buffers", "b", j.buffers, "")
	rows("length word", "k", j.length, "visible")
	rows("message", "m", j.message, "")
	rows("driver reads", "d", j.loads, "")
	rows("driver writes", "d", j.stores, "")

	from, to := j.buffers[0].Start, max(end(j.message), j.counts[0].Start)
	pad := max((to-from)/20, 20)
	p.axis("The packet write", from-min(from, pad), to+pad)
	for i, s := range j.buffers {
		label := "buffer r"
		if i > 0 {
			label += fmt.Sprintf("+%d", i)
		}
		rows(label, "b", []hwsim.Step{s}, number(s.Bytes)+" bytes")
	}
	rows("length word, buffer r", "k", j.length, "8 bytes")
	rows("OUT_CNTS", "m", j.counts[:1], fmt.Sprintf("0 to %d", j.counts[0].Value))
	rows("message", "m", j.message, "one")

	height := p.y + picRow + picMargin
	return fmt.Sprintf("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%[1]d\" height=\"%[2]d\" viewBox=\"0 0 %[1]d %[2]d\" role=\"img\">\n"+
		"<!-- Code generated by docs/gen; DO NOT EDIT. -->\n<title>A frame of 9,014 bytes on its way to the host</title>\n<style>%[3]s</style>\n"+
		"<rect width=\"%[1]d\" height=\"%[2]d\" fill=\"#fff\"/>\n%[4]s</svg>\n", picWidth, height, picStyle, p.String()), nil
}
