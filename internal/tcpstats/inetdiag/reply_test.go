package inetdiag

import (
	"encoding/binary"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/tcpstats"
)

// message is a netlink message.
func message(kind, flags uint16, seq uint32, body []byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(nlHeader+len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = append(append(b, 0, 0, 0, 0), body...)
	return append(b, make([]byte, -len(b)&(nlAlign-1))...)
}

// attribute is an attribute of a message.
func attribute(kind uint16, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(attrHeader+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	return append(b, make([]byte, -len(b)&(nlAlign-1))...)
}

// told is a socket as the kernel tells it: established, IPv4, with the ports.
func told(local, remote uint16, attributes ...[]byte) []byte {
	b := make([]byte, diagSize)
	b[diagFamily], b[diagState] = afINET, kEstablished
	binary.BigEndian.PutUint16(b[diagSPort:], local)
	binary.BigEndian.PutUint16(b[diagDPort:], remote)
	for _, a := range attributes {
		b = append(b, a...)
	}
	return b
}

// info is a tcp_info of n bytes, each word of which is its offset.
func info(n int) []byte {
	b := make([]byte, (n+3)&^3)
	for i := 0; i+4 <= len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], uint32(i))
	}
	return attribute(attrInfo, b[:n])
}

// walk goes through a datagram as a cursor does.
func walk(text string, datagram []byte) (records []tcpstats.Record, p reply, w tcpstats.Walked, err error) {
	b, p, w, err := appended(text, datagram)
	for len(b) > 0 {
		var r tcpstats.Record
		n, derr := r.Decode(b)
		if derr != nil {
			panic(derr)
		}
		b, records = b[n:], append(records, r)
	}
	return records, p, w, err
}

// appended is walk with the records as they go to a client.
func appended(text string, datagram []byte) (b []byte, p reply, w tcpstats.Walked, err error) {
	f, perr := tcpstats.Parse(text)
	if perr != nil {
		panic(perr)
	}
	c := &cursor{matcher: f.Matcher(), fields: f.Fields, format: f.Format}
	c.record.Reset(tcpstats.Host)
	p = reply{rest: datagram, seq: 7}
	for {
		diag, attributes, ok, nerr := p.next()
		if !ok {
			err = nerr
			break
		}
		b, _ = c.judge(diag, attributes, b)
	}
	return b, p, c.walked, err
}

func TestReply(t *testing.T) {
	two := append(message(tcpDiagGetSock, 0, 7, told(1, 2)), message(tcpDiagGetSock, 0, 7, told(3, 4))...)
	end := message(msgDone, 0, 7, make([]byte, 4))
	records, p, w, err := walk("local_port=3", append(two, end...))
	require.NoError(t, err)
	assert.Len(t, records, 1)
	assert.True(t, p.done)
	assert.EqualValues(t, 2, w.Visited)
	assert.EqualValues(t, 1, w.SkippedAll())

	_, p, w, err = walk("", append(message(tcpDiagGetSock, 0, 6, told(1, 2)), message(msgNoop, 0, 7, nil)...))
	require.NoError(t, err)
	assert.Zero(t, w.Visited, "of another request")
	assert.False(t, p.done)

	_, p, _, err = walk("", message(tcpDiagGetSock, flagDumpIntr, 7, told(1, 2)))
	require.NoError(t, err)
	assert.True(t, p.inconsistent)

	busy := int32(-int(syscall.EBUSY))
	var refused *RefusedError
	_, _, _, err = walk("", message(msgError, 0, 7, binary.NativeEndian.AppendUint32(nil, uint32(busy))))
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, syscall.EBUSY, refused.Errno)
	_, _, _, err = walk("", message(msgDone, 0, 7, binary.NativeEndian.AppendUint32(nil, uint32(busy))))
	require.ErrorIs(t, err, syscall.EBUSY, "a dump that ends with an error")

	for name, b := range map[string][]byte{
		"cut":               two[:len(two)-4],
		"a header cut":      two[:nlHeader-1],
		"a size of nothing": make([]byte, nlHeader),
		"a short socket":    message(tcpDiagGetSock, 0, 7, told(1, 2)[:diagSize-1]),
		"overrun":           message(msgOverrun, 0, 7, nil),
		"another type":      message(99, 0, 7, nil),
		"an end of nothing": message(msgDone, 0, 7, nil),
	} {
		_, _, _, err := walk("", b)
		assert.ErrorIs(t, err, ErrReply, name)
	}
}

// TestOlderKernels: what a kernel's tcp_info does not have is absent, and no zero.
func TestOlderKernels(t *testing.T) {
	for _, n := range []int{0, 4, 100, 104, 120, 144, 152, 160, 168, 192, 208, 224, 228, 232, 236, 240, 248, 280, 400} {
		var attributes [][]byte
		if n > 0 {
			attributes = append(attributes, info(n))
		}
		records, _, _, err := walk("fields=all", message(tcpDiagGetSock, 0, 7, told(1, 2, attributes...)))
		require.NoError(t, err)
		require.Len(t, records, 1)
		r := &records[0]
		for _, l := range late {
			want := n >= l.end
			if l.field == tcpstats.FieldPacingRate || l.field == tcpstats.FieldMaxPacingRate {
				want = want && n >= infoTotalRetrans+4
			}
			assert.Equal(t, want, r.Has(l.field), "%d bytes: field %#x ends at %d", n, uint32(l.field), l.end)
		}
		assert.Equal(t, n >= infoTotalRetrans+4, r.Has(tcpstats.FieldRTO), n)
		if n >= infoSndWnd+4 {
			v, _ := r.Uint(tcpstats.FieldSndWnd)
			assert.EqualValues(t, infoSndWnd, v)
		}
	}
}

// TestNothingStays: a record, whose bytes are those of the socket before until they are
// written again, has nothing of that one: it is the same as when it is the first.
func TestNothingStays(t *testing.T) {
	in := func(state byte, body []byte) []byte {
		body[diagState] = state
		return body
	}
	cong := func(name string) []byte { return attribute(attrCong, []byte(name)) }
	ulp := func(name string) []byte { return attribute(attrULPInfo, attribute(ulpName, []byte(name))) }
	mem := make([]byte, memSize)
	for i := range mem {
		mem[i] = 0xa5
	}
	loaded := told(1, 2, attribute(attrMark, []byte{1, 2, 3, 4}), attribute(attrSKMemInfo, mem), info(280), cong("cubic\x00"), ulp("tls\x00"))
	for i := diagSrc; i < diagSize; i++ {
		loaded[i] |= 0x11
	}
	loaded[diagTimer], loaded[diagRetrans] = 1, 5
	six := told(3, 4, info(252))
	six[diagFamily], six[diagSrc], six[diagDst] = afINET6, 0x20, 0x20
	sockets := map[string][]byte{
		"with everything":        loaded,
		"with another algorithm": told(1, 2, attribute(attrMark, []byte{4, 3, 2, 1}), attribute(attrSKMemInfo, mem), info(280), cong("vegas\x00"), ulp("ktl\x00")),
		"with a shorter name":    told(1, 2, cong("lp\x00")),
		"with a long name":       told(1, 2, cong("sixteen and more of a name\x00")),
		"with a name like it":    told(1, 2, cong("sixteen and more of another\x00")),
		"with an empty name":     told(1, 2, cong("\x00")),
		"with no name's bytes":   told(1, 2, cong("")),
		"with an unended name":   told(1, 2, cong("cubic")),
		"of few attributes":      told(5, 6, info(232)),
		"of an old kernel":       told(5, 6, info(104)),
		"of IPv6":                six,
		"that waits":             in(kTimeWait, told(7, 8)),
		"that listens":           in(kListen, told(9, 0, attribute(attrSKMemInfo, mem), info(280), cong("cubic\x00"))),
		"that is half open":      in(kNewSynRecv, told(10, 11)),
		"that is bound":          in(kBoundInactive, told(12, 0)),
	}
	for name, body := range sockets {
		alone, _, _, err := appended("fields=all format=full", message(tcpDiagGetSock, 0, 7, body))
		require.NoError(t, err)
		require.Len(t, alone, tcpstats.FullSize)
		for other, first := range sockets {
			datagram := append(message(tcpDiagGetSock, 0, 7, first), message(tcpDiagGetSock, 0, 7, body)...)
			both, _, _, err := appended("fields=all format=full", datagram)
			require.NoError(t, err)
			require.Len(t, both, 2*tcpstats.FullSize)
			assert.Equal(t, alone, both[tcpstats.FullSize:], "a socket %s after one %s", name, other)
		}
	}
}

// FuzzReply: whatever a datagram has, it is refused, or every record of it decodes, and
// each visited message was appended or skipped.
func FuzzReply(f *testing.F) {
	f.Add(append(message(tcpDiagGetSock, 0, 7, told(1, 2, info(280), attribute(attrCong, []byte("cubic\x00")), attribute(attrSKMemInfo, make([]byte, memSize)))), message(msgDone, 0, 7, make([]byte, 4))...))
	f.Add(message(msgError, 0, 7, []byte{0xf0, 0xff, 0xff, 0xff}))
	f.Add(message(tcpDiagGetSock, 0, 7, told(3, 4, info(8), attribute(attrULPInfo, attribute(ulpName, []byte("tls"))), attribute(attrMark, []byte{1, 0, 0, 0}))))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, text := range []string{"fields=all format=full", "local_port=1 ipv4_only"} {
			records, _, w, _ := walk(text, b)
			assert.EqualValues(t, len(records), w.Appended)
			assert.Equal(t, w.Visited, w.Appended+w.SkippedAll())
		}
	})
}
