package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/internal/capture"
	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/internal/frame"
	"oxpd/internal/pfil"
)

// udp is a frame of 60 bytes to a port of UDP, from 192.0.2.1.
func udp(port uint16) []byte {
	f := make([]byte, 60)
	copy(f[12:], []byte{8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17})
	copy(f[26:], []byte{192, 0, 2, 1, 198, 51, 100, 2})
	f[36], f[37] = byte(port>>8), byte(port)
	return f
}

// pass has a service judge a frame, as the packet path does.
func pass(s *filterService, port int, dir pfil.Direction, f []byte) pfil.Verdict {
	var p frame.Packet
	v := s.table.Judge(0, port, dir, f, len(f), &p)
	s.table.Leave(0)
	return v
}

func source(name, rules string) *client.FilterSource {
	return &client.FilterSource{Name: name, File: name + ".rules", Rules: []byte(rules)}
}

func refusedBy(t *testing.T, err error) *client.Error {
	t.Helper()
	var e *client.Error
	require.ErrorAs(t, err, &e)
	return e
}

func TestFiltersOverTheSocket(t *testing.T) {
	ctx := context.Background()
	f := &fakeControl{}
	c := client.New(serveFake(t, f))

	t.Run("none", func(t *testing.T) {
		l, err := c.Filters(ctx)
		require.NoError(t, err)
		assert.Equal(t, &client.Filters{Schema: client.Schema, Filters: []client.Filter{}}, l)
		_, err = c.Filter(ctx, "flood")
		assert.Equal(t, client.CodeNotFound, refusedBy(t, err).Code)
		assert.Contains(t, refusedBy(t, err).Hint, "oxpd filter load flood FILE")
		_, err = c.LinkFilter(ctx, "flood", "all", "in")
		assert.Equal(t, client.CodeNotFound, refusedBy(t, err).Code)
		_, err = c.FilterSource(ctx, "flood")
		assert.Equal(t, client.CodeNotFound, refusedBy(t, err).Code)
		assert.Equal(t, client.CodeNotFound, refusedBy(t, c.Samples(ctx, "flood", io.Discard)).Code)
	})
	t.Run("loaded, with a rule that never matches", func(t *testing.T) {
		l, err := c.LoadFilter(ctx, source("flood", "drop udp from any to any port 9\ncount udp from any to any\ndrop udp from any to any port 53\n"))
		require.NoError(t, err)
		assert.Equal(t, 3, l.Rules)
		assert.False(t, l.Replaced)
		require.Len(t, l.Warnings, 1)
		assert.True(t, strings.HasPrefix(l.Warnings[0], "flood.rules:3: this rule never matches"), l.Warnings[0])
		assert.Empty(t, l.Links)
	})
	t.Run("linked, and it counts", func(t *testing.T) {
		v, err := c.LinkFilter(ctx, "flood", "F1", "in")
		require.NoError(t, err)
		assert.Equal(t, []client.FilterLink{{IfName: "oxp9", Label: "PortF1", Direction: "in"}}, v.Links)
		assert.Equal(t, pfil.Drop, pass(f.filters, 8, pfil.In, udp(9)))
		assert.Equal(t, pfil.Count, pass(f.filters, 8, pfil.In, udp(10)))
		assert.Equal(t, pfil.Pass, pass(f.filters, 8, pfil.In, make([]byte, 60)))
		assert.Equal(t, pfil.Pass, pass(f.filters, 8, pfil.Out, udp(9)))
		v, err = c.Filter(ctx, "flood")
		require.NoError(t, err)
		assert.Equal(t, client.FilterCount{Frames: 3, Bytes: 180}, v.Judged)
		assert.Equal(t, client.FilterCount{Frames: 1, Bytes: 60}, v.Unmatched)
		assert.Equal(t, client.OriginCommand, v.Origin)
		require.Len(t, v.List, 3)
		assert.Equal(t, uint64(1), v.List[0].Hits)
		assert.NotNil(t, v.List[0].LastHit)
		assert.Nil(t, v.List[2].LastHit)
		assert.Equal(t, "drop udp from any to any port 9", v.List[0].Rule)
	})
	t.Run("rules that do not compile change nothing", func(t *testing.T) {
		_, err := c.LoadFilter(ctx, source("flood", "drop udp from any to any port 9\ndrop udp fro any to any\ndrop icmp from any to any port 7\n"))
		e := refusedBy(t, err)
		assert.True(t, e.Usage())
		require.Len(t, e.At, 2)
		assert.Equal(t, client.Place{File: "flood.rules", Line: 2, Column: 10, Why: e.At[0].Why, Text: "drop udp fro any to any"}, e.At[0])
		assert.Contains(t, e.At[0].Why, `found "fro", expected`)
		v, err := c.Filter(ctx, "flood")
		require.NoError(t, err)
		assert.Equal(t, uint64(1), v.List[0].Hits)
		assert.Equal(t, pfil.Drop, pass(f.filters, 8, pfil.In, udp(9)), "the old filter goes on")
		v, err = c.Filter(ctx, "flood")
		require.NoError(t, err)
		assert.Equal(t, uint64(2), v.List[0].Hits, "with its counters")
	})
	t.Run("replaced where it is linked, counters of the same rule go on", func(t *testing.T) {
		l, err := c.LoadFilter(ctx, source("flood", "drop udp from any to any port 10\ndrop udp from any to any port 9\n"))
		require.NoError(t, err)
		assert.Equal(t, []any{true, 1, 1, 2}, []any{l.Replaced, l.Kept, l.Added, l.Removed})
		assert.Len(t, l.Links, 1)
		assert.Equal(t, pfil.Drop, pass(f.filters, 8, pfil.In, udp(10)))
		v, err := c.Filter(ctx, "flood")
		require.NoError(t, err)
		assert.Equal(t, uint64(2), v.List[1].Hits)
		assert.Equal(t, uint64(1), v.Gone.Frames)
		assert.Equal(t, v.Judged.Frames, v.List[0].Hits+v.List[1].Hits+v.Gone.Frames+v.Unmatched.Frames)
		all, err := c.Filters(ctx)
		require.NoError(t, err)
		assert.Equal(t, []client.Filter{v.Filter}, all.Filters, "the list says the same")
	})
	t.Run("source as it was sent", func(t *testing.T) {
		in := source("sets", "set bad file a/bad.txt\ndrop ip from set bad to any\n")
		in.Files = map[string][]byte{"a/bad.txt": []byte("192.0.2.0/24\n\n# \xff\n")}
		_, err := c.LoadFilter(ctx, in)
		require.NoError(t, err)
		got, err := c.FilterSource(ctx, "sets")
		require.NoError(t, err)
		in.Schema = client.Schema
		assert.Equal(t, in, got)
	})
	t.Run("in a chain", func(t *testing.T) {
		_, err := c.LinkFilter(ctx, "sets", "all", "both")
		require.NoError(t, err)
		l, err := c.Filters(ctx)
		require.NoError(t, err)
		require.Len(t, l.Filters, 2)
		assert.Equal(t, []client.FilterOrder{{FilterLink: client.FilterLink{IfName: "oxp9", Label: "PortF1", Direction: "in"}, Filters: []string{"flood", "sets"}}}, l.Order)
		assert.Len(t, l.Filters[1].Links, 2*board.Ports)
	})
	t.Run("what is linked is not unloaded", func(t *testing.T) {
		_, err := c.UnloadFilter(ctx, "flood")
		assert.Equal(t, client.CodeRefused, refusedBy(t, err).Code)
		assert.Contains(t, refusedBy(t, err).Hint, "oxpd filter unlink flood all")
		_, err = c.UnlinkFilter(ctx, "flood", "oxp9", "out")
		assert.Equal(t, client.CodeRefused, refusedBy(t, err).Code)
		v, err := c.UnlinkFilter(ctx, "flood", "all", "both")
		require.NoError(t, err)
		assert.Empty(t, v.Links)
		l, err := c.UnloadFilter(ctx, "flood")
		require.NoError(t, err)
		assert.Len(t, l.Filters, 1)
	})
	t.Run("samples, as a capture that can be read again and again", func(t *testing.T) {
		_, err := c.LoadFilter(ctx, source("some", "sample 2 udp from any to any port 77\n"))
		require.NoError(t, err)
		_, err = c.LinkFilter(ctx, "some", "oxp3", "out")
		require.NoError(t, err)
		_, err = c.UnlinkFilter(ctx, "sets", "all", "both")
		require.NoError(t, err)
		for range 4 {
			assert.Equal(t, pfil.Sample, pass(f.filters, 2, pfil.Out, udp(77)))
		}
		for _, name := range []string{"some", "", "some"} {
			var b bytes.Buffer
			require.NoError(t, c.Samples(ctx, name, &b))
			r, err := capture.NewReader(&b, "samples")
			require.NoError(t, err)
			for range 2 {
				rec, err := r.Next()
				require.NoError(t, err)
				assert.Equal(t, udp(77), rec.Frame)
			}
			_, err = r.Next()
			assert.ErrorIs(t, err, io.EOF)
		}
	})
	t.Run("names and words that are none", func(t *testing.T) {
		_, err := c.LoadFilter(ctx, source("-x", ""))
		assert.True(t, refusedBy(t, err).Usage())
		_, err = c.LinkFilter(ctx, "sets", "oxp13", "in")
		assert.Equal(t, client.CodeUnknownPort, refusedBy(t, err).Code)
		_, err = c.LinkFilter(ctx, "sets", "oxp1", "up")
		assert.True(t, refusedBy(t, err).Usage())
	})
}

// TestFilterBodies: a filter's body may be long, and others' not.
func TestFilterBodies(t *testing.T) {
	ctx := context.Background()
	f := &fakeControl{}
	path := serveFake(t, f)
	c := client.New(path)
	var set bytes.Buffer
	for i := range 100_000 {
		fmt.Fprintf(&set, "10.%d.%d.0/24\n2001:db8:%x::/48\n", i>>8&0xff, i&0xff, i&0xffff)
	}
	in := source("many", "set bad file bad\ndrop ip from set bad to any\n")
	in.Files = map[string][]byte{"bad": set.Bytes()}
	t.Run("megabytes of prefixes", func(t *testing.T) {
		require.Greater(t, set.Len(), longBody)
		l, err := c.LoadFilter(ctx, in)
		require.NoError(t, err)
		assert.Equal(t, 1, l.Rules)
	})
	raw := func(t *testing.T, head string) net.Conn {
		t.Helper()
		conn, err := net.Dial("unix", path)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_, err = io.WriteString(conn, head)
		require.NoError(t, err)
		return conn
	}
	t.Run("one that is too long is not read", func(t *testing.T) {
		conn := raw(t, fmt.Sprintf("PUT /v1/filters/x HTTP/1.1\r\nHost: oxpd\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", client.MaxFilterBody+1))
		b := make([]byte, 12)
		_, err := io.ReadFull(conn, b)
		require.NoError(t, err)
		assert.Equal(t, "HTTP/1.1 413", string(b))
	})
	t.Run("a link has no body to speak of", func(t *testing.T) {
		conn := raw(t, "PUT /v1/filters/x/links/oxp1/in HTTP/1.1\r\nHost: oxpd\r\nContent-Length: 5000\r\nExpect: 100-continue\r\n\r\n"+strings.Repeat(" ", 5000))
		b := make([]byte, 12)
		_, err := io.ReadFull(conn, b)
		require.NoError(t, err)
		assert.Equal(t, "HTTP/1.1 413", string(b))
	})
	t.Run("one that does not come holds up no short one", func(t *testing.T) {
		raw(t, "PUT /v1/filters/slow HTTP/1.1\r\nHost: oxpd\r\nContent-Length: 2000000\r\n\r\n{") // and no more of it
		_, err := c.LoadFilter(ctx, source("small", "drop icmp from any to any\n"))
		require.NoError(t, err)
		_, err = c.Filters(ctx)
		require.NoError(t, err)
	})
}

func TestLongBodiesTakeTurns(t *testing.T) {
	turn := make(turns, turnsAtOnce)
	over, cancel := context.WithCancel(context.Background())
	cancel()
	request := func(ctx context.Context, bytes int64) (func(), error) {
		r := httptest.NewRequestWithContext(ctx, http.MethodPut, "/v1/filters/x", nil)
		r.ContentLength = bytes
		return turn.take(httptest.NewRecorder(), r, bodyLimit(r))
	}
	done, err := request(context.Background(), longBody+1)
	require.NoError(t, err)
	for _, bytes := range []int64{longBody + 1, client.MaxFilterBody, -1} {
		_, err = request(over, bytes)
		assert.ErrorIs(t, err, context.Canceled, "%d bytes wait for their turn", bytes)
	}
	for _, bytes := range []int64{0, longBody} {
		free, err := request(over, bytes)
		require.NoError(t, err, "%d bytes do not", bytes)
		free()
	}
	done()
	done, err = request(context.Background(), -1)
	require.NoError(t, err)
	done()
}

// TestLargestFilterIsShown: as many rules as there may be, with all of their counters.
func TestLargestFilterIsShown(t *testing.T) {
	ctx := context.Background()
	c := client.New(serveFake(t, new(fakeControl)))
	var rules bytes.Buffer
	for i := range pfil.MaxRules {
		fmt.Fprintf(&rules, "drop udp from 10.%d.%d.0/24 to any port 53\n", i>>8, i&0xff)
	}
	_, err := c.LoadFilter(ctx, source("most", rules.String()))
	require.NoError(t, err)
	v, err := c.LinkFilter(ctx, "most", "F1", "in")
	require.NoError(t, err)
	assert.Len(t, v.List, pfil.MaxRules)
	v, err = c.Filter(ctx, "most")
	require.NoError(t, err)
	assert.Len(t, v.List, pfil.MaxRules)
}

// TestSlowReadersOfASource: clients that do not read hold one long source in memory, and
// nobody up who wants a short one.
func TestSlowReadersOfASource(t *testing.T) {
	ctx := context.Background()
	path := serveFake(t, new(fakeControl))
	c := client.New(path)
	long := source("long", "drop icmp from any to any\n"+strings.Repeat("# nothing\n", longBody/5))
	for _, s := range []*client.FilterSource{long, source("short", "drop icmp from any to any\n")} {
		_, err := c.LoadFilter(ctx, s)
		require.NoError(t, err)
	}
	conn, err := net.Dial("unix", path)
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET /v1/filters/long/source HTTP/1.1\r\nHost: oxpd\r\n\r\n")
	require.NoError(t, err)
	_, err = io.ReadFull(conn, make([]byte, 12))
	require.NoError(t, err, "it has begun")

	brief, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err = c.FilterSource(brief, "long")
	require.Error(t, err, "it waits for its turn")
	_, err = c.FilterSource(ctx, "short")
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	got, err := c.FilterSource(ctx, "long")
	require.NoError(t, err)
	assert.Equal(t, long.Rules, got.Rules)
}

// conf is a configuration's filter of rules in a file.
func conf(t *testing.T, name, rules string, link ...string) config.Filter {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(file, []byte(rules), 0o600))
	src, err := pfil.ReadSource(file)
	require.NoError(t, err)
	src.Name = name
	return config.Filter{Name: name, File: name, Link: link, Source: src}
}

func TestFiltersOfTheConfiguration(t *testing.T) {
	const nine, ten = "drop udp from any to any port 9\n", "drop udp from any to any port 10\n"
	log := &syncBuffer{}
	s := newFilterService(slog.New(slog.NewTextHandler(log, nil)))
	dropped := func(port uint16, at int) bool { return pass(s, at, pfil.In, udp(port)) == pfil.Drop }
	hits := func(name string) uint64 {
		v, err := s.show(name)
		require.NoError(t, err)
		return v.List[0].Hits
	}
	loads := func(name, rules string) {
		_, err := s.load(*source(name, rules))
		require.NoError(t, err)
	}
	first := conf(t, "a", nine, "all in")
	require.NoError(t, s.boot([]config.Filter{first, conf(t, "b", ten, "oxp1 in")}))

	t.Run("in force from the start, in the order of the file", func(t *testing.T) {
		assert.True(t, dropped(9, 0))
		assert.True(t, dropped(9, 11))
		assert.True(t, dropped(10, 0))
		assert.False(t, dropped(10, 1))
		assert.Equal(t, []string{"a", "b"}, s.table.Chain(pfil.Hook{Port: board.ByIndex(0), Dir: pfil.In}))
		assert.Equal(t, client.OriginConfig, s.list().Filters[0].Origin)
		assert.Equal(t, []string{"a", "b"}, s.linkedNames())
		assert.Len(t, s.of(board.ByIndex(1)), 1)
	})
	t.Run("the same file again changes nothing", func(t *testing.T) {
		before := hits("a")
		loaded := s.list().Filters[0].Loaded
		s.reload([]config.Filter{first, conf(t, "b", ten, "oxp1 in")})
		assert.Equal(t, before, hits("a"))
		assert.Equal(t, loaded, s.list().Filters[0].Loaded)
	})
	t.Run("a link that changed, and just that", func(t *testing.T) {
		s.reload([]config.Filter{first, conf(t, "b", ten, "oxp2 in")})
		assert.False(t, dropped(10, 0))
		assert.True(t, dropped(10, 1))
		assert.Contains(t, log.String(), `msg="filter is linked" filter=b port=oxp2 direction=in`)
		assert.Contains(t, log.String(), `msg="filter is unlinked" filter=b port=oxp1 direction=in`)
	})
	t.Run("a file that changed keeps the counters of a rule that did not", func(t *testing.T) {
		before := hits("a")
		first = conf(t, "a", nine+"count ip from any to any\n", "all in")
		s.reload([]config.Filter{first, conf(t, "b", ten, "oxp2 in")})
		assert.Equal(t, before, hits("a"))
		assert.Equal(t, pfil.Count, pass(s, 0, pfil.In, udp(11)))
	})
	t.Run("what the file says holds again, what a command has added stays", func(t *testing.T) {
		loads("a", ten)
		loads("c", ten)
		all := board.All()
		_, err := s.unlink("a", all[:1], pfil.In)
		require.NoError(t, err)
		_, err = s.link("c", all[4:5], pfil.In)
		require.NoError(t, err)
		_, err = s.link("a", all[:1], pfil.Out)
		require.NoError(t, err)
		s.reload([]config.Filter{first, conf(t, "b", ten, "oxp2 in")})
		assert.True(t, dropped(9, 0))
		assert.Equal(t, 2, strings.Count(log.String(), `msg="filter is linked" filter=a port=oxp1 direction=in`), "at the start, and again")
		assert.Equal(t, []string{"a", "c"}, s.table.Chain(pfil.Hook{Port: all[4], Dir: pfil.In}))
		assert.Equal(t, []string{"a"}, s.table.Chain(pfil.Hook{Port: all[0], Dir: pfil.Out}))
		assert.Equal(t, []string{client.OriginConfig, client.OriginConfig, client.OriginCommand}, origins(s))
	})
	t.Run("one that the file has no longer goes, unless a command put another in its place", func(t *testing.T) {
		loads("b", nine)
		s.reload(nil)
		assert.False(t, dropped(9, 0), "a is gone")
		assert.True(t, dropped(9, 1), "b stays")
		assert.Equal(t, []string{client.OriginCommand, client.OriginCommand}, origins(s))
	})
	t.Run("rules that do not compile refuse the start", func(t *testing.T) {
		d := New(Options{Config: config.Config{Socket: filepath.Join(t.TempDir(), "s"), Filters: []config.Filter{
			{Name: "x", Source: pfil.Source{Name: "x.rules", Rules: []byte("drop\n")}},
		}}})
		var e *pfil.Error
		require.ErrorAs(t, d.filters.boot(d.config().Filters), &e)
	})
}

func origins(s *filterService) (out []string) {
	for _, f := range s.list().Filters {
		out = append(out, f.Origin)
	}
	return out
}

func TestPlacesOfOtherErrors(t *testing.T) {
	assert.Nil(t, places(errors.New("no rules")))
	assert.Nil(t, describe(fmt.Errorf("load: %w", context.DeadlineExceeded)).At)
}
