package inetdiag

import (
	"testing"

	"oxpd/internal/tcpstats"
)

// BenchmarkJudge is the cost of a record beside the kernel's: parsing its message, asking
// the filter, filling and appending.
func BenchmarkJudge(b *testing.B) {
	body := told(1, 2, info(280), attribute(attrCong, []byte("cubic\x00")), attribute(attrSKMemInfo, make([]byte, memSize)), attribute(8, []byte{0}), attribute(22, make([]byte, 8)))
	var datagram []byte
	for len(datagram) < datagramBytes-1000 {
		datagram = append(datagram, message(tcpDiagGetSock, 0, 7, body)...)
	}
	for _, text := range []string{"", "fields=all", "fields=rtt", "fields=identity", "format=full", "local_port=9"} {
		b.Run("filter="+text, func(b *testing.B) {
			f, err := tcpstats.Parse(text)
			if err != nil {
				b.Fatal(err)
			}
			c := &cursor{matcher: f.Matcher(), fields: f.Fields, format: f.Format}
			c.record.Reset(tcpstats.Host)
			buf := make([]byte, 0, tcpstats.ChunkBytes)
			p := reply{seq: 7}
			b.ReportAllocs()
			b.ResetTimer()
			out := buf
			for range b.N {
				if len(p.rest) == 0 {
					p.rest, out = datagram, buf
				}
				diag, attributes, _, _ := p.next()
				out, _ = c.judge(diag, attributes, out)
			}
		})
	}
}
