package port

import (
	"context"
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/board"
	"oxpd/internal/sys"
)

// store is another process's copy of a descriptor. The test closes it.
func store(t *testing.T, fd int) int {
	t.Helper()
	held, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(held) })
	return held
}

// copyOf is a copy for one Adopt.
func copyOf(t *testing.T, held int) int {
	t.Helper()
	fd, err := unix.FcntlInt(uintptr(held), unix.F_DUPFD_CLOEXEC, 3)
	require.NoError(t, err)
	return fd
}

func TestAdoptedInterfaceIsTheSame(t *testing.T) {
	ns := newNS(t)
	cfg := Config{Port: board.ByIndex(8), NetNS: ns.Path()}
	p := open(t, ns)
	index := p.Index()
	require.NoError(t, p.SetMTU(context.Background(), 8000))
	ip(t, ns, "link add br0 type bridge")
	ip(t, ns, "link set oxp9 master br0 alias kept")
	ip(t, ns, "addr add 192.0.2.1/24 dev oxp9")
	ip(t, ns, "link set oxp9 txqueuelen 3")
	linux := listen(t, ns, index)
	for range 5 {
		linux.send(ether(60, 0, 0))
	}
	held := store(t, p.Descriptor())
	require.NoError(t, p.Keep())
	assert.ErrorIs(t, p.Keep(), ErrClosed)
	assert.EqualValues(t, 2, p.Stats().TapKernelDropped)
	assert.Zero(t, p.Stats().TxClosed, "they wait for the next process")
	before := ip(t, ns, "addr show oxp9")
	require.Contains(t, before, "192.0.2.1")
	require.Contains(t, before, "LOWER_UP")

	// Whoever hands descriptors on may have made them blocking ones.
	require.NoError(t, unix.SetNonblock(held, false))
	q, err := Adopt(cfg, copyOf(t, held), index)
	require.NoError(t, err)
	t.Cleanup(func() { q.Close() })
	assert.Equal(t, before, ip(t, ns, "addr show oxp9"), "nothing has changed")
	assert.Equal(t, index, q.Index())
	assert.Equal(t, 8000, q.Limit())
	assert.Zero(t, q.Stats().TapKernelDropped, "those of the process before are its own")
	linux.send(ether(60, 0, 0))
	assert.EqualValues(t, 1, q.Stats().TapKernelDropped, "the queue is still full")
	assert.EqualValues(t, 3, q.drain(), "what waited")
	require.NoError(t, q.SetCarrier(false))
	require.NoError(t, q.Close())
	assert.EqualValues(t, 1, q.Stats().TapKernelDropped)
	assert.NotContains(t, ip(t, ns, "link show oxp9"), ",UP", "closed is down, also when somebody has a copy")
	require.NoError(t, unix.Close(held))
	_, err = ipMay(ns, "link show oxp9")
	assert.Error(t, err, "the last copy is the interface")
}

func TestAdoptRefuses(t *testing.T) {
	ns := newNS(t)
	cfg := Config{Port: board.ByIndex(8), NetNS: ns.Path()}
	tun := func(name string, flags uint16) int {
		fd := -1
		require.NoError(t, ns.Do(func() (err error) { fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0); return err }))
		t.Cleanup(func() { unix.Close(fd) })
		req, err := unix.NewIfreq(name)
		require.NoError(t, err)
		req.SetUint16(flags)
		require.NoError(t, ns.Do(func() error { return unix.IoctlIfreq(fd, unix.TUNSETIFF, req) }))
		return fd
	}
	index := func(name string) int {
		var ifi *net.Interface
		require.NoError(t, ns.Do(func() (err error) { ifi, err = net.InterfaceByName(name); return err }))
		return ifi.Index
	}
	file, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer file.Close()
	for i, tc := range []struct {
		name  string
		flags uint16
	}{
		{"many queues", unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_MULTI_QUEUE},
		{"a virtio header", unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR},
		{"packets without Ethernet", unix.IFF_TUN | unix.IFF_NO_PI},
	} {
		t.Run(tc.name, func(t *testing.T) {
			name := fmt.Sprintf("other%d", i)
			fd := tun(name, tc.flags)
			_, err := Adopt(cfg, copyOf(t, fd), index(name))
			assert.ErrorIs(t, err, sys.ErrNotTAP)
		})
	}
	t.Run("a file", func(t *testing.T) {
		_, err := Adopt(cfg, copyOf(t, int(file.Fd())), 1)
		assert.ErrorIs(t, err, sys.ErrNotTAP)
	})
	t.Run("another interface's index", func(t *testing.T) {
		p := open(t, ns)
		held := store(t, p.Descriptor())
		q := open(t, ns, "oxp1")
		require.NoError(t, p.Keep())
		_, err := Adopt(cfg, copyOf(t, held), q.Index())
		assert.ErrorIs(t, err, ErrRemoved)
		_, err = Adopt(cfg, copyOf(t, held), 12345)
		assert.ErrorIs(t, err, ErrRemoved)
		ip(t, ns, "link delete oxp9")
		_, err = Adopt(cfg, copyOf(t, held), p.Index())
		assert.ErrorIs(t, err, sys.ErrNotTAP, "it has gone")
	})
}
