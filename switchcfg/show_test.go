package switchcfg

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/switchcfg/reg"
)

func TestShow(t *testing.T) {
	ctx := context.Background()
	b := newBus()
	b.regs[1][reg.PortStatus] = 0x0e0f
	st, err := New(b.smi()).Show(ctx)
	require.NoError(t, err)
	assert.Empty(t, b.writes)
	assert.True(t, st.Ports[1].Status.Link())
	assert.False(t, st.Ports[2].Status.Link())
	assert.Equal(t, uint16(0x017f), st.Ports[0].Control)
	assert.Equal(t, reg.Jumbo10240, st.Ports[0].Mode())
	assert.Equal(t, 2030, st.MTU(1))
	b.regs[0][reg.PortControl2] = reg.Jumbo2048.Put(b.regs[0][reg.PortControl2])
	st, err = New(b.smi()).Modes(ctx)
	require.NoError(t, err)
	assert.Equal(t, 2026, st.MTU(1))

	b.regs[0][reg.Identifier] = 0x0950
	_, err = New(b.smi()).Show(ctx)
	var e *ProductError
	require.ErrorAs(t, err, &e)
}

func TestReadRegister(t *testing.T) {
	b := newBus()
	v, err := New(b.smi()).Read(context.Background(), Register{9, reg.PortControl2})
	require.NoError(t, err)
	assert.Equal(t, b.regs[9][reg.PortControl2], v)
	b.regs[3][reg.PortControl2] = 0
	v, err = New(b.smi()).Read(context.Background(), Register{3, reg.PortControl2})
	require.NoError(t, err)
	assert.Zero(t, v)
	_, err = New(b.smi()).Read(context.Background(), Register{9, 32})
	var e *RangeError
	require.ErrorAs(t, err, &e)
}

//oxpd:fault S8 behaviour
func TestWriteRegister(t *testing.T) {
	ctx := context.Background()
	t.Run("written and read back", func(t *testing.T) {
		b := newBus()
		before, after, err := New(b.smi()).Write(ctx, Register{1, reg.PortControl}, 0x007c)
		require.NoError(t, err)
		assert.Equal(t, []uint16{0x007f, 0x007c}, []uint16{before, after})
		assert.Equal(t, []string{"sw1 0x04 0x007c"}, b.writes)
	})
	t.Run("it did not stick", func(t *testing.T) {
		b := newBus()
		b.stores = func(_, _, _ int, old, _ uint16) uint16 { return old }
		_, after, err := New(b.smi()).Write(ctx, Register{1, reg.PortControl}, 0x007c)
		var e *VerifyError
		require.ErrorAs(t, err, &e)
		assert.Equal(t, uint16(0x007f), after)
		assert.Len(t, b.writes, 1, "once")
	})
	t.Run("another product", func(t *testing.T) {
		b := newBus()
		b.regs[0][reg.Identifier] = 0x0950
		_, _, err := New(b.smi()).Write(ctx, Register{1, reg.PortControl}, 0x007c)
		var e *ProductError
		require.ErrorAs(t, err, &e)
		assert.Empty(t, b.writes)
	})
	t.Run("never", func(t *testing.T) {
		b := newBus()
		for _, w := range []struct {
			at Register
			v  uint16
		}{
			{Register{0, 6}, 0x07fe}, {Register{1, 6}, 0x07ff}, {Register{10, 6}, 1}, {Register{0, 4}, 0x017f}, {Register{1, 8}, 0x3080}, {Register{0, 8}, 0xffff},
		} {
			_, _, err := New(b.smi()).Write(ctx, w.at, w.v)
			require.ErrorIs(t, err, ErrForbidden)
			assert.ErrorContains(t, err, w.at.String())
		}
		assert.Zero(t, b.accesses)
	})
	t.Run("registers of that number elsewhere", func(t *testing.T) {
		assert.NoError(t, CheckWrite(Register{reg.Global1, 6}, 1))
		assert.NoError(t, CheckWrite(Register{reg.Global2, 8}, 0x3000))
		assert.NoError(t, CheckWrite(Register{10, 4}, 0x007f))
	})
}

func TestParsePort(t *testing.T) {
	for in, want := range map[string]Port{
		"oxp1": 1, "Port8": 8, "oxp11": 9, "PortF3": 9, "f4": 10, "sw9": 9, "SW10": 10, "sw0": 0,
	} {
		p, err := ParsePort(in)
		require.NoError(t, err, in)
		assert.Equal(t, want, p, in)
	}
	for _, in := range []string{"9", "0", "oxp9", "PortF1", "F2", "sw11", "sw", "sw01", "sw-1", "sw+1", "uplink0", "", "port 1"} {
		_, err := ParsePort(in)
		var e *PortError
		require.ErrorAs(t, err, &e, in)
		assert.ErrorContains(t, err, "want oxp1 to oxp8")
	}
	assert.Equal(t, "oxp11 (PortF3, sw9)", Port(9).String())
	assert.Equal(t, "sw0 (uplink)", Uplink.String())
	dev, err := ParseDevice("Global2")
	require.NoError(t, err)
	assert.Equal(t, reg.Global2, dev)
	_, err = ParseDevice("27")
	require.Error(t, err)
}

func TestParseNumber(t *testing.T) {
	for in, want := range map[string]int{"0": 0, "31": 31, "0x1f": 31, "08": 8} {
		v, err := ParseNumber("register", in, 31)
		require.NoError(t, err, in)
		assert.Equal(t, want, v)
	}
	for _, in := range []string{"", "32", "-1", "0x", "0x20", "8x", " 8", "+8", "0b1", "1_0", "99999999999"} {
		_, err := ParseNumber("register", in, 31)
		var e *NumberError
		require.ErrorAs(t, err, &e, in)
		assert.ErrorContains(t, err, "from 0x0 to 0x1f")
	}
}
