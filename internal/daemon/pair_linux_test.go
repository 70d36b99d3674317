package daemon

import (
	"context"
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/daemon/client"
	"oxpd/internal/port"
)

// copier is an engine that knows nothing of oxpd: it copies frames between two interfaces,
// but for those of ours whose number is odd.
type copier struct{ done chan struct{} }

// copyBetween begins to copy. It ends with the interfaces, or at the end of the test.
func (r *rig) copyBetween(names ...string) *copier {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := &copier{done: make(chan struct{})}
	sides := [2]*socket{r.listen(names[0]), r.listen(names[1])}
	ended := make(chan struct{}, 2)
	for i, from := range sides {
		require.NoError(r.t, unix.SetsockoptTimeval(from.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 20_000}))
		go func() {
			b := make([]byte, 1<<16)
			for ctx.Err() == nil {
				n, err := unix.Read(from.fd, b)
				if err == unix.EAGAIN || err == unix.EINTR {
					continue
				}
				if err != nil {
					break
				}
				if ours(b[:n]) && binary.BigEndian.Uint32(b[n-4:n])%2 == 1 {
					continue
				}
				_, _ = unix.Write(sides[1-i].fd, b[:n]) // of a side that has gone, the other's read fails too
			}
			ended <- struct{}{}
		}()
	}
	go func() {
		<-ended
		<-ended
		close(c.done)
	}()
	r.t.Cleanup(func() {
		cancel()
		select {
		case <-c.done:
		case <-time.After(hang):
			r.t.Error("the engine does not end")
		}
	})
	return c
}

// engineState is the state of a port's queue, "" when it has none.
func (r *rig) engineState(name string) string {
	r.t.Helper()
	d, err := r.client.Divert(context.Background(), "")
	require.NoError(r.t, err)
	for _, q := range d.Queues {
		if q.Name == name {
			return q.State
		}
	}
	return ""
}

// A port behind an engine that only knows interfaces: what it copies arrives, what it does
// not is dropped; the interfaces come back when somebody removes
// them, and go when the port is given to the socket's engines.
func TestTapPair(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{}).running()
	const name = "oxp9"
	r.mute(name)
	far := r.hear(name)
	r.mustIP("link", "set", name, "up")
	near := r.listen(name)
	require.NoError(t, r.setMTU(name, 9000))
	_, err := r.client.SetDivertPort(context.Background(), name, client.SetDivertPort{Frames: client.FramesAll, Engine: client.EngineTapPair})
	require.NoError(t, err)
	mtus := func() [2]int { return [2]int{r.link("oxp9w").MTU, r.link("oxp9h").MTU} }
	assert.Equal(t, [2]int{port.InlineMTU, port.InlineMTU}, mtus())
	assert.Equal(t, client.QueueAbsent, r.engineState(name))
	r.wire(name).Send(numbered(60, 0))
	r.wait("dropped by on-absent", func() bool { return r.counters(name)["divert_drop_absent"] == 1 })

	engine := func(names ...string) *copier {
		c := r.copyBetween(names...)
		r.wait("engine seen", func() bool { return r.engineState(name) != client.QueueAbsent })
		return c
	}
	first := engine("oxp9w", "oxp9h")
	both := func(passes uint32) {
		t.Helper()
		before, left := r.counters(name), far.count()
		for _, n := range []int{60, 1514, 9014} {
			for i := range uint32(2) {
				r.wire(name).Send(numbered(n, passes+i))
				r.send(name, numbered(n, passes+i))
			}
			assert.Equal(t, numbered(n, passes), near.next())
		}
		r.wait("on the wire", func() bool { return far.count() == left+3 })
		r.wait("the others are dropped", func() bool {
			c := r.counters(name)
			return c["divert_dropped"] == before["divert_dropped"]+6 && c["divert_queued"] == 0
		})
	}
	both(10)

	require.NoError(t, r.setMTU(name, 1500))
	assert.Equal(t, [2]int{port.InlineMTU, port.InlineMTU}, mtus(), "whatever the port's is")
	require.NoError(t, r.setMTU(name, 9000))
	both(20)

	r.mustIP("link", "delete", "oxp9w")
	r.wait("made again", func() bool {
		out, err := r.ip("-o", "link")
		return err == nil && strings.Contains(out, "oxp9w") && strings.Contains(out, "oxp9h")
	})
	<-first.done
	engine("oxp9w", "oxp9h")
	both(30)

	_, err = r.client.SetDivertPort(context.Background(), name, client.SetDivertPort{Frames: client.FramesAll, Engine: client.EngineSocket})
	require.NoError(t, err)
	out := r.mustIP("-o", "link")
	assert.NotContains(t, out, "oxp9w")
	assert.NotContains(t, out, "oxp9h")
	before := r.counters(name)
	r.wire(name).Send(numbered(60, 0))
	r.wait("the socket's engine is not there", func() bool { return r.counters(name)["divert_drop_absent"] == before["divert_drop_absent"]+1 })
	assert.Equal(t, before["divert_seen"]+1, r.counters(name)["divert_seen"], "the pair's counts stay the port's")

	_, err = r.client.SetDivertPort(context.Background(), name, client.SetDivertPort{Frames: client.FramesAll, Engine: client.EngineTapPair})
	require.NoError(t, err)
	engine("oxp9w", "oxp9h")
	both(40)
}
