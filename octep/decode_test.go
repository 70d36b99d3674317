package octep

import (
	"testing"

	"github.com/stretchr/testify/require"

	"oxpd/octep/csr"
	"oxpd/ring/wire"
)

// FuzzDecodeScratch: every word is in exactly one state, only the magic makes it
// ready, and an offset that is accepted is one of a barmap that may be read.
func FuzzDecodeScratch(f *testing.F) {
	for _, v := range []uint64{
		0, csr.AllOnes, csr.ScratchMagic, csr.BAR2Facilities<<32 | csr.ScratchMagic, csr.BAR2Interrupt<<32 | csr.ScratchMagic,
		csr.ScratchQueuesUp, 0x0000abcd, 0xabcdabcc, 1, 2, // those of known bug CTL-2
	} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v uint64) {
		state, at := DecodeScratch(v)
		require.NotEmpty(t, state.String())
		require.Equal(t, v != csr.AllOnes && uint32(v) == csr.ScratchMagic, state == ScratchReady)
		if state != ScratchReady {
			require.Zero(t, at, "an offset only with the magic")
			return
		}
		require.Equal(t, v, uint64(at)<<32|csr.ScratchMagic)
		if checkPointer(at) == nil {
			require.LessOrEqual(t, uint64(at)+csr.BarmapSize, uint64(csr.BAR2FacEnd))
			require.Zero(t, at%4)
		}
	})
}

// FuzzRingInfo: the four fields are those of the register, and what is accepted
// has the rings that the fast path sends to, all of them the host's.
func FuzzRingInfo(f *testing.F) {
	for _, v := range []uint64{0, csr.AllOnes, csr.RInfoReset, 0x0008000100400000, 0x00400008, 7 << 16, 8 << 16} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v uint64) {
		i, err := checkRingInfo(v)
		require.Equal(t, i, DecodeRingInfo(v))
		require.Equal(t, RingInfo{SRN: int(v & 0x7f), TRS: int(v >> 16 & 0xff), RPVF: int(v >> 32 & 0x1f), NVFS: int(v >> 48 & 0x7f)}, i)
		if err == nil {
			require.Equal(t, RingInfo{TRS: i.TRS}, i)
			require.GreaterOrEqual(t, i.TRS, wire.OQs)
			return
		}
		var re *RingInfoError
		require.ErrorAs(t, err, &re)
		require.Equal(t, v, re.Value)
		require.NotEmpty(t, re.Reason)
	})
}

// FuzzHandshakeWord: no word is taken for two, and only 0, an offer of the host
// and the bitmap leave nobody waiting.
func FuzzHandshakeWord(f *testing.F) {
	for _, v := range []uint64{
		0, csr.HostLoaded, csr.GetHostInfo, InfoWord(), csr.HostInfoReceived<<16 | 800, csr.HandshakeCompleted, 1, csr.StartedPorts,
		csr.StartedPorts + 1, csr.HostLoaded | 1<<32, csr.AllOnes,
	} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v uint64) {
		var want word
		switch {
		case v == 0:
			want = wordIdle
		case v == 0xdeadbeef:
			want = wordOffer
		case v == 0xbeefdeed:
			want = wordAsk
		case v == 0x0000020008000000:
			want = wordInfo
		case v>>16 == 0xdeadde:
			want = wordReply
		case v == 0xdeeddeed:
			want = wordCompleted
		case v < 0x10000:
			want = wordStarted
		default:
			want = wordForeign
		}
		require.Equal(t, want, sortWord(v))
	})
}
