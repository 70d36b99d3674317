package sys

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// seqpacket is a pair of connected sockets.
func seqpacket(t *testing.T) (a, b int) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fds[0]); unix.Close(fds[1]) })
	return fds[0], fds[1]
}

func TestMessages(t *testing.T) {
	a, b := seqpacket(t)
	out := NewMessages(3)
	out.Set(0, []byte("head"), []byte("body"))
	out.Set(1, []byte("alone"), nil)
	out.Set(2, []byte("much too long"), nil)
	n, err := out.Send(a, 0, 3)
	require.NoError(t, err)
	require.Equal(t, 3, n)

	in := NewMessages(4)
	bufs := make([][]byte, 4)
	for i := range bufs {
		bufs[i] = make([]byte, 8)
		in.Set(i, bufs[i], nil)
	}
	n, err = in.Receive(b, 4)
	require.NoError(t, err)
	require.Equal(t, 3, n)
	for i, want := range []struct {
		text string
		cut  bool
	}{{"headbody", false}, {"alone", false}, {"much too", true}} {
		bytes, cut := in.Bytes(i)
		assert.Equal(t, want.text, string(bufs[i][:bytes]))
		assert.Equal(t, want.cut, cut)
	}
	_, err = in.Receive(b, 4)
	assert.ErrorIs(t, err, unix.EAGAIN)
}

// A full socket takes a part of the batch, then says so; nothing goes twice.
func TestMessagesFull(t *testing.T) {
	a, b := seqpacket(t)
	const all = 512
	out := NewMessages(all)
	for i := range all {
		out.Set(i, []byte{byte(i), byte(i >> 8)}, make([]byte, 4000))
	}
	sent, err := out.Send(a, 0, all)
	require.NoError(t, err)
	require.Less(t, sent, all)
	_, err = out.Send(a, sent, all)
	require.ErrorIs(t, err, unix.EAGAIN)
	in, buf := NewMessages(1), make([]byte, 5000)
	in.Set(0, buf, nil)
	for want := 0; want < all; want++ {
		if _, err := in.Receive(b, 1); err != nil {
			require.ErrorIs(t, err, unix.EAGAIN)
			require.Equal(t, sent, want)
			n, err := out.Send(a, sent, all)
			require.NoError(t, err)
			sent += n
			_, err = in.Receive(b, 1)
			require.NoError(t, err)
		}
		require.Equal(t, want, int(buf[0])|int(buf[1])<<8)
	}
}

func TestMessagesAllocateNothing(t *testing.T) {
	a, b := seqpacket(t)
	out, in := NewMessages(2), NewMessages(2)
	frame, buf := make([]byte, 1514), make([]byte, 2048)
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		out.Set(0, frame, frame)
		in.Set(0, buf, nil)
		_, _ = out.Send(a, 0, 1)
		_, _ = in.Receive(b, 1)
	}))
}
