package replay

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/capture"
	"oxpd/internal/frame"
)

func portOf(t *testing.T, name string) board.Port {
	t.Helper()
	p, err := board.Parse(name)
	require.NoError(t, err)
	return p
}

// flow is what keeps frames in order: they end on one ring. A later fragment has
// no ports and is a flow of its own.
func flow(f []byte) string {
	p := gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.Default)
	key := fmt.Sprint(p.LinkLayer().LinkFlow())
	if n := p.NetworkLayer(); n != nil {
		key = fmt.Sprint(n.NetworkFlow())
	}
	if t := p.TransportLayer(); t != nil {
		key += fmt.Sprint(t.TransportFlow())
	}
	return key
}

func flows(frames [][]byte) map[string][][]byte {
	m := map[string][][]byte{}
	for _, f := range frames {
		m[flow(f)] = append(m[flow(f)], f)
	}
	return m
}

func files(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(committed, "*.pcap*"))
	require.NoError(t, err)
	require.Len(t, all, len(wanted))
	return all
}

// TestEveryCaptureArrives: byte for byte and in order inside each flow, tags
// included, on ports with and without the switch.
func TestEveryCaptureArrives(t *testing.T) {
	needRoot(t)
	for _, in := range files(t) {
		for _, tc := range []struct {
			port string
			mtu  int
			pace Pace
		}{{"oxp9", 9000, PaceHost}, {"oxp1", 1500, PaceHost}, {"oxp10", 1500, PaceCapture}} {
			t.Run(fmt.Sprintf("%s into %s at %d, pace %s", filepath.Base(in), tc.port, tc.mtu, tc.pace), func(t *testing.T) {
				t.Parallel() // most of the time is the card's boot
				p := portOf(t, tc.port)
				out := filepath.Join(t.TempDir(), "out.pcapng")
				r, err := Run(context.Background(), Options{In: in, Port: p, MTU: tc.mtu, Out: out, RewriteMAC: true, Pace: tc.pace})
				require.NoError(t, err)

				// The port's address as the model hands it out.
				mac := [6]byte{0x02, 0xc8, 0x52, 0, 0, byte(2 + p.Index)}
				var whole, arrive [][]byte
				var switched, long uint64
				for _, f := range otherReader(t, in) {
					if f[0]&1 == 0 {
						copy(f, mac[:])
					}
					whole = append(whole, f)
					h, ok := frame.Parse(f)
					require.True(t, ok)
					const fcs = 4
					switch {
					case p.BehindSwitch() && len(f)+fcs > hwsim.SwitchFrameFound:
						switched++
					case len(f)-h.L3 > tc.mtu:
						long++
					default:
						arrive = append(arrive, f)
					}
				}
				got := otherReader(t, out)
				assert.Equal(t, flows(arrive), flows(got), "what is on the interface")
				assert.True(t, r.OK, "%+v", r)
				assert.Equal(t, len(whole), r.Packets)
				assert.EqualValues(t, len(whole), r.Sent)
				assert.EqualValues(t, len(arrive), r.Reached)
				assert.EqualValues(t, len(arrive), r.Unaltered)
				assert.Equal(t, long, r.End("FROM_WIRE_DROP_MTU_EXCEEDED"))
				assert.Equal(t, switched, r.End("switch_dropped"))
				assert.Equal(t, tc.mtu, r.MTU)
			})
		}
	}
}

// TestEveryEndIsCounted: one frame for each way that it can end here.
func TestEveryEndIsCounted(t *testing.T) {
	needRoot(t)
	p := portOf(t, "oxp9")
	mac := [6]byte{0x02, 0xc8, 0x52, 0, 0, byte(2 + p.Index)}
	make14 := func(n int, dst [6]byte) []byte {
		b := make([]byte, max(n, frame.HeaderSize))
		copy(b, dst[:])
		b[6], b[12], b[13] = 2, 0x88, 0xb5
		return b[:n]
	}
	path := filepath.Join(t.TempDir(), "in.pcapng")
	rec, err := capture.Create(path, "lab")
	require.NoError(t, err)
	for _, f := range [][]byte{
		make14(60, mac), make14(60, mac), // twice the same: both must be seen
		make14(14, mac), make14(13, mac), {}, make14(1515, mac), make14(9300, mac), make14(60, [6]byte{2, 9, 9, 9, 9, 9}),
		make14(60, [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}), make14(20000, mac),
	} {
		require.NoError(t, rec.Record(time.Unix(1, 0), f))
	}
	require.NoError(t, rec.Close())
	r, err := Run(context.Background(), Options{In: path, Port: p})
	require.NoError(t, err)
	assert.True(t, r.OK, "%+v", r)
	got := map[string]uint64{}
	for _, e := range r.Ends {
		got[e.Counter] = e.Frames
		assert.NotEmpty(t, e.Why, e.Counter)
	}
	assert.Equal(t, map[string]uint64{"rx_packets": 4, "runt": 2, "oversize": 2, "filtered": 1, "FROM_WIRE_DROP_MTU_EXCEEDED": 1}, got)
}

// TestLineRate: a capture of one flow that is longer than a ring. What the host
// does not take in time is refused and counted.
func TestLineRate(t *testing.T) {
	needRoot(t)
	path := filepath.Join(t.TempDir(), "in.pcapng")
	rec, err := capture.Create(path, "lab")
	require.NoError(t, err)
	const n = 5000
	b := make([]byte, 9014)
	copy(b, []byte{0x02, 0xc8, 0x52, 0, 0, 10, 2, 0, 0, 0, 0, 1, 0x88, 0xb5})
	for i := range n {
		b[14], b[15] = byte(i>>8), byte(i)
		require.NoError(t, rec.Record(time.Unix(1, 0), b[:60+i%8955]))
	}
	require.NoError(t, rec.Close())
	for _, pace := range []Pace{PaceWire, PaceHost} {
		t.Run(string(pace), func(t *testing.T) {
			r, err := Run(context.Background(), Options{In: path, Port: portOf(t, "oxp9"), MTU: 9000, Pace: pace})
			require.NoError(t, err)
			assert.True(t, r.OK, "%+v", r)
			assert.EqualValues(t, n, r.Reached+r.End("TX_DROP_QUEUE_FULL")+r.End("overrun"))
			if pace == PaceHost {
				assert.EqualValues(t, n, r.Reached, "nothing is lost at the host's own pace")
			}
		})
	}
}

// TestEachCaptureHasItsOwnReport, though they share a card.
func TestEachCaptureHasItsOwnReport(t *testing.T) {
	needRoot(t)
	var in []string
	for _, name := range []string{"dns.pcap", "jumbo.pcapng", "dns.pcap"} {
		in = append(in, filepath.Join(committed, name))
	}
	reports, err := RunEach(context.Background(), Options{Port: portOf(t, "oxp9"), MTU: 9000, RewriteMAC: true}, in)
	require.NoError(t, err)
	require.Len(t, reports, len(in))
	for i, want := range []uint64{4, 16, 4} {
		r := reports[i]
		assert.True(t, r.OK, "%+v", r)
		assert.Equal(t, in[i], r.File)
		assert.Equal(t, 9000, r.MTU)
		assert.Equal(t, want, r.Sent)
		assert.Equal(t, want, r.Unaltered)
	}
}

// TestCutPacketsAreNotSent: not as whole frames, and not as short ones.
func TestCutPacketsAreNotSent(t *testing.T) {
	needRoot(t)
	r, err := Run(context.Background(), Options{In: cutCapture(t, 3, 2), Port: portOf(t, "oxp9"), RewriteMAC: true})
	require.NoError(t, err)
	assert.True(t, r.OK, "%+v", r)
	assert.Equal(t, 5, r.Packets)
	assert.EqualValues(t, 3, r.Sent)
	assert.EqualValues(t, 3, r.Reached)
	assert.EqualValues(t, 2, r.End("cut"))
}

// cutCapture has whole packets and ones of which a snap length kept 60 bytes.
func cutCapture(t *testing.T, whole, cut int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cut.pcap")
	b := []byte{0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 60, 0, 0, 0, 1, 0, 0, 0}
	for i := range whole + cut {
		was := byte(60)
		if i >= whole {
			was = 200
		}
		b = append(b, 1, 0, 0, 0, byte(i), 0, 0, 0, 60, 0, 0, 0, was, 0, 0, 0)
		b = append(b, append([]byte{2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0x88, 0xb5, byte(i)}, make([]byte, 45)...)...)
	}
	require.NoError(t, os.WriteFile(path, b, 0o644))
	return path
}

func TestRunRefuses(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(committed, "dns.pcap"))
	require.NoError(t, err)
	good, broken := filepath.Join(t.TempDir(), "good.pcap"), filepath.Join(t.TempDir(), "broken.pcap")
	require.NoError(t, os.WriteFile(good, b, 0o644))
	require.NoError(t, os.WriteFile(broken, b[:len(b)-1], 0o644))
	p := portOf(t, "oxp9")
	for _, tc := range []struct {
		name string
		o    Options
		want string
	}{
		{"damaged capture", Options{In: broken, Port: p}, "the file ends inside a packet"},
		{"no capture", Options{In: filepath.Join(t.TempDir(), "none"), Port: p}, "no such file"},
		{"nothing but cut packets", Options{In: cutCapture(t, 0, 2), Port: p}, "no whole packet in it: 2 packets, 2 of them cut short"},
		{"mtu out of range", Options{In: good, Port: p, MTU: 9001}, "mtu 9001 is out of range"},
		{"recording over the capture", Options{In: good, Port: p, Out: good}, "it would be overwritten while it is read"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Run(context.Background(), tc.o)
			assert.ErrorContains(t, err, tc.want)
		})
	}
	after, err := os.ReadFile(good)
	require.NoError(t, err)
	assert.Equal(t, b, after)
}

// TestInterrupted ends a replay that would take a year.
func TestInterrupted(t *testing.T) {
	needRoot(t)
	path := filepath.Join(t.TempDir(), "in.pcapng")
	rec, err := capture.Create(path, "lab")
	require.NoError(t, err)
	for _, at := range []time.Time{time.Unix(1, 0), time.Unix(31_000_000, 0)} {
		require.NoError(t, rec.Record(at, make([]byte, 60)))
	}
	require.NoError(t, rec.Close())
	before := descriptors(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, err = Run(ctx, Options{In: path, Port: portOf(t, "oxp9"), Pace: PaceCapture, RewriteMAC: true})
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Eventually(t, func() bool { return descriptors(t) <= before }, hang, time.Millisecond, "descriptors left open")
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(all)
}

// TestReportAddsUp: what makes a report a failed one.
func TestReportAddsUp(t *testing.T) {
	for _, tc := range []struct {
		name string
		r    Report
		want Report
	}{
		{"all there", Report{Packets: 3, Reached: 2, Unaltered: 2, Ends: []End{{Frames: 2}, {Frames: 1}}}, Report{OK: true}},
		{"one in no counter", Report{Packets: 3, Ends: []End{{Frames: 2}}}, Report{Difference: 1}},
		{"one in two counters", Report{Packets: 3, Ends: []End{{Frames: 4}}}, Report{Difference: -1}},
		{"one altered", Report{Packets: 1, Reached: 1, Altered: 1, Ends: []End{{Frames: 1}}}, Report{}},
		{"one unseen", Report{Packets: 2, Reached: 2, Unaltered: 1, Ends: []End{{Frames: 2}}}, Report{Unseen: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.r.close()
			assert.Equal(t, [3]any{tc.want.OK, tc.want.Difference, tc.want.Unseen}, [3]any{tc.r.OK, tc.r.Difference, tc.r.Unseen})
		})
	}
}

// TestNotAllowed: without the right to make a namespace the error says so.
func TestNotAllowed(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("runs for users without rights")
	}
	_, err := Run(context.Background(), Options{In: filepath.Join(committed, "dns.pcap"), Port: portOf(t, "oxp9")})
	assert.ErrorIs(t, err, unix.EPERM)
}
