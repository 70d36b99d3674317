package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/trace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/frame"
	"oxpd/internal/tcpstats"
	"oxpd/internal/tcpstats/client"
	"oxpd/internal/tcpstats/flows"
)

// hang bounds every wait by the wall clock: a guard, not a measurement.
const hang = 30 * time.Second

// code is the code of a refusal.
func code(err error) tcpstats.Code {
	var (
		r *Refusal
		c *client.RefusedError
	)
	switch {
	case errors.As(err, &r):
		return r.Code
	case errors.As(err, &c):
		return c.Code
	}
	return tcpstats.Code(fmt.Sprint(err))
}

// gate is a source whose reads stand still until it is opened.
type gate struct {
	fake
	open   chan struct{}
	inside atomic.Int32
}

func newGate(n int) *gate {
	g := &gate{open: make(chan struct{})}
	g.n = n
	g.step = func() {
		g.inside.Add(1)
		<-g.open
	}
	return g
}

// wait waits until so many reads are inside.
func (g *gate) wait(t *testing.T, n int32) {
	t.Helper()
	for deadline := time.Now().Add(hang); g.inside.Load() < n; time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "%d reads are inside, want %d", g.inside.Load(), n)
	}
}

func TestConcurrentReaders(t *testing.T) {
	g := newGate(10)
	s, _, path := start(t, &g.fake)
	require.NoError(t, s.SetLimits(Limits{MaxOpen: 4, MaxReaders: 2}))
	var under sync.WaitGroup
	for range 2 {
		c := connect(t, path)
		under.Add(1)
		go func() {
			defer under.Done()
			got, end, err := ports(t, context.Background(), c)
			assert.NoError(t, err)
			assert.False(t, end.Partial)
			assert.Len(t, got, 10)
		}()
	}
	g.wait(t, 2)
	release := sync.OnceFunc(func() { close(g.open) })
	t.Cleanup(release)
	require.Equal(t, 2, s.Stats().Reading)
	c := connect(t, path)
	_, _, err := ports(t, context.Background(), c)
	assert.Equal(t, tcpstats.CodeBusy, code(err))
	release()
	under.Wait()
	_, _, err = ports(t, context.Background(), c)
	require.NoError(t, err, "there is room again")
	st := s.Stats()
	assert.EqualValues(t, 3, st.Reads, "a refused read is none")
	assert.EqualValues(t, 1, st.RefusedRead)
	assert.EqualValues(t, 30, st.Emitted)
}

func TestSeveralReadsShareAnOpen(t *testing.T) {
	g := newGate(3)
	_, _, path := start(t, &g.fake)
	c, err := net.Dial("unix", path)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(hang)))
	_, err = io.WriteString(c, "READ 1\nREAD 2\nREAD 2\nREAD 3\n")
	require.NoError(t, err)
	g.wait(t, 3)
	close(g.open)
	require.NoError(t, c.(*net.UnixConn).CloseWrite())
	records, refused, ends := map[uint32]int{}, 0, map[uint32]int{}
	for _, m := range messages(t, c) {
		switch m.Kind {
		case tcpstats.MessageReply:
			if m.reply.Code != "" {
				assert.Equal(t, tcpstats.CodeBusy, m.reply.Code)
				refused++
			}
		case tcpstats.MessageRecords:
			records[m.Read] += m.Records
		case tcpstats.MessageEnd:
			ends[m.Read]++
		}
	}
	assert.Equal(t, map[uint32]int{1: 3, 2: 3, 3: 3}, records)
	assert.Equal(t, map[uint32]int{1: 1, 2: 1, 3: 1}, ends)
	assert.Equal(t, 1, refused, "the id is in use")
}

// said is a message that came.
type said struct {
	tcpstats.Message
	reply tcpstats.Reply
	end   tcpstats.End
}

// messages are all that come until the connection ends.
func messages(t *testing.T, c net.Conn) (all []said) {
	t.Helper()
	for {
		head := make([]byte, tcpstats.MessageHeader)
		if _, err := io.ReadFull(c, head); err != nil {
			assert.True(t, errors.Is(err, io.EOF) || strings.Contains(err.Error(), "reset"), "%v", err)
			return all
		}
		var m said
		require.NoError(t, m.Decode(head))
		body := make([]byte, m.Bytes)
		_, err := io.ReadFull(c, body)
		require.NoError(t, err)
		switch m.Kind {
		case tcpstats.MessageReply:
			require.NoError(t, json.Unmarshal(body, &m.reply))
		case tcpstats.MessageEnd:
			require.NoError(t, json.Unmarshal(body, &m.end))
		}
		all = append(all, m)
	}
}

func TestReadInterval(t *testing.T) {
	s, h, path := start(t, &fake{n: 1})
	l := DefaultLimits()
	l.MinInterval = time.Second
	require.NoError(t, s.SetLimits(l))
	c := connect(t, path)
	_, _, err := ports(t, context.Background(), c)
	require.NoError(t, err, "the first is not too soon")
	h.now.Add(int64(time.Second - 1))
	_, _, err = ports(t, context.Background(), c)
	assert.Equal(t, tcpstats.CodeBusy, code(err))
	_, _, err = ports(t, context.Background(), connect(t, path))
	assert.NoError(t, err, "another client's is its own")
	h.now.Add(1)
	_, _, err = ports(t, context.Background(), c)
	assert.NoError(t, err)
	h.now.Add(1)
	l.MinInterval = 0
	require.NoError(t, s.SetLimits(l))
	_, _, err = ports(t, context.Background(), c)
	assert.NoError(t, err, "0 is none, at once")
}

func TestDurationOfZeroIsNone(t *testing.T) {
	f := &fake{n: 100 * tcpstats.Stretch}
	s, h, path := start(t, f)
	f.step = func() { h.now.Add(int64(time.Hour)) }
	l := DefaultLimits()
	l.MaxDuration = 0
	require.NoError(t, s.SetLimits(l))
	got, end, err := ports(t, context.Background(), connect(t, path))
	require.NoError(t, err)
	assert.False(t, end.Partial)
	assert.Len(t, got, f.n)
	assert.Equal(t, 100*time.Hour, s.Stats().MaxTime)
	assert.Equal(t, 100*time.Hour, s.Stats().Time)
}

// TestLimits has the bounds of each, and that a refused one changes nothing.
func TestLimits(t *testing.T) {
	s := New(Config{Clock: new(hand)})
	assert.Equal(t, Limits{16, 32, 5 * time.Second, 0}, s.Limits())
	for _, bad := range []Limits{
		{0, 1, 0, 0}, {MostOpen + 1, 1, 0, 0}, {1, 0, 0, 0}, {1, MostReaders + 1, 0, 0}, {1, 1, -1, 0}, {1, 1, MostDuration + 1, 0}, {1, 1, 0, -1}, {1, 1, 0, MostInterval + 1},
	} {
		assert.Error(t, s.SetLimits(bad), "%v", bad)
		assert.Equal(t, DefaultLimits(), s.Limits())
	}
	for _, good := range []Limits{{1, 1, 0, 0}, {MostOpen, MostReaders, MostDuration, MostInterval}} {
		assert.NoError(t, s.SetLimits(good))
		assert.Equal(t, good, s.Limits())
	}
}

func TestFewerOpensThanThereAre(t *testing.T) {
	s, _, path := start(t, &fake{n: 1})
	a, b := connect(t, path), connect(t, path)
	for _, c := range []*client.Conn{a, b} {
		_, err := c.Filter(context.Background(), "")
		require.NoError(t, err)
	}
	require.NoError(t, s.SetLimits(Limits{MaxOpen: 1, MaxReaders: 1}))
	_, _, err := ports(t, context.Background(), b)
	assert.NoError(t, err, "what is open stays so")
	require.NoError(t, a.Close())
	for deadline := time.Now().Add(hang); s.Stats().Open > 1 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
	}
	_, err = connect(t, path).Filter(context.Background(), "")
	assert.Equal(t, tcpstats.CodeTooManyOpen, code(err), "one is connected, which is the limit")
}

func TestProfiles(t *testing.T) {
	s, _, path := start(t, &fake{n: 100})
	for name, want := range map[string]tcpstats.Code{
		"": tcpstats.CodeInvalid, "Web": tcpstats.CodeInvalid, "a-b": tcpstats.CodeInvalid, "a b": tcpstats.CodeInvalid, "ä": tcpstats.CodeInvalid, strings.Repeat("a", 33): tcpstats.CodeTooLong,
	} {
		assert.Equal(t, want, code(s.SetProfile(name, "")), "%q", name)
		assert.Equal(t, want, code(s.RemoveProfile(name)), "%q", name)
	}
	long := strings.Repeat("a", MaxProfileName)
	require.NoError(t, s.SetProfile(long, "local_port=1"))
	assert.Equal(t, []Profile{{long, "local_port=1"}}, s.Profiles(), "a name of 32 is kept whole")
	require.NoError(t, s.RemoveProfile(long))
	assert.Equal(t, tcpstats.CodeNoProfile, code(s.RemoveProfile(long)))

	require.NoError(t, s.SetProfile("web", "local_port=80"))
	var syntax *tcpstats.SyntaxError
	require.ErrorAs(t, s.SetProfile("web", "local_port=0"), &syntax)
	assert.Equal(t, []Profile{{"web", "local_port=80"}}, s.Profiles(), "as it was")

	ctx := context.Background()
	before := connect(t, path)
	_, err := before.Profile(ctx, "web")
	require.NoError(t, err)
	require.NoError(t, s.SetProfile("web", "local_port=81"))
	after := connect(t, path)
	_, err = after.Profile(ctx, "web")
	require.NoError(t, err)
	require.NoError(t, s.RemoveProfile("web"))
	for c, want := range map[*client.Conn]int{before: 80, after: 81} {
		got, _, err := ports(t, ctx, c)
		require.NoError(t, err)
		assert.Equal(t, []int{want}, got, "a change reaches those that open later")
	}
	_, err = after.Profile(ctx, "web")
	assert.Equal(t, tcpstats.CodeNoProfile, code(err))
	got, _, err := ports(t, ctx, after)
	require.NoError(t, err)
	assert.Equal(t, []int{81}, got, "the filter stays as it was")

	for i := range MaxProfiles {
		require.NoError(t, s.SetProfile(fmt.Sprintf("p%d", i), ""))
	}
	assert.Equal(t, tcpstats.CodeNoSpace, code(s.SetProfile("one_more", "")))
	assert.NoError(t, s.SetProfile("p3", "ipv4_only"), "one that is there may change")
}

// TestEverythingAtOnce changes profiles and limits and removes what is in use, while clients
// open, read and go: nothing waits for anything, and the books close (start checks them).
func TestEverythingAtOnce(t *testing.T) {
	f := &fake{n: 3 * tcpstats.Stretch}
	s, _, path := start(t, f)
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	var all sync.WaitGroup
	for i := range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			for n := range 40 {
				name := fmt.Sprintf("p%d", n%3)
				switch i {
				case 0:
					_ = s.SetProfile(name, "local_port=1,2,3")
				case 1:
					_ = s.RemoveProfile(name)
				case 2:
					assert.NoError(t, s.SetLimits(Limits{MaxOpen: 1 + n%8, MaxReaders: 1 + n%4, MaxDuration: time.Duration(n%2) * time.Second}))
				default:
					c, err := client.Dial(ctx, path)
					if !assert.NoError(t, err) {
						return
					}
					if _, err := c.Profile(ctx, name); err == nil || code(err) == tcpstats.CodeNoProfile {
						_, _ = c.Read(ctx, func([]byte, int) error { return nil })
					}
					_ = c.Close()
				}
			}
		}()
	}
	all.Wait()
	require.NoError(t, ctx.Err(), "something waits for ever")
}

// failing is a source that fails.
type failing struct {
	fake
	open, next error
}

func (f *failing) Open(ctx context.Context, q *tcpstats.Query) (tcpstats.Cursor, error) {
	if f.open != nil {
		return nil, f.open
	}
	c, err := f.fake.Open(ctx, q)
	return &failingCursor{c, f}, err
}

type failingCursor struct {
	tcpstats.Cursor
	f *failing
}

func (c *failingCursor) Next(ctx context.Context, b []byte) ([]byte, int, error) {
	out, n, err := c.Cursor.Next(ctx, b)
	if err == nil {
		err = c.f.next
	}
	return out, n, err
}

func TestSourceFails(t *testing.T) {
	for name, f := range map[string]*failing{
		"at its opening": {fake: fake{n: 600}, open: errors.New("no such kernel")},
		"in the middle":  {fake: fake{n: 600}, next: errors.New("no such kernel")},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(Config{Sources: func(tcpstats.SourceKind) tcpstats.Source { return f }, Clock: new(hand)})
			o, err := s.Open()
			require.NoError(t, err)
			r, err := o.Begin()
			require.NoError(t, err)
			emitted := 0
			end := r.Run(context.Background(), make([]byte, 0, tcpstats.ChunkBytes), func(_ []byte, n int) error { emitted += n; return nil })
			assert.Equal(t, tcpstats.CodeFailed, end.Code)
			assert.Equal(t, "no such kernel", end.Reason)
			assert.True(t, end.Partial)
			assert.EqualValues(t, emitted, end.Emitted)
			assert.Equal(t, end.Visited, end.Emitted+end.Aborted)
			assert.EqualValues(t, 1, s.Stats().Errors)
			o.Close()
			o.Close()
			assert.Zero(t, s.Stats().Open)
		})
	}
	s := New(Config{Clock: new(hand)})
	o, err := s.Open()
	require.NoError(t, err)
	_, err = o.Begin()
	assert.Equal(t, tcpstats.CodeNoSource, code(err), "a source that is off")
	assert.Zero(t, s.Stats().Reads)
}

// TestClientThatDoesNotRead: its read ends with the duration, and others are served
// meanwhile.
func TestClientThatDoesNotRead(t *testing.T) {
	f := &fake{n: 400 * tcpstats.Stretch}
	s, _, path := start(t, f)
	l := DefaultLimits()
	l.MaxDuration = 200 * time.Millisecond // of the write's deadline, which is the machine's time
	require.NoError(t, s.SetLimits(l))
	c, err := net.Dial("unix", path)
	require.NoError(t, err)
	defer c.Close()
	_, err = io.WriteString(c, "FILTER format=full\nREAD 1\n")
	require.NoError(t, err)
	_, err = connect(t, path).Filter(context.Background(), "ipv4_only")
	require.NoError(t, err)
	for deadline := time.Now().Add(hang); s.Stats().Reads == 0; time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "the read does not end")
	}
	st := s.Stats()
	assert.EqualValues(t, 1, st.TimedOut)
	assert.EqualValues(t, f.n, st.Visited)
	assert.NotZero(t, st.Aborted)
	// What was emitted is what the client finds when it reads after all, and no record more.
	require.NoError(t, c.SetDeadline(time.Now().Add(hang)))
	found := uint64(0)
	for {
		head, m := make([]byte, tcpstats.MessageHeader), tcpstats.Message{}
		if _, err := io.ReadFull(c, head); err != nil {
			break
		}
		require.NoError(t, m.Decode(head))
		if _, err := io.ReadFull(c, make([]byte, m.Bytes)); err != nil {
			break // it was cut
		}
		found += uint64(m.Records)
	}
	assert.NotZero(t, found)
	assert.Equal(t, st.Emitted, found)
}

// TestClientThatReadsSlowly: the read's duration ends while a message is on its way, and the
// client gets the rest of it, and the end that says that this is not everything.
func TestClientThatReadsSlowly(t *testing.T) {
	f := &fake{n: 400 * tcpstats.Stretch}
	s, h, path := start(t, f)
	l := DefaultLimits()
	l.MaxDuration = 20 * time.Millisecond // of the write's deadline, which is the machine's time
	require.NoError(t, s.SetLimits(l))
	c, err := net.Dial("unix", path)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(hang)))
	_, err = io.WriteString(c, "FILTER format=full\nREAD 1\n")
	require.NoError(t, err)
	// The socket is full when nothing is emitted any more.
	for before := uint64(1); ; {
		time.Sleep(20 * time.Millisecond)
		if n := f.visited.Load(); n == before {
			break
		} else {
			before = n
		}
	}
	h.now.Add(int64(time.Hour))
	require.NoError(t, c.(*net.UnixConn).CloseWrite())
	records, ends := 0, 0
	for _, m := range messages(t, c) {
		records += m.Records
		if m.Kind == tcpstats.MessageEnd {
			ends++
			assert.Equal(t, tcpstats.CodeTimedOut, m.end.Code)
			assert.True(t, m.end.Partial)
			assert.EqualValues(t, records, m.end.Emitted)
		}
	}
	assert.Equal(t, 1, ends, "the end of the read")
	assert.EqualValues(t, 1, s.Stats().TimedOut)
}

// TestClientThatGoes closes in the middle of a read.
func TestClientThatGoes(t *testing.T) {
	f := &fake{n: 400 * tcpstats.Stretch}
	s, _, path := start(t, f)
	c, err := net.Dial("unix", path)
	require.NoError(t, err)
	_, err = io.WriteString(c, "READ 1\n")
	require.NoError(t, err)
	_, err = io.ReadFull(c, make([]byte, 4096))
	require.NoError(t, err)
	require.NoError(t, c.Close())
	for deadline := time.Now().Add(hang); s.Stats().Open > 0; time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "its place is not free")
	}
	st := s.Stats()
	assert.EqualValues(t, 1, st.Reads)
	assert.EqualValues(t, 1, st.Errors)
	assert.EqualValues(t, f.n, st.Visited)
}

func TestLines(t *testing.T) {
	_, _, path := start(t, &fake{n: 1})
	for text, want := range map[string][]tcpstats.Code{
		"FILTER local_port=1\n": {""},
		"FILTER\n":              {""},
		"FILTER x\n":            {tcpstats.CodeInvalid},
		"FILTER " + strings.Repeat("a", 512) + "\n": {tcpstats.CodeTooLong},
		"\n":                    {tcpstats.CodeInvalid},
		"filter local_port=1\n": {tcpstats.CodeInvalid},
		"READ\nREAD 0\nREAD x\nREAD -1\nREAD 4294967296\nREAD 1 \n": {tcpstats.CodeInvalid, tcpstats.CodeInvalid, tcpstats.CodeInvalid, tcpstats.CodeInvalid, tcpstats.CodeInvalid, tcpstats.CodeInvalid},
		"CANCEL 7\n": {tcpstats.CodeNoProfile},
		"PROFILE " + strings.Repeat("a", 33) + "\n": {tcpstats.CodeTooLong},
		"PROFILE x\n":                    {tcpstats.CodeNoProfile},
		"READ 1":                         {tcpstats.CodeInvalid}, // without a line feed
		strings.Repeat("a", 2000) + "\n": {tcpstats.CodeTooLong},
	} {
		c, err := net.Dial("unix", path)
		require.NoError(t, err)
		require.NoError(t, c.SetDeadline(time.Now().Add(hang)))
		_, err = io.WriteString(c, text)
		require.NoError(t, err)
		_ = c.(*net.UnixConn).CloseWrite() // the service may have closed it already
		var got []tcpstats.Code
		for _, m := range messages(t, c) {
			if m.Kind == tcpstats.MessageReply {
				got = append(got, m.reply.Code)
			}
		}
		assert.Equal(t, want, got, "%.40q", text)
		require.NoError(t, c.Close())
	}
}

// FuzzLines: whatever a client sends, each line has a reply, each read that began an end,
// and what comes is messages.
func FuzzLines(f *testing.F) {
	f.Add("FILTER local_port=1\nREAD 1\nCANCEL 1\nPROFILE x\n")
	f.Add("READ 1\nREAD 2\nREAD 1\nCANCEL 9\n\n")
	h := new(hand)
	s := New(Config{Sources: func(tcpstats.SourceKind) tcpstats.Source { return &fake{n: 2} }, Clock: h})
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Count(text, "\n") > 20 {
			return // more than the socket of a client that does not read yet has room for
		}
		o, err := s.Open()
		require.NoError(t, err)
		ours, theirs := pair(t)
		done := make(chan struct{})
		go func() {
			defer close(done)
			newConn(ours, o).serve(context.Background())
		}()
		_, err = io.WriteString(theirs, text)
		_ = theirs.CloseWrite()
		began, ended := 0, 0
		for _, m := range messages(t, theirs) {
			switch m.Kind {
			case tcpstats.MessageReply:
				if m.Read != 0 && m.reply.Code == "" {
					began++
				}
			case tcpstats.MessageEnd:
				ended++
			}
		}
		<-done
		if err == nil {
			cancels := strings.Count(text, "CANCEL")
			assert.GreaterOrEqual(t, began, ended)
			assert.LessOrEqual(t, began-cancels, ended)
		}
		assert.Zero(t, s.Stats().Open)
		assert.Zero(t, s.Stats().Reading)
	})
}

// pair are the two ends of a connection.
func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: t.TempDir() + "/s", Net: "unix"})
	require.NoError(t, err)
	defer l.Close()
	b, err = net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	require.NoError(t, err)
	a, err = l.AcceptUnix()
	require.NoError(t, err)
	t.Cleanup(func() { a.Close(); b.Close() })
	require.NoError(t, b.SetDeadline(time.Now().Add(hang)))
	return a, b
}

// TestProbes: all seven points fire while somebody traces, and none otherwise. Never skipped.
func TestProbes(t *testing.T) {
	table := flows.New(flows.Config{MaxFlows: flows.LeastFlows})
	for port := range uint16(2) {
		b := syn(port + 1)
		var head frame.Packet
		table.Observe(1, 0, false, &head, b, len(b))
	}
	s := New(Config{Sources: func(tcpstats.SourceKind) tcpstats.Source { return table }, Clock: new(hand)})
	all := func() {
		require.NoError(t, s.SetProfile("web", "source=flow local_port=1"))
		o, err := s.Open()
		require.NoError(t, err)
		defer o.Close()
		require.NoError(t, o.UseProfile("web"))
		r, err := o.Begin()
		require.NoError(t, err)
		end := r.Run(context.Background(), make([]byte, 0, tcpstats.ChunkBytes), func([]byte, int) error { return nil })
		assert.EqualValues(t, 2, end.Visited)
		assert.EqualValues(t, 1, end.Emitted)
		require.NoError(t, s.RemoveProfile("web"))
	}
	traced := func(fn func()) string {
		var b bytes.Buffer
		require.NoError(t, trace.Start(&b))
		fn()
		trace.Stop()
		return b.String()
	}
	nothing, everything := traced(func() {}), traced(all)
	assert.Len(t, tcpstats.Points(), 7)
	for _, p := range tcpstats.Points() {
		assert.NotContains(t, nothing, string(p))
		assert.Contains(t, everything, string(p))
	}
	assert.Zero(t, testing.AllocsPerRun(100, func() { tcpstats.Probe(context.Background(), tcpstats.PointRead) }), "without a trace it is free")
}

// syn is a frame that begins a flow to a port.
func syn(port uint16) []byte {
	b := make([]byte, 14, 60)
	b[12] = 8
	b = append(b, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2)
	b = append(b, 4, 0, byte(port>>8), byte(port), 0, 0, 0, 1, 0, 0, 0, 0, 0x50, frame.TCPSYN, 1, 0, 0, 0, 0, 0)
	return append(b, make([]byte, 6)...)
}
