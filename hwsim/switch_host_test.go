package hwsim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// smiHost reaches the switch as a program on the coprocessor does, by
// transactions, with the numbers of switch.md and nothing of the project's driver.
type smiHost struct {
	t testing.TB
	c *Card
}

const (
	gl1, gl2 = 0x1b, 0x1c
	allPorts = 11
)

// newSMIHost is a card whose coprocessor's kernel runs.
func newSMIHost(t testing.TB, change ...func(*Options)) smiHost {
	o := Options{Seed: 7, Timeline: Compressed()}
	for _, f := range change {
		f(&o)
	}
	c := New(o)
	atEnd(t, c, c.Close)
	c.Advance(time.Second)
	require.True(t, c.KernelUp())
	return smiHost{t, c}
}

// r and w are one transaction each at the switch's address.
func (h smiHost) r(reg int) uint16 {
	v, err := h.c.MDIORead(0, 2, reg)
	require.NoError(h.t, err)
	return v
}

func (h smiHost) w(reg int, v uint16) { require.NoError(h.t, h.c.MDIOWrite(0, 2, reg, v)) }

// idle waits for the busy bit.
func (h smiHost) idle() {
	for range 1000 {
		if h.r(0)&0x8000 == 0 {
			return
		}
	}
	h.t.Fatal("the switch stays busy")
}

func (h smiHost) read(dev, reg int) uint16 {
	h.idle()
	h.w(0, 0x9800|uint16(dev<<5|reg))
	h.idle()
	return h.r(1)
}

func (h smiHost) write(dev, reg int, v uint16) {
	h.idle()
	h.w(1, v)
	h.w(0, 0x9400|uint16(dev<<5|reg))
	h.idle()
}

// phyDo runs a command of Global2's pair.
func (h smiHost) phyDo(cmd uint16) {
	h.write(gl2, 0x18, cmd)
	for range 1000 {
		if h.read(gl2, 0x18)&0x8000 == 0 {
			return
		}
	}
	h.t.Fatal("the PHY command register stays busy")
}

func (h smiHost) phyRead(phy, reg int) uint16 {
	h.phyDo(0x9800 | uint16(phy<<5|reg))
	return h.read(gl2, 0x19)
}

func (h smiHost) phyWrite(phy, reg int, v uint16) {
	h.write(gl2, 0x19, v)
	h.phyDo(0x9400 | uint16(phy<<5|reg))
}

func (h smiHost) c45At(phy, mmd int, reg uint16) {
	h.write(gl2, 0x19, reg)
	h.phyDo(0x8000 | uint16(phy<<5|mmd))
}

func (h smiHost) c45Read(phy, mmd int, reg uint16) uint16 {
	h.c45At(phy, mmd, reg)
	h.phyDo(0x8c00 | uint16(phy<<5|mmd))
	return h.read(gl2, 0x19)
}

func (h smiHost) c45Write(phy, mmd int, reg, v uint16) {
	h.c45At(phy, mmd, reg)
	h.write(gl2, 0x19, v)
	h.phyDo(0x8400 | uint16(phy<<5|mmd))
}

// mode sets the jumbo field of a port by the rule of switch.md 5.
func (h smiHost) mode(port int, m uint16) {
	h.write(port, 8, h.read(port, 8)&^0x3000|m<<12)
}

// switchHost is a smiHost of a card whose data path is up.
func (h *ringHost) switchHost() smiHost { return smiHost{h.t, h.c} }
