package rpc_test

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/hwsim"
	"oxpd/internal/dma"
	"oxpd/octep"
	"oxpd/rpc"
	"oxpd/rpc/msg"
)

// shelf is memory that outlives the processes which use the card.
type shelf struct {
	*sim
	t      *testing.T
	fd     int
	number uint32   // of processes
	memory [][]byte // that was allocated
	// configured is called once a process has configured its channel.
	configured func(*mortal)
}

// MapFile implements dma.FileMapper.
func (s *shelf) MapFile(bus uint64, mem []byte, fd int, off int64) error {
	mem, err := unix.Mmap(fd, off, len(mem), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	s.memory = append(s.memory, mem)
	return s.MapDMA(bus, mem)
}

// UnmapFile implements dma.FileMapper: nothing is ever freed here.
func (s *shelf) UnmapFile(uint64, int) error { return errors.ErrUnsupported }

func newShelf(t *testing.T, o hwsim.Options) *shelf {
	s := &shelf{sim: newSim(t, o), t: t, configured: func(*mortal) {}}
	k, err := dma.NewKept(s, nil)
	require.NoError(t, err)
	s.fd, err = unix.Dup(k.File())
	require.NoError(t, err)
	require.NoError(t, k.Close())
	t.Cleanup(func() { require.NoError(t, unix.Close(s.fd)) })
	return s
}

func (s *shelf) bytes() int64 {
	var st unix.Stat_t
	require.NoError(s.t, unix.Fstat(s.fd, &st))
	return st.Size
}

// errKilled is what a killed process is stopped with.
var errKilled = errors.New("killed")

// mortal is a process's way to the card: it is killed before it reaches it once more
// than it may.
type mortal struct {
	*octep.Facility
	may     int
	declare func() // called before the ring is declared
}

func (m *mortal) step() {
	if m.may == 0 {
		panic(errKilled)
	}
	m.may--
}

func (m *mortal) Load32(off uint32) uint32 {
	m.step()
	return m.Facility.Load32(off)
}

func (m *mortal) Load64(off uint32) uint64 {
	m.step()
	return m.Facility.Load64(off)
}

func (m *mortal) Store32(off, v uint32) {
	m.step()
	m.Facility.Store32(off, v)
}

func (m *mortal) Store64(off uint32, v uint64) {
	m.step()
	if off == msg.StateLowRing+msg.RingPosted && v == 0 {
		m.declare()
	}
	m.Facility.Store64(off, v)
}

func (m *mortal) Ring(index int) error {
	m.step()
	return m.Facility.Ring(index)
}

// process is one that takes the card over, and then reads two logical interfaces whose
// numbers nobody else asks for. It reaches the card may times, -1 for as often as it
// likes. err is errKilled, or what it met itself.
func (s *shelf) process(may int) (c *rpc.Channel, err error) {
	s.number++
	fd, err := unix.Dup(s.fd)
	require.NoError(s.t, err)
	k, err := dma.OpenKept(s, fd, nil)
	require.NoError(s.t, err)
	defer func() {
		require.NoError(s.t, k.Close())
		if r := recover(); r != nil {
			err = errKilled
			require.Equal(s.t, errKilled, r)
		}
	}()
	left, err := dma.HeldAll(k, "rpc command", rpc.BufferBytes, msg.BufferAlign)
	require.NoError(s.t, err)
	require.Len(s.t, left, len(s.memory), "memory of the processes before")
	m := &mortal{s.fac, may, s.mayDeclare(s.Clock().Now())}
	c = rpc.New(m, m, nil, s.Clock(), discard, rpc.Config{Left: left, Alloc: func() (*dma.Region, error) {
		return k.Alloc("rpc command", rpc.BufferBytes, msg.BufferAlign)
	}})
	if err := c.Configure(bg); err != nil {
		return c, err
	}
	s.configured(m)
	for range 2 {
		if _, _, err := c.LIFRead(bg, s.number); err != nil {
			return c, err
		}
	}
	return c, nil
}

// mayDeclare checks that no command is on the ring of before, unless it has had its
// time.
func (s *shelf) mayDeclare(from time.Duration) func() {
	return func() {
		posted, done := s.fac.Load64(msg.StateLowRing+msg.RingPosted), s.fac.Load64(msg.StateLowRing+msg.RingDone)
		if s.Clock().Now()-from < 2*time.Second {
			require.LessOrEqual(s.t, posted, done, "process %d: commands that are not done", s.number)
		}
	}
}

// Processes are killed at every step of taking the card over and of a command, more
// often than memory would last if each left a buffer behind.
func TestSimKilledAtEveryStep(t *testing.T) {
	for _, tc := range []struct {
		name  string
		delay time.Duration
	}{
		{"a card that answers at once", 0},
		{"a card that takes its time", 20 * time.Millisecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newShelf(t, hwsim.Options{})
			s.Faults(func(f *hwsim.Faults) { f.RPCDelay = tc.delay })
			_, err := s.process(-1)
			require.NoError(t, err)
			bytes, kills := s.bytes(), 0
			for may := 0; kills < 1100; may++ {
				if _, err := s.process(may); err == nil {
					may = -1
					continue
				}
				_, err := s.process(may) // killed while it takes over from that one
				require.ErrorIs(t, err, errKilled)
				kills += 2
				from := s.Clock().Now()
				c, err := s.process(-1)
				require.NoError(t, err)
				require.Less(t, s.Clock().Now()-from, time.Second, "nothing was waited for in vain")
				require.Empty(t, c.Abandoned())
			}
			require.Len(t, s.memory, 1, "one buffer for all")
			require.Equal(t, bytes, s.bytes(), "memory that is kept")
			last := uint32(0)
			for _, c := range s.Commands() {
				require.Equal(t, msg.CmdLIFRead, c.Command, "no request was wiped")
				asked := binary.LittleEndian.Uint32(c.Payload)
				require.GreaterOrEqual(t, asked, last, "each request is that of its process")
				last = asked
			}
			s.quiet(t)
		})
	}
}

// A command that the card never ends keeps its buffer: no later process writes to it
// before its reply has come.
func TestSimLostCommandKeepsItsBuffer(t *testing.T) {
	s := newShelf(t, hwsim.Options{})
	silent := func(on bool) { s.Faults(func(f *hwsim.Faults) { f.RPCSilent = on }) }
	s.configured = func(m *mortal) {
		silent(true)
		m.may = 50 // it waits for its command
	}
	_, err := s.process(-1)
	require.ErrorIs(t, err, errKilled)
	s.configured = func(*mortal) {}
	require.Len(t, s.memory, 1)
	lost := s.memory[0][:msg.BufferSize]
	left := append([]byte(nil), lost...)
	require.Equal(t, byte(msg.CmdLIFRead), left[msg.ReqCommand])

	from := s.Clock().Now()
	_, err = s.process(-1)
	require.ErrorIs(t, err, rpc.ErrTimeout, "its own configuration")
	require.GreaterOrEqual(t, s.Clock().Now()-from, 5*time.Second, "after the command had its two seconds")
	require.LessOrEqual(t, s.Clock().Now()-from, 5100*time.Millisecond)
	silent(false)
	for range 3 {
		c, err := s.process(-1)
		require.NoError(t, err)
		require.Len(t, c.Abandoned(), 1)
		require.Equal(t, left, lost, "the request is as it was")
	}
	require.Len(t, s.memory, 2)

	lost[msg.RespDone] = 1 // its reply has come after all
	c, err := s.process(-1)
	require.NoError(t, err)
	require.Empty(t, c.Abandoned())
	require.Len(t, s.memory, 2)
	s.quiet(t)
}

// A card that ends every command too late costs two buffers, not one for each.
func TestSimSlowCardUsesBuffersAgain(t *testing.T) {
	s := newSim(t, hwsim.Options{})
	c := s.opened(t)
	for range 20 {
		s.Faults(func(f *hwsim.Faults) { f.RPCDelay = 2500 * time.Millisecond })
		_, err := c.Platform(bg)
		require.ErrorIs(t, err, rpc.ErrTimeout)
		require.NoError(t, s.Clock().Sleep(bg, time.Second)) // the late reply
		s.Faults(func(f *hwsim.Faults) { f.RPCDelay = 0 })
		require.NoError(t, c.Reopen(bg))
		_, err = c.Platform(bg)
		require.NoError(t, err)
	}
	require.Equal(t, 2, s.bufs)
	require.Len(t, c.Abandoned(), 1)
	s.quiet(t)
}

// A process that was killed between a command and its doorbell leaves one that the card
// has never looked at. It is not waited for in vain.
func TestSimCommandWithoutItsDoorbell(t *testing.T) {
	s := newShelf(t, hwsim.Options{})
	s.configured = func(m *mortal) { m.may = 3 } // a descriptor, and the count
	_, err := s.process(-1)
	require.ErrorIs(t, err, errKilled)
	require.Equal(t, uint64(1), s.fac.Load64(msg.StateLowRing+msg.RingPosted))
	s.configured = func(*mortal) {}
	from := s.Clock().Now()
	c, err := s.process(-1)
	require.NoError(t, err)
	require.Less(t, s.Clock().Now()-from, 100*time.Millisecond)
	require.Empty(t, c.Abandoned())
	require.Len(t, s.memory, 1)
	s.quiet(t)
}
