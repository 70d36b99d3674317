package port

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/board"
	"oxpd/internal/sys"
)

func TestOpen(t *testing.T) {
	ns := newNS(t)
	bp := board.ByIndex(8)

	t.Run("the interface appears down, without carrier, with bare frames", func(t *testing.T) {
		p, err := Open(Config{Port: bp, NetNS: ns.Path()})
		require.NoError(t, err)
		defer p.Close()
		name, flags, err := p.tap.(*sys.TAP).Mode()
		require.NoError(t, err)
		assert.Equal(t, "oxp9", name)
		assert.EqualValues(t, unix.IFF_TAP|unix.IFF_NO_PI, flags&(unix.IFF_TUN|unix.IFF_TAP|unix.IFF_NO_PI|unix.IFF_VNET_HDR))
		vnet, _, err := p.tap.(*sys.TAP).VNetHeader()
		require.NoError(t, err)
		assert.False(t, vnet)
		require.NoError(t, p.SetUp(context.Background(), true))
		l := state(t, ns, p.Index())
		assert.Equal(t, Link{Index: p.Index(), Name: "oxp9", MTU: board.DefaultMTU, MAC: l.MAC, Up: true, dropped: kernelCount{known: true}}, l)
		assert.Equal(t, board.DefaultMTU, p.Limit())
	})
	t.Run("close removes it", func(t *testing.T) {
		p, err := Open(Config{Port: bp, NetNS: ns.Path()})
		require.NoError(t, err)
		require.NoError(t, p.Close())
		assert.False(t, interfaceExists(t, ns, "oxp9"))
		assert.ErrorIs(t, p.Close(), ErrClosed)
		assert.ErrorIs(t, p.SetCarrier(true), ErrClosed)
		assert.ErrorIs(t, p.SetMTU(context.Background(), 1400), ErrClosed)
		_, err = p.MTU()
		assert.ErrorIs(t, err, ErrClosed)
		assert.Equal(t, TapDown, p.Receive(0, one(ether(60, 0, 0)), 0))
	})
	t.Run("it is made in the namespace asked for", func(t *testing.T) {
		p := open(t, ns)
		defer p.Close()
		other := newNS(t)
		assert.True(t, interfaceExists(t, ns, "oxp9"))
		assert.False(t, interfaceExists(t, other, "oxp9"))
	})
	t.Run("a namespace that does not exist", func(t *testing.T) {
		_, err := Open(Config{Port: bp, NetNS: "/run/netns/oxpd-no-such"})
		assert.ErrorIs(t, err, os.ErrNotExist)
	})
}

// TestOpenForeign: TAP-5. Whatever somebody left under the name, with whatever
// idea of a frame, is not taken over.
func TestOpenForeign(t *testing.T) {
	for name, make := range map[string]string{
		"persistent TAP, bare":               "tuntap add dev oxp9 mode tap",
		"persistent TAP, virtio-net header":  "tuntap add dev oxp9 mode tap vnet_hdr",
		"persistent TAP, packet information": "tuntap add dev oxp9 mode tap pi",
		"persistent TAP, several queues":     "tuntap add dev oxp9 mode tap multi_queue",
		"persistent TUN":                     "tuntap add dev oxp9 mode tun",
		"persistent TAP of an ordinary user": "tuntap add dev oxp9 mode tap user 65534",
		"an interface that is no TAP":        "link add oxp9 type bridge",
	} {
		t.Run(name, func(t *testing.T) {
			ns := newNS(t)
			ip(t, ns, make)
			_, err := Open(Config{Port: board.ByIndex(8), NetNS: ns.Path()})
			require.ErrorIs(t, err, sys.ErrExists)
			assert.True(t, strings.HasPrefix(err.Error(), "port: open oxp9: "), err)
			assert.Contains(t, err.Error(), "ip link delete oxp9")
			assert.True(t, interfaceExists(t, ns, "oxp9"), "left as it was")
		})
	}
	t.Run("a port that is open", func(t *testing.T) {
		ns := newNS(t)
		p := open(t, ns)
		_, err := Open(Config{Port: p.Board(), NetNS: ns.Path()})
		require.ErrorIs(t, err, sys.ErrExists)
		assert.Equal(t, Delivered, p.Receive(0, one(ether(60, 0, 0)), 0))
	})
}

// TestStandardDescriptors: TAP-4. A port opened while standard input is closed
// must not become standard input. Not parallel: it borrows descriptor 0.
func TestStandardDescriptors(t *testing.T) {
	ns := newNS(t)
	saved, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 100)
	require.NoError(t, err)
	defer unix.Close(saved)
	restore := func() { require.NoError(t, unix.Dup2(saved, 0)) }
	defer restore()

	require.NoError(t, ns.Do(func() error {
		if err := unix.Close(0); err != nil {
			return err
		}
		tap, err := sys.OpenTAP("oxp9")
		if err != nil {
			return err
		}
		defer tap.Close()
		assert.Greater(t, tap.FD(), 2)
		_, err = unix.FcntlInt(0, unix.F_GETFD, 0)
		assert.ErrorIs(t, err, unix.EBADF, "descriptor 0 is as closed as before")
		return nil
	}))
}

func TestSettings(t *testing.T) {
	ctx := context.Background()
	ns := newNS(t)
	p := open(t, ns)

	t.Run("MAC", func(t *testing.T) {
		mac := [6]byte{0x02, 0x1a, 0x8c, 0, 0, 0x0a}
		require.NoError(t, p.SetMAC(mac))
		assert.Equal(t, mac, state(t, ns, p.Index()).MAC)
	})
	t.Run("carrier is seen by netlink", func(t *testing.T) {
		require.NoError(t, p.SetCarrier(false))
		assert.False(t, state(t, ns, p.Index()).Carrier)
		assert.Contains(t, ip(t, ns, "link show oxp9"), "NO-CARRIER")
		require.NoError(t, p.SetCarrier(true))
		assert.True(t, state(t, ns, p.Index()).Carrier)
	})
	t.Run("down and up", func(t *testing.T) {
		require.NoError(t, p.SetUp(context.Background(), false))
		assert.False(t, state(t, ns, p.Index()).Up)
		require.NoError(t, p.SetUp(context.Background(), true))
		assert.True(t, state(t, ns, p.Index()).Up)
	})
	for _, mtu := range []int{board.MinMTU, 1500, board.MaxMTU} {
		t.Run("MTU in range", func(t *testing.T) {
			p.SetLimit(mtu)
			require.NoError(t, p.SetMTU(ctx, mtu))
			got, err := p.MTU()
			require.NoError(t, err)
			assert.Equal(t, mtu, got)
			assert.Equal(t, mtu, p.Limit())
			assert.Equal(t, mtu, state(t, ns, p.Index()).MTU)
		})
	}
	for name, mtu := range map[string]int{"below": board.MinMTU - 1, "above": board.MaxMTU + 1, "negative": -1, "zero": 0} {
		t.Run("MTU "+name+" the range changes nothing", func(t *testing.T) {
			require.NoError(t, p.SetMTU(ctx, 1500))
			p.SetLimit(1500)
			var e *board.MTURangeError
			require.ErrorAs(t, p.SetMTU(ctx, mtu), &e)
			assert.Equal(t, 1500, p.Limit())
			assert.Equal(t, 1500, state(t, ns, p.Index()).MTU)
		})
	}
	t.Run("MTU after the context's end changes nothing", func(t *testing.T) {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		require.ErrorIs(t, p.SetMTU(ended, 9000), context.Canceled)
		assert.Equal(t, 1500, state(t, ns, p.Index()).MTU)
	})
	t.Run("a renamed interface stays the port's", func(t *testing.T) {
		ip(t, ns, "link set oxp9 name wan0")
		require.NoError(t, p.SetMTU(ctx, 1400))
		assert.Equal(t, "wan0", state(t, ns, p.Index()).Name)
		assert.Equal(t, 1400, state(t, ns, p.Index()).MTU)
	})
	t.Run("the kernel's refusal leaves the limit", func(t *testing.T) {
		p.SetLimit(1400)
		ip(t, ns, "link delete wan0")
		require.ErrorIs(t, p.SetMTU(ctx, 9000), unix.ENODEV)
		assert.Equal(t, 1400, p.Limit())
	})
}

// state reads an interface as Watch does.
func state(t testing.TB, ns *sys.NetNS, index int) Link {
	t.Helper()
	l, err := query(t, ns).one(index)
	require.NoError(t, err)
	return l
}

// TestSetMTUNeverLowersTheLimit: frames that a larger MTU let in are still on
// their way; only the owner knows when they have passed.
func TestSetMTUNeverLowersTheLimit(t *testing.T) {
	p := open(t, newNS(t))
	ctx := context.Background()
	require.NoError(t, p.SetMTU(ctx, 9000))
	assert.Equal(t, 9000, p.Limit())
	require.NoError(t, p.SetMTU(ctx, 1500))
	assert.Equal(t, 9000, p.Limit())
	p.SetLimit(1500)
	assert.Equal(t, 1500, p.Limit())
	require.Error(t, p.SetMTU(ctx, 9001))
	assert.Equal(t, 1500, p.Limit())
}
