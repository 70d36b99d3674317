package reg

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// Worked examples of switch.md 2.
func TestCommandWords(t *testing.T) {
	assert.Equal(t, uint16(0x9828), ReadCommand(1, PortControl2))
	assert.Equal(t, uint16(0x9428), WriteCommand(1, PortControl2))
	assert.Equal(t, uint16(0x9948), ReadCommand(10, 8))
	assert.Equal(t, uint16(0x9b98), ReadCommand(Global2, 0x18))
}

func TestJumboFieldTouchesNoOtherBit(t *testing.T) {
	for _, old := range []uint16{0, 0xffff, 0x1080, 0xcfff, 0x3000} {
		for j := Jumbo1522; j <= Jumbo10240; j++ {
			v := j.Put(old)
			assert.Equal(t, j, JumboOf(v))
			assert.Equal(t, old&^JumboMask, v&^JumboMask)
		}
	}
	assert.Equal(t, uint16(0x2080), Jumbo10240.Put(0x1080))
	assert.Equal(t, []int{1522, 2048, 10240, 0}, []int{Jumbo1522.FrameBytes(), Jumbo2048.FrameBytes(), Jumbo10240.FrameBytes(), JumboReserved.FrameBytes()})
}
