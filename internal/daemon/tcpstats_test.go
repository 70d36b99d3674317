package daemon

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	realclock "oxpd/internal/clock"
	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/internal/divert"
	"oxpd/internal/frame"
	"oxpd/internal/pfil"
	"oxpd/internal/tcpstats"
	statsclient "oxpd/internal/tcpstats/client"
	"oxpd/internal/tcpstats/flows"
	"oxpd/internal/tcpstats/serve"
)

// statsServiceRig is a service without a card, and what it logs.
type statsServiceRig struct {
	*statsService
	log syncBuffer
	dir string
}

func statsConfig(t *testing.T, text string) *config.TCPStats {
	t.Helper()
	c, err := config.Parse("f", []byte("tcpstats: {"+text+"}\n"))
	require.NoError(t, err)
	return &c.TCPStats
}

func newStatsServiceRig(t *testing.T, text string) *statsServiceRig {
	t.Helper()
	r := &statsServiceRig{dir: t.TempDir()}
	cfg := config.Default()
	cfg.Socket, cfg.TCPStats = filepath.Join(r.dir, "oxpd.sock"), *statsConfig(t, text)
	c := realclock.NewReal()
	r.statsService = newStatsService(cfg, "", newFanout(nil, c), c, slog.New(slog.NewTextHandler(&r.log, nil)))
	return r
}

func (r *statsServiceRig) started(t *testing.T) *statsServiceRig {
	t.Helper()
	require.NoError(t, r.start())
	t.Cleanup(r.stop)
	return r
}

// shown is a setting as the control socket shows it.
func (r *statsServiceRig) shown(key string) string {
	for _, s := range r.view().Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

func TestStatsSettingsAllOrNone(t *testing.T) {
	r := newStatsServiceRig(t, "max-open-fds: 3").started(t)
	before, limits := r.view(), r.serve.Limits()
	assert.Equal(t, 3, limits.MaxOpen, "the configuration's")
	for _, tc := range []struct {
		name string
		set  []config.StatsSetting
		want string
	}{
		{"the second is refused", []config.StatsSetting{{Key: "max_open_fds", Value: "9"}, {Key: "flow_max", Value: "1"}}, "flow_max is 1: want 1024 to 1048576"},
		{"the first is unknown", []config.StatsSetting{{Key: "max_open", Value: "9"}, {Key: "flow", Value: "on"}}, `no setting "max_open"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := r.set(tc.set)
			require.ErrorContains(t, err, tc.want)
			assert.Equal(t, client.CodeUsage, describe(err).Code)
			assert.Equal(t, before, r.view())
			assert.Equal(t, limits, r.serve.Limits())
			assert.Nil(t, r.watch.table.Load())
		})
	}
	require.NoError(t, r.set([]config.StatsSetting{
		{Key: "max_open_fds", Value: "4"}, {Key: "max_concurrent_readers", Value: "5"}, {Key: "max_read_duration_ms", Value: "0"}, {Key: "min_read_interval_ms", Value: "6"},
	}))
	assert.Equal(t, serve.Limits{MaxOpen: 4, MaxReaders: 5, MinInterval: 6 * time.Millisecond}, r.serve.Limits(), "in force at once")
	assert.Equal(t, "5", r.shown("max_concurrent_readers"))
}

// The table of flows comes and goes with its setting, and only what changes it begins it
// anew.
func TestStatsFlowTable(t *testing.T) {
	r := newStatsServiceRig(t, "flow-max: 2048, flow-idle: 20s").started(t)
	set := func(key, value string) *flows.Table {
		t.Helper()
		require.NoError(t, r.set([]config.StatsSetting{{Key: key, Value: value}}))
		return r.watch.table.Load()
	}
	assert.Nil(t, r.watch.table.Load())
	assert.Nil(t, r.source(tcpstats.Flow), "an interface without a table in it would be no nil")
	assert.Nil(t, r.view().Flow)
	on := set("flow", "on")
	require.NotNil(t, on)
	assert.Equal(t, flows.Config{MaxFlows: 2048, Idle: 20 * time.Second}, on.Config())
	assert.Equal(t, tcpstats.Source(on), r.source(tcpstats.Flow))
	assert.Equal(t, 2048, r.view().Flow.MaxFlows)
	assert.Same(t, on, set("max_open_fds", "7"), "its flows stay")
	assert.Same(t, on, set("flow", "on"))
	larger := set("flow_max", "4096")
	assert.NotSame(t, on, larger)
	assert.Equal(t, 4096, larger.Config().MaxFlows)
	assert.NotSame(t, larger, set("flow_idle", "30s"))
	assert.Nil(t, set("flow", "off"))
	assert.NotNil(t, set("flow", "on"))
	r.stop()
	assert.Nil(t, r.watch.table.Load())
	assert.Nil(t, set("flow", "on"), "what comes after the end makes no table")
}

func TestStatsFollowTheConfiguration(t *testing.T) {
	const text = "max-open-fds: 3, flow: true, profiles: {web: local_port=443, old: ipv4_only, kept: ''}"
	was := statsConfig(t, text)
	r := newStatsServiceRig(t, text).started(t)
	names := func() (out []string) {
		for _, p := range r.view().Profiles {
			out = append(out, p.Name+":"+p.Filter)
		}
		return out
	}
	assert.Equal(t, []string{"kept:", "old:ipv4_only", "web:local_port=443"}, names())
	table := r.watch.table.Load()
	require.NotNil(t, table)
	require.NoError(t, r.set([]config.StatsSetting{{Key: "max_concurrent_readers", Value: "9"}, {Key: "max_open_fds", Value: "5"}}))
	require.NoError(t, r.setProfile("web", "local_port=80"))
	require.NoError(t, r.setProfile("mine", "ipv6_only"))
	require.NoError(t, r.removeProfile("kept"))
	t.Run("one that says the same leaves what commands have set", func(t *testing.T) {
		r.reload(was, statsConfig(t, text))
		assert.Equal(t, "5", r.shown("max_open_fds"))
		assert.Equal(t, []string{"mine:ipv6_only", "old:ipv4_only", "web:local_port=80"}, names())
		assert.Same(t, table, r.watch.table.Load())
	})
	t.Run("what has changed is in force, and nothing else", func(t *testing.T) {
		r.reload(was, statsConfig(t, "max-open-fds: 4, flow: true, profiles: {web: 'local_port=8443', new: 'via=F1'}"))
		assert.Equal(t, 4, r.serve.Limits().MaxOpen)
		assert.Equal(t, 9, r.serve.Limits().MaxReaders)
		assert.Equal(t, []string{"mine:ipv6_only", "new:via=oxp9", "web:local_port=8443"}, names())
		assert.Same(t, table, r.watch.table.Load())
		assert.Contains(t, r.log.String(), "profile was removed before")
	})
	t.Run("flow", func(t *testing.T) {
		r.reload(statsConfig(t, "flow: true"), statsConfig(t, "flow: false"))
		assert.Nil(t, r.watch.table.Load())
	})
	t.Run("profiles that have no room are told", func(t *testing.T) {
		for i := len(r.serve.Profiles()); i < serve.MaxProfiles; i++ {
			require.NoError(t, r.setProfile(fmt.Sprintf("p%d", i), ""))
		}
		r.reload(statsConfig(t, ""), statsConfig(t, "profiles: {another: ''}"))
		assert.Contains(t, r.log.String(), "profile is not as configured")
		assert.Len(t, r.serve.Profiles(), serve.MaxProfiles)
	})
}

// taken is a socket in whose place nothing else can be made.
func taken(t *testing.T, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
}

func TestStatsSocketThatCannotBeMade(t *testing.T) {
	t.Run("of the configuration: an error", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "named.sock")
		taken(t, path)
		r := newStatsServiceRig(t, "flow: true, socket: "+path)
		require.ErrorContains(t, r.start(), path)
		assert.Nil(t, r.watch.table.Load(), "and nothing is left")
	})
	t.Run("by default: a warning, and all the rest", func(t *testing.T) {
		r := newStatsServiceRig(t, "flow: true")
		taken(t, filepath.Join(r.dir, "tcpstats.sock"))
		r.started(t)
		assert.Contains(t, r.view().Warning, filepath.Join(r.dir, "tcpstats.sock"))
		assert.Contains(t, r.log.String(), "level=WARN")
		assert.NotNil(t, r.watch.table.Load())
	})
	t.Run("a group that there is not", func(t *testing.T) {
		r := newStatsServiceRig(t, "group: oxpd-nobody-has-this").started(t)
		info, err := os.Stat(filepath.Join(r.dir, "tcpstats.sock"))
		require.NoError(t, err, "frames are carried, and root may ask")
		assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
		assert.Contains(t, r.view().Warning, "tcpstats.group: ")
	})
	t.Run("a group that there is", func(t *testing.T) {
		gid := os.Getgid()
		r := newStatsServiceRig(t, fmt.Sprintf("group: '%d'", gid)).started(t)
		info, err := os.Stat(filepath.Join(r.dir, "tcpstats.sock"))
		require.NoError(t, err)
		if gid > 0 {
			assert.Equal(t, os.FileMode(0o660), info.Mode().Perm())
		} else {
			assert.Equal(t, os.FileMode(0o600), info.Mode().Perm(), "root's group is nobody else")
		}
		r.stop()
		assert.NoFileExists(t, filepath.Join(r.dir, "tcpstats.sock"), "it goes with the daemon")
	})
}

func TestGroupID(t *testing.T) {
	for name, want := range map[string]int{"": -1, "0": 0, "4711": 4711, "root": 0} {
		got, err := groupID(name)
		require.NoError(t, err, name)
		assert.Equal(t, want, got, name)
	}
	for _, name := range []string{"-1", "2147483648", "oxpd-nobody-has-this"} {
		_, err := groupID(name)
		assert.Error(t, err, name)
	}
}

// serveStats serves the requests about TCP statistics alone.
func serveStats(t *testing.T, s statistics) (c *client.Client, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	mux := http.NewServeMux()
	statsRoutes(mux, s)
	srv := &http.Server{Handler: whole(mux), ReadHeaderTimeout: hang}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close(); <-done })
	return client.New(path), path
}

func TestStatsOverTheControlSocket(t *testing.T) {
	t.Parallel()
	r := newStatsServiceRig(t, "").started(t)
	c, path := serveStats(t, r)
	ctx := context.Background()
	v, err := c.TCPStats(ctx)
	require.NoError(t, err)
	assert.Equal(t, r.view(), *v)
	assert.Equal(t, filepath.Join(r.dir, "tcpstats.sock"), v.Socket)
	v, err = c.SetTCPStats(ctx, client.TCPStatsSetting{Key: "max_open_fds", Value: "2"}, client.TCPStatsSetting{Key: "flow", Value: "on"})
	require.NoError(t, err)
	assert.NotNil(t, v.Flow)
	v, err = c.SetTCPStatsProfile(ctx, "web", "LOCAL_PORT=443")
	require.NoError(t, err)
	assert.Equal(t, []client.TCPStatsProfile{{Name: "web", Filter: "local_port=443"}}, v.Profiles)
	v, err = c.RemoveTCPStatsProfile(ctx, "web")
	require.NoError(t, err)
	assert.Empty(t, v.Profiles)
	for i := range serve.MaxProfiles {
		_, err := c.SetTCPStatsProfile(ctx, fmt.Sprintf("p%d", i), "")
		require.NoError(t, err)
	}
	before := r.view()
	for _, tc := range []struct {
		name string
		ask  func() error
		code client.Code
		says string
	}{
		{"nothing", func() error { _, err := c.SetTCPStats(ctx); return err }, client.CodeUsage, "nothing is to be set"},
		{"twice", func() error {
			_, err := c.SetTCPStats(ctx, client.TCPStatsSetting{Key: "flow", Value: "on"}, client.TCPStatsSetting{Key: "flow", Value: "off"})
			return err
		}, client.CodeUsage, "flow is set twice"},
		{"unknown", func() error {
			_, err := c.SetTCPStats(ctx, client.TCPStatsSetting{Key: "flows", Value: "on"})
			return err
		}, client.CodeUsage, `no setting "flows"`},
		{"a filter", func() error { _, err := c.SetTCPStatsProfile(ctx, "p1", "local_port=0"); return err }, client.CodeUsage, "filter: "},
		{"a name", func() error { _, err := c.SetTCPStatsProfile(ctx, "P/1 ?", ""); return err }, client.CodeUsage, `profile name "P/1 ?"`},
		{"a name too long", func() error { _, err := c.SetTCPStatsProfile(ctx, fmt.Sprintf("%033d", 0), ""); return err }, client.CodeUsage, "33 characters"},
		{"one too many", func() error { _, err := c.SetTCPStatsProfile(ctx, "p16", ""); return err }, client.CodeRefused, "16 profiles already"},
		{"one that there is not", func() error { _, err := c.RemoveTCPStatsProfile(ctx, "p16"); return err }, client.CodeNotFound, `no profile "p16"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := tc.ask()
			var e *client.Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, tc.code, e.Code)
			assert.ErrorContains(t, err, tc.says)
			assert.Equal(t, before, r.view(), "all is as it was")
		})
	}
	for _, name := range []string{".", "..", ""} {
		_, err := c.RemoveTCPStatsProfile(ctx, name)
		assert.Error(t, err, "%q is another request's path", name)
		_, err = c.SetTCPStatsProfile(ctx, name, "")
		assert.Error(t, err, "%q", name)
	}
	t.Run("bodies", func(t *testing.T) {
		for _, body := range []string{"", "{", `{"set":[{"key":"flow","value":"off"}],"more":1}`, `{"set":[{"key":"flow","value":7}]}`, "[]"} {
			req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://oxpd/v1/tcpstats/settings", bytes.NewReader([]byte(body)))
			require.NoError(t, err)
			req.Header.Set("Content-Type", "application/json")
			web := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", path)
			}}}
			resp, err := web.Do(req)
			require.NoError(t, err)
			_ = resp.Body.Close()
			assert.Equal(t, http.StatusBadRequest, resp.StatusCode, body)
			assert.Equal(t, before, r.view())
		}
	})
}

// Settings that change while reads are under way and frames come and go: all reads end, and
// the books are closed.
func TestStatsChangesUnderReads(t *testing.T) {
	t.Parallel()
	r := newStatsServiceRig(t, "flow: true").started(t)
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	const readers = 4
	var stop atomic.Bool
	done := make(chan error, readers)
	for i := range readers {
		go func() {
			c, err := statsclient.Dial(ctx, filepath.Join(r.dir, "tcpstats.sock"))
			if err != nil {
				done <- err
				return
			}
			defer c.Close()
			if i%2 == 0 {
				if _, err = c.Filter(ctx, "source=flow"); err != nil {
					done <- err
					return
				}
			}
			for !stop.Load() {
				end, err := c.Read(ctx, func([]byte, int) error { return nil })
				var refused *statsclient.RefusedError
				if errors.As(err, &refused) && refused.Code == tcpstats.CodeNoSource {
					continue
				}
				if err == nil && end.Partial {
					err = fmt.Errorf("%+v", end)
				}
				if err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	var feeding sync.WaitGroup
	for shard := range 2 {
		feeding.Add(1)
		go func() {
			defer feeding.Done()
			head := new(frame.Packet)
			for i := 0; !stop.Load(); i++ {
				b := tcpFrame(fmt.Sprintf("198.51.100.7:%d", 1+i%4000), "192.0.2.1:5001", []uint8{frame.TCPSYN, frame.TCPACK, frame.TCPACK | frame.TCPFIN}[i%3], i%100)
				head.Have = 0
				r.watch.see(shard, 8, shard == 1, head, b, len(b))
				if i%50 == 0 {
					r.watch.leave(shard)
				}
			}
		}()
	}
	for i := range 60 {
		require.NoError(t, r.set([]config.StatsSetting{{Key: "flow", Value: []string{"on", "off", "on"}[i%3]}, {Key: "flow_max", Value: []string{"1024", "2048"}[i%2]}}))
		require.NoError(t, r.setProfile("p", ""))
		require.NoError(t, r.removeProfile("p"))
		r.view()
	}
	stop.Store(true)
	feeding.Wait()
	for range readers {
		assert.NoError(t, <-done)
	}
	v := r.view()
	sum := v.Counters["emitted"] + v.Counters["aborted"]
	for _, why := range tcpstats.Skips() {
		sum += v.Counters["skipped_"+why.String()]
	}
	assert.Equal(t, v.Counters["visited"], sum)
	assert.Zero(t, v.Reading)
}

// tickingClock counts how often it is asked.
type tickingClock struct{ asked int }

func (c *tickingClock) Now() time.Duration { c.asked++; return time.Duration(c.asked) * time.Second }

// The clock is asked once a pass, and not at all without a table.
func TestFlowWatchTime(t *testing.T) {
	c := new(tickingClock)
	w := newFlowWatch(c)
	c.asked = 0
	syn := tcpFrame("192.0.2.1:1", "198.51.100.1:2", frame.TCPSYN, 0)
	see := func(shard int) { w.see(shard, 8, false, new(frame.Packet), syn, len(syn)) }
	see(0)
	assert.Zero(t, c.asked, "there is no table")
	table := flows.New(flows.Config{})
	w.table.Store(table)
	see(0)
	see(0)
	assert.Equal(t, 1, c.asked)
	see(1)
	assert.Equal(t, 2, c.asked, "another shard")
	w.leave(0)
	see(0)
	assert.Equal(t, 3, c.asked, "another pass")
	assert.EqualValues(t, 4, table.Stats().Segments)
	assert.EqualValues(t, 1, table.Stats().Seen)
	w.table.Store(nil)
	w.leave(0)
	see(0)
	assert.Equal(t, 3, c.asked)
}

// tcpFrame is an Ethernet frame with a TCP segment of IPv4. Its numbers begin with 1000 of
// one end and 5000 of the other.
func tcpFrame(from, to string, flags uint8, payload int) []byte {
	src, dst := netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)
	b := make([]byte, 14+20+20+payload)
	copy(b, "\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x01\x08\x00") // to all: a port takes it whatever its address
	ip := b[14:]
	ip[0], ip[8], ip[9] = 0x45, 64, 6
	binary.BigEndian.PutUint16(ip[2:], uint16(40+payload))
	s4, d4 := src.Addr().As4(), dst.Addr().As4()
	copy(ip[12:], s4[:])
	copy(ip[16:], d4[:])
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	tcp := ip[20:]
	binary.BigEndian.PutUint16(tcp, src.Port())
	binary.BigEndian.PutUint16(tcp[2:], dst.Port())
	seq, ack := uint32(1000), uint32(5000)
	if src.Port() < dst.Port() {
		seq, ack = ack, seq
	}
	if flags&frame.TCPSYN == 0 {
		seq++
	}
	if flags&frame.TCPACK != 0 {
		binary.BigEndian.PutUint32(tcp[8:], ack+1)
	}
	binary.BigEndian.PutUint32(tcp[4:], seq)
	tcp[12], tcp[13] = 5<<4, flags
	binary.BigEndian.PutUint16(tcp[14:], 65535)
	return b
}

// What following flows adds to a frame that comes in, segments of so many connections in
// turn; without a table the rest is what the frame costs anyway.
func BenchmarkFlowsAtAPort(b *testing.B) {
	for _, n := range []int{0, 1, 100, 10_000} {
		name := fmt.Sprintf("flow=on/flows=%d", n)
		if n == 0 {
			name = "flow=off"
		}
		b.Run(name, func(b *testing.B) {
			f := newFanout(pfil.NewTable(filterShards, time.Now), realclock.NewReal())
			f.inspector = divert.NewInspector([]*divert.Queue{handQueue("a")})
			p := board.ByIndex(8)
			f.live[p.Index].Store(true)
			if n > 0 {
				f.flows.table.Store(flows.New(flows.Config{}))
			}
			var frames [][]byte
			for i := range max(n, 1) {
				peer := fmt.Sprintf("198.51.%d.%d:40000", i/250, i%250+1)
				for _, flags := range []uint8{frame.TCPSYN, frame.TCPACK} {
					syn := tcpFrame(peer, "192.0.2.1:5001", flags, 0)
					f.Judge(0, syn, len(syn), uint16(p.Tag), new(frame.Packet))
				}
				frames = append(frames, tcpFrame(peer, "192.0.2.1:5001", frame.TCPACK, 1448))
			}
			const pass = 64 // frames between two looks at the clock
			var head frame.Packet
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				b := frames[i%len(frames)]
				head.Have = 0
				f.Judge(0, b, len(b), uint16(p.Tag), &head)
				if i%pass == 0 {
					f.Leave(0)
				}
			}
		})
	}
}
