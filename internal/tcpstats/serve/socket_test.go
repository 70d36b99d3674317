package serve

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/tcpstats"
	"oxpd/internal/tcpstats/client"
)

// fake is a source of n sockets with the local ports 1 to n.
type fake struct {
	n    int
	step func() // before each stretch; nil: nothing

	visited atomic.Uint64 // by all reads
}

type fakeCursor struct {
	f  *fake
	m  tcpstats.Matcher
	at int
	w  tcpstats.Walked
}

func (f *fake) Open(_ context.Context, q *tcpstats.Query) (tcpstats.Cursor, error) {
	return &fakeCursor{f: f, m: q.Filter.Matcher()}, nil
}

func (c *fakeCursor) Next(_ context.Context, b []byte) ([]byte, int, error) {
	if c.at == c.f.n {
		return b, 0, io.EOF
	}
	if c.f.step != nil {
		c.f.step()
	}
	n := 0
	for range min(tcpstats.Stretch, c.f.n-c.at) {
		c.at++
		c.w.Visited++
		c.f.visited.Add(1)
		e := tcpstats.Ends{LocalPort: uint16(c.at), State: tcpstats.Established, Family: tcpstats.FamilyIPv4}
		if why := c.m.Ask(&e); why != tcpstats.Match {
			c.w.Skipped[why]++
			continue
		}
		var r tcpstats.Record
		r.Reset(tcpstats.Host)
		r.SetUint(tcpstats.FieldLocalPort, uint64(c.at))
		b = r.Append(b, c.m.Filter().Fields, c.m.Filter().Format)
		c.w.Appended++
		n++
	}
	return b, n, nil
}

func (c *fakeCursor) Close() error {
	c.w.Visited += uint64(c.f.n - c.at)
	c.at = c.f.n
	return nil
}
func (c *fakeCursor) Walked() tcpstats.Walked { return c.w }

// hand is a clock that stands still.
type hand struct{ now atomic.Int64 }

func (h *hand) Now() time.Duration { return time.Duration(h.now.Load()) }

// start makes a service at a socket.
func start(t *testing.T, f *fake) (*Service, *hand, string) {
	t.Helper()
	h := new(hand)
	s := New(Config{Sources: func(tcpstats.SourceKind) tcpstats.Source { return f }, Clock: h})
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(s, ListenConfig{Path: path})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		st := s.Stats()
		sum := st.Emitted + st.Aborted
		for _, n := range st.Skipped {
			sum += n
		}
		assert.Equal(t, st.Visited, sum, "the books")
		assert.Zero(t, st.Open)
		assert.Zero(t, st.Reading)
	})
	return s, h, path
}

func connect(t *testing.T, path string) *client.Conn {
	t.Helper()
	c, err := client.Dial(context.Background(), path)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// ports reads once.
func ports(t *testing.T, ctx context.Context, c *client.Conn) ([]int, tcpstats.End, error) {
	t.Helper()
	var got []int
	end, err := c.Read(ctx, func(chunk []byte, n int) error {
		before := len(got)
		err := client.Records(chunk, func(r *tcpstats.Record) error {
			v, ok := r.Uint(tcpstats.FieldLocalPort)
			assert.True(t, ok)
			got = append(got, int(v))
			return nil
		})
		assert.Equal(t, n, len(got)-before)
		return err
	})
	return got, end, err
}

func TestReadThroughTheSocket(t *testing.T) {
	s, _, path := start(t, &fake{n: 1000})
	c := connect(t, path)
	ctx := context.Background()
	text, err := c.Filter(ctx, "local_port=7,900 ")
	require.NoError(t, err)
	assert.Equal(t, "local_port=7,900", text)
	got, end, err := ports(t, ctx, c)
	require.NoError(t, err)
	assert.Equal(t, []int{7, 900}, got)
	assert.False(t, end.Partial)
	assert.EqualValues(t, 1000, end.Visited)
	assert.EqualValues(t, 998, end.Skipped["port"])
	_, err = c.Filter(ctx, "local_port=0")
	var refused *client.RefusedError
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, 11, *refused.Offset)
	assert.Equal(t, "local_port=7,900", refused.Filter)
	require.NoError(t, s.SetProfile("web", "local_port=80"))
	_, err = c.Profile(ctx, "web")
	require.NoError(t, err)
	got, _, err = ports(t, ctx, c)
	require.NoError(t, err)
	assert.Equal(t, []int{80}, got)
}

func TestReadIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	at := 0
	reached := make(chan struct{})
	f := &fake{n: 100 * tcpstats.Stretch}
	f.step = func() {
		if at++; at == 3 {
			cancel()
			<-reached // the line CANCEL is followed meanwhile
		}
	}
	s, _, path := start(t, f)
	go func() {
		<-ctx.Done()
		time.Sleep(50 * time.Millisecond)
		close(reached)
	}()
	got, end, err := ports(t, ctx, connect(t, path))
	require.NoError(t, err)
	assert.Equal(t, tcpstats.CodeCancelled, end.Code)
	assert.True(t, end.Partial)
	assert.EqualValues(t, len(got), end.Emitted)
	assert.EqualValues(t, 100*tcpstats.Stretch, end.Visited)
	assert.EqualValues(t, 1, s.Stats().Interrupted)
}

func TestReadTakesTooLong(t *testing.T) {
	f := &fake{n: 100 * tcpstats.Stretch}
	_, h, path := start(t, f)
	f.step = func() { h.now.Add(int64(time.Second)) }
	got, end, err := ports(t, context.Background(), connect(t, path))
	require.NoError(t, err)
	assert.Equal(t, tcpstats.CodeTimedOut, end.Code)
	assert.True(t, end.Partial)
	assert.Len(t, got, 5*tcpstats.Stretch)
	assert.EqualValues(t, 95*tcpstats.Stretch, end.Aborted)
}

func TestTooManyOpen(t *testing.T) {
	s, _, path := start(t, &fake{n: 1})
	require.NoError(t, s.SetLimits(Limits{MaxOpen: 1, MaxReaders: 1}))
	first := connect(t, path)
	_, err := first.Filter(context.Background(), "")
	require.NoError(t, err)
	_, err = connect(t, path).Filter(context.Background(), "")
	var refused *client.RefusedError
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, tcpstats.CodeTooManyOpen, refused.Code)
	assert.Error(t, s.SetLimits(Limits{}))
	assert.False(t, errors.Is(err, io.EOF))
}
