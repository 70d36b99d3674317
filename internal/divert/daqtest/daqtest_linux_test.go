package daqtest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/netlab"
	"oxpd/internal/sys"
)

const (
	passPort, blockPort, changePort = 4000, 4001, 4002

	ethernet, udpAt = 14, 34

	// hang is a guard; nothing is measured with it.
	hang = 45 * time.Second
	// quiet is how long nothing comes out of a TAP to which nothing comes any more.
	quiet = 200 * time.Millisecond
	// lot is how many frames are under way at once.
	lot = 32
)

// build compiles the engine.
func build(t *testing.T) Program {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces and TAP interfaces")
	}
	p, err := Build(context.Background(), t.TempDir())
	if errors.Is(err, ErrMissing) {
		t.Skip(err)
	}
	require.NoError(t, err)
	return p
}

// rig is two TAPs in a namespace where nobody speaks unasked.
type rig struct {
	t          *testing.T
	ns         *netlab.NS
	wire, host *sys.TAP
	buf        []byte
}

func newRig(t *testing.T, mtu int) *rig {
	t.Helper()
	ns, err := netlab.New()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, ns.Close()) })
	require.NoError(t, ns.Sysctl("ipv6/conf/default/disable_ipv6", "1"))
	r := &rig{t: t, ns: ns, buf: make([]byte, 1<<16)}
	r.wire, r.host = r.open("w", mtu), r.open("h", mtu)
	return r
}

func (r *rig) open(name string, mtu int) (tap *sys.TAP) {
	require.NoError(r.t, r.ns.Do(func() (err error) {
		tap, err = sys.OpenTAP(name)
		return err
	}))
	r.t.Cleanup(func() { assert.NoError(r.t, tap.Close()) })
	require.NoError(r.t, r.ns.SetMTU(name, mtu))
	require.NoError(r.t, r.ns.SetUp(name, true))
	return tap
}

func (r *rig) write(tap *sys.TAP, frames ...[]byte) {
	for _, f := range frames {
		_, err := tap.Write(f)
		require.NoError(r.t, err)
	}
}

// read returns the next frame, nil when none came within a time.
func (r *rig) read(tap *sys.TAP, within time.Duration) []byte {
	for end := time.Now().Add(within); ; {
		n, err := tap.Read(r.buf)
		if err == nil {
			return r.buf[:n]
		}
		require.ErrorIs(r.t, err, unix.EAGAIN)
		left := time.Until(end)
		if left <= 0 {
			return nil
		}
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(tap.FD()), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if !errors.Is(err, unix.EINTR) {
			require.NoError(r.t, err)
		}
	}
}

// udp makes a frame of UDP over IPv4 whose payload is random.
func udp(r *rand.Rand, port uint16, bytes int) []byte {
	b := make([]byte, bytes)
	for i := payloadAt; i < bytes; i++ {
		b[i] = byte(r.Uint32())
	}
	copy(b, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0})
	binary.BigEndian.PutUint16(b[16:], uint16(bytes-ethernet))
	copy(b[22:], []byte{64, unix.IPPROTO_UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2})
	binary.BigEndian.PutUint16(b[udpAt:], 5000)
	binary.BigEndian.PutUint16(b[udpAt+2:], port)
	binary.BigEndian.PutUint16(b[udpAt+4:], uint16(bytes-udpAt))
	binary.BigEndian.PutUint16(b[checksumAt:], 0xabcd)
	return b
}

func TestEnginePassesBlocksAndChanges(t *testing.T) {
	program := build(t)
	for _, mtu := range []int{1500, 9000} {
		t.Run(fmt.Sprintf("mtu=%d", mtu), func(t *testing.T) {
			r := newRig(t, mtu)
			e, err := program.Start(r.ns, Options{Wire: "w", Host: "h", Block: blockPort, Change: changePort})
			require.NoError(t, err)
			random := rand.New(rand.NewPCG(8, uint64(mtu)))
			var want Counts
			for _, way := range []struct{ from, to *sys.TAP }{{r.wire, r.host}, {r.host, r.wire}} {
				for range 10 {
					var back [][]byte
					for i := range lot {
						bytes := mtu + ethernet
						if i%2 == 1 {
							bytes = 60 + random.IntN(bytes-60)
						}
						port := uint16(passPort + random.IntN(3))
						f := udp(random, port, bytes)
						want.Received++
						switch port {
						case blockPort:
							want.Blocked++
						case changePort:
							want.Changed++
							back = append(back, Changed(f))
						default:
							want.Passed++
							back = append(back, f)
						}
						r.write(way.from, f)
					}
					for i, f := range back {
						require.Equal(t, f, r.read(way.to, hang), "frame %d", i)
					}
				}
				assert.Nil(t, r.read(way.to, quiet), "a frame that was blocked")
				assert.Nil(t, r.read(way.from, 0), "a frame at the side that it came from")
			}
			got, err := e.Stop()
			require.NoError(t, err)
			assert.Equal(t, want, got)
		})
	}
}

// TestSnaplenCutsWithoutAWord is the trap that a tap-pair has to see.
func TestSnaplenCutsWithoutAWord(t *testing.T) {
	program := build(t)
	r := newRig(t, 9000)
	e, err := program.Start(r.ns, Options{Wire: "w", Host: "h", Snaplen: 1518})
	require.NoError(t, err)
	random := rand.New(rand.NewPCG(1518, 0))
	for _, c := range []struct{ sent, back int }{{1514, 1514}, {1530, 1530}, {1531, 1530}, {9014, 1530}} {
		f := udp(random, passPort, c.sent)
		r.write(r.wire, f)
		got := r.read(r.host, hang)
		assert.Equal(t, f[:c.back], got, "%d bytes", c.sent)
		assert.Equal(t, c.sent-ethernet, int(binary.BigEndian.Uint16(got[16:])), "the packet says how long it was")
	}
	counts, err := e.Stop()
	require.NoError(t, err)
	assert.Equal(t, Counts{Received: 4, Passed: 4, Cut: 2}, counts, "the engine knows, and passes")
}

// TestFrameAboveTheMTUEndsADirection is what a change of one MTU of a pair, while
// longer frames are in the engine, does to it.
func TestFrameAboveTheMTUEndsADirection(t *testing.T) {
	program := build(t)
	r := newRig(t, 9000)
	start := func() *Engine {
		e, err := program.Start(r.ns, Options{Wire: "w", Host: "h"})
		require.NoError(t, err)
		return e
	}
	random := rand.New(rand.NewPCG(1500, 0))
	long, short := udp(random, passPort, 9014), udp(random, passPort, 1514)
	e := start()
	require.NoError(t, r.ns.SetMTU("h", 1500))
	r.write(r.wire, long, short)
	assert.Nil(t, r.read(r.host, quiet), "the short frame behind the long one")
	require.NoError(t, r.ns.SetMTU("h", 9000))
	r.write(r.wire, short, long)
	assert.Nil(t, r.read(r.host, quiet), "after the MTU has come back")
	r.write(r.host, short)
	assert.Equal(t, short, r.read(r.wire, hang), "the other direction")
	counts, err := e.Stop()
	require.NoError(t, err)
	assert.Equal(t, Counts{Received: 5, Passed: 5}, counts, "as the engine sees it")

	e = start()
	r.write(r.wire, long)
	assert.Equal(t, long, r.read(r.host, hang), "a new engine")
	require.NoError(t, e.Kill())
}

// tagged is a frame with tags in front of its EtherType.
func tagged(b []byte, types ...uint16) []byte {
	out := append([]byte(nil), b[:12]...)
	for i, kind := range types {
		out = binary.BigEndian.AppendUint16(out, kind)
		out = binary.BigEndian.AppendUint16(out, uint16(100+i))
	}
	return append(out, b[12:]...)
}

// TestTags is what the engine makes of frames that are as long as the MTU allows, and
// have tags besides. A tag more than the kernel allows for ends a direction, as a frame
// above the MTU does.
func TestTags(t *testing.T) {
	program := build(t)
	const q, ad = unix.ETH_P_8021Q, unix.ETH_P_8021AD
	f := udp(rand.New(rand.NewPCG(8021, 0)), passPort, 1514)
	for _, c := range []struct {
		name       string
		mtu        int
		sent, back []byte
	}{
		{"a customer tag", 1500, tagged(f, q), tagged(f, q)},
		{"a service tag becomes a customer tag", 1500, tagged(f, ad), tagged(f, q)},
		{"two tags, and the engine is dead", 1500, tagged(f, q, q), nil},
		{"two tags, MTU with room for one more", 1504, tagged(f, q, q), tagged(f, q, q)},
		{"a service tag before a customer tag, MTU with room for one more", 1504, tagged(f, ad, q), tagged(f, q, q)},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c.mtu)
			e, err := program.Start(r.ns, Options{Wire: "w", Host: "h"})
			require.NoError(t, err)
			r.write(r.wire, c.sent, f)
			if c.back == nil {
				assert.Nil(t, r.read(r.host, quiet))
			} else {
				assert.Equal(t, c.back, r.read(r.host, hang))
				assert.Equal(t, f, r.read(r.host, hang), "the frame behind it")
			}
			_, err = e.Stop()
			require.NoError(t, err)
		})
	}
}

func TestEngineThatCannotStart(t *testing.T) {
	program := build(t)
	r := newRig(t, 1500)
	_, err := program.Start(r.ns, Options{Wire: "w", Host: "nobody"})
	require.ErrorContains(t, err, "Could not find index for device nobody")
}
