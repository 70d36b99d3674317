package rpc_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/dma"
	"oxpd/rpc"
	"oxpd/rpc/msg"
)

// A reply that says it is longer than its buffer ends that command, with an error that
// says so, and no byte behind the buffer is read.
//
//oxpd:fault R5 behaviour
func TestR5LengthBeyondTheBuffer(t *testing.T) {
	s := newSim(t, hwsim.Options{})
	c := s.opened(t)
	s.Faults(func(f *hwsim.Faults) { f.RPCLongReply = true })
	_, err := c.Platform(bg)
	require.ErrorContains(t, err, "65535")
	s.Faults(func(f *hwsim.Faults) { f.RPCLongReply = false })
	if _, err = c.Platform(bg); err != nil {
		require.ErrorIs(t, err, rpc.ErrStalled)
		require.NoError(t, c.Reopen(bg))
		_, err = c.Platform(bg)
	}
	require.NoError(t, err, "the next one is answered")
	s.quiet(t)
}

// An idle window is no configured one: nothing is posted on it, a configuration that
// nobody acknowledges ends in 3 s and is not believed, and the next one is.
//
//oxpd:fault R12 behaviour
//oxpd:fault R13 behaviour
func TestR12IdleWindowIsNotBelieved(t *testing.T) {
	s := newSim(t, hwsim.Options{})
	require.EqualValues(t, 0x0100000000000000, s.fac.Load64(0))
	c := s.channel(t)
	_, err := c.Platform(bg)
	require.Error(t, err)
	require.Empty(t, s.Doorbells(), "nothing was posted")

	s.Faults(func(f *hwsim.Faults) { f.RPCSilent = true })
	from := s.Clock().Now()
	require.ErrorIs(t, c.Configure(bg), rpc.ErrTimeout)
	waited := s.Clock().Now() - from
	require.GreaterOrEqual(t, waited, 3*time.Second)
	require.LessOrEqual(t, waited, 3100*time.Millisecond)
	_, err = c.Platform(bg)
	require.Error(t, err)

	s.Faults(func(f *hwsim.Faults) { f.RPCSilent = false })
	require.NoError(t, c.Configure(bg))
	_, err = c.Platform(bg)
	require.NoError(t, err)
	s.quiet(t)
}

// Every table read asks for as many entries as it wants.
//
//oxpd:fault R19 behaviour
func TestR19ReadsAskForEntries(t *testing.T) {
	s := newSim(t, hwsim.Options{Choices: hwsim.Choices{SilentUnknown: true}})
	s.Provision()
	c := s.opened(t)
	_, err := c.Platform(bg)
	require.NoError(t, err)
	_, _, err = c.LIFRead(bg, 40960)
	require.NoError(t, err)
	require.NoError(t, c.SysCounters(bg, new([msg.CountersSys]uint64)))
	require.NoError(t, c.PortCounters(bg, new([msg.CountersPort][msg.CountersPortStride]uint64)))
	require.NotEmpty(t, s.Commands())
	for _, entry := range s.Commands() {
		var r msg.TableRead
		require.NoError(t, r.Decode(entry.Payload))
		require.NotZero(t, r.Num, "%v", entry.Command)
		require.Zero(t, r.Flags, "%v", entry.Command)
	}
	s.quiet(t)
}

// The byte that tells an answer is zero in every request, whatever the buffer held.
//
//oxpd:fault R6 behaviour
func TestR6DoneByteIsCleared(t *testing.T) {
	s := newSim(t, hwsim.Options{})
	var bufs []*dma.Region
	alloc := func() (*dma.Region, error) {
		b, err := s.buffer()
		bufs = append(bufs, b)
		return b, err
	}
	first, err := alloc()
	require.NoError(t, err)
	c := rpc.New(s.fac, bell{s, t, first}, first, s.Clock(), discard, rpc.Config{Doorbells: 5, Alloc: alloc})
	require.NoError(t, c.Configure(bg))
	for range 20 {
		_, err := c.Platform(bg)
		require.NoError(t, err)
	}
	require.Len(t, bufs, 1)
	s.quiet(t)
}

// bell is a doorbell that looks at the buffer before it rings.
type bell struct {
	s   *sim
	t   *testing.T
	buf *dma.Region
}

func (b bell) Ring(i int) error {
	mem, _ := b.buf.At(0, msg.HeaderSize)
	require.Zero(b.t, mem[msg.RespDone])
	return b.s.fac.Ring(i)
}
