package demo

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
)

func TestReporterLines(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(r *reporter)
		want string
		ok   bool
	}{
		{
			"a check that holds", func(r *reporter) { r.check("ping", "2 of 2", "2 of 2") },
			"  ok    ping                                          2 of 2\n", true,
		},
		{
			"a check that does not", func(r *reporter) { r.check("ping", "1 of 2", "2 of 2") },
			"  FAIL  ping                                          1 of 2, want 2 of 2\n", false,
		},
		{
			"a number", func(r *reporter) { r.count("rx_span_max", 9088, 9088) },
			"  ok    rx_span_max                                   9,088\n", true,
		},
		{
			"a counter that grew", func(r *reporter) { r.grown("rx_spans", 100, 112, 12) },
			"  ok    rx_spans                                      +12\n", true,
		},
		{
			"a counter that fell", func(r *reporter) { r.grown("rx_spans", 100, 0, 12) },
			"  FAIL  rx_spans                                      -100, want +12\n", false,
		},
		{
			"a sum that closes shows what counts",
			func(r *reporter) { r.sum("in", 1003, term{"passed", 1000}, term{"runt", 0}, term{"filtered", 3}) },
			"  ok    in                              1,003 = 1,000 passed + 3 filtered\n", true,
		},
		{
			"a sum that does not", func(r *reporter) { r.sum("in", 1004, term{"passed", 1000}) },
			"  FAIL  in                              1,004 is not 1,000 passed\n", false,
		},
		{
			"a sum of nothing", func(r *reporter) { r.sum("in", 0, term{"passed", 0}) },
			"  ok    in                                  0 = 0\n", true,
		},
		{
			"a port", func(r *reporter) { r.port(Port{"oxp9", "PortF1", "02:c8:52:00:00:0a", "up", 1500, true}) },
			"  ok    oxp9   PortF1  02:c8:52:00:00:0a  up    1,500\n", true,
		},
		{
			"a port that is not up, which a check counts", func(r *reporter) { r.port(Port{"oxp9", "PortF1", "", "unknown", 0, false}) },
			"  FAIL  oxp9   PortF1                     unknown 0\n", true,
		},
		{
			"a rate decides nothing", func(r *reporter) { r.rate(Rate{9000, down, 0, 7178.4, 8948, 5}) },
			"        host receives at 9,000                0 Mbit/s (the card: 7,178), MSS 8,948, 5 retransmits\n", true,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			r := &reporter{start: now(), out: &out, part: "part"}
			c.do(r)
			assert.Equal(t, c.want, out.String())
			assert.Equal(t, c.ok, r.finish(nil).OK)

			out.Reset()
			r = &reporter{start: now(), out: &out, quiet: true}
			c.do(r)
			r.finish(nil)
			assert.Empty(t, out.String(), "lines beside a JSON document")
		})
	}
}

// TestTotalsAgree: the number of checks that people read is the one in the document.
func TestTotalsAgree(t *testing.T) {
	for name, holds := range map[string]string{"all hold": "2", "one does not": "3"} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			r := &reporter{start: now(), out: &out}
			r.port(Port{IfName: "oxp1", OK: true})
			r.check("ports", "1 of 1", "1 of 1")
			r.count("spans", 2, 2)
			r.check("ping", holds, "2")
			out.Reset()
			doc := r.finish(nil)
			want := "all 3 checks"
			if !doc.OK {
				want = "1 of 3 checks"
			}
			assert.Contains(t, out.String(), want)
			assert.Len(t, doc.Checks, 3)
			assert.Equal(t, holds == "2", doc.OK)
		})
	}
}

func TestEachPortHasItsOwnSum(t *testing.T) {
	var out bytes.Buffer
	r := &reporter{start: now(), out: &out}
	r.each("in", func(p board.Port) (uint64, []term) {
		passed := uint64(10)
		switch p.Index { // two wrongs that make the total right
		case 3:
			passed++
		case 8:
			passed--
		}
		return 10, []term{{"passed", passed}}
	})
	assert.Equal(t, "  FAIL  Port4: in                          10 is not 11 passed\n"+
		"  FAIL  PortF1: in                         10 is not 9 passed\n"+
		"  ok    in                                120 = 120 passed\n", out.String())
	assert.False(t, r.finish(nil).OK)
}

func TestReportDocument(t *testing.T) {
	var out bytes.Buffer
	r := &reporter{start: now(), quiet: true, out: &out}
	r.begin("jumbo", "a heading")
	r.check("ping", "1", "2")
	r.port(Port{IfName: "oxp1", OK: true})
	r.rate(Rate{MTU: 1500, Direction: up})
	doc := r.finish(errors.New("no card"))
	doc.Seconds = 0
	b, err := json.Marshal(doc)
	require.NoError(t, err)
	assert.JSONEq(t, `{"schema":1,"ok":false,"seconds":0,"error":"no card",
		"ports":[{"ifname":"oxp1","label":"","address":"","link":"","mtu":0,"ok":true}],
		"checks":[{"part":"jumbo","name":"ping","got":"1","want":"2","ok":false}],
		"rates":[{"mtu":1500,"direction":"up","mbps":0,"published_mbps":0,"mss":0,"retransmits":0}]}`, string(b))
}

func TestEmptyReportHasLists(t *testing.T) {
	b, err := json.Marshal((&reporter{start: now(), quiet: true}).finish(nil))
	require.NoError(t, err)
	assert.NotContains(t, string(b), "null")
}

func TestGroup(t *testing.T) {
	for n, want := range map[uint64]string{0: "0", 999: "999", 1000: "1,000", 12345: "12,345", 1234567: "1,234,567", 1<<64 - 1: "18,446,744,073,709,551,615"} {
		assert.Equal(t, want, group(n))
	}
}
