package main

import (
	"fmt"
	"math/bits"

	"oxpd/internal/tcpstats"
)

// statsFields is the layout of records of TCP statistics.
func statsFields(string) (string, error) {
	d := head("Fields of TCP statistics")
	d.text(fmt.Sprintf("The blocks of a [record](../guides/tcpstats-protocol.md#records) of `oxpd tcpstats`, one for each group, and their fields. Offsets are those of the full format, which has %d bytes; in the compact "+
		"format a block begins where the one before ends, and its fields are as far from its beginning. `bit` is that of the block's first word which says that the field is there. A field is named in JSON, and for `--by`, as here. "+
		"`counter` are those that only grow: with `--interval` they are what was added.", tcpstats.FullSize))
	for g := tcpstats.GroupIdentity; g <= tcpstats.GroupNames; g <<= 1 {
		at, size := tcpstats.Block(g)
		d.section(g.String())
		d.text(fmt.Sprintf("Group %#03x, %d bytes at offset %d.", uint16(g), size, at))
		var rows [][]string
		for _, f := range tcpstats.Fields() {
			if f.Field.Group() != g {
				continue
			}
			kind := map[tcpstats.Kind]string{tcpstats.Gauge: "", tcpstats.Counter: "counter", tcpstats.Text: "text", tcpstats.Address: "address"}[f.Kind]
			rows = append(rows, []string{quote(f.Name), fmt.Sprint(f.Field.Offset()), fmt.Sprint(f.Field.Width()), fmt.Sprint(bits.TrailingZeros32(f.Field.Bit())), kind, f.Doc})
		}
		d.table([]string{"field", "offset", "bytes", "bit", "kind", "meaning"}, rows)
	}
	return d.String(), nil
}
