package hwsim

import (
	"fmt"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"time"
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
// Faults of another form (what is refused by port, or by request) cannot be said so.
//
// The name or the id of a row of FaultRows that has switches stands for those; an
// argument is the first one's.
func SetFault(f *Faults, name, arg string) error {
	if row, ok := FaultRowOf(name); ok {
		return setRow(f, row, arg)
	}
	v := reflect.ValueOf(f).Elem()
	for _, field := range faultFields() {
		if strings.EqualFold(field.Name, name) {
			if err := setFault(v.FieldByIndex(field.Index), arg); err != nil {
				return fmt.Errorf("hwsim: fault %s=%q: %w", field.Name, arg, err)
			}
			return nil
		}
	}
	return fmt.Errorf("hwsim: no fault %q: want one of %s", name, strings.Join(FaultNames(), ", "))
}

// setRow sets what a row's name stands for. What the name only needs besides, such
// as a time, keeps the value that it has.
func setRow(f *Faults, row FaultRow, arg string) error {
	if !row.Switched() {
		return fmt.Errorf("hwsim: fault %s %s is not switched: %s", row.ID, row.Name, row.By)
	}
	for i, set := range row.sets {
		field, preset, _ := strings.Cut(set, "=")
		switch {
		case i > 0 && !reflect.ValueOf(f).Elem().FieldByName(field).IsZero():
			continue
		case i > 0 || arg == "":
			arg = preset
		}
		if err := SetFault(f, field, arg); err != nil {
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

// faultFields are the fields of a form that a text can have.
func faultFields() (fields []reflect.StructField) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Faults]()) {
		if !f.Anonymous && f.Type.Kind() != reflect.Map && f.Type.Kind() != reflect.Slice {
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
		if err != nil {
			return fmt.Errorf("want a number")
		}
		v.SetInt(int64(n))
	case reflect.Uint32:
		n, err := strconv.ParseUint(arg, 0, 32)
		if err != nil {
			return fmt.Errorf("want a number of 32 bits")
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
