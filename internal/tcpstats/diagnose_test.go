package tcpstats

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// with is an established record with the fields.
func with(from SourceKind, fields map[Field]uint64) *Record {
	r := new(Record)
	r.Reset(from)
	r.SetUint(FieldState, uint64(Established))
	r.SetUint(FieldFamily, 4)
	for f, v := range fields {
		r.SetUint(f, v)
	}
	return r
}

// TestDiagnose has for each cause a record that shows it, and the same but for one number
// that does not.
func TestDiagnose(t *testing.T) {
	const jumbo = 9000
	for _, c := range []struct {
		name  string
		from  SourceKind
		mtu   int
		has   map[Field]uint64
		cause Cause
		text  string
		not   map[Field]uint64 // with these it shows nothing
	}{
		{"the published case: a tunnel's peer clamps to 1,406", Host, jumbo,
			map[Field]uint64{FieldSndMSS: 1394, FieldOptions: OptionTimestamps, FieldPMTU: 9000, FieldAdvMSS: 8948}, CauseMSS, "clamped the MSS to 1,406, the port's MTU of 9,000 allows 8,960",
			map[Field]uint64{FieldSndMSS: 8948}},
		{"without timestamps", Host, jumbo, map[Field]uint64{FieldSndMSS: 1406, FieldPMTU: 9000, FieldAdvMSS: 8960}, CauseMSS, "clamped the MSS to 1,406", map[Field]uint64{FieldSndMSS: 8960}},
		{"the path is narrower", Host, jumbo, map[Field]uint64{FieldSndMSS: 1460, FieldPMTU: 1500, FieldAdvMSS: 8960}, CauseMSS, "the path's MTU is 1,500", map[Field]uint64{FieldSndMSS: 8960, FieldPMTU: 9000}},
		{"IPv6", Host, jumbo, map[Field]uint64{FieldFamily: 6, FieldSndMSS: 1440, FieldPMTU: 9000, FieldAdvMSS: 8940}, CauseMSS, "allows 8,940", map[Field]uint64{FieldSndMSS: 8940}},
		{"the port is not known", Host, 0, map[Field]uint64{FieldSndMSS: 1406, FieldPMTU: 9000, FieldAdvMSS: 8960}, CauseMSS, "this end announced 8,960", map[Field]uint64{FieldAdvMSS: 1406}},
		{"an ordinary port", Host, 1500, map[Field]uint64{FieldSndMSS: 1394, FieldOptions: OptionTimestamps, FieldPMTU: 1500, FieldAdvMSS: 1448}, "", "", nil},
		{"what comes is small", Host, jumbo, map[Field]uint64{FieldSndMSS: 8960, FieldPMTU: 9000, FieldAdvMSS: 8960, FieldRcvMSS: 1394, FieldDataSegsIn: 1000, FieldBytesReceived: 1_390_000}, CauseMSS, "segments that come carry 1,394",
			map[Field]uint64{FieldBytesReceived: 200_000}},
		{"a flow's remote end clamps", Flow, jumbo, map[Field]uint64{FieldPeerMSS: 1406, FieldAdvMSS: 8960}, CauseMSS, "the remote end announced an MSS of 1,406", map[Field]uint64{FieldPeerMSS: 8960}},
		{"a flow's local end clamps", Flow, jumbo, map[Field]uint64{FieldPeerMSS: 8960, FieldAdvMSS: 1406}, CauseMSS, "the local end announced an MSS of 1,406", map[Field]uint64{FieldAdvMSS: 8960}},
		{"loss", Host, 0, map[Field]uint64{FieldRetrans: 123, FieldDataSegsOut: 4567}, CauseLoss, "123 of 4,567 segments were sent again (2.7 %)", map[Field]uint64{FieldRetrans: 45}},
		{"little was sent again", Host, 0, map[Field]uint64{FieldRetrans: 9, FieldDataSegsOut: 20}, "", "", nil},
		{"a flow's remote end loses", Flow, 0, map[Field]uint64{FieldRetransIn: 10, FieldDataSegsIn: 1000}, CauseLoss, "the remote end sent 10 of 1,000 segments again (1.0 %)", map[Field]uint64{FieldDataSegsIn: 1001}},
		{"the peer's window", Host, 0, map[Field]uint64{FieldBusy: 1_000_000, FieldRWndLimited: 200_000, FieldSndWnd: 65535}, CauseRecvWindow, "20.0 % of the time with data to send; it is 65,535 bytes", map[Field]uint64{FieldRWndLimited: 199_999}},
		{"too short to tell", Host, 0, map[Field]uint64{FieldBusy: 99_999, FieldRWndLimited: 99_999}, "", "", nil},
		{"a window that was closed", Flow, 0, map[Field]uint64{FieldZeroWindows: 1}, CauseRecvWindow, "closed its window, once", map[Field]uint64{FieldZeroWindows: 0}},
		{"probes of a closed window are no loss", Flow, 0, map[Field]uint64{FieldZeroWindows: 37, FieldRetrans: 39, FieldDataSegsOut: 804}, CauseRecvWindow, "closed its window, 37 times", map[Field]uint64{FieldZeroWindows: 0, FieldRetrans: 0}},
		{"the local end's window is closed", Flow, 0, map[Field]uint64{FieldRcvWnd: 0, FieldRetransIn: 97, FieldDataSegsIn: 3068}, CauseSlowReader, "the local end has closed its window", map[Field]uint64{FieldRcvWnd: 1000, FieldRetransIn: 0}},
		{"a send buffer that is full with what is in flight", Host, 0, map[Field]uint64{FieldWMemQueued: 67200, FieldSndBuf: 16000, FieldNotSent: 0, FieldUnacked: 8, FieldCWnd: 34, FieldAppLimited: 1, FieldDataSegsOut: 100}, CauseSendBuffer, "67,200 bytes of a limit of 16,000, and 8 of 34 segments", map[Field]uint64{FieldNotSent: 1}},
		{"a window that is full", Flow, 0, map[Field]uint64{FieldSndUna: 0xffff_fff0, FieldSndNxt: 65_000, FieldSndWnd: 65_535}, CauseRecvWindow, "65,016 bytes are in flight, and the remote end's window is 65,535", map[Field]uint64{FieldSndNxt: 50_000}},
		{"the send buffer", Host, 0, map[Field]uint64{FieldBusy: 1_000_000, FieldSndBufLimited: 900_000, FieldSndBuf: 16384}, CauseSendBuffer, "its limit is 16,384 bytes", map[Field]uint64{FieldSndBufLimited: 1}},
		{"this end does not read", Host, 0, map[Field]uint64{FieldRecvQueue: 65_536, FieldRcvBuf: 131_072}, CauseSlowReader, "65,536 bytes wait", map[Field]uint64{FieldRecvQueue: 65_000}},
		{"nothing to send", Host, 0, map[Field]uint64{FieldAppLimited: 1, FieldNotSent: 0, FieldUnacked: 2, FieldCWnd: 10, FieldDataSegsOut: 5, FieldLastSentMS: 10_000}, CauseApplication, "2 of 10 segments in flight", map[Field]uint64{FieldUnacked: 10}},
		{"nothing to send, and nothing sent", Host, 0, map[Field]uint64{FieldAppLimited: 1, FieldNotSent: 0, FieldUnacked: 0, FieldCWnd: 10, FieldDataSegsOut: 0}, "", "", nil},
		{"idle", Host, 0, map[Field]uint64{FieldAppLimited: 1, FieldNotSent: 0, FieldUnacked: 0, FieldCWnd: 10, FieldDataSegsOut: 5, FieldLastSentMS: 10_001}, "", "", nil},
		{"nothing to send, and a loss", Host, 0, map[Field]uint64{FieldAppLimited: 1, FieldNotSent: 0, FieldUnacked: 2, FieldCWnd: 10, FieldRetrans: 100, FieldDataSegsOut: 100}, CauseLoss, "", map[Field]uint64{FieldRetrans: 0, FieldAppLimited: 0}},
		{"nothing is known", Flow, jumbo, nil, "", "", nil},
		{"the loopback", Host, 0, map[Field]uint64{FieldSndMSS: 32768, FieldPMTU: 65535, FieldAdvMSS: 65483}, "", "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Diagnose(with(c.from, c.has), c.mtu)
			if c.cause == "" {
				assert.Empty(t, got)
				assert.Empty(t, Line(got))
				return
			}
			if assert.Len(t, got, 1) {
				assert.Equal(t, c.cause, got[0].Cause)
				assert.Contains(t, got[0].Text, c.text)
				assert.NotEmpty(t, got[0].Figures)
				assert.True(t, strings.HasPrefix(Line(got), string(c.cause)+": "))
			}
			all := map[Field]uint64{}
			for f, v := range c.has {
				all[f] = v
			}
			for f, v := range c.not {
				all[f] = v
			}
			assert.Empty(t, Diagnose(with(c.from, all), c.mtu), "the negation")
			gone := with(c.from, c.has)
			gone.SetUint(FieldState, uint64(TimeWait))
			assert.Empty(t, Diagnose(gone, c.mtu), "nothing is transferred any more")
		})
	}
}
