package hwsim

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWindowsBeforeTheKernel(t *testing.T) {
	h := newMiniHost(t)
	assert.Equal(t, uint32(0xffffffff), h.r32(0x02000000), "barmap")
	h.w64(tRPC, 0)
	assert.Equal(t, ^uint64(0), h.r64(tRPC), "rpc, a store is lost")
	assert.NotEqual(t, uint64(0xabcdabcd), h.c.Load(0, 0x20180, 8)&0xffffffff, "SDP_SCRATCH")
	assert.Zero(t, h.scratch(), "handshake register")
}

//oxpd:fault R3 symptom
func TestBarmapAppearsInStages(t *testing.T) {
	gold := readHex(t, "testdata/control_windows.hex")["barmap"]
	h := newMiniHost(t)
	require.True(t, h.wait(time.Second, func() bool { return h.c.Load(0, 0x20180, 8) == 0x02000000abcdabcd }))

	early := append([]byte(nil), gold...)
	clear(early[0x24:0x44]) // nw_agent and rpc are absent
	assert.Equal(t, early, h.bytes(0x02000000, len(gold)), "before the fast path")
	assert.Zero(t, h.r64(tRPC), "rpc window is mapped and blank")
	assert.Zero(t, h.r64(tNWA), "nw_agent window is mapped and blank")

	h.up()
	assert.Equal(t, gold, h.bytes(0x02000000, len(gold)), "after it")
	words := h.bytes(0x02000000, 4096)
	nonZero := 0
	for i := 0; i < len(words); i += 8 {
		if binary.LittleEndian.Uint64(words[i:]) != 0 {
			nonZero++
		}
	}
	assert.Equal(t, 10, nonZero, "64-bit words of the first 4 KiB that are not zero")
	assert.Zero(t, h.r64(tNWA), "the cookie comes later")
	assert.Equal(t, uint32(1), h.r32(0x02100000+256), "mgmt TARGET_STATUS")
}

func TestRealTimeline(t *testing.T) {
	h := newMiniHost(t, func(o *Options) { o.Timeline = Real() })
	sdp := func() uint64 { return h.c.Load(0, 0x20180, 8) & 0xffffffff }
	h.advance(19 * time.Second)
	assert.NotEqual(t, uint64(0xabcdabcd), sdp(), "19 s")
	h.advance(21 * time.Second)
	assert.Equal(t, uint64(0xabcdabcd), sdp(), "40 s")

	h.setScratch(0xdeadbeef)
	h.advance(1100 * time.Millisecond)
	require.Equal(t, uint64(0xbeefdeed), h.scratch(), "polled at 1 Hz")
	h.setScratch(0x0000020008000000)
	h.advance(time.Millisecond)
	require.Equal(t, uint64(0xdeadde0320), h.scratch(), "the spin answers at once")
	h.setScratch(0xdeeddeed)
	h.advance(time.Millisecond)
	require.Zero(t, h.scratch())

	h.advance(59 * time.Second)
	assert.Zero(t, h.scratch(), "not within a minute")
	h.advance(181 * time.Second)
	assert.Equal(t, uint64(1), h.scratch(), "within four")
	assert.Equal(t, uint32(0xcafebabe), h.r32(tNWA))
}

func TestHandshake(t *testing.T) {
	const noVF, host, get, done = 0x0000020008000000, 0xdeadbeef, 0xbeefdeed, 0xdeeddeed
	magic := func(h *miniHost) {
		require.True(h.t, h.wait(time.Second, func() bool { return h.c.Load(0, 0x20180, 8) == 0x02000000abcdabcd }))
	}
	offer := func(h *miniHost) {
		magic(h)
		h.setScratch(host)
		require.True(h.t, h.wait(time.Second, func() bool { return h.scratch() == get }))
	}
	poll := Compressed().Poll
	for _, tc := range []struct {
		name string
		opt  func(*Options)
		run  func(t *testing.T, h *miniHost)
	}{
		{"any value but HOST_LOADED is left alone", nil, func(t *testing.T, h *miniHost) {
			magic(h)
			h.setScratch(0x1234)
			h.advance(3 * poll)
			assert.Equal(t, uint64(0x1234), h.scratch())
		}},
		{"completed: zeroed, then port started", nil, func(t *testing.T, h *miniHost) {
			h.up()
			var seen []uint64
			for _, w := range h.c.HandshakeWrites() {
				seen = append(seen, w.Value)
			}
			assert.Equal(t, []uint64{host, noVF, done}, seen)
		}},
		{"0 during the first wait is taken as an info word", nil, func(t *testing.T, h *miniHost) {
			offer(h)
			h.setScratch(0)
			h.advance(time.Millisecond)
			assert.Equal(t, uint64(0xdeadde0320), h.scratch())
			h.setScratch(done)
			h.advance(time.Second)
			assert.Zero(t, h.scratch(), "no rings promised, no host port")
			assert.Equal(t, uint64(1), h.c.ReportCount("handshake-info"))
		}},
		{"alternative: 0 is not taken", func(o *Options) { o.Choices.NoZeroInfo = true }, func(t *testing.T, h *miniHost) {
			offer(h)
			h.setScratch(0)
			h.advance(10 * poll)
			assert.Zero(t, h.scratch())
			h.setScratch(noVF)
			h.advance(time.Millisecond)
			assert.Equal(t, uint64(0xdeadde0320), h.scratch())
		}},
		{"a second offer during the first wait is an info word", nil, func(t *testing.T, h *miniHost) {
			offer(h)
			h.setScratch(host)
			h.advance(time.Millisecond)
			assert.Equal(t, uint64(0xdeadde0320), h.scratch())
		}},
		{"F3: no answer to GET_HOST_INFO, the register keeps it", nil, func(t *testing.T, h *miniHost) {
			offer(h)
			h.advance(100 * poll)
			assert.Equal(t, uint64(get), h.scratch())
		}},
		{"F3: no answer to the reply, the register keeps it", nil, func(t *testing.T, h *miniHost) {
			offer(h)
			h.setScratch(noVF)
			h.advance(100 * poll)
			assert.Equal(t, uint64(0xdeadde0320), h.scratch())
		}},
		{"another word with the reply's upper bits does not end the second wait", nil, func(t *testing.T, h *miniHost) {
			offer(h)
			h.setScratch(noVF)
			h.advance(time.Millisecond)
			h.setScratch(0xdeadde0001)
			h.advance(10 * poll)
			assert.Equal(t, uint64(0xdeadde0001), h.scratch())
		}},
		{"any other word ends the second wait and the ports are created", nil, func(t *testing.T, h *miniHost) {
			offer(h)
			h.setScratch(noVF)
			h.advance(time.Millisecond)
			h.setScratch(0x77)
			h.advance(time.Millisecond)
			assert.Zero(t, h.scratch())
			h.advance(time.Second)
			assert.Equal(t, uint64(1), h.scratch())
		}},
		{"COMPLETED releases either spin", nil, func(t *testing.T, h *miniHost) {
			offer(h)
			h.setScratch(done)
			h.advance(time.Millisecond)
			assert.Equal(t, uint64(0xdeadde0320), h.scratch(), "taken as an info word")
			h.setScratch(done)
			h.advance(time.Millisecond)
			assert.Zero(t, h.scratch())
		}},
		{"F4: a second handshake is not answered and the bitmap is lost", nil, func(t *testing.T, h *miniHost) {
			h.up()
			h.setScratch(host)
			h.advance(time.Second)
			assert.Equal(t, uint64(host), h.scratch())
			assert.Equal(t, uint64(1), h.c.ReportCount("handshake-again"))
		}},
		{"an offer made before the kernel listens is answered later", nil, func(t *testing.T, h *miniHost) {
			h.setScratch(host)
			h.advance(Compressed().Kernel / 2)
			assert.Equal(t, uint64(host), h.scratch())
			assert.True(t, h.wait(time.Second, func() bool { return h.scratch() == get }))
		}},
		{"fault: deaf", nil, func(t *testing.T, h *miniHost) {
			h.faults(func(f *TargetFaults) { f.HandshakeDeaf = true })
			magic(h)
			h.setScratch(host)
			h.advance(10 * poll)
			assert.Equal(t, uint64(host), h.scratch())
			h.faults(func(f *TargetFaults) { f.HandshakeDeaf = false })
			h.advance(2 * poll)
			assert.Equal(t, uint64(get), h.scratch())
		}},
		{"fault: mute after the info word", nil, func(t *testing.T, h *miniHost) {
			h.faults(func(f *TargetFaults) { f.HandshakeMute = true })
			offer(h)
			h.setScratch(noVF)
			h.advance(10 * poll)
			assert.Equal(t, uint64(noVF), h.scratch())
			h.faults(func(f *TargetFaults) { f.HandshakeMute = false })
			h.advance(2 * poll)
			assert.Equal(t, uint64(0xdeadde0320), h.scratch())
		}},
		{"once per boot: a reboot listens again", nil, func(t *testing.T, h *miniHost) {
			h.up()
			h.c.Reboot()
			h.c.ConfigWrite(4, 2, 6)
			assert.Zero(t, h.scratch())
			h.up()
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var opts []func(*Options)
			if tc.opt != nil {
				opts = append(opts, tc.opt)
			}
			tc.run(t, newMiniHost(t, opts...))
		})
	}
}

// F5: the info word promises VFs that do not exist.
func TestPromisedVFs(t *testing.T) {
	h := newMiniHost(t)
	h.handshake(0x0000020808080001)
	require.True(t, h.wait(time.Second, func() bool { return h.scratch() == 1 }), "the fast path comes up first")
	require.True(t, h.wait(time.Second, func() bool { return h.r32(tRPC) == 0xffffffff }), "then it dies")
	assert.Equal(t, uint32(0xffffffff), h.r32(tNWA))
	assert.Equal(t, uint32(0xffffffff), h.r32(0x02100000+256), "mgmt down")
	for n := range 5 {
		_, size, _, _ := h.facility(n)
		assert.Zero(t, size, "facility %d", n)
	}
	assert.Equal(t, uint64(0x400000), h.c.Load(0, 0x20190, 8), "RINFO is fine")
	h.w32(tRPC, 0x1234)
	assert.Equal(t, uint32(0xffffffff), h.r32(tRPC), "a store is lost")
	assert.Equal(t, uint64(1), h.c.ReportCount("handshake-vfs"))
}

func TestBarmapFaults(t *testing.T) {
	for _, tc := range []struct {
		name  string
		fault func(*TargetFaults)
		check func(t *testing.T, h *miniHost)
	}{
		{"version", func(f *TargetFaults) { f.BarmapVersion = 0x00010000 }, func(t *testing.T, h *miniHost) {
			assert.Equal(t, uint32(0x00010000), h.r32(0x02000000))
		}},
		{"all-ones", func(f *TargetFaults) { f.BarmapAllOnes = true }, func(t *testing.T, h *miniHost) {
			assert.Equal(t, bytes.Repeat([]byte{0xff}, 0x5c), h.bytes(0x02000000, 0x5c))
		}},
		{"sizes zero", func(f *TargetFaults) { f.BarmapNoSizes = true }, func(t *testing.T, h *miniHost) {
			assert.Equal(t, uint32(2), h.r32(0x02000000))
			for n := range 5 {
				_, size, _, _ := h.facility(n)
				assert.Zero(t, size)
			}
		}},
		{"rpc missing", func(f *TargetFaults) { f.FacilityMissing[3] = true }, func(t *testing.T, h *miniHost) {
			_, size, _, _ := h.facility(3)
			assert.Zero(t, size)
			_, size, _, _ = h.facility(2)
			assert.Equal(t, uint32(0x100000), size)
		}},
		{"no rings in RINFO", func(f *TargetFaults) { f.RInfoNoRings = true }, func(t *testing.T, h *miniHost) {
			assert.Zero(t, h.c.Load(0, 0x20190, 8))
		}},
		{"one rpc doorbell", func(f *TargetFaults) { f.RPCOneDoorbell = true }, func(t *testing.T, h *miniHost) {
			_, _, bell, bells := h.facility(3)
			assert.Equal(t, []uint32{155, 1}, []uint32{bell, bells})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			gold := readHex(t, "testdata/control_windows.hex")["barmap"]
			h := newMiniHost(t).up()
			h.faults(tc.fault)
			tc.check(t, h)
			h.faults(func(f *TargetFaults) { *f = TargetFaults{} })
			assert.Equal(t, gold, h.bytes(0x02000000, len(gold)), "back when the fault ends")
		})
	}
}

func TestRebootForgets(t *testing.T) {
	h := newMiniHost(t).rpc()
	require.Zero(t, h.call(3, readHex(t, "testdata/lif_add_update.hex")["create-portf1"]).rc)
	require.Zero(t, h.call(5, []byte{10, 0, 1, 0}).rc)
	h.c.Reboot()
	_, live := h.c.LIF(40960)
	assert.False(t, live)
	_, bound := h.c.PPort(1)
	assert.False(t, bound)
	assert.Equal(t, uint32(0xffffffff), h.r32(tRPC), "unmapped again")
}

func TestDoorbellOutsideTheRanges(t *testing.T) {
	h := newMiniHost(t).up()
	for _, spi := range []uint32{0, 151, 160} {
		h.bell(spi)
	}
	h.advance(time.Millisecond)
	assert.Equal(t, uint64(3), h.c.ReportCount(ReportUnknownSPI))
}
