package divert

import (
	"time"

	"oxpd/internal/frame"
)

const (
	flowIdle   = 60 * time.Second
	flowMost   = 1 << 16
	flowLooks  = 1024 // entries that one sweep looks at
	bucketBits = 16   // of the table of flows with queued frames
)

// flowKey is a connection at a port.
type flowKey struct {
	frame.Conn
	port uint8
}

func keyOf(port int, p *frame.Packet) (k flowKey, ok bool) {
	c, ok := p.Conn()
	return flowKey{c, uint8(port)}, ok
}

// flows are the connections that an engine accepted whole, with the time of their last
// frame.
type flows struct {
	last    map[flowKey]time.Duration
	refused uint64 // accepted while the table was full
}

// accept notes a connection.
func (f *flows) accept(port int, p *frame.Packet, now time.Duration) {
	k, ok := keyOf(port, p)
	if !ok {
		return
	}
	if f.last == nil {
		f.last = map[flowKey]time.Duration{}
	}
	if _, there := f.last[k]; !there && len(f.last) >= flowMost {
		f.refused++
		return
	}
	f.last[k] = now
}

// passes tells whether a frame is of an accepted connection. One that ends it, or may
// begin another, is its last: the end passes, the beginning does not.
func (f *flows) passes(port int, p *frame.Packet, now time.Duration) bool {
	if len(f.last) == 0 {
		return false
	}
	k, ok := keyOf(port, p)
	if !ok {
		return false
	}
	last, ok := f.last[k]
	switch {
	case !ok:
		return false
	case now-last >= flowIdle, p.Have&frame.HaveTCP != 0 && p.TCPFlags&frame.TCPSYN != 0:
		delete(f.last, k)
		return false
	case p.Have&frame.HaveTCP != 0 && p.TCPFlags&(frame.TCPFIN|frame.TCPRST) != 0:
		delete(f.last, k)
		return true
	}
	f.last[k] = now
	return true
}

// sweep forgets some of the connections that are idle.
func (f *flows) sweep(now time.Duration) {
	looks := 0
	for k, last := range f.last {
		if now-last >= flowIdle {
			delete(f.last, k)
		}
		if looks++; looks == flowLooks {
			return
		}
	}
}

// hostHash is the same for all frames between two hosts, fragments among them, in both
// directions: it says whose engine a frame is.
func hostHash(p *frame.Packet, first []byte) uint64 {
	if p.Have&frame.HaveIP != 0 {
		sh, sl := p.SrcWords()
		dh, dl := p.DstWords()
		return pairHash(mix(sh^mix(sl)), mix(dh^mix(dl)))
	}
	var dst, src uint64
	for i := range macBytes {
		if 2*macBytes > len(first) {
			break
		}
		dst = dst<<8 | uint64(first[i])
		src = src<<8 | uint64(first[macBytes+i])
	}
	return pairHash(mix(src), mix(dst))
}

const macBytes = 6

// flowBucket is where a frame's flow is counted: its connection, or its two hosts when
// it is of none.
func flowBucket(hosts uint64, p *frame.Packet) uint32 {
	if p.Have&frame.HavePorts != 0 && p.Have&frame.HaveFrag == 0 {
		hosts ^= mix(uint64(p.Proto)<<32 | uint64(min(p.SrcPort, p.DstPort))<<16 | uint64(max(p.SrcPort, p.DstPort)))
	}
	return uint32(mix(hosts) >> (64 - bucketBits))
}

// pairHash does not tell its arguments apart.
func pairHash(a, b uint64) uint64 { return mix(a + b ^ a&b) }

// mix spreads the bits of a word over it (the finaliser of splitmix64, Steele, Lea and
// Flood 2014).
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
