package port

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/sys"
)

func TestWire(t *testing.T) {
	const mtu = 9200 // longer than any port's, so that too long frames reach the card
	ns := newNS(t)
	w, err := OpenWire("cable0", ns.Path(), mtu)
	require.NoError(t, err)
	defer w.Close()
	assert.Equal(t, "cable0", w.Name())
	var index int
	links, err := query(t, ns).all()
	require.NoError(t, err)
	for _, l := range links {
		if l.Name == "cable0" {
			index = l.Index
			assert.True(t, l.Up)
			assert.True(t, l.Carrier)
			assert.Equal(t, mtu, l.MTU)
		}
	}
	linux := listen(t, ns, index)

	for _, n := range []int{14, 60, 1514, 9014, 9015, mtu + 14} {
		t.Run(fmt.Sprintf("%d bytes both ways", n), func(t *testing.T) {
			out := ether(n, 0, 1)
			written, err := w.Write(out)
			require.NoError(t, err)
			assert.Equal(t, n, written)
			assert.Equal(t, out, linux.next())

			in := ether(n, 0, 2)
			linux.send(in)
			b := make([]byte, 1<<14)
			read, err := w.Read(b)
			require.NoError(t, err)
			assert.Equal(t, in, b[:read])
		})
	}
	t.Run("no frame from less than a header", func(t *testing.T) { // TAP-3
		for _, n := range []int{1, 13} {
			_, err := w.Write(make([]byte, n))
			assert.ErrorIs(t, err, unix.EINVAL)
		}
		assert.True(t, linux.empty())
	})
	t.Run("down and up again", func(t *testing.T) {
		ip(t, ns, "link set cable0 down")
		_, err := w.Write(ether(60, 0, 0))
		assert.ErrorIs(t, err, unix.EIO)
		ip(t, ns, "link set cable0 up")
		_, err = w.Write(ether(60, 0, 0))
		assert.NoError(t, err)
	})
	t.Run("the name is taken", func(t *testing.T) {
		_, err := OpenWire("cable0", ns.Path(), mtu)
		assert.ErrorIs(t, err, sys.ErrExists)
	})
	t.Run("an MTU that the kernel refuses leaves nothing", func(t *testing.T) {
		_, err := OpenWire("cable1", ns.Path(), 70_000)
		assert.ErrorIs(t, err, unix.EINVAL)
		assert.False(t, interfaceExists(t, ns, "cable1"))
	})
}

// TestWireEnds: whoever waits for a frame learns that there will be none.
func TestWireEnds(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(t *testing.T, ns *sys.NetNS, w *Wire)
		want error // nil: the device or the poller tells, whichever is first
	}{
		{"closed", func(t *testing.T, _ *sys.NetNS, w *Wire) { require.NoError(t, w.Close()) }, os.ErrClosed},
		{"deleted", func(t *testing.T, ns *sys.NetNS, _ *Wire) { ip(t, ns, "link delete cable0") }, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ns := newNS(t)
			w, err := OpenWire("cable0", ns.Path(), 9200)
			require.NoError(t, err)
			defer w.Close()
			done := make(chan error, 1)
			go func() { _, err := w.Read(make([]byte, 9300)); done <- err }()
			time.Sleep(5 * time.Millisecond) // let it wait; right in either order
			tc.end(t, ns, w)
			select {
			case err := <-done:
				require.Error(t, err)
				if tc.want != nil {
					assert.ErrorIs(t, err, tc.want)
				}
			case <-time.After(hang):
				t.Fatal("Read still waits")
			}
			assert.False(t, interfaceExists(t, ns, "cable0"))
		})
	}
}
