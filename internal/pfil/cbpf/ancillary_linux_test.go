package cbpf

import (
	"encoding/binary"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/pfil/pfiltest"
)

// TestKernelAgreesOnAncillaryLoads runs programs with ancillary loads on a packet
// socket. The kernel takes the outer tag out of a frame before a socket sees it and
// keeps it beside; on a ring it is in the frame. Rows say which frames that leaves
// for comparison, and why.
func TestKernelAgreesOnAncillaryLoads(t *testing.T) {
	needTCPDump(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a network namespace and a TAP interface")
	}
	tap, err := pfiltest.NewTAP()
	require.NoError(t, err)
	defer func() { assert.NoError(t, tap.Close()) }()
	every := func([]byte) bool { return true }
	untagged := func(b []byte) bool {
		e := binary.BigEndian.Uint16(b[12:])
		return e != 0x8100 && e != 0x88a8
	}
	returns := func(insns ...Instruction) []Instruction { return append(insns, Instruction{Code: ret | retA}) }
	protocol := func(v uint32) []Instruction {
		return []Instruction{{Code: ld | modeAbs | sizeH, K: adProtocol}, {Code: jmp | jmpEQ, K: v, JF: 1}, {Code: ret, K: 1}, {Code: ret}}
	}
	const tagIsInTheFrame = "the kernel's program sees the frame without its tag"
	rows := []struct {
		name       string
		expression string        // compiled for the interface
		insns      []Instruction // or a program
		frames     func([]byte) bool
		why        string // not every frame is compared
	}{
		{"a tag, beside or inside", "vlan", nil, every, ""},
		{"no tag", "not vlan", nil, every, ""},
		{"one id", "vlan 100", nil, every, ""},
		{"what is behind a tag", "vlan and ip", nil, every, ""},
		{"an address behind a tag", "vlan and host 192.0.2.1", nil, every, ""},
		{"a port behind a tag", "vlan 100 and udp port 53", nil, every, ""},
		{"the other family behind a tag", "vlan 5 and ip6", nil, every, ""},
		{"without vlan, untagged", "udp port 53", nil, untagged, tagIsInTheFrame},
		{"protocol ip", "", protocol(0x0800), untagged, tagIsInTheFrame},
		{"protocol ip6", "", protocol(0x86dd), untagged, tagIsInTheFrame},
		{"protocol arp", "", protocol(0x0806), untagged, tagIsInTheFrame},
		{"protocol of a length", "", protocol(0x0004), untagged, tagIsInTheFrame},
		{"protocol of a length before raw IPX", "", protocol(0x0001), untagged, tagIsInTheFrame},
		{"no tag beside an untagged frame", "", returns(Instruction{Code: ld | modeAbs, K: adVLANTag}), untagged, tagIsInTheFrame},
		{"none present", "", returns(Instruction{Code: ld | modeAbs, K: adVLANTagPresent}), untagged, tagIsInTheFrame},
		{"no tag's protocol", "", returns(Instruction{Code: ld | modeAbs, K: adVLANTPID}), untagged, tagIsInTheFrame},
	}
	frames, err := pfiltest.Frames(5)
	require.NoError(t, err)
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			insns := row.insns
			if row.expression != "" {
				text, err := tap.Compile(row.expression)
				require.NoError(t, err)
				p, err := Parse(text)
				require.NoError(t, err)
				insns = p.Instructions()
			}
			p, err := New(insns)
			require.NoError(t, err)
			require.NoError(t, tap.Attach(raw(insns)))
			compared, left := 0, 0
			for _, f := range frames {
				// A short tagged frame does not reach a socket. An interface has no two lengths.
				if len(f.Bytes) < 18 || len(f.Bytes) != f.Wire {
					continue
				}
				if !row.frames(f.Bytes) {
					left++
					continue
				}
				want, err := tap.Run(f.Bytes)
				require.NoError(t, err)
				require.Equal(t, want, p.Run(f.Bytes, f.Wire) != 0, "%v\n%v", f, p)
				compared++
			}
			assert.Equal(t, row.why != "", left > 0, "%d frames are left out because %q", left, row.why)
			assert.Greater(t, compared, 100)
		})
	}
}

// TestKernelTakesNegativeOffsets is what Linux gives a meaning and this machine does
// not: offsets from 0xffe00000 are relative to the link header, and from 0xfff00000 to
// the network header. Written down they are refused here; computed they lie outside of
// the frame and the program returns 0. tcpdump writes and computes none.
func TestKernelTakesNegativeOffsets(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a network namespace and a TAP interface")
	}
	tap, err := pfiltest.NewTAP()
	require.NoError(t, err)
	defer func() { assert.NoError(t, tap.Close()) }()
	frame := pfiltest.Made()[0].Bytes
	for _, tc := range []struct {
		name string
		k    uint32
		want uint32
	}{
		{"link header", 0xffe00000 + 12, 8},
		{"network header", 0xfff00000 + 9, 17},
	} {
		t.Run(tc.name, func(t *testing.T) {
			end := []Instruction{{Code: jmp | jmpEQ, K: tc.want, JF: 1}, {Code: ret, K: 1}, {Code: ret}}
			written := append([]Instruction{{Code: ld | modeAbs | sizeB, K: tc.k}}, end...)
			computed := append([]Instruction{{Code: ldx | modeImm, K: tc.k}, {Code: ld | modeInd | sizeB}}, end...)
			for _, insns := range [][]Instruction{written, computed} {
				require.NoError(t, tap.Attach(raw(insns)))
				taken, err := tap.Run(frame)
				require.NoError(t, err)
				assert.True(t, taken, "by the kernel")
			}
			_, err := New(written)
			require.ErrorContains(t, err, recompile)
			p, err := New(computed)
			require.NoError(t, err)
			assert.Zero(t, p.Run(frame, len(frame)))
		})
	}
}
