package tcpstats

import (
	"encoding/json"
	"strconv"

	"oxpd/internal/board"
)

// Words of values, as JSON and tables have them.
var (
	caStates    = [...]string{"open", "disorder", "cwr", "recovery", "loss"}
	timerWords  = [...]string{TimerRetransmit: "retransmit", TimerKeepalive: "keepalive", TimerTimeWait: "time_wait", TimerProbe: "probe"}
	directions  = [...]string{DirectionIn: "in", DirectionOut: "out"}
	optionWords = [...]string{"timestamps", "sack", "wscale", "ecn", "ecn_seen", "syn_data"}
)

// Word is the value of a field as a word, for those that are no numbers to their reader:
// state, port, ca_state, timer, direction. ok is false for others, and for values without
// a word.
func Word(f Field, v uint64) (word string, ok bool) {
	of := func(words []string) (string, bool) {
		if v < uint64(len(words)) && words[v] != "" {
			return words[v], true
		}
		return "", false
	}
	switch f {
	case FieldState:
		return of(stateNames[:])
	case FieldCAState:
		return of(caStates[:])
	case FieldTimer:
		return of(timerWords[:])
	case FieldDirection:
		return of(directions[:])
	case FieldPort:
		if v < board.Ports {
			return board.ByIndex(int(v)).Name, true
		}
	}
	return "", false
}

// AppendJSON appends the record as a JSON object without a line end: each field that is
// there, by its name, in the order of the record. extra are members that stand behind them,
// each a name and a value in JSON.
func (r *Record) AppendJSON(b []byte, extra ...[2]string) []byte {
	b = append(b, `{"source":"`...)
	b = append(b, r.Source().String()...)
	b = append(b, '"')
	for i := range fields {
		f := &fields[i]
		if !r.Has(f.Field) {
			continue
		}
		b = append(append(append(b, `,"`...), f.Name...), `":`...)
		switch f.Kind {
		case Address:
			b = append(r.Addr(f.Field).AppendTo(append(b, '"')), '"')
		case Text:
			b = appendText(b, r.Text(f.Field))
		case Gauge, Counter:
			v, _ := r.Uint(f.Field)
			b = appendValue(b, f.Field, v)
		}
	}
	for _, e := range extra {
		b = append(append(append(b, `,"`...), e[0]...), `":`...)
		b = append(b, e[1]...)
	}
	return append(b, '}')
}

// appendText appends a name as a JSON string.
func appendText(b []byte, s string) []byte {
	text, err := json.Marshal(s)
	if err != nil {
		return append(b, `""`...) // there is no such string
	}
	return append(b, text...)
}

// appendValue appends a number, or what it stands for.
func appendValue(b []byte, f Field, v uint64) []byte {
	switch f {
	case FieldFlags:
		b = append(b, '[')
		if v&FlagMapped != 0 {
			b = append(b, `"v4_mapped"`...)
		}
		return append(b, ']')
	case FieldOptions:
		b = append(b, '[')
		first := true
		for i, word := range optionWords {
			if v>>i&1 == 0 {
				continue
			}
			if !first {
				b = append(b, ',')
			}
			first = false
			b = append(append(append(b, '"'), word...), '"')
		}
		return append(b, ']')
	case FieldAppLimited, FieldECN:
		return strconv.AppendBool(b, v != 0)
	}
	if word, ok := Word(f, v); ok {
		return append(append(append(b, '"'), word...), '"')
	}
	return strconv.AppendUint(b, v, 10)
}

// Delta makes the counters of a record what they grew by since an earlier record of the
// same socket or flow, nil when it is new. A counter that the earlier one does not have
// stays.
func (r *Record) Delta(before *Record) {
	if before == nil {
		return
	}
	for i := range fields {
		f := &fields[i]
		if f.Kind != Counter {
			continue
		}
		now, ok := r.Uint(f.Field)
		was, had := before.Uint(f.Field)
		if ok && had {
			r.SetUint(f.Field, now-was) // cut to its width: counters of 32 bits go round
		}
	}
}

// Key tells a record from others of its source: the same for one socket, or flow, as long
// as it lives. ok is false without one.
func (r *Record) Key() (key [2]uint64, ok bool) {
	cookie, ok := r.Uint(FieldCookie)
	return [2]uint64{uint64(r.Source()), cookie}, ok
}
