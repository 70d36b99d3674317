package daemon

import (
	"context"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/board"
	"oxpd/internal/port"
	"oxpd/internal/sys"
	"oxpd/ring/wire"
)

// noSlots is a transmit queue that takes everything.
type noSlots struct {
	sync.Mutex
	buf [wire.MaxTxFrame]byte
}

func (s *noSlots) Reserve() []byte    { return s.buf[:] }
func (s *noSlots) Commit(uint16, int) {}
func (s *noSlots) Flush()             {}
func (s *noSlots) Reap()              {}

// setMTU is `ip link set oxp9 mtu`; an interface that has gone is no failure.
func setMTU(t *testing.T, ns *sys.NetNS, mtu int) {
	err := ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		r, err := unix.NewIfreq("oxp9")
		if err != nil {
			return err
		}
		r.SetUint32(uint32(mtu))
		if err := unix.IoctlIfreq(fd, unix.SIOCSIFMTU, r); err != unix.ENODEV {
			return err
		}
		return nil
	})
	assert.NoError(t, err)
}

// TAP-7, fifty times: the interface's MTU is changed in a tight loop while the
// daemon ends. Owner, watcher, transmitter and interface are real, the card is not.
// No other test runs beside it: a program that one starts would have a copy of an
// interface's descriptor for a moment, and the next end needs its name.
func TestFiftyEndsWhileTheMTUChanges(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: makes a network namespace and TAP interfaces")
	}
	ns, err := sys.NewNetNS()
	require.NoError(t, err)
	defer ns.Close()
	followed := 0
	for range 50 {
		b := newBench(t, 8, 0)
		d := New(Options{NetNS: ns.Path()})
		d.tx, err = port.NewTransmitter(nil, &noSlots{}, nil, d.clock, d.log)
		require.NoError(t, err)
		for i := range d.owners {
			c := b.ownerConfig
			c.port, c.attach, c.detach = board.ByIndex(i), d.attach, d.detach
			d.owners[i] = newOwner(c)
		}
		o := d.owners[8]
		run, cancel := context.WithCancel(context.Background())
		owned(t.Name(), func() {
			d.spawn(run, "transmitter", d.tx.Run)
			d.spawn(run, "owner", func(ctx context.Context) error { o.run(ctx); return nil })
			d.spawn(run, "link watcher", d.watchLinks)
		})
		require.NoError(t, o.ask(run, o.provision))

		stop, changed := make(chan struct{}), make(chan struct{})
		var others sync.WaitGroup
		others.Add(1)
		go func() { // somebody with `ip link`
			defer others.Done()
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					setMTU(t, ns, 1400+i%2*100)
					if i == 20 {
						close(changed)
					}
				}
			}
		}()
		<-changed
		cancel()
		d.tasks.Wait()
		assert.NoError(t, d.closePorts())
		assert.NoError(t, d.tx.Close())
		close(stop)
		others.Wait()
		if o.want.mtu != board.DefaultMTU {
			followed++
		}
	}
	noGoroutines(t, t.Name())
	t.Logf("%d of 50 ends came with the LIF at the other MTU", followed)
}
