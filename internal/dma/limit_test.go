package dma

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// placed gives out one region at an address of the test's choice.
type placed struct {
	bus     BusAddr
	freed   []*Region
	refuses error // of Free
}

func (p *placed) Alloc(name string, size, _ int) (*Region, error) {
	return NewRegion(name, make([]byte, size), p.bus), nil
}
func (p *placed) Free(r *Region) error { p.freed = append(p.freed, r); return p.refuses }
func (p *placed) Keeps() bool          { return true }

func TestLimit(t *testing.T) {
	for _, tc := range []struct {
		name  string
		bits  int
		bus   BusAddr
		size  int
		needs int // 0: accepted
	}{
		{"last byte at the end of 36 bits", 36, 1<<36 - 4096, 4096, 0},
		{"one byte past 36 bits", 36, 1<<36 - 4095, 4096, 37},
		{"begins at 36 bits", 36, 1 << 36, 64, 37},
		{"33 bits, as measured", DefaultBits, 0x1_8000_0000, 4096, 0},
		{"address zero", 32, 0, 4096, 0},
		{"4 GiB under 32 bits", 32, 1 << 32, 64, 33},
		{"0x00007fffc0000000 under 36", 36, 0x00007fffc0000000, 4096, 47},
		{"0x00007fffc0000000 under 47", 47, 0x00007fffc0000000, 4096, 0},
		{"0x0000010000000000 under 40", 40, 0x0000010000000000, 4096, 41},
		{"0x0000010000000000 under 41", 41, 0x0000010000000000, 4096, 0},
		{"just under 2^48 under 47", 47, 1<<48 - 4096, 4096, 48},
		{"just under 2^48 under 48", 48, 1<<48 - 4096, 4096, 0},
		{"end of 64 bits", 64, 1<<64 - 4096, 4096, 0},
		{"past the end of 64 bits", 64, 1<<64 - 4096, 4097, 65},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := &placed{bus: tc.bus}
			l := Limit(p, tc.bits)
			assert.True(t, l.Keeps())
			r, err := l.Alloc("oq5 list", tc.size, 64)
			if tc.needs == 0 {
				require.NoError(t, err)
				assert.Equal(t, tc.bus, r.Bus())
				assert.Empty(t, p.freed)
				require.NoError(t, l.Free(r))
				assert.Equal(t, []*Region{r}, p.freed)
				return
			}
			var e *WidthError
			require.ErrorAs(t, err, &e)
			assert.Nil(t, r)
			assert.Equal(t, WidthError{"oq5 list", tc.bus, tc.size, tc.bits}, *e)
			assert.Equal(t, tc.needs, e.Needs())
			assert.Len(t, p.freed, 1, "a refused region goes back")
		})
	}
}

func TestLimitSaysWhatItRefuses(t *testing.T) {
	_, err := Limit(&placed{bus: 0x00007fffc0000000}, 36).Alloc("iq0 slots", 4096, 64)
	require.EqualError(t, err, "dma: region iq0 slots: 4096 bytes at bus address 0x7fffc0000000 need addresses of 47 bits, and dma-bits is 36")
	var h interface{ Hint() string }
	require.ErrorAs(t, err, &h)
	assert.Equal(t, "give oxpd memory below 2^36; or set dma-bits to 47, if this card is known to reach that far", h.Hint())

	stuck := errors.New("still mapped")
	_, err = Limit(&placed{bus: 1 << 40, refuses: stuck}, 36).Alloc("iq0 slots", 4096, 64)
	require.ErrorIs(t, err, stuck, "a region that cannot be given back is not silent")
}

// The in-process provider's own addresses pass by default.
func TestLimitOnInProcess(t *testing.T) {
	d := newTable()
	l := Limit(NewInProcess(d, 0), DefaultBits)
	r, err := l.Alloc("r", 1<<20, 4096)
	require.NoError(t, err)
	require.NoError(t, l.Free(r))
	l = Limit(NewInProcess(d, 1<<36), DefaultBits)
	_, err = l.Alloc("r", 1<<20, 4096)
	require.ErrorContains(t, err, "dma-bits is 36")
	assert.Empty(t, d.regions, "the device knows nothing of it any more")
}

// held has one region of an earlier process.
type held struct {
	Provider
	r *Region
}

func (h held) Held(string, int, int) (*Region, error) { return h.r, nil }

// What the card has already is not judged again: it could only be kept from a process
// that takes over, and not from the card.
func TestLimitPassesWhatIsHeld(t *testing.T) {
	r := NewRegion("far", make([]byte, 64), 1<<40)
	got, err := Limit(held{r: r}, 36).(Holder).Held("far", 64, 64)
	require.NoError(t, err)
	assert.Same(t, r, got)
	_, err = Limit(&placed{}, 36).(Holder).Held("far", 64, 64)
	assert.ErrorIs(t, err, ErrNotHeld)
}
