package trace

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
)

// document is a trace as its reader sees it.
type document struct {
	TraceEvents []event           `json:"traceEvents"`
	OtherData   map[string]string `json:"otherData"`
}

type event struct {
	Ph      string      `json:"ph"`
	Pid     int         `json:"pid"`
	Tid     int         `json:"tid"`
	Name    string      `json:"name"`
	Ts      json.Number `json:"ts"`
	Dur     json.Number `json:"dur"`
	Scope   string      `json:"s"`
	Cat     string      `json:"cat"`
	ID      string      `json:"id"`
	Bind    string      `json:"bind_id"`
	FlowIn  bool        `json:"flow_in"`
	FlowOut bool        `json:"flow_out"`

	Args map[string]any `json:"args"`
}

// write makes a trace of steps.
func write(t testing.TB, steps ...hwsim.Step) []byte {
	var b bytes.Buffer
	w := NewWriter(&b, Head{Scenario: "test", Seed: -7})
	for _, s := range steps {
		w.Step(s)
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}

func parse(t testing.TB, b []byte) document {
	t.Helper()
	var d document
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	require.NoError(t, dec.Decode(&d))
	return d
}

// cycles is a time as it was before it was written. It must be whole.
func cycles(t testing.TB, us json.Number) uint64 {
	t.Helper()
	whole, part, _ := strings.Cut(us.String(), ".")
	require.LessOrEqual(t, len(part), 5)
	n, err := strconv.ParseUint(whole+(part + "00000")[:5], 10, 64)
	require.NoError(t, err)
	require.Zero(t, n%125, us)
	return n / 125
}

// checkFormat holds a trace against what Perfetto's importer asks for.
func checkFormat(t testing.TB, b []byte) document {
	t.Helper()
	d := parse(t, b)
	type span struct{ start, end uint64 }
	spans := map[int][]span{}
	begun := map[string]event{}
	process, thread, home := map[int]string{}, map[int]string{}, map[int]int{}
	for _, e := range d.TraceEvents {
		require.Positive(t, e.Pid)
		if e.Tid != 0 {
			require.NotEqual(t, e.Pid, e.Tid, "the main thread is taken for the process")
			if pid, ok := home[e.Tid]; ok {
				require.Equal(t, pid, e.Pid, "threads are told apart by number alone")
			}
			home[e.Tid] = e.Pid
		}
		switch e.Ph {
		case "M":
			require.Empty(t, e.Ts)
			switch e.Name {
			case "process_name":
				process[e.Pid], _ = e.Args["name"].(string)
			case "thread_name":
				thread[e.Tid], _ = e.Args["name"].(string)
			}
			continue
		case "C":
			require.Zero(t, e.Tid)
			require.Len(t, e.Args, 1)
		case "i":
			require.Equal(t, "t", e.Scope)
			at := cycles(t, e.Ts)
			spans[e.Tid] = append(spans[e.Tid], span{at, at})
		case "X":
			at := cycles(t, e.Ts)
			n := cycles(t, e.Dur)
			require.Positive(t, n)
			spans[e.Tid] = append(spans[e.Tid], span{at, at + n})
		case "b":
			require.NotContains(t, begun, e.ID)
			begun[e.ID] = e
		case "e":
			b, ok := begun[e.ID]
			require.True(t, ok, "an end without a beginning")
			require.Equal(t, [4]any{b.Pid, b.Tid, b.Cat, b.Name}, [4]any{e.Pid, e.Tid, e.Cat, e.Name})
			require.Less(t, cycles(t, b.Ts), cycles(t, e.Ts))
			delete(begun, e.ID)
		default:
			require.Fail(t, "unknown phase", e.Ph)
		}
		require.NotEmpty(t, process[e.Pid], "a process has its name before it is used")
		if e.Ph != "C" {
			require.NotEmpty(t, thread[e.Tid], "so has a thread")
		}
	}
	require.Empty(t, begun, "what has begun has an end")
	for tid, all := range spans {
		all = slices.DeleteFunc(slices.Clone(all), func(s span) bool { return s.start == s.end })
		slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.start, b.start) })
		for i := 1; i < len(all); i++ {
			require.LessOrEqual(t, all[i-1].end, all[i].start, "spans of %s, %s overlap", process[home[tid]], thread[tid])
		}
	}
	return d
}

func TestBytes(t *testing.T) {
	got := write(t,
		hwsim.Step{Unit: hwsim.UnitFetch, Lane: 3, What: "instruction", Start: 801, End: 1000, Packet: 20, Bytes: 64, Addr: 0x100000040},
		hwsim.Step{Unit: hwsim.UnitDescriptor, Lane: 3, Kind: hwsim.StepLevel, What: "credit", Start: 800, End: 800, Value: -14},
		hwsim.Step{Unit: hwsim.UnitMACOut, Lane: 8, What: "frame", Start: 1600, End: 1653, Packet: 20, Bytes: 60},
		hwsim.Step{Unit: hwsim.UnitLoad, Lane: -1, What: "SLI_SCRATCH_1", Start: 2400, End: 2400, Bytes: 8, Value: -1})
	fetch, descriptor, load := pid(hwsim.UnitFetch), pid(hwsim.UnitDescriptor), pid(hwsim.UnitLoad)
	want := strings.NewReplacer("PID", fmt.Sprint(fetch), "TID", fmt.Sprintf("%d005000", fetch)).Replace(`{"traceEvents":[
{"ph":"M","pid":PID,"name":"process_name","args":{"name":"instruction fetch"}},
{"ph":"M","pid":PID,"name":"process_sort_index","args":{"sort_index":PID}},
{"ph":"M","pid":PID,"tid":TID,"name":"thread_name","args":{"name":"ring 3"}},
{"ph":"M","pid":PID,"tid":TID,"name":"thread_sort_index","args":{"sort_index":TID}},
{"ph":"X","pid":PID,"tid":TID,"name":"instruction","ts":1.00125,"dur":0.24875,"bind_id":"0x14","flow_out":true,"args":{"cycle":801,"packet":20,"bytes":64,"addr":"0x100000040"}},
`)
	require.Greater(t, len(got), len(want))
	assert.Equal(t, want, string(got[:len(want)]))
	assert.Contains(t, string(got), fmt.Sprintf(`{"ph":"C","pid":%d,"name":"ring 3","ts":1,"args":{"credit":-14}},`, descriptor))
	assert.Contains(t, string(got), `"name":"frame","ts":2,"dur":0.06625,"bind_id":"0x14","flow_out":true,"flow_in":true,"args":{"cycle":1600,"packet":20,"bytes":60}}`)
	assert.Contains(t, string(got), fmt.Sprintf(`{"ph":"i","pid":%d,"tid":%[1]d001000,"name":"SLI_SCRATCH_1","ts":3,"s":"t","args":{"cycle":2400,"bytes":8,"addr":"0x0","value":"0xffffffffffffffff"}}`, load))
	assert.True(t, bytes.HasSuffix(got, []byte("\n],\"otherData\":{\"program\":\"oxpd sim trace\",\"scenario\":\"test\",\"seed\":\"-7\",\"clock\":\"800000000 Hz\"}}\n")))
	d := checkFormat(t, got)
	assert.Equal(t, "-7", d.OtherData["seed"])
}

func TestTimesAreExactToTheCycle(t *testing.T) {
	for _, c := range []uint64{0, 1, 7, 8, 79, 80, 799, 800, 801, 123_456_789, 1<<53 - 1} {
		at := json.Number(appendTime(nil, c))
		assert.Equal(t, c, cycles(t, at), at)
	}
	assert.Equal(t, "0.00125", string(appendTime(nil, 1)))
	assert.Equal(t, "0.1", string(appendTime(nil, 80)))
}

// Perfetto counts in nanoseconds and takes the part of a microsecond behind the
// point by itself: spans that touch must not overlap then.
func TestTimesSurviveFloatingPoint(t *testing.T) {
	ns := func(b []byte) int64 {
		whole, part, _ := strings.Cut(string(b), ".")
		us, err := strconv.ParseInt(whole, 10, 64)
		require.NoError(t, err)
		f, err := strconv.ParseFloat("0."+part+"0", 64)
		require.NoError(t, err)
		return us*1000 + int64(f*1000)
	}
	for start := range uint64(800) {
		for _, n := range []uint64{1, 2, 3, 5, 53, 799} {
			require.LessOrEqual(t, ns(appendTime(nil, start))+ns(appendTime(nil, n)), ns(appendTime(nil, start+n)), "%d + %d", start, n)
		}
	}
}

func TestOverlappingSpansTakeRows(t *testing.T) {
	span := func(start, end uint64) hwsim.Step {
		return hwsim.Step{Unit: hwsim.UnitWrite, Lane: 0, What: "data", Start: start, End: end}
	}
	d := checkFormat(t, write(t, span(0, 100), span(50, 150), span(100, 200), span(150, 160), span(140, 145), span(155, 155)))
	names := map[int]string{}
	var rows []string
	for _, e := range d.TraceEvents {
		if e.Name == "thread_name" {
			names[e.Tid] = fmt.Sprint(e.Args["name"])
		}
		if e.Name == "data" {
			rows = append(rows, names[e.Tid])
		}
	}
	assert.Equal(t, []string{"ring 0", "ring 0 (2)", "ring 0", "ring 0 (2)", "ring 0 (3)", "ring 0"}, rows)
}

func TestPipelinedSpansAreOneTrack(t *testing.T) {
	span := func(start, end, packet uint64) hwsim.Step {
		return hwsim.Step{Unit: hwsim.UnitToHost, Lane: 8, What: "frame", Start: start, End: end, Packet: packet, Bytes: 60}
	}
	b := write(t, span(0, 8000, 1), span(54, 8054, 2), hwsim.Step{Unit: hwsim.UnitToHost, Lane: 8, What: "FROM_WIRE_DROP", Start: 8000, End: 8000, Packet: 1})
	d := checkFormat(t, b)
	var phases []string
	for _, e := range d.TraceEvents {
		if e.Ph != "M" {
			phases = append(phases, e.Ph+" "+e.Name+" "+e.ID)
		}
	}
	assert.Equal(t, []string{"b PortF1 frame 0x1", "e PortF1 frame 0x1", "b PortF1 frame 0x2", "e PortF1 frame 0x2", "i FROM_WIRE_DROP "}, phases)
	assert.Contains(t, string(b), `"name":"PortF1 frame","ts":0.0675,"cat":"span","id":"0x2","bind_id":"0x2","flow_out":true,"flow_in":true,"args":{"cycle":54,"packet":2,"bytes":60}}`)
	assert.NotContains(t, string(b), "PortF1 (2)")
}

func TestLaneNames(t *testing.T) {
	for want, lane := range map[string]struct {
		u hwsim.Unit
		n int
	}{
		"ring 7": {hwsim.UnitWrite, 7}, "card": {hwsim.UnitStore, -1}, "PortF1": {hwsim.UnitToHost, 8}, "no port": {hwsim.UnitToWire, -1},
		"vector 16": {hwsim.UnitMessage, 16}, "all": {hwsim.UnitLinkUp, 0},
	} {
		assert.Equal(t, want, laneName(lane.u, lane.n))
	}
	assert.Equal(t, "no port", laneName(hwsim.UnitMACIn, 12))
}

func TestStringsThatPerfettoReads(t *testing.T) {
	for s, want := range map[string]string{
		"plain": `"plain"`, `a"b\c`: `"a\"b\\c"`, "tab\tnul\x00del\x7f": `"tab nul del "`, "\xff": `"` + "\ufffd" + `"`, "ü": `"ü"`,
	} {
		assert.Equal(t, want, string(appendString(nil, s)))
		assert.True(t, json.Valid(appendString(nil, s)))
	}
}

// full fails once so many bytes were written.
type full int

func (f *full) Write(b []byte) (int, error) {
	if *f -= full(len(b)); *f < 0 {
		return 0, errFull
	}
	return len(b), nil
}

var errFull = errors.New("no space")

func TestWriteErrorIsToldAtTheEnd(t *testing.T) {
	for name, tc := range map[string]struct {
		room  full
		steps uint64
	}{"at once": {0, 3000}, "in the middle": {1 << 17, 3000}, "with the last bytes": {0, 3}} {
		t.Run(name, func(t *testing.T) {
			w := NewWriter(&tc.room, Head{})
			for i := range tc.steps {
				w.Step(hwsim.Step{Unit: hwsim.UnitRead, What: "data", Start: i, End: i + 1})
			}
			require.ErrorIs(t, w.Close(), errFull)
		})
	}
}

// Whatever steps come in whatever order, the file is one that Perfetto reads, and the
// same for the same steps.
func FuzzWriter(f *testing.F) {
	f.Add([]byte("\x00\x01\x00\x10\x00\x20some steps of a unit, twelve bytes each, and more"))
	f.Add(bytes.Repeat([]byte{4, 2, 0, 0, 0xff, 0xff, 1, 1}, 40))
	f.Fuzz(func(t *testing.T, b []byte) {
		var steps []hwsim.Step
		for ; len(b) >= 8 && len(steps) < 400; b = b[8:] {
			start := uint64(binary.LittleEndian.Uint16(b[2:]))
			steps = append(steps, hwsim.Step{
				Unit: hwsim.Unit(b[0]) % hwsim.Units, Kind: hwsim.StepKind(b[1] & 1), Lane: int(b[1]>>1)%81 - 1, What: string(b[4:6]),
				Start: start, End: start + uint64(b[6]), Packet: uint64(b[7]), Bytes: int(b[6]), Value: int64(b[7]) << 56,
			})
		}
		first := write(t, steps...)
		checkFormat(t, first)
		require.Equal(t, first, write(t, steps...))
	})
}
