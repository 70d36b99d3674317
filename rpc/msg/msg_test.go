package msg

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// vector reads testdata/name.hex: hexadecimal bytes, comments after #.
func vector(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".hex"))
	require.NoError(t, err)
	require.True(t, bytes.HasPrefix(text, []byte("# ")), "a vector opens with its source")
	var digits strings.Builder
	for _, line := range strings.Split(string(text), "\n") {
		line, _, _ = strings.Cut(line, "#")
		digits.WriteString(strings.Join(strings.Fields(line), ""))
	}
	b, err := hex.DecodeString(digits.String())
	require.NoError(t, err)
	return b
}

type codec interface {
	Append(b []byte) []byte
}

// decoder is what every fixed-size message has on its pointer.
type decoder[T any] interface {
	*T
	Decode(b []byte) error
}

// golden checks that value and vector are each other's encoding, and that one
// byte less is refused.
func golden[T codec, P decoder[T]](t *testing.T, name string, want T) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		b := vector(t, name)
		require.Equal(t, b, want.Append(nil))
		require.Equal(t, append([]byte{0xee}, b...), want.Append([]byte{0xee}), "appends behind what is there")
		var got T
		require.NoError(t, P(&got).Decode(b))
		require.Equal(t, want, got)
		require.ErrorIs(t, P(&got).Decode(b[:len(b)-1]), ErrShort)
	})
}

func f1(mtu uint16) LIF {
	return LIF{MAC: [6]byte{2, 0, 0, 0, 0, 0x0a}, MTU: mtu, Fwd: FwdL3}
}

func TestGolden(t *testing.T) {
	golden(t, "descriptor", Descriptor{Addr: 0x1_8000_0000, Len: LIFSize, Flags: FlagNoAggDMA})
	golden(t, "reply_head", Response{RC: RCOK, Done: 1, Seed: 3, Len: LIFEntrySize})
	golden(t, "table_read_sys", TableRead{Start: 0, Num: CountersSys, End: CountersSys - 1})
	golden(t, "lif_create_f1", LIFUpdateReq{Index: 40960, LIF: f1(1500), Mask: MaskCreate})
	golden(t, "lif_mtu_f1_9000", LIFUpdateReq{Index: 40960, LIF: f1(9000), Mask: MaskMTU})
	golden(t, "lif_all_fields", LIFUpdateReq{
		Index: 45056,
		LIF: LIF{MAC: [6]byte{10, 11, 12, 13, 14, 15}, MTU: 28, Fwd: FwdBoth, AdminDisabled: true,
			OffloadDisabled: true, Representor: 4095, DF: true},
		Mask: MaskMAC | MaskMTU | MaskFwd | MaskAdmin | MaskOffload | MaskRepresentor,
	})
	golden(t, "pport_port1", PPort{Iface: 0, Tag: 0x8100})
	golden(t, "pport_f4", PPort{Iface: 9, Tag: 0x8a00})
	golden(t, "nwa_get_mac_f4", NWARequestMsg{Op: OpGet, Sub: uint32(AttrMAC), Port: 0x8a00})
	golden(t, "nwa_set_mac_port1", NWARequestMsg{Op: OpSet, Sub: uint32(AttrMAC), Port: 0x8100, Payload: [2]uint32{2, 0x0200}})
	golden(t, "platform", Platform{
		Platform: "XGS_1US", Version: "UNKNOWN_VERSION", Assembly: "AMDA0202-0004",
		ID: 2, Cores: 20, MaxIfaces: 128, Rings: 1, MFlowTimeout: 10, ConnTimeout: 5,
		MaxConns: 2_000_000, MaxNHops: 65536, MaxFWRules: 65536, MFlows: 4_001_450,
	})
}

func TestGoldenConfigWord(t *testing.T) {
	for name, want := range map[string]ConfigWord{
		"config_idle":         {Done: 1},
		"config_acknowledged": {Magic: ConfigMagic, Revision: 1, Done: 1},
	} {
		t.Run(name, func(t *testing.T) {
			word := binary.LittleEndian.Uint64(vector(t, name))
			require.Equal(t, want, UnpackConfig(word))
			require.Equal(t, word, want.Word())
		})
	}
	require.Equal(t, uint64(ConfigIdle), ConfigWord{Done: 1}.Word())
	require.Equal(t, uint64(0x01000001D7D3AB00), ConfigWord{Magic: ConfigMagic, Revision: 1, Done: 1}.Word())
	require.Equal(t, uint64(0x0104_8001_D7D3_AB00), ConfigWord{Magic: ConfigMagic, Revision: 0x8001, HiRings: 4, Done: 1}.Word(),
		"a field with its top bit set stays in its place")
}

func TestGoldenRequest(t *testing.T) {
	got := AppendRequest(nil, CmdPlatformRead, TableRead{Num: 1}.Append(nil))
	require.Equal(t, vector(t, "request_platform"), got)
}

func TestGoldenLIFEntry(t *testing.T) {
	b := vector(t, "lif_entry_port1")
	want := LIF{MAC: [6]byte{2, 0, 0, 0, 0, 2}, MTU: 1500, Fwd: FwdL3, Representor: 4095, DF: true}
	require.Equal(t, b, want.AppendEntry(nil))
	var got LIF
	require.NoError(t, got.DecodeEntry(b))
	require.Equal(t, want, got)
	require.ErrorIs(t, got.DecodeEntry(b[:LIFEntrySize-1]), ErrShort, "the 12-byte entry of the ARMADA board")
}

func TestGoldenDiscover(t *testing.T) {
	b := vector(t, "nwa_discover")
	require.Len(t, b, DiscoverSize-NWAReplyHdr)
	count, ports, err := DecodeDiscover(b)
	require.NoError(t, err)
	require.Equal(t, uint32(14), count)
	require.Len(t, ports, 13, "the 14th record is zero")
	require.Equal(t, NWAPort{Tag: 1, Manageable: true, MaxUnicast: 65535, MTU: 9182}, ports[0], "word 65535<<16 + 9182")
	require.Equal(t, NWAPort{Tag: 0x8000, MaxUnicast: 0, MTU: 9182}, ports[2], "the uplink lacks the flag")
	require.Equal(t, NWAPort{Tag: 0x8a00, Manageable: true, MaxUnicast: 12, MTU: 9182}, ports[12])
	require.Equal(t, b, AppendDiscover(nil, count, ports))
}

func TestDiscoverCountIsBounded(t *testing.T) {
	for name, b := range map[string][]byte{
		"no count word":                 {14, 0, 0},
		"one record past the end":       append([]byte{2, 0, 0, 0}, make([]byte, 39)...),
		"a count of 2^32 - 1":           {0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4},
		"a count whose bytes wrap 2^32": {0xcd, 0xcc, 0xcc, 0x0c, 1, 2, 3, 4},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := DecodeDiscover(b)
			require.Error(t, err)
		})
	}
}

func TestRC(t *testing.T) {
	require.NoError(t, RCOK.Err())
	for _, tc := range []struct {
		name  string
		rc    RC
		errno syscall.Errno
		text  string
	}{
		{"refusal", 1, 0, "rc 1: refused"},
		{"last code of the fast path", 20, 0, "rc 20: refused by the fast path, meaning unknown"},
		{"first errno", 21, syscall.EPERM, "rc 21: handler: operation not permitted"},
		{"EAGAIN", 31, syscall.EAGAIN, "rc 31: handler: resource temporarily unavailable"},
		{"transport EINVAL", 0x8016, syscall.EINVAL, "rc 0x8016: transport: invalid argument, the command was not run"},
		{"transport without errno", 0x8000, 0, "rc 0x8000: transport: errno 0, the command was not run"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := tc.rc.Err()
			var rc *RCError
			require.ErrorAs(t, err, &rc)
			require.Equal(t, tc.errno, rc.Errno())
			require.Equal(t, tc.text, err.Error())
			if tc.errno != 0 {
				require.ErrorIs(t, err, tc.errno)
			} else {
				require.NoError(t, errors.Unwrap(err))
			}
		})
	}
}

// The second transcription of rpc-lif.md 6.1.
func TestCounterNames(t *testing.T) {
	f, err := os.Open(filepath.Join("testdata", "counters.txt"))
	require.NoError(t, err)
	defer f.Close()
	next := 0
	for s := bufio.NewScanner(f); s.Scan(); {
		if strings.HasPrefix(s.Text(), "#") {
			continue
		}
		index, name, _ := strings.Cut(s.Text(), " ")
		i, err := strconv.Atoi(index)
		require.NoError(t, err)
		require.Equal(t, next, i)
		require.Equal(t, name, CounterNames[i], "counter %d", i)
		next++
	}
	require.Equal(t, CountersSys, next)
}

// The named indices lead to the names in their comments.
func TestNamedCounters(t *testing.T) {
	for i, name := range map[int]string{
		CntRXWire: "RX_WIRE", CntTXWire: "TX_WIRE", CntRXKN: "RX_KN", CntRXBadPortType: "RX_BAD_PORT_TYPE",
		CntTXDrop: "TX_DROP", CntTXDropQueueFull: "TX_DROP_QUEUE_FULL", CntTXKN: "TX_KN", CntRXKNErr: "RX_KN_ERR",
		CntTXWireErr: "TX_WIRE_ERR", CntDropLIFIndexInvalid: "FROM_WIRE_DROP_LIF_INDEX_INVALID",
		CntDropLIFLookupNull: "FROM_WIRE_DROP_LIF_LU_NULL", CntDropLIFInvalid: "FROM_WIRE_DROP_LIF_INVALID",
		CntDropLIFAdminDisabled: "FROM_WIRE_DROP_LIF_ADMIN_DISABLED", CntDropLIFNotMyMAC: "FROM_WIRE_DROP_LIF_NOT_MY_MAC",
		CntDropMTUExceeded: "FROM_WIRE_DROP_MTU_EXCEEDED", CntDropIGErr: "FROM_WIRE_DROP_IG_ERR",
		CntToKNOffloadDisabled: "FROM_WIRE_TO_KN_LIF_OFFLOAD_DISABLED", CntToKNForced: "FROM_WIRE_TO_KN_FORCED",
		CntFromKNDropPrepErr: "FROM_KN_DROP_PREP_ERR", CntFromKNDropCmsg: "FROM_KN_DROP_CMSG",
		CntFromKNProcCmsg: "FROM_KN_PROC_CMSG", CntFromKNDropNoMetadata: "FROM_KN_DROP_NO_METADATA",
		CntFromKNToWire: "FROM_KN_TO_WIRE", CntFromKNToIPsecEncr: "FROM_KN_TO_IPSEC_ENCR",
		CntCryptoDropSAUnavailable: "CRYPTO_DROP_SA_UNAVAILABLE", CntCryptoDropProtoErr: "CRYPTO_DROP_PROTO_ERR",
	} {
		require.Equal(t, name, CounterNames[i], "index %d", i)
	}
}

// The table of rpc-lif.md 4, column by column.
func TestCommandNames(t *testing.T) {
	for n, name := range map[Command]string{
		0: "FW_STATE_REV_SET", 2: "FW_CFG_PARAMS_SET", 3: "LIF_ADD_UPDATE", 4: "LIF_DELETE", 5: "PPORT_UPDATE",
		6: "NHOP_PROGRAM", 16: "CONN_RECLAIM_FP", 17: "CONN_GET_FP_TCP_STATE", 29: "DOS_CLEAR_BLACKLIST", 30: "SA_ADD",
		33: "SA_REPLAY_UPDATE", 34: "SA_SEQ_UPDATE", 35: "SA_HOST_STAT_SYNC", 36: "PLATFORM_READ", 37: "LO_LIF_READ",
		38: "LO_CONN_READ", 39: "LO_NHOP_READ", 40: "LO_MFLOW_READ", 41: "LO_LUID_READ", 42: "LO_SA_READ",
		43: "LO_WORKER_DBG_CNT_READ", 44: "LO_WORKER_SYS_CNT_READ", 45: "LO_WORKER_PORT_CNT_READ", 46: "LO_WORKER_DF_CNT_READ",
		47: "LO_WORKER_DBG_CNT_CLEAR", 50: "LO_WORKER_DF_CNT_CLEAR", 51: "command 51", 255: "command 255",
	} {
		require.Equal(t, name, n.String())
	}
}

func TestAttrString(t *testing.T) {
	require.Equal(t, "FEC (0x0b)", AttrFEC.String())
	require.Equal(t, "all-multicast (0x46)", AttrAllMulti.String())
	require.Equal(t, "attribute 0x99", Attr(0x99).String())
}

func TestDecodeCounters(t *testing.T) {
	b := binary.LittleEndian.AppendUint64(nil, 1<<63+5)
	b = binary.LittleEndian.AppendUint64(b, 7)
	var one [1]uint64
	require.Equal(t, 1, DecodeCounters(one[:], b), "the room decides")
	require.Equal(t, uint64(1<<63+5), one[0])
	var three [3]uint64
	require.Equal(t, 1, DecodeCounters(three[:], b[:15]), "half a counter is none")
}

// identity fuzzes one decoder: it does not panic, what it decodes is a fixed
// point, and it takes exactly the inputs that are long enough.
func identity[T interface {
	comparable
	codec
}, P decoder[T]](f *testing.F, size int, seeds ...string) {
	for _, s := range seeds {
		f.Add(vector(f, s))
	}
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{0xff}, size))
	f.Fuzz(func(t *testing.T, b []byte) {
		var v, again T
		if err := P(&v).Decode(b); err != nil {
			require.ErrorIs(t, err, ErrShort)
			require.Less(t, len(b), size)
			return
		}
		require.GreaterOrEqual(t, len(b), size)
		out := v.Append(nil)
		require.Len(t, out, size)
		require.NoError(t, P(&again).Decode(out))
		require.Equal(t, v, again)
	})
}

func FuzzDescriptor(f *testing.F) { identity[Descriptor](f, DescSize, "descriptor") }
func FuzzResponse(f *testing.F)   { identity[Response](f, HeaderSize, "reply_head") }
func FuzzTableRead(f *testing.F)  { identity[TableRead](f, TableReadSize, "table_read_sys") }
func FuzzPPort(f *testing.F)      { identity[PPort](f, PPortSize, "pport_port1", "pport_f4") }
func FuzzPlatform(f *testing.F)   { identity[Platform](f, PlatformSize, "platform") }
func FuzzNWARequest(f *testing.F) {
	identity[NWARequestMsg](f, NWAReqSize, "nwa_get_mac_f4", "nwa_set_mac_port1")
}
func FuzzLIFUpdateReq(f *testing.F) {
	identity[LIFUpdateReq](f, LIFSize, "lif_create_f1", "lif_mtu_f1_9000", "lif_all_fields")
}

func FuzzLIFEntry(f *testing.F) {
	f.Add(vector(f, "lif_entry_port1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var v, again LIF
		if v.DecodeEntry(b) != nil {
			require.Less(t, len(b), LIFEntrySize)
			return
		}
		out := v.AppendEntry(nil)
		require.Len(t, out, LIFEntrySize)
		require.NoError(t, again.DecodeEntry(out))
		require.Equal(t, v, again)
	})
}

func FuzzConfigWord(f *testing.F) {
	f.Add(uint64(ConfigIdle))
	f.Add(uint64(0x01000001D7D3AB00))
	f.Fuzz(func(t *testing.T, w uint64) { require.Equal(t, w, UnpackConfig(w).Word()) })
}

func FuzzCounters(f *testing.F) {
	f.Add([]byte{}, 1)
	f.Add(bytes.Repeat([]byte{0xff}, 8*CountersSys), CountersSys)
	f.Add(make([]byte, 17), 3)
	f.Fuzz(func(t *testing.T, b []byte, room int) {
		const untouched = 0x5555555555555555
		dst := make([]uint64, min(uint(room), 4096))
		for i := range dst {
			dst[i] = untouched
		}
		n := DecodeCounters(dst, b)
		require.Equal(t, min(len(dst), len(b)/8), n)
		var out []byte
		for _, v := range dst[:n] {
			out = le.AppendUint64(out, v)
		}
		require.True(t, bytes.Equal(b[:8*n], out))
		for _, v := range dst[n:] {
			require.Equal(t, uint64(untouched), v, "past what there was")
		}
	})
}

func FuzzDiscover(f *testing.F) {
	f.Add(vector(f, "nwa_discover"))
	f.Fuzz(func(t *testing.T, b []byte) {
		count, ports, err := DecodeDiscover(b)
		if err != nil || len(b) > DiscoverSize-NWAReplyHdr {
			return
		}
		require.LessOrEqual(t, len(ports)*DiscoverWord*4+4, len(b))
		out := AppendDiscover(nil, count, ports)
		require.Len(t, out, DiscoverSize-NWAReplyHdr)
		again, same, err := DecodeDiscover(out)
		require.NoError(t, err)
		require.Equal(t, count, again)
		require.Equal(t, ports, same)
	})
}
