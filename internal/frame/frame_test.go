package frame

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
)

// build makes an Ethernet header with tags and n bytes behind it.
func build(n int, types ...uint16) []byte {
	b := make([]byte, 12)
	for i, t := range types {
		b = binary.BigEndian.AppendUint16(b, t)
		if i < len(types)-1 {
			b = append(b, 0x20, byte(i)) // priority and VLAN id
		}
	}
	return append(b, make([]byte, n)...)
}

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   []byte
		want Header
		ok   bool
	}{
		{"empty", nil, Header{}, false},
		{"one byte short of a header", make([]byte, HeaderSize-1), Header{}, false},
		{"header alone", build(0, TypeIPv4), Header{TypeIPv4, 0, 14}, true},
		{"untagged", build(46, TypeIPv6), Header{TypeIPv6, 0, 14}, true},
		{"control message", build(72, 0xefef), Header{0xefef, 0, 14}, true},
		{"802.3 length", build(46, 46), Header{46, 0, 14}, true},
		{"one tag", build(46, TypeVLAN, TypeARP), Header{TypeARP, 1, 18}, true},
		{"one tag and nothing behind it", build(0, TypeVLAN, TypeARP), Header{TypeARP, 1, 18}, true},
		{"one byte short of the tag", build(0, TypeVLAN, TypeARP)[:17], Header{}, false},
		{"a tag's type and nothing", build(0, TypeVLAN), Header{}, false},
		{"service tag", build(46, TypeQinQ, TypeIPv4), Header{TypeIPv4, 1, 18}, true},
		{"two tags", build(46, TypeQinQ, TypeVLAN, TypeIPv4), Header{TypeIPv4, 2, 22}, true},
		{"two tags of one type", build(46, TypeVLAN, TypeVLAN, TypeIPv4), Header{TypeIPv4, 2, 22}, true},
		{"one byte short of the second tag", build(0, TypeQinQ, TypeVLAN, TypeIPv4)[:21], Header{}, false},
		{"three tags: the third is not looked into", build(46, TypeQinQ, TypeVLAN, TypeVLAN, TypeIPv4), Header{TypeVLAN, 2, 22}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, ok := Parse(tc.in)
			assert.Equal(t, tc.ok, ok)
			assert.Equal(t, tc.want, got)
		})
	}
}

func TestParseAllocatesNothing(t *testing.T) {
	b := build(46, TypeQinQ, TypeVLAN, TypeIPv4)
	assert.Zero(t, testing.AllocsPerRun(100, func() { Parse(b) }))
}

// FuzzParse: whatever arrives, what Parse says lies inside the frame and is what
// the frame's bytes say.
func FuzzParse(f *testing.F) {
	f.Add([]byte{})
	f.Add(build(46, TypeIPv4))
	f.Add(build(46, TypeQinQ, TypeVLAN, TypeIPv6))
	f.Add(build(0, TypeVLAN))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, ok := Parse(b)
		if !ok {
			assert.Equal(t, Header{}, h)
			return
		}
		assert.LessOrEqual(t, h.L3, len(b))
		assert.LessOrEqual(t, h.VLANs, MaxVLANs)
		assert.Equal(t, HeaderSize+h.VLANs*VLANSize, h.L3)
		assert.Equal(t, binary.BigEndian.Uint16(b[h.L3-2:]), h.EtherType)
		for i := range h.VLANs {
			tag := binary.BigEndian.Uint16(b[12+i*VLANSize:])
			assert.Contains(t, []uint16{TypeVLAN, TypeQinQ}, tag)
		}
		// What is behind the headers has no say.
		again, ok := Parse(b[:h.L3])
		assert.True(t, ok)
		assert.Equal(t, h, again)
	})
}
