package port

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
)

// Somebody removes the interface with frames dropped since the last look: the
// news of it has the last count. What lay in the queue is gone, and in no counter.
func TestDropsOfARemovedInterface(t *testing.T) {
	const queue = 2
	ns := newNS(t)
	var c Counters
	p, err := Open(Config{Port: board.ByIndex(8), NetNS: ns.Path(), Counters: &c})
	require.NoError(t, err)
	require.NoError(t, p.SetCarrier(true))
	require.NoError(t, p.SetUp(context.Background(), true))
	ip(t, ns, "link set oxp9 txqueuelen 2")
	linux := listen(t, ns, p.Index())
	var gone atomic.Bool
	watch(t, WatchConfig{NetNS: ns.Path(), Filter: func(i int) bool { return i == p.Index() }}, func(l Link) {
		p.Note(l)
		if l.Gone {
			gone.Store(true)
		}
	})
	for range queue + 4 {
		linux.send(ether(60, 0, 0))
	}
	require.EqualValues(t, 4, p.Stats().TapKernelDropped)
	for range 5 { // nobody looks any more
		linux.send(ether(60, 0, 0))
	}
	ip(t, ns, "link delete oxp9")
	eventually(t, "news", gone.Load)
	_, err = p.MTU()
	require.ErrorIs(t, err, ErrRemoved)
	require.ErrorIs(t, p.SetMTU(context.Background(), 1400), ErrRemoved)
	require.NoError(t, p.Close())
	assert.EqualValues(t, 9, c.Stats().TapKernelDropped)
	assert.Zero(t, c.Stats().TxClosed, "the kernel threw the queue away")

	p.Note(Link{Index: p.Index(), dropped: kernelCount{100, true}})
	assert.EqualValues(t, 9, c.Stats().TapKernelDropped, "old news of a closed port")

	again, err := Open(Config{Port: board.ByIndex(8), NetNS: ns.Path(), Counters: &c})
	require.NoError(t, err)
	again.Note(Link{Index: again.Index() + 1, dropped: kernelCount{100, true}})
	assert.EqualValues(t, 9, again.Stats().TapKernelDropped, "news of another interface")
	require.NoError(t, again.Close())
}

// Every look at the interface keeps the count, so that one which is removed
// without anybody watching loses little of it.
func TestEachLookKeepsTheCount(t *testing.T) {
	ns := newNS(t)
	p := open(t, ns)
	ip(t, ns, "link set oxp9 txqueuelen 2")
	linux := listen(t, ns, p.Index())
	for range 5 {
		linux.send(ether(60, 0, 0))
	}
	_, err := p.MTU()
	require.NoError(t, err)
	ip(t, ns, "link delete oxp9")
	require.NoError(t, p.Close())
	assert.EqualValues(t, 3, p.Counters().Stats().TapKernelDropped)
}

func TestKernelCountNeverFalls(t *testing.T) {
	var k kernelDrops
	k.update(kernelCount{7, true})
	k.update(kernelCount{5, true})
	k.update(kernelCount{})
	assert.EqualValues(t, 7, k.total())
	k.retire()
	k.update(kernelCount{2, true})
	assert.EqualValues(t, 9, k.total())
}
