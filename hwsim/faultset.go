package hwsim

import (
	"fmt"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"time"

	"oxpd/internal/board"
	"oxpd/rpc/msg"
	"oxpd/switchcfg/reg"
)

// SetFault switches a fault by the name of its field, in whatever case, as a command
// line says it. What the argument is depends on the fault:
//
//	a switch              nothing, true or false
//	rings                 nothing or all; numbers with commas between them
//	a number for a ring
//	or a switch port      RING:N, PORT:N with commas between them
//	several switches      their numbers with commas between them
//	a time, a number,
//	a text                itself
//
//	ports, with what is
//	answered to each         PORT, PORT:N (a port by any of its names) with commas
//	                         between them; nothing or all; all:N
//	requests                 OP, OP/SUB, OP/SUB/PORT with commas between them
//
// Hyphens in the name do not matter. // The name or the id of a row of FaultRows that has switches stands for those; an
// argument is the first one's.
func SetFault(f *Faults, name, arg string) error {
	if row, ok := FaultRowOf(name); ok {
		return setRow(f, row, arg)
	}
	return setField(f, name, arg)
}

// lateByName is LateBy where something is made late by name and nothing said by how much:
// that of the row D3.
const lateByName = 200 * time.Microsecond

func setField(f *Faults, name, arg string) error {
	v := reflect.ValueOf(f).Elem()
	for _, field := range faultFields() {
		if sameName(field.Name, name) {
			at := v.FieldByIndex(field.Index)
			old := reflect.New(at.Type()).Elem()
			old.Set(at)
			err := setFault(at, arg)
			if err == nil {
				err = checkFault(f)
			}
			if err != nil {
				at.Set(old)
				return fmt.Errorf("hwsim: fault %s=%q: %w", field.Name, arg, err)
			}
			if strings.HasPrefix(field.Name, "Late") && f.LateBy == 0 && field.Name != "LateBy" {
				f.LateBy = lateByName
			}
			return nil
		}
	}
	return unknownFault(name)
}

// maxWatermark bounds the watermark of a fault: what the credit of no ring comes to is
// as good as any more.
const maxWatermark = 1<<16 - 1

// checkFault refuses numbers that the card cannot have.
func checkFault(f *Faults) error {
	if f.Watermark > maxWatermark {
		return fmt.Errorf("want a number of 0 to %d, in buffers of credit", maxWatermark)
	}
	switch f.SwitchUplink {
	case 0, uint32(reg.Jumbo1522.FrameBytes()), uint32(reg.Jumbo2048.FrameBytes()):
		return nil
	}
	return fmt.Errorf("want the frame bytes of a mode: %d or %d", reg.Jumbo1522.FrameBytes(), reg.Jumbo2048.FrameBytes())
}

func unknownFault(name string) error {
	return fmt.Errorf("hwsim: no fault %q: want the id or the name of a row that is switched (oxpd sim faults prints them), an action such as kill or reboot, or one of %s", name, strings.Join(FaultNames(), ", "))
}

// unswitched says why a row has no switch.
func (r *FaultRow) unswitched() error {
	return fmt.Errorf("hwsim: fault %s %s is not switched: %s", r.ID, r.Name, r.By)
}

// setRow sets what a row's name stands for. What the name only needs besides, such
// as a time, keeps the value that it has.
func setRow(f *Faults, row FaultRow, arg string) error {
	if !row.Switched() {
		return row.unswitched()
	}
	for i, set := range row.sets {
		field, preset, _ := strings.Cut(set, "=")
		for id := range faultActions {
			if faultActions[id].name == field {
				return fmt.Errorf("hwsim: fault %s %s is done at a moment, which only Card.Inject can", row.ID, row.Name)
			}
		}
		switch {
		case i > 0 && !reflect.ValueOf(f).Elem().FieldByName(field).IsZero():
			continue
		case i > 0 || arg == "":
			arg = preset
		}
		if err := setField(f, field, arg); err != nil {
			return fmt.Errorf("%s: %w", row.Name, err)
		}
	}
	return nil
}

// FaultNames are the faults that SetFault can switch.
func FaultNames() (names []string) {
	for _, f := range faultFields() {
		names = append(names, f.Name)
	}
	sort.Strings(names)
	return names
}

// faultFields are the fields of Faults, of its parts too.
func faultFields() (fields []reflect.StructField) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Faults]()) {
		if !f.Anonymous {
			fields = append(fields, f)
		}
	}
	return fields
}

func setFault(v reflect.Value, arg string) error {
	switch v.Type() {
	case reflect.TypeFor[time.Duration]():
		d, err := time.ParseDuration(arg)
		if err != nil || d < 0 {
			return fmt.Errorf("want a time, such as 10ms")
		}
		v.SetInt(int64(d))
		return nil
	case reflect.TypeFor[RingMask]():
		if arg == "" || arg == "all" {
			v.SetUint(uint64(AllRings))
			return nil
		}
		return each(arg, 64, func(i int, _ string) error { v.SetUint(v.Uint() | 1<<i); return nil })
	case reflect.TypeFor[map[board.Tag]msg.RC]():
		m, err := parsePortRCs(arg)
		v.Set(reflect.ValueOf(m))
		return err
	case reflect.TypeFor[map[board.Tag]bool]():
		m, err := parsePorts(arg)
		v.Set(reflect.ValueOf(m))
		return err
	case reflect.TypeFor[[]AgentRefusal]():
		list, err := parseRefusals(arg)
		v.Set(reflect.ValueOf(list))
		return err
	}
	switch v.Kind() {
	case reflect.Bool:
		on, err := strconv.ParseBool(arg)
		if err != nil && arg != "" {
			return fmt.Errorf("want nothing, true or false")
		}
		v.SetBool(on || arg == "")
	case reflect.Int:
		n, err := strconv.Atoi(arg)
		if err != nil || n < 0 {
			return fmt.Errorf("want a number of 0 or more")
		}
		v.SetInt(int64(n))
	case reflect.Uint16, reflect.Uint32:
		n, err := strconv.ParseUint(arg, 0, v.Type().Bits())
		if err != nil {
			return fmt.Errorf("want a number of %d bits", v.Type().Bits())
		}
		v.SetUint(n)
	case reflect.String:
		v.SetString(arg)
	case reflect.Array:
		return each(arg, v.Len(), func(i int, value string) error {
			if v.Type().Elem().Kind() == reflect.Bool {
				v.Index(i).SetBool(true)
				return nil
			}
			n, err := strconv.Atoi(value)
			if err != nil {
				return fmt.Errorf("%d:%q: want a number behind the colon, for a ring or a port each, such as %d:1", i, value, i)
			}
			v.Index(i).SetInt(int64(n))
			return nil
		})
	default:
		return fmt.Errorf("a %s cannot be said", v.Type())
	}
	return nil
}

// each calls fn for the entries INDEX or INDEX:VALUE of a list.
func each(list string, size int, fn func(i int, value string) error) error {
	for _, e := range strings.Split(list, ",") {
		index, value, _ := strings.Cut(e, ":")
		i, err := strconv.Atoi(index)
		if err != nil || i < 0 || i >= size {
			return fmt.Errorf("%q: want numbers of 0 to %d with commas between them", e, size-1)
		}
		if err := fn(i, value); err != nil {
			return err
		}
	}
	return nil
}

// parsePortRCs reads what LIFRefuse takes; RCRefused where no number stands.
func parsePortRCs(list string) (map[board.Tag]msg.RC, error) {
	m := map[board.Tag]msg.RC{}
	err := eachPort(list, func(p board.Port, value string) error {
		rc := uint64(msg.RCRefused)
		if value != "" {
			var err error
			if rc, err = strconv.ParseUint(value, 0, 16); err != nil || rc == 0 {
				return fmt.Errorf("%q: want a number of 1 to 65535 behind the colon", value)
			}
		}
		m[p.Tag] = msg.RC(rc)
		return nil
	})
	return m, err
}

// parsePorts reads what LIFNotStored takes.
func parsePorts(list string) (map[board.Tag]bool, error) {
	m := map[board.Tag]bool{}
	err := eachPort(list, func(p board.Port, value string) error {
		if value != "" {
			return fmt.Errorf("%q: nothing stands behind the port", value)
		}
		m[p.Tag] = true
		return nil
	})
	return m, err
}

// eachPort calls fn for the entries PORT or PORT:VALUE of a list; all, or nothing,
// stands for every port.
func eachPort(list string, fn func(p board.Port, value string) error) error {
	if list == "" {
		list = everything
	}
	for _, e := range strings.Split(list, ",") {
		name, value, _ := strings.Cut(e, ":")
		ports := board.All()
		some := ports[:]
		if !strings.EqualFold(name, everything) {
			p, err := board.Parse(name)
			if err != nil {
				return err
			}
			some = []board.Port{p}
		}
		for _, p := range some {
			if err := fn(p, value); err != nil {
				return err
			}
		}
	}
	return nil
}

const everything = "all"

// parseRefusals reads what AgentRefuse takes. A port is a name, or a tag such as
// 0x8000.
func parseRefusals(list string) (all []AgentRefusal, err error) {
	for _, e := range strings.Split(list, ",") {
		words := strings.Split(e, "/")
		op, err := strconv.ParseUint(words[0], 0, 32)
		if err != nil || len(words) > 3 {
			return nil, fmt.Errorf("%q: want OP, OP/SUB or OP/SUB/PORT, such as 4/3/F1", e)
		}
		r := AgentRefusal{Op: uint32(op)}
		if len(words) > 1 {
			n, err := strconv.ParseUint(words[1], 0, 16)
			if err != nil {
				return nil, fmt.Errorf("%q: want a number behind the stroke: OP/SUB", e)
			}
			sub := msg.Attr(n)
			r.Sub = &sub
		}
		if len(words) > 2 {
			tag, err := parseTag(words[2])
			if err != nil {
				return nil, err
			}
			r.Port = &tag
		}
		all = append(all, r)
	}
	return all, nil
}

func parseTag(s string) (board.Tag, error) {
	if n, err := strconv.ParseUint(s, 0, 16); err == nil {
		return board.Tag(n), nil
	}
	p, err := board.Parse(s)
	return p.Tag, err
}

// faultText is a field's value as SetFault takes it. That of a switch that is on is
// empty.
func faultText(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case time.Duration:
		return x.String()
	case RingMask:
		if x == AllRings {
			return everything
		}
		return join(64, func(i int) (string, bool) { return strconv.Itoa(i), x.has(i) })
	case map[board.Tag]msg.RC:
		return join(board.Ports, func(i int) (string, bool) {
			rc, ok := x[board.ByIndex(i).Tag]
			return fmt.Sprintf("%s:%d", board.ByIndex(i).Name, uint16(rc)), ok
		})
	case map[board.Tag]bool:
		return join(board.Ports, func(i int) (string, bool) { return board.ByIndex(i).Name, x[board.ByIndex(i).Tag] })
	case []AgentRefusal:
		return join(len(x), func(i int) (string, bool) { return x[i].text(), true })
	case bool:
		return ""
	}
	switch v.Kind() {
	case reflect.Uint16, reflect.Uint32:
		return fmt.Sprintf("%#x", v.Uint())
	case reflect.Array:
		return join(v.Len(), func(i int) (string, bool) {
			if v.Index(i).Kind() == reflect.Bool {
				return strconv.Itoa(i), v.Index(i).Bool()
			}
			return fmt.Sprintf("%d:%d", i, v.Index(i).Int()), !v.Index(i).IsZero()
		})
	}
	return fmt.Sprint(v.Interface())
}

func (r *AgentRefusal) text() string {
	s := fmt.Sprint(r.Op)
	switch {
	case r.Sub != nil && r.Port != nil:
		return fmt.Sprintf("%s/%d/%#x", s, uint16(*r.Sub), uint16(*r.Port))
	case r.Sub != nil:
		return fmt.Sprintf("%s/%d", s, uint16(*r.Sub))
	}
	return s
}

// join lists those of n entries that there are, with commas between them.
func join(n int, entry func(i int) (text string, there bool)) string {
	var list []string
	for i := range n {
		if text, there := entry(i); there {
			list = append(list, text)
		}
	}
	return strings.Join(list, ",")
}
