package port

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/sys"
)

func openInline(t *testing.T, ns *sys.NetNS) *Inline {
	i, err := OpenInline(InlineConfig{Names: [2]string{"oxp1w", "oxp1h"}, NetNS: ns.Path()})
	require.NoError(t, err)
	t.Cleanup(func() { i.Close() })
	return i
}

// mtus are the interfaces' in the kernel.
func (i *Inline) mtus(t *testing.T) (both [2]int) {
	for s := range i.sides {
		l, err := i.sides[s].link.state()
		require.NoError(t, err)
		both[s] = l.MTU
	}
	return both
}

func TestInline(t *testing.T) {
	ns := newNS(t)
	i := openInline(t, ns)
	shown := ip(t, ns, "link show oxp1w")
	assert.Contains(t, shown, "NOARP")
	assert.Contains(t, shown, "UP")
	assert.NotContains(t, ip(t, ns, "address show oxp1w"), "inet6")
	assert.Equal(t, [2]int{9008, 9008}, i.mtus(t))

	frame := ether(1000, 0, 1)
	a, b := listen(t, ns, i.sides[0].link.index), listen(t, ns, i.sides[1].link.index)
	_, err := i.Files()[0].Write(frame)
	require.NoError(t, err)
	assert.Equal(t, frame, a.next())
	b.send(frame)
	buf := make([]byte, 1<<16)
	n, err := i.Files()[1].Read(buf)
	require.NoError(t, err)
	assert.Equal(t, frame, buf[:n], "the first that comes: the host sends nothing there by itself")

	_, err = OpenInline(InlineConfig{Names: [2]string{"oxp2w", "oxp1h"}, NetNS: ns.Path()})
	require.ErrorIs(t, err, sys.ErrExists)
	assert.False(t, interfaceExists(t, ns, "oxp2w"), "both or neither")
	require.NoError(t, i.Close())
	assert.ErrorIs(t, i.Close(), ErrClosed)
	assert.False(t, interfaceExists(t, ns, "oxp1w"))
}

// A burst of an engine waits until it is read: the kernel's own queue is one of 500.
func TestInlineTakesABurst(t *testing.T) {
	ns := newNS(t)
	i := openInline(t, ns)
	const frames = 4000
	frame, engine := ether(60, 0, 1), listen(t, ns, i.sides[1].link.index)
	for range frames {
		engine.send(frame)
	}
	now, err := i.sides[1].link.state()
	require.NoError(t, err)
	require.Zero(t, now.dropped.frames)
	buf := make([]byte, 1<<16)
	for range frames {
		n, err := i.Files()[1].Read(buf)
		require.NoError(t, err)
		require.Equal(t, frame, buf[:n])
	}
}

func TestInlineForeignMTUIsPutBack(t *testing.T) {
	ns := newNS(t)
	i := openInline(t, ns)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- i.Watch(ctx) }()
	for _, name := range []string{"oxp1w", "oxp1h"} {
		ip(t, ns, "link set "+name+" mtu 1400")
		eventually(t, "put back", func() bool { return i.mtus(t) == [2]int{9008, 9008} })
	}
	cancel()
	require.NoError(t, <-done)
	assert.Equal(t, [2]int{9008, 9008}, i.mtus(t))
}

func TestInlineAttached(t *testing.T) {
	ns := newNS(t)
	i := openInline(t, ns)
	want := func(there bool) {
		t.Helper()
		got, err := i.Attached()
		require.NoError(t, err)
		assert.Equal(t, there, got)
	}
	want(false)
	var fds []int
	for _, s := range i.sides {
		require.NoError(t, ns.Do(func() error {
			fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
			if err == nil {
				fds = append(fds, fd)
				err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: 0x0300, Ifindex: s.link.index})
			}
			return err
		}))
		want(len(fds) == 2)
	}
	unix.Close(fds[0])
	want(false)
	unix.Close(fds[1])
}

func TestPacketIndexes(t *testing.T) {
	text := "sk       RefCnt Type Proto  Iface R Rmem   User   Inode\n" +
		"0000000000000000 3      3    0003   7     1 0      0      36173 \n" +
		"0000000000000000 3      3    0003   8     0 0      0      36174 \n" +
		"0000000000000000 3      3    0003   0     1 0      0      36175 \n" +
		"short 1 2\n"
	assert.Equal(t, map[int]bool{7: true}, packetIndexes([]byte(text)))
	_, err := os.Stat(packetSockets)
	assert.NoError(t, err)
}

func FuzzPacketIndexes(f *testing.F) {
	f.Add([]byte("0 3 3 0003 7 1 0 0 36173"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for index := range packetIndexes(text) {
			require.Positive(t, index)
		}
	})
}
