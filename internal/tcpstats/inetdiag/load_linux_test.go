package inetdiag

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/tcpstats"
)

// TestTenThousand compares 10,000 sockets, in many datagrams, with ss one by one.
func TestTenThousand(t *testing.T) {
	if _, err := exec.LookPath("ss"); err != nil {
		t.Skip("ss is not there: make test installs iproute2")
	}
	const n = 10_000
	ns, s := loaded(t, n)
	for text, words := range map[string]string{
		"fields=all exclude=closed":                          "",
		"fields=all local_port=10000 exclude=listen":         "state connected ( sport = 10000 )",
		"fields=all exclude=closed,listen format=full":       "state connected",
		"fields=all remote_addr=127.1.0.0/16 exclude=listen": "dst 127.1.0.0/16",
	} {
		t.Run(text, func(t *testing.T) {
			before, _ := read(t, s, text, false)
			want := ss(t, ns, words)
			require.GreaterOrEqual(t, len(want), n/2)
			after, w := read(t, s, text, false)
			same(t, want, before, after)
			assert.Equal(t, w.Visited, w.Appended)
			assert.False(t, w.Inconsistent)
		})
	}
}

// TestAbandoned: wherever a reader goes away, what the kernel had ready is taken from it and
// counted, and the next read has everything.
func TestAbandoned(t *testing.T) {
	const n = 2000
	_, s := loaded(t, n)
	whole, w := read(t, s, "fields=all", false)
	require.Len(t, whole, n+1)
	require.EqualValues(t, n+1, w.Visited)
	f, err := tcpstats.Parse("fields=all")
	require.NoError(t, err)
	buf := make([]byte, 0, tcpstats.ChunkBytes)
	for _, calls := range []int{0, 1, 2, 7} {
		c, err := s.Open(context.Background(), &tcpstats.Query{Filter: f})
		require.NoError(t, err)
		appended := 0
		for range calls {
			_, k, err := c.Next(context.Background(), buf)
			require.NoError(t, err)
			assert.Positive(t, k)
			assert.LessOrEqual(t, k, tcpstats.Stretch)
			appended += k
		}
		require.NoError(t, c.Close())
		w := c.Walked()
		assert.EqualValues(t, appended, w.Appended)
		if calls > 0 {
			assert.EqualValues(t, n+1, w.Visited, "after %d calls", calls)
		} else {
			assert.Zero(t, w.Visited, "nothing was asked for")
		}
		assert.NoError(t, c.Close(), "again")
		assert.Equal(t, w, c.Walked())
	}
	again, w := read(t, s, "fields=all", false)
	assert.Len(t, again, n+1)
	assert.EqualValues(t, n+1, w.Visited)
}

// TestManyReaders: sixteen at once share a source, each with a filter of its own, and have
// no record of each other's datagrams.
func TestManyReaders(t *testing.T) {
	const n, readers = 2000, 16
	_, s := loaded(t, n)
	all, _ := read(t, s, "include_state=established", false)
	require.Len(t, all, n)
	var wg sync.WaitGroup
	for i := range readers {
		port, _ := all[i*n/readers].Uint(tcpstats.FieldLocalPort)
		cookie, _ := all[i*n/readers].Uint(tcpstats.FieldCookie)
		wg.Add(1)
		go func() {
			defer wg.Done()
			f, err := tcpstats.Parse(fmt.Sprintf("local_port=%d include_state=established", port))
			if !assert.NoError(t, err) {
				return
			}
			for range 10 {
				c, err := s.Open(context.Background(), &tcpstats.Query{Filter: f, NoPushDown: true})
				if !assert.NoError(t, err) {
					return
				}
				found := false
				for buf := make([]byte, 0, tcpstats.ChunkBytes); ; {
					b, k, err := c.Next(context.Background(), buf)
					if err == io.EOF {
						break
					}
					assert.NoError(t, err)
					for range k {
						var r tcpstats.Record
						size, err := r.Decode(b)
						if !assert.NoError(t, err) {
							return
						}
						b = b[size:]
						p, _ := r.Uint(tcpstats.FieldLocalPort)
						assert.Equal(t, port, p)
						v, _ := r.Uint(tcpstats.FieldCookie)
						found = found || v == cookie
					}
				}
				assert.NoError(t, c.Close())
				assert.True(t, found)
				w := c.Walked()
				assert.EqualValues(t, n+1, w.Visited)
				assert.Equal(t, w.Visited, w.Appended+w.SkippedAll())
			}
		}()
	}
	wg.Wait()
}
