package frame

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// udp4 is a frame between two ends, the last bytes of their addresses and their ports;
// vlan 0 is none.
func udp4(vlan uint16, src, dst byte, sport, dport uint16, fragment uint16) []byte {
	b := make([]byte, 12, 80)
	if vlan != 0 {
		b = binary.BigEndian.AppendUint16(append(b, 0x81, 0), vlan)
	}
	b = append(b, 8, 0, 0x45, 0, 0, 40, 0, 0, byte(fragment>>8), byte(fragment), 64, 17, 0, 0, 10, 0, 0, src, 10, 0, 0, dst)
	b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, sport), dport)
	return append(b, make([]byte, 20)...)
}

func conn(t *testing.T, b []byte) Conn {
	t.Helper()
	var p Packet
	p.Parse(b, len(b))
	c, ok := p.Conn()
	require.True(t, ok)
	return c
}

func TestConn(t *testing.T) {
	one := conn(t, udp4(0, 1, 2, 1000, 53, 0))
	assert.Equal(t, one, conn(t, udp4(0, 2, 1, 53, 1000, 0)), "the answer")
	assert.Equal(t, conn(t, udp4(0, 7, 7, 9, 8, 0)), conn(t, udp4(0, 7, 7, 8, 9, 0)), "of one host with itself")
	for name, b := range map[string][]byte{
		"the other host's port": udp4(0, 1, 2, 53, 1000, 0), "another port": udp4(0, 1, 2, 1001, 53, 0),
		"another host": udp4(0, 1, 3, 1000, 53, 0), "another VLAN": udp4(1, 1, 2, 1000, 53, 0),
	} {
		assert.NotEqual(t, one, conn(t, b), name)
	}
	assert.NotEqual(t, conn(t, udp4(1, 1, 2, 1000, 53, 0)), conn(t, udp4(2, 1, 2, 1000, 53, 0)))
	for name, b := range map[string][]byte{"first piece": udp4(0, 1, 2, 1000, 53, 0x2000), "later piece": udp4(0, 1, 2, 1000, 53, 5), "cut": udp4(0, 1, 2, 1000, 53, 0)[:36], "no IP": make([]byte, 60)} {
		var p Packet
		p.Parse(b, len(b))
		_, ok := p.Conn()
		assert.False(t, ok, name)
	}
}

func TestL3Of(t *testing.T) {
	assert.Equal(t, HeaderSize, L3Of(udp4(0, 1, 2, 3, 4, 0)))
	assert.Equal(t, HeaderSize+VLANSize, L3Of(udp4(1, 1, 2, 3, 4, 0)))
	assert.Equal(t, HeaderSize, L3Of(udp4(1, 1, 2, 3, 4, 0)[:16]), "half a tag")
	assert.Equal(t, HeaderSize, L3Of(nil))
}
