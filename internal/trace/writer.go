package trace

import (
	"bufio"
	"fmt"
	"io"
	"strconv"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/octep/csr"
)

// Head is what a file says about itself.
type Head struct {
	Scenario string
	Seed     int64
}

// Writer writes a trace as the steps come. It keeps the end of each row of each
// track and nothing else, so a trace may be longer than memory. Not safe for
// concurrent use.
type Writer struct {
	w      *bufio.Writer
	head   Head
	err    error
	b      []byte // the event that is being written
	first  bool
	units  [hwsim.Units]bool // processes that have a name
	tracks map[track]*rows
	steps  uint64
	pairs  uint64 // spans that were written as two events
}

// track is what a reader sees as one thing: a unit, and which of several.
type track struct {
	unit hwsim.Unit
	lane int
}

// rows are the threads of one track: no two spans of a row overlap.
type rows struct {
	tids []int
	ends []uint64 // cycle of the last end
}

// NewWriter begins a trace on w, which stays the caller's.
func NewWriter(w io.Writer, h Head) *Writer {
	t := &Writer{w: bufio.NewWriterSize(w, 1<<16), head: h, tracks: map[track]*rows{}, first: true}
	t.text(`{"traceEvents":[`)
	t.flush()
	return t
}

// Steps returns how many were written.
func (t *Writer) Steps() uint64 { return t.steps }

// Step writes one step of a unit that there is. It is what hwsim.Card.SetTracer
// takes; an error is kept until Close.
func (t *Writer) Step(s hwsim.Step) {
	t.steps++
	if s.Kind == hwsim.StepLevel {
		t.level(&s)
		return
	}
	if s.Start != s.End && pipelined(s.Unit) {
		t.async(&s)
		return
	}
	tid := t.thread(track{s.Unit, s.Lane}, s.Start, s.End)
	if s.Start == s.End {
		t.event('i', s.What, s.Unit, tid, s.Start)
		t.text(`,"s":"t"`)
	} else {
		t.event('X', s.What, s.Unit, tid, s.Start)
		t.text(`,"dur":`)
		t.b = appendTime(t.b, s.End-s.Start)
		t.flow(&s)
	}
	t.args(&s)
	t.end()
}

// Close ends the trace and returns the first error that w had: before it the file
// is not whole. w is not closed.
func (t *Writer) Close() error {
	t.text("\n],\"otherData\":{\"program\":\"oxpd sim trace\",\"scenario\":")
	t.b = appendString(t.b, t.head.Scenario)
	t.text(`,"seed":"`)
	t.b = strconv.AppendInt(t.b, t.head.Seed, 10)
	t.text(`","clock":"`)
	t.b = strconv.AppendInt(t.b, hwsim.Hz, 10)
	t.text(" Hz\"}}\n")
	t.flush()
	if err := t.w.Flush(); t.err == nil {
		t.err = err
	}
	if t.err != nil {
		return fmt.Errorf("trace: write: %w", t.err)
	}
	return nil
}

// pipelined tells of which units several spans are under way as a rule: as many as
// come in a time that each of them takes.
func pipelined(u hwsim.Unit) bool {
	return u == hwsim.UnitRead || u == hwsim.UnitToWire || u == hwsim.UnitToHost
}

// async writes a span as a beginning and an end. Perfetto shows all spans of one
// name in a process as one track, as high as it must be.
func (t *Writer) async(s *hwsim.Step) {
	tid := t.thread(track{s.Unit, s.Lane}, s.Start, s.Start)
	name := laneName(s.Unit, s.Lane) + " " + s.What
	t.event('b', name, s.Unit, tid, s.Start)
	t.id()
	t.flow(s)
	t.args(s)
	t.end()
	t.event('e', name, s.Unit, tid, s.End)
	t.id()
	t.end()
	t.pairs++
}

// id is what the beginning and the end of a span have in common.
func (t *Writer) id() {
	t.text(`,"cat":"span"`)
	t.hex("id", t.pairs+1)
}

// level is a counter's track. Perfetto puts the name of the value behind that of
// the event, and knows no threads here.
func (t *Writer) level(s *hwsim.Step) {
	t.process(s.Unit)
	t.open('C', s.Unit, 0)
	t.text(`,"name":`)
	t.b = appendString(t.b, laneName(s.Unit, s.Lane))
	t.at(s.Start)
	t.text(`,"args":{`)
	t.b = appendString(t.b, s.What)
	t.text(`:`)
	t.b = strconv.AppendInt(t.b, s.Value, 10)
	t.text(`}`)
	t.end()
}

// flow lets a reader follow a packet with arrows. Its first span begins them.
func (t *Writer) flow(s *hwsim.Step) {
	if s.Packet == 0 {
		return
	}
	t.hex("bind_id", s.Packet)
	t.text(`,"flow_out":true`)
	if s.Unit != hwsim.UnitFetch && s.Unit != hwsim.UnitMACIn {
		t.text(`,"flow_in":true`)
	}
}

// args are what a reader sees of a step that was clicked on. What means nothing
// for it is left out.
func (t *Writer) args(s *hwsim.Step) {
	host := s.Unit == hwsim.UnitLoad || s.Unit == hwsim.UnitStore
	t.text(`,"args":{"cycle":`)
	t.b = strconv.AppendUint(t.b, s.Start, 10)
	if s.Packet != 0 {
		t.text(`,"packet":`)
		t.b = strconv.AppendUint(t.b, s.Packet, 10)
	}
	if s.Bytes != 0 {
		t.text(`,"bytes":`)
		t.b = strconv.AppendInt(t.b, int64(s.Bytes), 10)
	}
	if s.Addr != 0 || host {
		t.hex("addr", s.Addr)
	}
	if s.Value != 0 || host {
		t.hex("value", uint64(s.Value))
	}
	t.text(`}`)
}

// thread finds the row of a track on which a step from start to end overlaps no
// other, and names it when it is new. A moment lies on the first: it overlaps nothing.
func (t *Writer) thread(k track, start, end uint64) int {
	r := t.tracks[k]
	if r == nil {
		r = &rows{}
		t.tracks[k] = r
	}
	for i, last := range r.ends {
		if last <= start || start == end {
			r.ends[i] = max(last, end)
			return r.tids[i]
		}
	}
	t.process(k.unit)
	tid := pid(k.unit)*unitTids + (k.lane+2)*laneTids + len(r.tids) // a lane may be -1
	r.tids, r.ends = append(r.tids, tid), append(r.ends, end)
	name := laneName(k.unit, k.lane)
	if n := len(r.tids); n > 1 {
		name = fmt.Sprintf("%s (%d)", name, n)
	}
	t.meta("thread_name", k.unit, tid, `"name":`, name)
	t.meta("thread_sort_index", k.unit, tid, `"sort_index":`, tid)
	return tid
}

// Perfetto tells threads apart by their number alone, whatever their process is.
const (
	unitTids = 1_000_000
	laneTids = 1000 // more spans at once than any queue of the card holds
)

// pid is the process of a unit. 0 is nobody's.
func pid(u hwsim.Unit) int { return int(u) + 1 }

// process names a unit that a step is the first of.
func (t *Writer) process(u hwsim.Unit) {
	if t.units[u] {
		return
	}
	t.units[u] = true
	t.meta("process_name", u, 0, `"name":`, u.String())
	t.meta("process_sort_index", u, 0, `"sort_index":`, pid(u))
}

// meta writes an event that says something about a track. No other event may be
// half written.
func (t *Writer) meta(what string, u hwsim.Unit, tid int, key string, value any) {
	t.open('M', u, tid)
	t.text(`,"name":"` + what + `","args":{` + key)
	switch v := value.(type) {
	case string:
		t.b = appendString(t.b, v)
	case int:
		t.b = strconv.AppendInt(t.b, int64(v), 10)
	}
	t.text(`}`)
	t.end()
}

// event begins an event with a name and a time.
func (t *Writer) event(phase byte, name string, u hwsim.Unit, tid int, cycle uint64) {
	t.open(phase, u, tid)
	t.text(`,"name":`)
	t.b = appendString(t.b, name)
	t.at(cycle)
}

func (t *Writer) open(phase byte, u hwsim.Unit, tid int) {
	if !t.first {
		t.text(",")
	}
	t.first = false
	t.text("\n{\"ph\":\"")
	t.b = append(t.b, phase)
	t.text(`","pid":`)
	t.b = strconv.AppendInt(t.b, int64(pid(u)), 10)
	if tid != 0 {
		t.text(`,"tid":`)
		t.b = strconv.AppendInt(t.b, int64(tid), 10)
	}
}

func (t *Writer) at(cycle uint64) {
	t.text(`,"ts":`)
	t.b = appendTime(t.b, cycle)
}

func (t *Writer) hex(key string, v uint64) {
	t.text(`,"` + key + `":"0x`)
	t.b = strconv.AppendUint(t.b, v, 16)
	t.text(`"`)
}

func (t *Writer) end() {
	t.text(`}`)
	t.flush()
}

func (t *Writer) text(s string) { t.b = append(t.b, s...) }

func (t *Writer) flush() {
	if _, err := t.w.Write(t.b); t.err == nil {
		t.err = err
	}
	t.b = t.b[:0]
}

// appendTime writes cycles as microseconds. A cycle is 125 hundred-thousandths of
// one.
func appendTime(b []byte, cycles uint64) []byte {
	b = strconv.AppendUint(b, cycles/csr.ClocksPerUS, 10)
	part := cycles % csr.ClocksPerUS * (fraction / csr.ClocksPerUS)
	if part == 0 {
		return b
	}
	b = append(b, '.')
	for digit := uint64(fraction / 10); digit > 0 && part > 0; digit /= 10 {
		b = append(b, byte('0'+part/digit))
		part %= digit
	}
	return b
}

// fraction is the parts that a microsecond is written in; 800 cycles divide it.
const fraction = 100_000

// appendString writes a JSON string. Control characters become spaces: Perfetto
// reads no \u escapes.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < ' ' || r == 0x7f:
			b = append(b, ' ')
		default:
			b = append(b, string(r)...)
		}
	}
	return append(b, '"')
}

// laneName says which of several alike a track shows.
func laneName(u hwsim.Unit, lane int) string {
	switch u {
	case hwsim.UnitLoad, hwsim.UnitStore:
		if lane < 0 {
			return "card"
		}
		return fmt.Sprintf("ring %d", lane)
	case hwsim.UnitToWire, hwsim.UnitMACOut, hwsim.UnitMACIn, hwsim.UnitSwitch, hwsim.UnitToHost:
		if lane < 0 || lane >= board.Ports {
			return "no port"
		}
		return board.ByIndex(lane).Label
	case hwsim.UnitMessage:
		return fmt.Sprintf("vector %d", lane)
	case hwsim.UnitFetch, hwsim.UnitRead, hwsim.UnitDescriptor, hwsim.UnitWrite, hwsim.UnitCount, hwsim.UnitTimer:
		return fmt.Sprintf("ring %d", lane)
	}
	return "all"
}
