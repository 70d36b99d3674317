package vfiouser_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	server "oxpd/hwsim/vfiouser"
	"oxpd/internal/board"
	"oxpd/internal/clock"
	"oxpd/internal/mmio"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/octep/vfiouser"
	"oxpd/ring"
	"oxpd/rpc/msg"
)

// hang bounds every wait by the wall clock: a guard, not a measurement.
const hang = 60 * time.Second

var _ octep.Device = (*vfiouser.Device)(nil)

// served is a card that runs behind a socket.
type served struct {
	card *hwsim.Card
	path string
	srv  *server.Server
}

func serve(t *testing.T) *served {
	t.Helper()
	s := serveStepped(t)
	s.card.Start()
	return s
}

// serveStepped is serve with the card's time in the test's hands.
func serveStepped(t *testing.T) *served {
	t.Helper()
	mem, err := server.NewMemory()
	require.NoError(t, err)
	card := hwsim.New(hwsim.Options{Seed: 1, Timeline: hwsim.Compressed(), HostVectors: true, Windows: mem.Windows()})
	path := filepath.Join(t.TempDir(), "card.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	srv := server.New(ln, card, mem, nil)
	done := make(chan error, 1)
	go func() { done <- srv.Serve() }()
	t.Cleanup(func() {
		assert.NoError(t, srv.Close())
		assert.NoError(t, <-done)
		card.Close()
		assert.NoError(t, mem.Close())
	})
	return &served{card, path, srv}
}

func (s *served) open(t *testing.T) *vfiouser.Device {
	t.Helper()
	d, err := vfiouser.Open(context.Background(), s.path)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	return d
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(hang); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

func TestConfigSpace(t *testing.T) {
	s := serve(t)
	d := s.open(t)
	assert.Equal(t, "vfio-user:"+s.path, d.Name())
	read := func(off, width int) uint32 {
		v, err := d.ConfigRead(off, width)
		require.NoError(t, err)
		return v
	}
	assert.EqualValues(t, board.Vendor, read(csr.CfgVendor, 2))
	assert.EqualValues(t, uint32(board.DevicePF)<<16|board.Vendor, read(csr.CfgVendor, 4))
	assert.EqualValues(t, 1, read(csr.CfgRevision, 1))
	require.NoError(t, octep.SetBusMaster(d, true))
	assert.EqualValues(t, csr.CfgCommandBusMaster, read(csr.CfgCommand, 2))
	require.NoError(t, octep.SetBusMaster(d, false))

	// Capabilities are found by walking the list.
	caps := map[uint32]uint32{}
	for at := read(0x34, 1); at != 0; at = read(int(at)+1, 1) {
		caps[read(int(at), 1)] = at
	}
	assert.EqualValues(t, 0x70, caps[0x10], "PCI Express")
	require.Contains(t, caps, uint32(0x11), "MSI-X")
	assert.EqualValues(t, csr.MSIXVectors-1, read(int(caps[0x11])+2, 2)&0x7ff)

	for i, size := range map[int]uint64{0: csr.BAR0Size, 2: csr.BAR2Size, 4: csr.BAR4Size} {
		off := csr.CfgBAR0 + 4*i
		before := read(off, 4)
		require.NoError(t, d.ConfigWrite(off, 4, 0xffffffff))
		require.NoError(t, d.ConfigWrite(off+4, 4, 0xffffffff))
		mask := uint64(read(off, 4)) | uint64(read(off+4, 4))<<32
		assert.EqualValues(t, 4, mask&0xf, "64 bits, memory")
		assert.Equal(t, size, ^(mask&^0xf)+1, "size of BAR %d", i)
		require.NoError(t, d.ConfigWrite(off, 4, before))
		require.NoError(t, d.ConfigWrite(off+4, 4, 0))
	}
	for _, width := range []int{0, 3, 8} {
		_, err := d.ConfigRead(0, width)
		assert.Error(t, err)
		assert.Error(t, d.ConfigWrite(csr.CfgCommand, width, 0))
	}
}

func TestBARs(t *testing.T) {
	s := serve(t)
	d := s.open(t)
	require.NoError(t, d.ConfigWrite(csr.CfgCommand, 2, csr.CfgCommandMemory))
	bar0, bar2 := d.BAR0(), d.BAR2()
	assert.EqualValues(t, csr.BAR0Size, bar0.Size())
	assert.EqualValues(t, csr.BAR2Size, bar2.Size())
	eventually(t, "windows", func() bool { return mmio.Load64(bar0, csr.SDPScratch) == csr.BAR2Facilities<<32|csr.ScratchMagic })
	s.card.ResetAccesses()
	assert.EqualValues(t, csr.RInfoReset, bar0.Load32(uint32(csr.RInfo)))
	mmio.Store64(bar0, csr.InInstrBaddr.Queue(3), 0x1122334455667788)
	assert.EqualValues(t, 0x11223344, bar0.Load32(uint32(csr.InInstrBaddr.Queue(3))+4))
	mmio.Store32(bar0, csr.InIntLevels.Queue(3).Low(), 7)
	assert.EqualValues(t, 7, mmio.Load64(bar0, csr.InIntLevels.Queue(3)))
	acc := s.card.Accesses()
	assert.Equal(t, hwsim.AccessCount{Reads: 1, Reads32: 1, Writes: 1}, acc["IN_INSTR_BADDR[3]"], "each access one, at its width")
	assert.EqualValues(t, 1, acc["IN_INT_LEVELS[3]"].Writes32)

	assert.Equal(t, ^uint64(0), bar2.Load64(0), "an entry that the target never maps")
	assert.EqualValues(t, 2, bar2.Load32(csr.BAR2Facilities), "the barmap's version")
	bar2.Store64(0x02100400, 0x8877665544332211)
	assert.EqualValues(t, 0x88776655, bar2.Load32(0x02100404))
	assert.Equal(t, uint64(0x8877665544332211), s.card.Load(2, 0x02100400, 8), "the card has it too")
	assert.NotContains(t, s.card.Accesses(), "BAR2_CONTROL", "mapped memory is no access")
	bar2.Store32(0x03c00040, 153)
	eventually(t, "the doorbell", func() bool { return s.card.Doorbells()[153] == 1 })
	assert.Empty(t, s.card.Reports())

	// What hangs a host is never mapped: the model sees it.
	assert.Equal(t, ^uint32(0), bar2.Load32(0x03c00040))
	assert.Equal(t, ^uint64(0), bar2.Load64(0x02400000))
	assert.EqualValues(t, 2, s.card.ReportCount(hwsim.ReportForbiddenRead))
}

// sink is where received frames go.
type sink struct {
	mu     sync.Mutex
	frames map[uint16][][]byte
}

func (s *sink) Deliver(_ int, frames []ring.Frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range frames {
		s.frames[f.Tag] = append(s.frames[f.Tag], bytes.Join(f.Pieces, nil))
	}
}

func (s *sink) count(tag board.Tag) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.frames[uint16(tag)])
}

func testFrame(dst [6]byte, seq, n int) []byte {
	f := make([]byte, n)
	for i := range f {
		f[i] = byte(i*7 + seq)
	}
	copy(f, dst[:])
	copy(f[6:], []byte{2, 0, 0, 0, 1, 1})
	binary.BigEndian.PutUint16(f[12:], 0x88b5)
	return f
}

// TestBringUp is the bring-up of a driver on a card in another process: rings,
// handshake, facilities, then frames of one and of six buffers both ways.
func TestBringUp(t *testing.T) {
	s := serve(t)
	d := s.open(t)
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	clk := clock.NewReal()
	ep, err := octep.Open(ctx, d, octep.Config{Clock: clk})
	require.NoError(t, err)
	require.NoError(t, ep.CheckFresh())
	require.NoError(t, octep.SetBusMaster(d, true))
	got := &sink{frames: map[uint16][][]byte{}}
	rings, err := ring.New(ring.Config{BAR0: d.BAR0(), DMA: d.DMA(), Clock: clk, Sink: got})
	require.NoError(t, err)
	require.NoError(t, rings.Program(ctx))
	var workers sync.WaitGroup
	run, stop := context.WithCancel(ctx)
	for _, w := range rings.Workers(2) {
		irq := make(chan struct{}, 1)
		for _, q := range w.Queues() {
			require.NoError(t, d.BindIRQ(csr.MSIXRingVector+q, rings.OQ(q).Handler(irq)))
		}
		workers.Add(1)
		go func() {
			defer workers.Done()
			_ = w.Run(run, irq) // ends with run
		}()
	}
	require.NoError(t, ep.WaitReady(ctx))
	clocks, err := ep.NewHandshake(nil).Run(ctx)
	require.NoError(t, err)
	assert.EqualValues(t, 800, clocks)
	require.NoError(t, rings.SetClocks(clocks))
	_, err = ep.WaitFacility(ctx, csr.FacRPC)
	require.NoError(t, err)
	eventually(t, "the fast path", ep.FastPathUp)
	s.card.Provision()
	f1, _ := board.Parse("F1")
	l, ok := s.card.LIF(uint32(f1.LIF()))
	require.True(t, ok)
	l.MTU = 9000
	s.card.SetLIF(uint32(f1.LIF()), &l)

	var left [][]byte
	var mu sync.Mutex
	wire := s.card.Wire(uint16(f1.Tag))
	wire.SetReceiver(func(b []byte) {
		mu.Lock()
		defer mu.Unlock()
		left = append(left, append([]byte(nil), b...))
	})
	sizes := []int{60, 1514, 9014, 61, 9013}
	for seq, n := range sizes {
		require.True(t, rings.IQ().Post(uint16(f1.Tag), testFrame([6]byte{2, 9}, seq, n)))
		wire.Send(testFrame(l.MAC, seq, n))
	}
	rings.IQ().Flush()
	eventually(t, "frames to the wire", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(left) == len(sizes)
	})
	eventually(t, "frames from the wire", func() bool { return got.count(f1.Tag) == len(sizes) })
	for seq, n := range sizes {
		assert.Equal(t, testFrame([6]byte{2, 9}, seq, n), left[seq], "to the wire, %d bytes", n)
		assert.Equal(t, testFrame(l.MAC, seq, n), got.frames[uint16(f1.Tag)][seq], "from the wire, %d bytes", n)
	}
	assert.NotZero(t, rings.Stats().IntrTaken, "interrupts arrive")

	stop()
	workers.Wait()
	require.NoError(t, octep.SetBusMaster(d, false))
	require.NoError(t, rings.Free())
	assert.Empty(t, s.card.Reports())
	assert.NoError(t, s.card.CheckConservation())
	assert.EqualValues(t, len(sizes), s.card.Counter(msg.CntTXKN))
}

// A server that goes is a card that goes.
func TestServerGone(t *testing.T) {
	s := serve(t)
	d := s.open(t)
	require.NoError(t, d.ConfigWrite(csr.CfgCommand, 2, csr.CfgCommandMemory))
	require.NoError(t, d.BindIRQ(16, func() {}))
	r, err := d.DMA().Alloc("r", 4096, 4096)
	require.NoError(t, err)
	require.True(t, octep.Alive(d))
	assert.False(t, d.Ended())
	require.NoError(t, s.srv.Close())

	assert.False(t, octep.Alive(d))
	assert.True(t, d.Ended())
	v, err := d.ConfigRead(csr.CfgRevision, 1)
	require.NoError(t, err)
	assert.EqualValues(t, 0xff, v)
	_, err = mmio.Checked64(d.BAR0(), csr.RInfo)
	assert.ErrorIs(t, err, mmio.ErrGone)
	assert.Equal(t, ^uint32(0), d.BAR0().Load32(0x20190))
	d.BAR0().Store64(0x20180, 1)
	assert.NoError(t, d.ConfigWrite(csr.CfgCommand, 2, 0))
	_ = d.BAR2().Load32(csr.BAR2Facilities) // what it last held, whatever that is
	assert.Equal(t, ^uint64(0), d.BAR2().Load64(csr.BAR2Interrupt))
	assert.ErrorIs(t, d.BindIRQ(17, func() {}), mmio.ErrGone)
	assert.NoError(t, d.BindIRQ(16, nil), "nobody is bound any more")
	_, err = d.DMA().Alloc("s", 4096, 4096)
	assert.ErrorIs(t, err, mmio.ErrGone)
	assert.NoError(t, d.DMA().Free(r), "nobody reaches it")
}

func TestOpenRefused(t *testing.T) {
	dir := t.TempDir()
	ctx := context.Background()
	refused := func(path string) *vfiouser.OpenError {
		t.Helper()
		d, err := vfiouser.Open(ctx, path)
		require.Error(t, err)
		assert.Nil(t, d)
		var e *vfiouser.OpenError
		require.ErrorAs(t, err, &e)
		return e
	}
	t.Run("no socket", func(t *testing.T) {
		e := refused(filepath.Join(dir, "none"))
		assert.ErrorIs(t, e, os.ErrNotExist)
		assert.Contains(t, e.Hint(), "oxpd sim serve --vfio-user ")
	})
	t.Run("somebody else is connected", func(t *testing.T) {
		s := serve(t)
		first := s.open(t)
		e := refused(s.path)
		assert.ErrorIs(t, e, mmio.ErrGone)
		assert.Contains(t, e.Hint(), "one client at a time")
		assert.True(t, octep.Alive(first), "the first works on")
		require.NoError(t, first.Close())
		assert.True(t, octep.Alive(s.open(t)), "the next may come at once")
	})
	t.Run("a context that ends", func(t *testing.T) {
		path := filepath.Join(dir, "silent")
		ln, err := net.Listen("unix", path)
		require.NoError(t, err)
		defer ln.Close()
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		assert.ErrorIs(t, refused(path), context.DeadlineExceeded)
	})
}

// A server that says nonsense is left, whatever it says.
func TestHostileServer(t *testing.T) {
	// After an answer that is no error and not what it should be, nothing is.
	for name, answer := range map[string][]byte{
		"nothing":             {},
		"half a header":       {1, 0, 1},
		"another id":          {9, 9, 1, 0, 16, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0},
		"a command":           {1, 0, 1, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"a size below itself": {1, 0, 1, 0, 15, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0},
		"four gigabytes":      {1, 0, 1, 0, 0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0, 0, 0, 0},
		"an error":            {1, 0, 1, 0, 16, 0, 0, 0, 0x21, 0, 0, 0, 16, 0, 0, 0},
		"version 1.0":         {1, 0, 1, 0, 20, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0},
		"more than an answer": {1, 0, 1, 0, 16, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s")
			ln, err := net.Listen("unix", path)
			require.NoError(t, err)
			defer ln.Close()
			done := make(chan struct{})
			go func() {
				defer close(done)
				c, err := ln.Accept()
				if err != nil {
					return
				}
				defer c.Close()
				_, _ = c.Read(make([]byte, 4096))
				_, _ = c.Write(answer)
			}()
			_, err = vfiouser.Open(context.Background(), path)
			var e *vfiouser.OpenError
			assert.True(t, errors.As(err, &e), "%v", err)
			assert.Equal(t, name != "an error" && name != "version 1.0", errors.Is(err, mmio.ErrGone), "%v", err)
			<-done
		})
	}
}
