package daemon

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/hwsim"
	"oxpd/internal/daemon/client"
)

// send puts frames of the host into an interface, as the kernel's own packets. One
// that the interface has no room for is none of the caller's failures.
func (r *rig) send(name string, frames ...[]byte) {
	r.t.Helper()
	require.NoError(r.t, r.sendAt(r.port(name).IfIndex, frames...))
}

// sendAt sends at the interface of an index.
func (r *rig) sendAt(index int, frames ...[]byte) error {
	return r.ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for _, f := range frames {
			err := unix.Sendto(fd, f, 0, &unix.SockaddrLinklayer{Ifindex: index, Halen: 6})
			if err != nil && err != unix.ENOBUFS {
				return err
			}
		}
		return nil
	})
}

// mute keeps the kernel from saying anything by itself at an interface.
func (r *rig) mute(name string) {
	r.t.Helper()
	require.NoError(r.t, r.ns.Do(func() error {
		err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}))
}

// TestFramesOfALostCard: frames that were posted are unknown, those that wait are
// thrown away and counted, those sent meanwhile are the kernel's to count, and none of
// any kind leaves when the card is back.
func TestFramesOfALostCard(t *testing.T) {
	t.Parallel()
	card := sharedCard(t, hwsim.Compressed())
	r := start(t, rigOptions{shared: card}).running()
	r.mute("oxp9")
	r.mustIP("link", "set", "oxp9", "up")
	r.wait("link", func() bool { return r.port("oxp9").OperState == client.OperUp })
	many := func(n int, mark byte) (out [][]byte) {
		for range n {
			f := frameOf(100)
			f[50] = mark
			out = append(out, f)
		}
		return out
	}
	left := make(chan byte, 1000)
	card.Wire(1).SetReceiver(func(f []byte) { left <- f[50] })
	port := func(name string) uint64 {
		for of, v := range r.counts() {
			if of == "oxp9 "+name {
				return v
			}
		}
		t.Fatalf("no counter %s", name)
		return 0
	}
	card.Faults(func(f *hwsim.Faults) { f.StopFetch = true })
	r.send("oxp9", many(400, 1)...)
	r.wait("the ring to be full", func() bool { return r.device()["tx_posted"]-r.device()["tx_finished"] >= 255 })
	posted, finished := r.device()["tx_posted"], r.device()["tx_finished"]
	r.away()
	assert.Equal(t, posted, r.device()["tx_posted"])
	assert.Equal(t, posted-finished, r.device()["tx_unknown"])
	assert.True(t, r.logged(lostText, fmt.Sprintf("tx_unknown=%d", posted-finished)))
	assert.EqualValues(t, 400, port("tx_packets")+port("tx_gone"), "each frame in one counter")
	assert.Equal(t, port("tx_gone"), port("tx_drops"))

	r.send("oxp9", many(50, 2)...)
	r.wait("the kernel to drop them", func() bool { return port("tap_kernel_dropped")+port("tx_gone") == 50+400-port("tx_packets") })
	card.Faults(func(f *hwsim.Faults) { f.StopFetch = false })
	card.Reboot()
	r.wait("running", func() bool { return r.state() == client.StateRunning })
	r.wait("link", func() bool { return r.port("oxp9").OperState == client.OperUp })
	assert.Equal(t, posted-finished, r.device()["tx_unknown"])
	assert.EqualValues(t, 450, port("tx_packets")+port("tx_gone")+port("tap_kernel_dropped"))
	r.send("oxp9", many(1, 3)...)
	r.wait("a frame to leave", func() bool { return len(left) > 0 })
	assert.EqualValues(t, 3, <-left, "and none of before")
	assert.Empty(t, left)
}
