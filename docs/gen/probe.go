package main

import (
	"reflect"
	"strings"
)

// probeDocument is what `oxpd probe --json` prints.
func probeDocument(root string) (string, error) {
	src, err := parse(root, "internal/probe")
	if err != nil {
		return "", err
	}
	d := head("What oxpd probe prints")
	d.text("`oxpd probe` looks at the card and changes nothing: no store to a BAR, no write to config space, no memory, no interrupt. It reads config space, " +
		"registers of BAR0, the barmap, and the first words of the rpc and nw_agent windows where the barmap has them; a load elsewhere in BAR2 is stopped " +
		"before it becomes an access. With memory decoding off it reads config space alone. [First run](../guides/first-run.md) says when to use it.")
	d.text("These are the keys of `oxpd probe --json`. Values of registers are text in hexadecimal, in full width: 64 bits do not fit the numbers of JSON. " +
		"A section that was not looked at is absent.")
	for _, s := range []struct{ title, name string }{
		{"Document", "Report"}, {"config", "Config"}, {"ring_info", "RingInfo"}, {"readiness", "Readiness"}, {"handshake", "Handshake"},
		{"barmap", "Barmap"}, {"One of facilities", "Facility"}, {"rpc and nw_agent", "Window"}, {"One of globals and registers", "Register"},
		{"One of rings", "Ring"}, {"in of a ring", "In"}, {"out of a ring", "Out"}, {"One of findings", "Finding"}, {"run", "Run"}, {"One of stages", "Stage"},
	} {
		fields, err := src.structure(s.name)
		if err != nil {
			return "", err
		}
		d.section(s.title)
		var rows [][]string
		for _, f := range fields {
			key, _, _ := strings.Cut(reflect.StructTag(f.tag).Get("json"), ",")
			rows = append(rows, []string{quote(key), jsonType(f.typ), strings.TrimPrefix(f.comment, f.name+" ")})
		}
		d.table([]string{"key", "type", "meaning"}, rows)
	}
	return d.String(), nil
}

// jsonType is a Go type as a reader of the document sees it.
func jsonType(goType string) string {
	switch {
	case strings.HasPrefix(goType, "[]"):
		return "list"
	case goType == "string", goType == "Level", goType == "Verdict":
		return "text"
	case goType == "bool":
		return "true or false"
	case strings.HasPrefix(goType, "int"), strings.HasPrefix(goType, "uint"):
		return "number"
	default:
		return "object"
	}
}
