package inetdiag

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/tcpstats"
)

// audited is the kernel's check of a program (inet_diag_bc_audit), in its order.
func audited(code []byte) error {
	for at := 0; at < len(code); {
		left := len(code) - at
		if left < opSize {
			return fmt.Errorf("at %d: half an operation", at)
		}
		least := opSize
		switch code[at] {
		case opSCond, opDCond:
			if least += condSize; left < least {
				return fmt.Errorf("at %d: half a condition", at)
			}
			size, most := 16, 128
			switch code[at+opSize] {
			case afINET:
				size, most = 4, 32
			case afINET6:
			default:
				return fmt.Errorf("at %d: family %d", at, code[at+opSize])
			}
			if least += size; left < least {
				return fmt.Errorf("at %d: half an address", at)
			}
			if int(code[at+opSize+1]) > most {
				return fmt.Errorf("at %d: prefix", at)
			}
		case opSEQ, opDEQ:
			if least += opSize; left < least {
				return fmt.Errorf("at %d: no port", at)
			}
		case opJmp:
		default:
			return fmt.Errorf("at %d: operation %d", at, code[at])
		}
		yes, no := int(code[at+1]), int(binary.NativeEndian.Uint16(code[at+2:]))
		if no < least || no > left+4 || no%4 != 0 {
			return fmt.Errorf("at %d: no goes %d on, of %d", at, no, left)
		}
		if no < left && !starts(code, at+no) {
			return fmt.Errorf("at %d: no goes into the midst of an operation", at)
		}
		if yes < least || yes > left+4 || yes%4 != 0 {
			return fmt.Errorf("at %d: yes goes %d on, of %d", at, yes, left)
		}
		at += yes
		if at > len(code) {
			return fmt.Errorf("at %d of %d", at, len(code))
		}
	}
	return nil
}

// starts tells whether an operation begins at an offset (valid_cc).
func starts(code []byte, want int) bool {
	at := 0
	for at < want && code[at+1] >= opSize && code[at+1]%4 == 0 {
		at += int(code[at+1])
	}
	return at == want
}

// runs is what the kernel's interpreter says of a socket (inet_diag_bc_run).
func runs(code []byte, diag []byte) bool {
	at := 0
	for at < len(code) {
		yes := true
		switch op := code[at]; op {
		case opJmp:
			yes = false
		case opSEQ:
			yes = binary.BigEndian.Uint16(diag[diagSPort:]) == binary.NativeEndian.Uint16(code[at+opSize+2:])
		case opDEQ:
			yes = binary.BigEndian.Uint16(diag[diagDPort:]) == binary.NativeEndian.Uint16(code[at+opSize+2:])
		case opSCond, opDCond:
			addr := diag[diagSrc : diagSrc+16]
			if op == opDCond {
				addr = diag[diagDst : diagDst+16]
			}
			cond := code[at+opSize:]
			bits, want := int(cond[1]), cond[condSize:]
			switch {
			case cond[0] == diag[diagFamily]:
				yes = leads(addr, want, bits)
			case diag[diagFamily] == afINET6 && cond[0] == afINET:
				yes = leads(addr, []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}, 96) && leads(addr[12:], want, bits)
			default:
				yes = false
			}
		}
		if yes {
			at += int(code[at+1])
		} else {
			at += int(binary.NativeEndian.Uint16(code[at+2:]))
		}
	}
	return at == len(code)
}

// leads tells whether the first bits of two texts are the same.
func leads(a, b []byte, bits int) bool {
	for i := range bits {
		if (a[i/8]^b[i/8])>>(7-i%8)&1 != 0 {
			return false
		}
	}
	return true
}

func filterOf(t *testing.T, text string) *tcpstats.Filter {
	t.Helper()
	f, err := tcpstats.Parse(text)
	require.NoError(t, err, text)
	return &f
}

// TestProgram: ST-1. The program of each directive alone byte by byte, and of the largest
// combination in its size; the kernel's check lets each pass, and twice the same filter is
// twice the same program.
func TestProgram(t *testing.T) {
	const most = "local_port=1,2,3,4,5,6,7,65535 remote_port=8,9,10,11,12,13,14,15 include_state=listen,established local_addr=2001:db8::/127 remote_addr=2001:db8:1::/64 ipv6_only"
	little := binary.NativeEndian.Uint16([]byte{1, 0}) == 1
	for text, want := range map[string]string{
		"":                            "",
		"exclude=listen":              "", // the states are in the request
		"local_port=443":              "0b080c00 0000bb01",
		"remote_port=80,443":          "0c080c00 00005000 01040c00 0c080c00 0000bb01",
		"ipv4_only":                   "07101400 02000000 ffffffff 00000000",
		"ipv6_only":                   "07101400 02000000 ffffffff 00000000 01040800",
		"local_addr=10.0.0.0/8":       "07102400 02000000 ffffffff 00000000 07101400 02080000 ffffffff 0a000000",
		"remote_addr=192.0.2.1":       "07102400 02000000 ffffffff 00000000 08101400 02200000 ffffffff c0000201",
		"remote_addr=2001:db8::1/128": "07101400 02000000 ffffffff 00000000 01042400 081c2000 0a800000 ffffffff 20010db8 00000000 00000000 00000001",
		most:                          "",
	} {
		f := filterOf(t, text)
		code := program(f)
		assert.NoError(t, audited(code), text)
		assert.Equal(t, code, program(f), text)
		if want != "" && little {
			assert.Equal(t, strings.ReplaceAll(want, " ", ""), hex.EncodeToString(code), text)
		}
		d, _ := plan(&tcpstats.Query{Filter: *f})
		assert.Equal(t, d.append(nil, 7), d.append(nil, 7), text)
		assert.LessOrEqual(t, len(code), 1000, text)
	}
	assert.Empty(t, program(filterOf(t, "exclude=listen")))
	const ports, family, prefixes = 2 * (8*8 + 7*4), 16 + 4, 2 * 28
	assert.Len(t, program(filterOf(t, most)), family+ports+prefixes)
	assert.Error(t, audited([]byte{opJmp, 4, 3, 0}), "the check of this test checks")
	assert.Error(t, audited([]byte{opJmp, 8, 8, 0}))
}

// TestProgramIsTheFilter: what the kernel leaves out of each program is what does not match,
// and nothing else.
func TestProgramIsTheFilter(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 1))
	pick := func(of ...string) string { return of[rng.IntN(len(of))] }
	addresses := [][]byte{
		{10, 0, 0, 1}, {10, 0, 0, 2}, {192, 0, 2, 1}, {0, 0, 0, 0},
		{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1}, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1},
		{0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, {0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2}, make([]byte, 16),
	}
	matched := 0
	for range 4000 {
		var words []string
		for _, w := range []string{
			pick("", "", "local_port=22", "local_port=22,80,443", "local_port=443,1"), pick("", "", "remote_port=22", "remote_port=80,1000"),
			pick("", "", "local_addr=10.0.0.0/31", "local_addr=0.0.0.0/0", "local_addr=2001:db8::/47", "local_addr=::/0", "local_addr=::ffff:a00:1", "local_addr=::"),
			pick("", "", "remote_addr=10.0.0.2", "remote_addr=192.0.0.0/8", "remote_addr=2001:db8::/32", "remote_addr=::ffff:0:0/96"),
			pick("", "", "ipv4_only", "ipv6_only"),
		} {
			if w != "" {
				words = append(words, w)
			}
		}
		f, err := tcpstats.Parse(strings.Join(words, " "))
		if err != nil {
			continue // its families contradict each other
		}
		code, m := program(&f), f.Matcher()
		require.NoError(t, audited(code), "%v", words)
		for range 50 {
			port := func() uint16 { return []uint16{22, 80, 443, 1000}[rng.IntN(4)] }
			diag := told(port(), port())
			local := addresses[rng.IntN(len(addresses))]
			remote := addresses[rng.IntN(len(addresses))]
			mapped := func(a []byte) bool { return len(a) == 16 && a[10] == 0xff }
			if len(local) != len(remote) || mapped(local) != mapped(remote) {
				continue // no socket has that
			}
			if len(local) == 16 {
				diag[diagFamily] = afINET6
			}
			copy(diag[diagSrc:], local)
			copy(diag[diagDst:], remote)
			var s socket
			var e tcpstats.Ends
			s.diag = (*[diagSize]byte)(diag)
			require.True(t, s.ends(&e))
			want := m.Ask(&e) == tcpstats.Match
			if want {
				matched++
			}
			got := runs(code, diag)
			if f.Families() == 0 {
				d, _ := plan(&tcpstats.Query{Filter: f})
				require.Nil(t, d, "%v: nothing lies in two families, and the kernel is not asked", words)
				require.False(t, want)
				continue
			}
			require.Equal(t, want, got, "%v: %v to %v", words, local, remote)
		}
	}
	assert.Greater(t, matched, 3000)
}

// TestOrderOfDirectives: ST-2. In whatever order, it is the same filter and the same request.
func TestOrderOfDirectives(t *testing.T) {
	w := [3]string{"include_state=listen", "ipv4_only", "local_port=22"}
	first := filterOf(t, strings.Join(w[:], " "))
	d, pushed := plan(&tcpstats.Query{Filter: *first})
	assert.EqualValues(t, 1<<kListen, d.states)
	assert.Equal(t, tcpstats.PushedFamily|tcpstats.PushedState|tcpstats.PushedPort, pushed)
	for _, o := range [][3]int{{0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		f := filterOf(t, w[o[0]]+" "+w[o[1]]+" "+w[o[2]])
		assert.Equal(t, first, f)
		assert.Equal(t, first.String(), f.String())
		again, _ := plan(&tcpstats.Query{Filter: *f})
		assert.Equal(t, d.append(nil, 7), again.append(nil, 7))
	}
}

// TestErrorsInTheEnd: ST-3. A dump that failed is no empty one.
func TestErrorsInTheEnd(t *testing.T) {
	for payload, want := range map[int32]error{-2: syscall.ENOENT, -22: syscall.EINVAL, 0: nil} {
		records, p, _, err := walk("", message(msgDone, 0, 7, binary.NativeEndian.AppendUint32(nil, uint32(payload))))
		assert.ErrorIs(t, err, want)
		assert.Empty(t, records)
		assert.True(t, p.done)
	}
	_, p, _, err := walk("", message(msgDone, 0, 7, nil))
	assert.ErrorIs(t, err, ErrReply, "nobody knows whether it failed")
	assert.True(t, p.done)
}

// TestStatesThatAreNotKnown: ST-5. What the kernel may come to have is counted, and the rest
// of the reply is read.
func TestStatesThatAreNotKnown(t *testing.T) {
	var b []byte
	for _, state := range []byte{0, kNewSynRecv, kBoundInactive, kBoundInactive + 1, 31, 255, kEstablished} {
		socket := told(uint16(state)+1, 2)
		socket[diagState] = state
		b = append(b, message(tcpDiagGetSock, 0, 7, socket)...)
	}
	records, _, w, err := walk("", b)
	require.NoError(t, err)
	var got []string
	for i := range records {
		s, ok := records[i].Uint(tcpstats.FieldState)
		require.True(t, ok)
		got = append(got, tcpstats.State(s).String())
	}
	assert.Equal(t, []string{"syn_received", "closed", "established"}, got)
	assert.EqualValues(t, 7, w.Visited)
	assert.EqualValues(t, 4, w.Skipped[tcpstats.SkipState])
	assert.Equal(t, w.Visited, w.Appended+w.SkippedAll())
}

// TestRecordsOfOtherLengths: ST-6. A tcp_info of any length is read as far as it goes, and
// what stands behind it is found.
func TestRecordsOfOtherLengths(t *testing.T) {
	for _, n := range []int{104, 192, 232, 237, 248, 320} {
		records, _, _, err := walk("fields=all", message(tcpDiagGetSock, 0, 7, told(1, 2, info(n), attribute(attrCong, []byte("cubic\x00")))))
		require.NoError(t, err)
		require.Len(t, records, 1)
		r := &records[0]
		assert.Equal(t, "cubic", r.Text(tcpstats.FieldAlgorithm), n)
		for field, end := range map[tcpstats.Field]int{
			tcpstats.FieldRTT: infoRTT + 4, tcpstats.FieldBytesAcked: infoBytesAcked + 8, tcpstats.FieldSndBufLimited: infoSndBufLimited + 8,
			tcpstats.FieldBytesSent: infoBytesSent + 8, tcpstats.FieldSndWnd: infoSndWnd + 4, tcpstats.FieldRcvWnd: infoRcvWnd + 4,
		} {
			assert.Equal(t, n >= end, r.Has(field), "%d bytes, field %#x", n, uint32(field))
		}
	}
}
