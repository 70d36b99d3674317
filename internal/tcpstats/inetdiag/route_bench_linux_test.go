package inetdiag

import (
	"testing"

	"oxpd/internal/tcpstats"
)

// BenchmarkRoute is the cost of the kernel's route for a pair of addresses that no socket of
// the read had before.
func BenchmarkRoute(b *testing.B) {
	r, err := New(Config{}).newRouter()
	if err != nil {
		b.Fatal(err)
	}
	defer r.close()
	k := wayKey{localLo: tcpstats.MappedWord | 0x7f000001, remoteLo: tcpstats.MappedWord | 0x7f000001}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if _, err := r.route(&k, true); err != nil {
			b.Fatal(err)
		}
		k.remoteLo = tcpstats.MappedWord | 0x7f000000 | uint64(b.N&0xffff)
	}
}
