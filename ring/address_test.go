package ring

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/dma"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
)

// extent is a device that notes where memory began and ended, and how many regions
// it knows.
type extent struct {
	first, end uint64
	open       int
}

func (x *extent) MapDMA(bus uint64, mem []byte) error {
	if x.first == 0 {
		x.first = bus
	}
	x.end = bus + uint64(len(mem))
	x.open++
	return nil
}

func (x *extent) UnmapDMA(uint64, int) error { x.open--; return nil }

// ringBytes is how far apart the first and the last byte of ring memory lie.
func ringBytes(t *testing.T) uint64 {
	t.Helper()
	var x extent
	r, err := New(Config{BAR0: &handRegs{}, DMA: dma.NewInProcess(&x, 0), Clock: &handClock{}, Sink: &keep{}})
	require.NoError(t, err)
	require.NoError(t, r.Free())
	return x.end - x.first
}

// hole is what NewInProcess leaves between what it is told and its first region.
const hole = 1 << 20

// TX-4: an address that goes through a type with fewer than 64 significant bits,
// or through two halves, sends the card to other memory.
func TestSimHighBusAddresses(t *testing.T) {
	size := ringBytes(t)
	for _, tc := range []struct {
		name  string
		first uint64 // bus address of the first byte of ring memory
		bits  int    // the least that reaches the last
	}{
		{"0x00007fffc0000000", 0x00007fffc0000000, 47},
		{"0x0000010000000000", 0x0000010000000000, 41},
		{"just under 2^48", 1<<48 - size, 48},
		{"across 2^40", 1<<40 - size/2&^4095, 41},
		{"just under 2^64", 1<<64 - 2*hole - size, 64},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sink := &keep{}
			b := newBenchOn(t, sink, func(c *hwsim.Card) dma.Provider { return dma.Limit(dma.NewInProcess(c, tc.first-hole), tc.bits) })
			require.Equal(t, tc.first, uint64(b.rings.regions[0].Bus()))
			descriptors(t, b)

			b.mtu(portF1, 9000)
			var out [][]byte
			b.card.Wire(uint16(portF1.Tag)).SetReceiver(func(f []byte) { out = append(out, append([]byte(nil), f...)) })
			var in, posted [][]byte
			for i := range 2 * wire.IQSlots { // every slot twice
				n := []int{60, 9014}[i%2]
				f := udp(b.mac(portF1), i, i, n)
				b.card.Wire(uint16(portF1.Tag)).Send(f)
				in = append(in, f)
				g := udp([6]byte{2, 2, 2, 2, 2, 2}, i, i, n)
				require.True(t, b.rings.IQ().Post(uint16(portF1.Tag), g))
				posted = append(posted, g)
				b.card.Advance(100 * time.Microsecond)
				b.visitAll()
				b.rings.IQ().Settle()
			}
			b.drain()
			assert.Equal(t, len(in), len(sink.frames))
			assert.Equal(t, in, sink.frames)
			assert.Equal(t, posted, out)
			b.healthy()

			for _, bits := range []int{dma.DefaultBits, tc.bits - 1} {
				var x extent
				_, err := New(Config{BAR0: b.dev.BAR0(), DMA: dma.Limit(dma.NewInProcess(&x, tc.first-hole), bits), Clock: b.card.Clock(), Sink: sink})
				var e *dma.WidthError
				require.ErrorAs(t, err, &e)
				assert.Equal(t, bits, e.Bits)
				assert.ErrorContains(t, err, "ring: allocate "+e.Region+": dma: region "+e.Region+": ")
				assert.Zero(t, x.open, "the device knows nothing of it any more")
			}
		})
	}
}

// descriptors holds every descriptor against sums of its own: eight bytes, least
// significant first, whatever their upper half is.
func descriptors(t *testing.T, b *bench) {
	t.Helper()
	little := func(v uint64) (w []byte) {
		for ; len(w) < 8; v >>= 8 {
			w = append(w, byte(v))
		}
		return w
	}
	register := func(reg csr.RingReg, q int) uint64 { return b.card.Load(0, uint64(reg.Queue(q)), 8) }

	iq := b.rings.iq
	assert.Equal(t, uint64(iq.instr.Bus()), register(csr.InInstrBaddr, 0))
	var instr [wire.InstrSize]byte
	for i := range uint64(wire.IQSlots) {
		_, bus := iq.slot(uint32(i))
		wire.PutInstruction(instr[:], uint64(bus), 60)
		require.Equal(t, little(uint64(iq.slots[i/32].Bus())+i%32*9344), instr[:8], "instruction %d", i)
	}
	for q := range wire.OQs {
		o := b.rings.oqs[q]
		assert.Equal(t, uint64(o.list.Bus()), register(csr.OutSlistBaddr, q), "ring %d", q)
		for i := range uint64(wire.OQEntries) {
			entry, _ := o.list.At(int(i)*16, 16)
			require.Equal(t, append(little(uint64(o.bufs.Bus())+i*1664), make([]byte, 8)...), entry, "ring %d, entry %d", q, i)
		}
	}
}

// The example of the page (datapath.md 2.1) and the addresses of TX-4, as they lie in memory.
func TestDescriptorBytes(t *testing.T) {
	for _, tc := range []struct {
		bus  uint64
		want string
	}{
		{0x123456000, "0060452301000000"},
		{0x00007fffc0000000, "000000c0ff7f0000"},
		{0x0000010000000000, "0000000000010000"},
		{1<<48 - 0x1000, "00f0ffffffff0000"},
		{1<<64 - 0x1000, "00f0ffffffffffff"},
	} {
		t.Run(fmt.Sprintf("%#x", tc.bus), func(t *testing.T) {
			var b [wire.InstrSize]byte
			wire.PutInstruction(b[:], tc.bus, 60)
			assert.Equal(t, tc.want, fmt.Sprintf("%x", b[:8]))
			assert.Equal(t, uint64(154), binary.LittleEndian.Uint64(b[8:])&0xffff, "the neighbour is unharmed")
			var e [wire.ListEntry]byte
			wire.PutListEntry(e[:], tc.bus)
			assert.Equal(t, tc.want+"0000000000000000", fmt.Sprintf("%x", e))
		})
	}
}
