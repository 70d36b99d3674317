package sys

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestReceiveLengths: ST-4. The length of each read is its own: of one that was cut the whole
// datagram's, which no later read has, also not one that gets nothing.
func TestReceiveLengths(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	require.NoError(t, err)
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	room := make([]byte, 40)
	for _, n := range []int{100, 30, 40, 41, 1, 0, 40} {
		require.NoError(t, unix.Send(pair[1], make([]byte, n), 0))
		got, err := Receive(pair[0], room)
		require.NoError(t, err)
		assert.Equal(t, n, got)
	}
	n, err := Receive(pair[0], room)
	assert.ErrorIs(t, err, unix.EAGAIN)
	assert.Zero(t, n)
}
