package rpc_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/dma"
	"oxpd/internal/mmio"
	"oxpd/internal/simdev"
	"oxpd/internal/simdev/simtest"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/rpc"
	"oxpd/rpc/msg"
)

var (
	bg      = context.Background()
	discard = slog.New(slog.NewTextHandler(io.Discard, nil))
)

// sim is a simulated card in stepped time, its handshake done and its rpc window
// published.
type sim struct {
	*hwsim.Card
	dev  octep.Device
	fac  *octep.Facility
	bufs int
}

func newSim(t *testing.T, o hwsim.Options) *sim {
	t.Helper()
	if o.Timeline == (hwsim.Timeline{}) {
		o.Timeline = hwsim.Compressed()
	}
	s := &sim{Card: hwsim.New(o)}
	s.dev = simdev.New(s.Card)
	simtest.Guard(t, s.Card)
	t.Cleanup(func() {
		require.NoError(t, s.dev.Close())
		s.Close()
	})
	ep, err := octep.Open(bg, s.dev, octep.Config{Clock: s.Clock()})
	require.NoError(t, err)
	require.NoError(t, octep.SetBusMaster(s.dev, true))
	require.NoError(t, ep.WaitReady(bg))
	_, err = ep.NewHandshake(nil).Run(bg)
	require.NoError(t, err)
	s.fac, err = ep.WaitFacility(bg, csr.FacRPC)
	require.NoError(t, err)
	return s
}

// quiet fails the test on any misuse that the card reports.
func (s *sim) quiet(t *testing.T) {
	t.Helper()
	simtest.Clean(t, s.Card)
}

func (s *sim) buffer() (*dma.Region, error) {
	s.bufs++
	return s.dev.DMA().Alloc(fmt.Sprintf("rpc buffer %d", s.bufs), rpc.BufferBytes, msg.BufferAlign)
}

func (s *sim) channel(t *testing.T) *rpc.Channel {
	t.Helper()
	buf, err := s.buffer()
	require.NoError(t, err)
	return rpc.New(s.fac, s.fac, buf, s.Clock(), discard, rpc.Config{Doorbells: 5, Alloc: s.buffer})
}

func (s *sim) opened(t *testing.T) *rpc.Channel {
	t.Helper()
	c := s.channel(t)
	require.NoError(t, c.Configure(bg))
	return c
}

//oxpd:fault R4 behaviour
func TestSimFirstCommand(t *testing.T) {
	s := newSim(t, hwsim.Options{})
	require.Equal(t, uint64(msg.ConfigIdle), s.fac.Load64(0))
	c := s.opened(t)
	require.Equal(t, uint64(0x01000001D7D3AB00), s.fac.Load64(0))
	p, err := c.Platform(bg)
	require.NoError(t, err)
	require.NoError(t, rpc.CheckBoard(p))
	require.Equal(t, board.Platform, p.Platform)
	require.Equal(t, map[uint32]uint64{155: 2}, s.Doorbells(), "one for the configuration, one for the command, no other SPI")
	log := s.Commands()
	require.Len(t, log, 1)
	require.Equal(t, uint16(2), log[0].Flags)
	require.True(t, log[0].Replied)
	s.quiet(t)
}

//oxpd:fault R27 behaviour
func TestSimTableReads(t *testing.T) {
	s := newSim(t, hwsim.Options{})
	s.Provision()
	c := s.opened(t)
	for _, p := range board.All() {
		want, ok := s.LIF(uint32(p.LIF()))
		require.True(t, ok)
		got, present, err := c.LIFRead(bg, uint32(p.LIF()))
		require.NoError(t, err)
		require.True(t, present, "%s", p)
		require.Equal(t, want, got)
	}

	frame := make([]byte, 60)
	copy(frame, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 8, 6})
	s.Wire(uint16(board.ByIndex(8).Tag)).Send(frame)
	require.NoError(t, s.Clock().Sleep(bg, 10*time.Millisecond))
	var sys [msg.CountersSys]uint64
	require.NoError(t, c.SysCounters(bg, &sys))
	for i, v := range sys {
		require.Equal(t, s.Counter(i), v, msg.CounterNames[i])
	}
	require.Equal(t, uint64(1), sys[msg.CntRXWire])
	var ports [msg.CountersPort][msg.CountersPortStride]uint64
	require.NoError(t, c.PortCounters(bg, &ports))
	require.Equal(t, uint64(1), ports[msg.CounterPortRX][1], "PortF1 is the fast path's port 1")
	simtest.Expect(t, s.Card, hwsim.ReportBSize) // nobody has programmed the rings that it goes to
}

//oxpd:fault R28 behaviour
func TestSimEmptyLIF(t *testing.T) {
	for _, short := range []bool{false, true} {
		t.Run(fmt.Sprintf("short=%v", short), func(t *testing.T) {
			s := newSim(t, hwsim.Options{TargetOptions: hwsim.TargetOptions{EmptyLIFShort: short}})
			_, present, err := s.opened(t).LIFRead(bg, 4096)
			require.NoError(t, err)
			require.False(t, present)
			s.quiet(t)
		})
	}
}

// The refusals of rpc-lif.md 5.2 as a driver sees them.
func TestSimRefusals(t *testing.T) {
	s := newSim(t, hwsim.Options{})
	c := s.opened(t)
	f1 := board.ByIndex(8)
	l := msg.LIF{MAC: [6]byte{2, 0, 0, 0, 0, 10}, MTU: 1500, Fwd: msg.FwdL3}
	create := msg.LIFUpdateReq{Index: uint32(f1.LIF()), LIF: l, Mask: msg.MaskCreate}
	partial := create
	partial.Mask = msg.MaskMTU

	requireRC1 := func(err error) {
		t.Helper()
		var rc *msg.RCError
		require.ErrorAs(t, err, &rc)
		require.Equal(t, msg.RCRefused, rc.RC)
	}
	_, err := c.Call(bg, msg.CmdLIFAddUpdate, create.Append(nil)[:16], nil)
	requireRC1(err)
	requireRC1(c.LIFUpdate(bg, partial))
	for _, mask := range []msg.LIFMask{0x3f, 0x7f, 0x01ff} {
		other := create
		other.Mask = mask
		requireRC1(c.LIFUpdate(bg, other))
	}
	require.NoError(t, c.LIFUpdate(bg, create))
	requireRC1(c.LIFUpdate(bg, create))
	require.NoError(t, c.LIFUpdate(bg, partial))
	requireRC1(c.PPort(bg, msg.PPort{Iface: 128, Tag: 1}))
	_, err = c.Call(bg, msg.CmdPPortUpdate, []byte{10, 0, 1}, nil)
	requireRC1(err)
	require.Equal(t, uint64(8), c.Stats().Refused)
	s.quiet(t)
}

func TestSimSilenceThenReopen(t *testing.T) {
	s := newSim(t, hwsim.Options{})
	first, err := s.buffer()
	require.NoError(t, err)
	c := rpc.New(s.fac, s.fac, first, s.Clock(), discard, rpc.Config{Alloc: s.buffer})
	require.NoError(t, c.Configure(bg))
	s.Faults(func(f *hwsim.Faults) { f.RPCSilent = true })
	from := s.Clock().Now()
	err = c.PPort(bg, msg.PPort{Iface: 10, Tag: 1})
	require.ErrorIs(t, err, rpc.ErrTimeout)
	waited := s.Clock().Now() - from
	require.GreaterOrEqual(t, waited, 2*time.Second)
	require.LessOrEqual(t, waited, 2100*time.Millisecond)
	require.ErrorIs(t, c.PPort(bg, msg.PPort{Iface: 10, Tag: 1}), rpc.ErrStalled)
	require.ErrorIs(t, c.Reopen(bg), rpc.ErrTimeout, "it does not see the configuration either")

	mem, _ := first.At(0, msg.BufferSize)
	left := bytes.Clone(mem)
	s.Faults(func(f *hwsim.Faults) { f.RPCSilent = false })
	require.NoError(t, c.Reopen(bg))
	for range 20 {
		_, err := c.Platform(bg)
		require.NoError(t, err)
	}
	require.Equal(t, left, mem, "nobody writes to the buffer that was left")
	require.Equal(t, []*dma.Region{first}, c.Abandoned())
	require.Equal(t, 2, s.bufs)
	for _, entry := range s.Commands() {
		require.Equal(t, msg.CmdPlatformRead, entry.Command, "the lost command was never run, nor a wiped one")
	}
	s.quiet(t)
}

// The answer to a command that was given up comes while the next channel is in
// use: it goes to the old buffer, and nobody reads it.
func TestSimLateAnswerGoesToTheOldBuffer(t *testing.T) {
	s := newSim(t, hwsim.Options{})
	first, err := s.buffer()
	require.NoError(t, err)
	c := rpc.New(s.fac, s.fac, first, s.Clock(), discard, rpc.Config{Alloc: s.buffer})
	require.NoError(t, c.Configure(bg))
	s.Faults(func(f *hwsim.Faults) { f.RPCDelay = 2500 * time.Millisecond })
	_, err = c.Platform(bg)
	require.ErrorIs(t, err, rpc.ErrTimeout)
	require.NoError(t, s.Clock().Sleep(bg, time.Second))
	require.Len(t, s.Commands(), 1, "run after all")
	mem, _ := first.At(0, msg.BufferSize)
	require.NotZero(t, mem[msg.RespDone], "and answered into memory that is still there")
	_, err = c.Platform(bg)
	require.ErrorIs(t, err, rpc.ErrStalled)
	s.Faults(func(f *hwsim.Faults) { f.RPCDelay = 0 })
	require.NoError(t, c.Reopen(bg))
	_, err = c.Platform(bg)
	require.NoError(t, err)
	s.quiet(t)
}

// A command that was given up ends after the rings were declared anew and before
// the target looks at the new word: its count stands on the new ring, whichever
// way the target counts.
func TestSimLostCommandEndsDuringTheReconfiguration(t *testing.T) {
	for name, inPlace := range map[string]bool{"done written from the value before": false, "done incremented in place": true} {
		t.Run(name, func(t *testing.T) {
			times := hwsim.Compressed()
			times.RPCDoorbell = 50 * time.Millisecond
			s := newSim(t, hwsim.Options{Timeline: times, Choices: hwsim.Choices{DoneInPlace: inPlace}})
			for _, tc := range []struct {
				name string
				next func(old *rpc.Channel) (*rpc.Channel, error)
			}{
				{"reopened", func(old *rpc.Channel) (*rpc.Channel, error) { return old, old.Reopen(bg) }},
				{"another process", func(*rpc.Channel) (*rpc.Channel, error) {
					next := s.channel(t)
					return next, next.Configure(bg)
				}},
			} {
				t.Run(tc.name, func(t *testing.T) {
					c := s.opened(t)
					for range 3 {
						_, err := c.Platform(bg)
						require.NoError(t, err)
					}
					// Seen after 50 ms and given up after 2 s, it ends 20 ms later; the new
					// word is looked at 30 ms after that.
					s.Faults(func(f *hwsim.Faults) { f.RPCDelay = 1970 * time.Millisecond })
					_, err := c.Platform(bg)
					require.ErrorIs(t, err, rpc.ErrTimeout)
					ran := len(s.Commands())
					s.Faults(func(f *hwsim.Faults) { f.RPCDelay = 0 })
					c, err = tc.next(c)
					require.NoError(t, err)
					require.Len(t, s.Commands(), ran+1, "it ended meanwhile")
					for range 20 {
						_, err := c.Platform(bg)
						require.NoError(t, err)
					}
				})
			}
			s.quiet(t)
		})
	}
}

//oxpd:fault R16 behaviour
func TestSimOneDoorbellIsRefused(t *testing.T) {
	s := newSim(t, hwsim.Options{})
	buf, err := s.buffer()
	require.NoError(t, err)
	c := rpc.New(s.fac, s.fac, buf, s.Clock(), discard, rpc.Config{Doorbells: 1})
	require.ErrorIs(t, c.Configure(bg), rpc.ErrOneDoorbell)
	require.Equal(t, uint64(msg.ConfigIdle), s.fac.Load64(0))
	require.Empty(t, s.Doorbells())
}

func TestSimNewProcessTakesOver(t *testing.T) {
	s := newSim(t, hwsim.Options{})
	old := s.opened(t)
	_, err := old.Platform(bg)
	require.NoError(t, err)
	c := s.opened(t)
	require.Equal(t, uint64(0x01000002D7D3AB00), s.fac.Load64(0))
	_, err = c.Platform(bg)
	require.NoError(t, err)
	s.quiet(t)
}

func TestSimCardGone(t *testing.T) {
	s := newSim(t, hwsim.Options{})
	c := s.opened(t)
	s.Kill()
	_, err := c.Platform(bg)
	require.ErrorIs(t, err, mmio.ErrGone)
	from := s.Clock().Now()
	require.ErrorIs(t, c.Reopen(bg), mmio.ErrGone)
	require.Less(t, s.Clock().Now()-from, time.Millisecond, "no wait on all ones")
}

// Every number outside the allow-list is refused here, so the card sees none.
//
//oxpd:fault R11 behaviour
//oxpd:fault R18 behaviour
//oxpd:fault R20 behaviour
func TestSimSeesAllowedCommandsOnly(t *testing.T) {
	s := newSim(t, hwsim.Options{})
	c := s.opened(t)
	for n := range 256 {
		_, _ = c.Call(bg, msg.Command(n), msg.TableRead{Num: 1}.Append(nil), make([]byte, msg.RespRoom))
	}
	for _, entry := range s.Commands() {
		require.True(t, rpc.Allowed(entry.Command), "%s", entry.Command)
	}
	require.Len(t, s.Commands(), 14)
	s.quiet(t)
}

func TestSimHandlerErrno(t *testing.T) {
	s := newSim(t, hwsim.Options{})
	c := s.opened(t)
	s.Faults(func(f *hwsim.Faults) {
		f.LIFRefuse = map[board.Tag]msg.RC{1: msg.RCErrnoBase + msg.RC(syscall.EAGAIN)}
	})
	err := c.LIFUpdate(bg, msg.LIFUpdateReq{Index: uint32(board.ByIndex(8).LIF()), Mask: msg.MaskCreate})
	require.ErrorIs(t, err, syscall.EAGAIN)
	require.Len(t, s.Commands(), 50, "tried for 100 ms")
}
