package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	realclock "oxpd/internal/clock"
	"oxpd/internal/daemon/client"
	"oxpd/internal/sys"
	"oxpd/internal/tcpstats"
	"oxpd/internal/tcpstats/serve"
)

// statsRecords are sockets of the kinds that print differently.
func statsRecords() []tcpstats.Record {
	lossy, listens, half, young := new(tcpstats.Record), new(tcpstats.Record), new(tcpstats.Record), new(tcpstats.Record)
	set := func(r *tcpstats.Record, values map[tcpstats.Field]uint64) {
		for f, v := range values {
			r.SetUint(f, v)
		}
	}
	lossy.Reset(tcpstats.Host)
	set(lossy, map[tcpstats.Field]uint64{
		tcpstats.FieldFamily: 4, tcpstats.FieldState: uint64(tcpstats.Established), tcpstats.FieldLocalPort: 5001, tcpstats.FieldRemotePort: 40000, tcpstats.FieldPort: 8, tcpstats.FieldCookie: 71,
		tcpstats.FieldSndMSS: 1448, tcpstats.FieldCWnd: 10, tcpstats.FieldSndWnd: 65536, tcpstats.FieldRTT: 12_345, tcpstats.FieldRetrans: 50, tcpstats.FieldDataSegsOut: 1000,
		tcpstats.FieldBytesSent: 1_448_000, tcpstats.FieldBytesReceived: 77, tcpstats.FieldBytesAcked: 1_400_000,
	})
	lossy.SetAddr(tcpstats.FieldLocalAddr, netip.MustParseAddr("192.0.2.1"))
	lossy.SetAddr(tcpstats.FieldRemoteAddr, netip.MustParseAddr("198.51.100.2"))
	listens.Reset(tcpstats.Host)
	set(listens, map[tcpstats.Field]uint64{tcpstats.FieldFamily: 6, tcpstats.FieldState: uint64(tcpstats.Listen), tcpstats.FieldLocalPort: 443, tcpstats.FieldCookie: 72})
	listens.SetAddr(tcpstats.FieldLocalAddr, netip.MustParseAddr("::"))
	half.Reset(tcpstats.Host)
	set(half, map[tcpstats.Field]uint64{tcpstats.FieldFamily: 6, tcpstats.FieldState: uint64(tcpstats.SynReceived), tcpstats.FieldLocalPort: 443, tcpstats.FieldRemotePort: 9})
	half.SetAddr(tcpstats.FieldLocalAddr, netip.MustParseAddr("2001:db8::1"))
	half.SetAddr(tcpstats.FieldRemoteAddr, netip.MustParseAddr("2001:db8::2"))
	*young = *lossy
	set(young, map[tcpstats.Field]uint64{tcpstats.FieldLocalPort: 5002, tcpstats.FieldCookie: 73, tcpstats.FieldRetrans: 0, tcpstats.FieldBytesReceived: 9_000_000, tcpstats.FieldRTT: 90})
	return []tcpstats.Record{*lossy, *listens, *half, *young}
}

// fakeStats is a source whose reads are given.
type fakeStats struct {
	mu sync.Mutex
	readsOf
	reads   int
	queries []tcpstats.Filter
}

// readsOf is what reads are to give.
type readsOf struct {
	all    func(read int) []tcpstats.Record
	fail   error           // after the first record
	failAt int             // which read does, 0: all
	began  chan<- struct{} // told when a read has given its first record; then it waits for its end
}

// give changes what the reads that come give.
func (f *fakeStats) give(change func(*readsOf)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.readsOf)
}

// count is how many reads there were.
func (f *fakeStats) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reads
}

// query is the filter of a read, by its number from 0.
func (f *fakeStats) query(i int) tcpstats.Filter {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.queries[i]
}

type fakeStatsCursor struct {
	f     readsOf
	q     *tcpstats.Query
	n     int // which read it is
	m     tcpstats.Matcher
	all   []tcpstats.Record
	moved bool
	w     tcpstats.Walked
}

func (f *fakeStats) Open(_ context.Context, q *tcpstats.Query) (tcpstats.Cursor, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	f.queries = append(f.queries, q.Filter)
	return &fakeStatsCursor{f: f.readsOf, q: q, n: f.reads, m: q.Filter.Matcher(), all: f.all(f.reads)}, nil
}

func (c *fakeStatsCursor) Next(ctx context.Context, b []byte) ([]byte, int, error) {
	if c.moved && c.f.fail != nil && (c.f.failAt == 0 || c.f.failAt == c.n) {
		return b, 0, c.f.fail
	}
	if c.moved && c.f.began != nil {
		c.f.began <- struct{}{}
		<-ctx.Done()
		return b, 0, ctx.Err()
	}
	if len(c.all) == 0 {
		return b, 0, io.EOF
	}
	r := c.all[0]
	c.all, c.moved = c.all[1:], true
	c.w.Visited++
	local, _ := r.Uint(tcpstats.FieldLocalPort)
	state, _ := r.Uint(tcpstats.FieldState)
	family := tcpstats.FamilyIPv4
	if v, _ := r.Uint(tcpstats.FieldFamily); v == 6 {
		family = tcpstats.FamilyIPv6
	}
	if why := c.m.Ask(&tcpstats.Ends{LocalPort: uint16(local), State: tcpstats.State(state), Family: family}); why != tcpstats.Match {
		c.w.Skipped[why]++
		return b, 0, nil
	}
	c.w.Appended++
	return r.Append(b, c.q.Filter.Fields, c.q.Filter.Format), 1, nil
}

func (c *fakeStatsCursor) Close() error            { c.w.Visited += uint64(len(c.all)); c.all = nil; return nil }
func (c *fakeStatsCursor) Walked() tcpstats.Walked { return c.w }

// statsRig is a service at the socket beside a control socket where nobody is.
type statsRig struct {
	t       *testing.T
	s       *serve.Service
	f       *fakeStats
	control string
	socket  string
}

func newStatsRig(t *testing.T, name string) *statsRig {
	t.Helper()
	dir := t.TempDir()
	r := &statsRig{t: t, f: &fakeStats{readsOf: readsOf{all: func(int) []tcpstats.Record { return statsRecords() }}}, control: filepath.Join(dir, "oxpd.sock"), socket: filepath.Join(dir, name)}
	r.s = serve.New(serve.Config{Clock: realclock.NewReal(), Sources: func(k tcpstats.SourceKind) tcpstats.Source {
		if k == tcpstats.Host {
			return r.f
		}
		return nil
	}})
	l, err := serve.Listen(r.s, serve.ListenConfig{Path: r.socket})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-done) })
	return r
}

func statsCommand(ctx context.Context, args ...string) result {
	var out, errs bytes.Buffer
	code := (&app{out: &out, err: &errs}).main(ctx, append([]string{"tcpstats"}, args...))
	return result{code, out.String(), errs.String()}
}

func (r *statsRig) run(args ...string) result {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	return statsCommand(ctx, append(args, "--socket", r.control)...)
}

func TestTCPStatsTable(t *testing.T) {
	r := newStatsRig(t, "tcpstats.sock")
	got := r.run()
	require.Equal(t, 0, got.code, "%+v", got)
	golden(t, "tcpstats.txt", []byte(got.out))
	assert.Regexp(t, `^4 of 4 in [0-9.]+[µm]?s\n$`, got.err, "talk is no data")
	f := r.f.query(0)
	assert.Equal(t, tcpstats.Needed, f.Fields, "what diagnoses look at")
	assert.EqualValues(t, tcpstats.ViaAny, f.Via, "the column of ports")

	got = r.run("local_port=443", "include_state=listen")
	require.Equal(t, 0, got.code, "%+v", got)
	assert.Equal(t, 2, strings.Count(got.out, "\n"), got.out)
	assert.Contains(t, got.out, "[::]:443")
	assert.Contains(t, got.err, "1 of 4 in ")
	r.run("via=F1", "fields=rtt")
	f = r.f.query(2)
	assert.Equal(t, tcpstats.GroupIdentity|tcpstats.GroupRTT, f.Fields, "no more than was asked for")
	assert.EqualValues(t, 9, f.Via)
}

func TestTCPStatsJSON(t *testing.T) {
	r := newStatsRig(t, "tcpstats.sock")
	got := r.run("exclude=listen", "--json")
	require.Equal(t, 0, got.code, "%+v", got)
	assert.Empty(t, got.err)
	lines := strings.Split(strings.TrimSuffix(got.out, "\n"), "\n")
	require.Len(t, lines, 5, got.out)
	var head struct {
		Schema int
		Filter string
	}
	require.NoError(t, json.Unmarshal([]byte(lines[0]), &head))
	assert.Equal(t, client.Schema, head.Schema)
	assert.Equal(t, r.f.query(0).String(), head.Filter)
	var rec struct {
		State, Source, Port string
		LocalAddr           string               `json:"local_addr"`
		RTT                 *uint64              `json:"rtt_us"`
		Diagnosis           []tcpstats.Diagnosis `json:"diagnosis"`
	}
	require.NoError(t, json.Unmarshal([]byte(lines[1]), &rec))
	assert.Equal(t, "established", rec.State)
	assert.Equal(t, "oxp9", rec.Port)
	assert.Equal(t, "192.0.2.1", rec.LocalAddr)
	assert.EqualValues(t, 12_345, *rec.RTT)
	require.NotEmpty(t, rec.Diagnosis)
	assert.Equal(t, tcpstats.CauseLoss, rec.Diagnosis[0].Cause)
	rec.RTT = nil
	require.NoError(t, json.Unmarshal([]byte(lines[2]), &rec))
	assert.Equal(t, "syn_received", rec.State)
	assert.Nil(t, rec.RTT, "absent is no zero")
	var last struct{ End *tcpstats.End }
	require.NoError(t, json.Unmarshal([]byte(lines[4]), &last))
	require.NotNil(t, last.End)
	assert.EqualValues(t, 3, last.End.Emitted)
	assert.EqualValues(t, 1, last.End.Skipped["state"])
}

// What --format binary writes is what decode reads.
func TestTCPStatsBinary(t *testing.T) {
	r := newStatsRig(t, "tcpstats.sock")
	bin := r.run("--format", "binary", "fields=all")
	require.Equal(t, 0, bin.code, "%+v", bin)
	assert.Zero(t, r.f.query(0).Via, "the filter is as it was asked for")
	file := filepath.Join(t.TempDir(), "records")
	require.NoError(t, os.WriteFile(file, []byte(bin.out), 0o600))
	ctx := context.Background()
	got := statsCommand(ctx, "decode", file)
	require.Equal(t, 0, got.code, "%+v", got)
	golden(t, "tcpstats.txt", []byte(got.out))
	asJSON := statsCommand(ctx, "decode", "--json", file)
	require.Equal(t, 0, asJSON.code)
	assert.Equal(t, 5, strings.Count(asJSON.out, "\n"))
	assert.Contains(t, asJSON.out, `"cookie":71,`)
	assert.NotContains(t, asJSON.out, "filter", "which is not in the records")
	t.Run("compact and full say the same, in other bytes", func(t *testing.T) {
		full := r.run("--format", "binary", "fields=all", "format=full")
		require.Equal(t, 0, full.code, "%+v", full)
		assert.Equal(t, 4*tcpstats.FullSize, len(full.out))
		few := r.run("--format", "binary", "fields=rtt", "format=compact")
		assert.Less(t, len(few.out), len(bin.out), "only what was asked for")
		other := filepath.Join(t.TempDir(), "full")
		require.NoError(t, os.WriteFile(other, []byte(full.out), 0o600))
		assert.Equal(t, asJSON, statsCommand(ctx, "decode", "--json", other))
	})
	t.Run("from standard input", func(t *testing.T) {
		in, err := os.Open(file)
		require.NoError(t, err)
		defer in.Close()
		cmd := exec.Command(program(), "tcpstats", "decode", "-")
		cmd.Stdin = in
		out, err := cmd.Output()
		require.NoError(t, err)
		golden(t, "tcpstats.txt", out)
	})
	var first tcpstats.Record
	size, err := first.Decode([]byte(bin.out))
	require.NoError(t, err)
	for _, tc := range []struct {
		name, data string
		rows       int
		says       string
	}{
		{"nothing", "", 0, ""},
		{"one byte", "x", 0, "record at byte 0: "},
		{"cut", bin.out[:size+12], 1, "record at byte " + itoa(size) + ": "},
		{"garbage behind a record", bin.out[:size] + strings.Repeat("\xff", 4096), 1, "record at byte " + itoa(size) + ": "},
		{"zeroes", strings.Repeat("\x00", 4096), 0, "record at byte 0: no record"},
		{"text", "not a record, but a text of some length\n", 0, "record at byte 0: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(file, []byte(tc.data), 0o600))
			got := statsCommand(ctx, "decode", file)
			assert.Equal(t, tc.rows+1, strings.Count(got.out, "\n"), "what came before is printed")
			if tc.says == "" {
				assert.Equal(t, 0, got.code)
				return
			}
			assert.Equal(t, 1, got.code)
			assert.Contains(t, got.err, "oxpd: "+tc.says)
		})
	}
	t.Run("a reader that fails", func(t *testing.T) {
		rows := 0
		err := decodeRecords(io.MultiReader(strings.NewReader(bin.out[:size+3]), failing{}), func(*tcpstats.Record) { rows++ })
		assert.ErrorIs(t, err, errFailing)
		assert.ErrorContains(t, err, "at byte "+itoa(size))
		assert.Equal(t, 1, rows)
	})
}

var errFailing = errors.New("the disk is gone")

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errFailing }

func itoa(n int) string { b, _ := json.Marshal(n); return string(b) }

func TestTCPStatsTop(t *testing.T) {
	r := newStatsRig(t, "tcpstats.sock")
	rows := func(args ...string) (locals []string) {
		t.Helper()
		got := r.run(args...)
		require.Equal(t, 0, got.code, "%+v", got)
		for _, line := range strings.Split(strings.TrimSuffix(got.out, "\n"), "\n")[1:] {
			locals = append(locals, strings.Fields(line)[1])
		}
		return locals
	}
	assert.Equal(t, []string{"192.0.2.1:5002", "192.0.2.1:5001"}, rows("--top", "5"), "by bytes, and without what has none")
	assert.Equal(t, []string{"192.0.2.1:5001"}, rows("--top", "1", "--by", "retrans"))
	rows("--top", "1", "--by", "rtt", "fields=state")
	assert.NotZero(t, r.f.query(2).Fields&tcpstats.GroupRTT, "what it sorts by is asked for")
}

// Counters are what came since the read before, whose sockets have gone and come.
func TestTCPStatsInterval(t *testing.T) {
	r := newStatsRig(t, "tcpstats.sock")
	r.f.give(func(f *readsOf) {
		f.all = func(read int) []tcpstats.Record {
			all := statsRecords()
			all[0].SetUint(tcpstats.FieldRetrans, uint64(100*read*read))
			if read == 1 {
				return all[:1]
			}
			return []tcpstats.Record{all[3], all[0]}
		}
	})
	got := r.run("--interval", "10ms", "--count", "2", "--json")
	require.Equal(t, 0, got.code, "%+v", got)
	assert.Equal(t, 3, r.f.count(), "one of them for the first differences")
	var retrans []uint64
	for _, line := range strings.Split(got.out, "\n") {
		var rec struct{ Retrans *uint64 }
		if json.Unmarshal([]byte(line), &rec) == nil && rec.Retrans != nil {
			retrans = append(retrans, *rec.Retrans)
		}
	}
	assert.Equal(t, []uint64{0, 300, 0, 500}, retrans)

	t.Run("until it is interrupted, which is no failure", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		began := make(chan struct{})
		go func() { <-began; cancel() }()
		r.f.give(func(f *readsOf) {
			f.all = func(read int) []tcpstats.Record {
				if read == 6 {
					close(began)
				}
				return statsRecords()
			}
		})
		got := statsCommand(ctx, "--interval", "10ms", "--socket", r.control)
		assert.Equal(t, 0, got.code, "%+v", got)
		assert.Contains(t, got.out, "established")
	})
	t.Run("a read that was cut is nothing to take differences from", func(t *testing.T) {
		r.f.give(func(f *readsOf) { f.all = func(int) []tcpstats.Record { return statsRecords() } })
		at := r.f.count() + 1
		r.f.give(func(f *readsOf) { f.fail, f.failAt = errors.New("no more sockets"), at })
		got := r.run("--interval", "10ms", "--count", "1")
		assert.Equal(t, 1, got.code)
		assert.Contains(t, got.err, "oxpd: the list is not whole: no more sockets (EIO)")
	})
}

func TestTCPStatsThatIsCut(t *testing.T) {
	r := newStatsRig(t, "tcpstats.sock")
	r.f.give(func(f *readsOf) { f.fail = errors.New("no more sockets") })
	got := r.run()
	assert.Equal(t, 1, got.code)
	assert.Contains(t, got.out, "192.0.2.1:5001", "what came is shown")
	assert.Contains(t, got.err, "1 of 4 in ")
	assert.Contains(t, got.err, "oxpd: the list is not whole: no more sockets (EIO)")
	t.Run("interrupted", func(t *testing.T) {
		began := make(chan struct{})
		r.f.give(func(f *readsOf) { f.fail, f.began = nil, began })
		ctx, cancel := context.WithCancel(context.Background())
		go func() { <-began; cancel() }()
		got := statsCommand(ctx, "--socket", r.control)
		assert.Equal(t, 1, got.code)
		assert.Contains(t, got.out, "192.0.2.1:5001")
		assert.Contains(t, got.err, "oxpd: interrupted\n")
		assert.Eventually(t, func() bool { return r.s.Stats().Interrupted == 1 }, hang, time.Millisecond)
	})
}

func TestTCPStatsOutputThatNobodyReads(t *testing.T) {
	r := newStatsRig(t, "tcpstats.sock")
	r.f.give(func(f *readsOf) {
		f.all = func(int) (all []tcpstats.Record) {
			for range 5000 {
				all = append(all, statsRecords()...)
			}
			return all
		}
	})
	var errs bytes.Buffer
	code := (&app{out: shutPipe{}, err: &errs}).main(context.Background(), []string{"tcpstats", "--socket", r.control})
	assert.Equal(t, 1, code)
	assert.Equal(t, 1, strings.Count(errs.String(), "oxpd: "), errs.String())
	assert.Contains(t, errs.String(), "oxpd: write standard output: ")
}

// A pager that nobody turns holds the output up, and not the read.
func TestTCPStatsPager(t *testing.T) {
	r := newStatsRig(t, "tcpstats.sock")
	const times = 5000
	r.f.give(func(f *readsOf) {
		f.all = func(int) (all []tcpstats.Record) {
			for range times {
				all = append(all, statsRecords()...)
			}
			return all
		}
	})
	for _, format := range []string{outTable, outJSON, outBinary} {
		t.Run(format, func(t *testing.T) {
			var errs bytes.Buffer
			before := r.s.Stats().Reads
			out := &pager{turned: func() bool { return r.s.Stats().Reads > before }}
			ctx, cancel := context.WithTimeout(context.Background(), hang)
			defer cancel()
			code := (&app{out: out, err: &errs}).main(ctx, []string{"tcpstats", "fields=all", "--format", format, "--socket", r.control})
			assert.Equal(t, 0, code, errs.String())
			assert.Greater(t, out.Len(), 4*times*50)
			if format == outTable {
				assert.Equal(t, 4*times+1, strings.Count(out.String(), "\n"))
			}
		})
	}
}

// pager takes nothing until it is turned, a minute at most.
type pager struct {
	bytes.Buffer
	turned func() bool
}

func (p *pager) Write(b []byte) (int, error) {
	for begun := time.Now(); !p.turned() && time.Since(begun) < hang; {
		time.Sleep(time.Millisecond)
	}
	return p.Buffer.Write(b)
}

type shutPipe struct{}

func (shutPipe) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestTCPStatsByProfile(t *testing.T) {
	r := newStatsRig(t, "tcpstats.sock")
	require.NoError(t, r.s.SetProfile("web", "local_port=443"))
	got := r.run("--profile", "web")
	require.Equal(t, 0, got.code, "%+v", got)
	assert.Equal(t, 3, strings.Count(got.out, "\n"), got.out)
	assert.Equal(t, tcpstats.Needed, r.f.query(0).Fields, "shown as any other")
	got = r.run("--profile", "web", "--top", "1", "--by", "rtt")
	assert.Equal(t, 0, got.code)
	got = r.run("--profile", "none")
	assert.Equal(t, 1, got.code)
	assert.Contains(t, got.err, `there is no profile "none" (ENOENT)`)
	assert.Contains(t, got.err, "hint: oxpd tcpstats profile list")
}

func TestTCPStatsRefusals(t *testing.T) {
	r := newStatsRig(t, "tcpstats.sock")
	limits := serve.DefaultLimits()
	t.Run("no such source", func(t *testing.T) {
		got := r.run("source=flow")
		assert.Equal(t, 1, got.code)
		assert.Contains(t, got.err, "source=flow is off (ENODEV)")
		assert.Contains(t, got.err, "hint: oxpd tcpstats set flow=on")
	})
	t.Run("too many clients", func(t *testing.T) {
		l := limits
		l.MaxOpen = 1
		require.NoError(t, r.s.SetLimits(l))
		var o *serve.Open
		require.Eventually(t, func() (ok bool) { // when the last one has gone
			var err error
			o, err = r.s.Open()
			return err == nil
		}, hang, time.Millisecond)
		defer o.Close()
		got := r.run()
		assert.Equal(t, 1, got.code)
		assert.Contains(t, got.err, "so many clients are connected (EMFILE)")
		assert.Contains(t, got.err, "hint: wait until another client has ended")
	})
	t.Run("too soon", func(t *testing.T) {
		l := limits
		l.MinInterval = time.Hour
		require.NoError(t, r.s.SetLimits(l))
		got := r.run("--interval", "10ms", "--count", "2")
		assert.Equal(t, 1, got.code)
		assert.Equal(t, 1, strings.Count(got.err, "this turn is left out: "), "and the last one is the command's end")
		assert.Contains(t, got.err, "min_read_interval_ms is 3600000 (EBUSY)")
		assert.Contains(t, got.err, "hint: try again")
	})
}

func TestTCPStatsUsage(t *testing.T) {
	none := filepath.Join(t.TempDir(), "oxpd.sock")
	for _, tc := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"format", []string{"--format", "xml"}, 2, `--format "xml": want table, json or binary`},
		{"two formats", []string{"--json", "--format", "table"}, 2, "--json and --format table"},
		{"two filters", []string{"--profile", "web", "ipv4_only"}, 2, "want a filter or --profile"},
		{"too often", []string{"--interval", "9ms"}, 2, "--interval 9ms: want 10ms or more"},
		{"backwards", []string{"--interval", "-1s"}, 2, "want 10ms or more"},
		{"less than once", []string{"--count", "-1"}, 2, "--count -1: want 1 or more"},
		{"often, at once", []string{"--count", "2"}, 2, "--count needs --interval"},
		{"top of nothing", []string{"--top", "-1"}, 2, "--top -1: want 1 to 100000"},
		{"too many", []string{"--top", "100001"}, 2, "want 1 to 100000"},
		{"by, without top", []string{"--by", "rtt"}, 2, "--by needs --top"},
		{"no such field", []string{"--top", "1", "--by", "colour"}, 2, `--by: cannot sort by "colour"`},
		{"top in binary", []string{"--top", "1", "--format", "binary"}, 2, "without --interval and --top"},
		{"filter", []string{"local_port=443", "remote_port=0"}, 2, "filter: "},
		{"parse, nothing", []string{"parse"}, 2, "FILTER is missing"},
		{"decode, two files", []string{"decode", "a", "b"}, 2, ""},
		{"decode, no file", []string{"decode", none}, 1, "no such file"},
		{"set, nothing", []string{"set"}, 2, "KEY=VALUE"},
		{"set, a word", []string{"set", "flow"}, 2, `"flow": want KEY=VALUE, such as max_open_fds=32`},
		{"profile, a word", []string{"profile", "add"}, 2, `unknown command "add" of oxpd tcpstats profile`},
		{"profile without a filter", []string{"profile", "set", "web"}, 2, "FILTER is missing"},
		{"profile with a bad filter", []string{"profile", "set", "web", "port=1"}, 2, "filter: "},
		{"profile with a bad name", []string{"profile", "set", "Web", ""}, 2, `profile name "Web": want a to z, 0 to 9 and _`},
		{"profile that would be a path", []string{"profile", "rm", ".."}, 2, `profile name "..": want a to z, 0 to 9 and _`},
		{"profile without a name", []string{"profile", "rm", ""}, 2, `profile name "": want`},
		{"nobody there", nil, 1, "no daemon answers on " + filepath.Join(filepath.Dir(none), "tcpstats.sock") + ": connect: no such file or directory"},
		{"nobody there, show", []string{"show"}, 1, "no daemon answers on " + none},
		{"no path", []string{"--stats-socket", "/run/"}, 2, "socket /run/: ends in /"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			args := tc.args
			if len(args) == 0 || args[0] != "parse" && args[0] != "decode" {
				args = append(args, "--socket", none)
			}
			got := statsCommand(context.Background(), args...)
			assert.Equal(t, tc.code, got.code, "%+v", got)
			assert.Contains(t, got.err, tc.says)
			assert.Empty(t, got.out)
		})
	}
	got := statsCommand(context.Background(), "--socket", none)
	assert.Contains(t, got.err, "hint: start it with: oxpd run --sim --socket "+none)
}

func TestTCPStatsParse(t *testing.T) {
	ctx := context.Background()
	got := statsCommand(ctx, "parse", "LOCAL_PORT=443,,80", "exclude=timewait")
	assert.Equal(t, result{0, "local_port=443,80 exclude=time_wait\n", ""}, got)
	assert.Equal(t, result{0, "\n", ""}, statsCommand(ctx, "parse", ""), "the default filter")
	bad := statsCommand(ctx, "parse", "ipv4_only local_port=99999")
	assert.Equal(t, 2, bad.code)
	assert.Empty(t, bad.out)
	assert.Contains(t, bad.err, "oxpd: filter: ")
	assert.Contains(t, bad.err, "21", "where")
	assert.Contains(t, bad.err, "99999")
	doc := func(args ...string) (p parsed, code int) {
		t.Helper()
		got := statsCommand(ctx, append([]string{"parse", "--json"}, args...)...)
		assert.Empty(t, got.err)
		require.NoError(t, json.Unmarshal([]byte(got.out), &p), got.out)
		return p, got.code
	}
	p, code := doc("source=FLOW ipv4_only")
	assert.Equal(t, 0, code)
	assert.Equal(t, parsed{Schema: client.Schema, Filter: "ipv4_only source=flow", Source: "flow"}, p)
	p, code = doc("ipv4_only local_port=99999")
	assert.Equal(t, 2, code)
	require.NotNil(t, p.Offset)
	assert.Equal(t, 21, *p.Offset)
	assert.Equal(t, "EINVAL", p.Code)
	assert.Equal(t, "99999", p.Word)
	assert.NotEmpty(t, p.Reason)
	p, code = doc(strings.Repeat(" ", 512))
	assert.Equal(t, 2, code)
	assert.Equal(t, "ENAMETOOLONG", p.Code)
	p, code = doc("local_port=1 local_port=2")
	assert.Equal(t, 2, code)
	assert.Equal(t, "EINVAL", p.Code)
}

// A daemon whose configuration names another socket tells where it is.
func TestTCPStatsSocketByTheDaemon(t *testing.T) {
	r := newStatsRig(t, "elsewhere")
	var answer atomic.Pointer[client.TCPStats]
	answer.Store(&client.TCPStats{Schema: client.Schema, Socket: r.socket})
	ln, err := sys.ListenUnix("unix", r.control)
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/tcpstats", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(answer.Load()) })
	mux.HandleFunc("GET /v1/ports", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(&client.Ports{Schema: client.Schema, Ports: []client.Port{{IfName: "oxp9", MTU: 9000}}})
	})
	srv := &http.Server{Handler: mux}
	go func() { _ = srv.Serve(ln) }()
	defer srv.Close()
	got := r.run("include_state=established")
	assert.Equal(t, 0, got.code, "%+v", got)
	assert.Contains(t, got.out, "mss-clamped", "by the MTU of the port, which the daemon tells")
	answer.Store(&client.TCPStats{Schema: client.Schema, Socket: r.socket, Warning: "tcpstats: /run/x is in use"})
	got = r.run()
	assert.Equal(t, 1, got.code)
	assert.Contains(t, got.err, "oxpd: tcpstats: /run/x is in use")
	assert.Contains(t, got.err, "hint: tcpstats.socket of the configuration may name another")
	got = r.run("--stats-socket", filepath.Join(filepath.Dir(r.socket), "none"))
	assert.Equal(t, 1, got.code)
	assert.Contains(t, got.err, "no daemon answers", "that socket and no other was asked for")
}

func TestTCPStatsServiceOutput(t *testing.T) {
	s := &client.TCPStats{
		Schema: 1, Socket: "/run/oxpd/tcpstats.sock", Settings: []client.TCPStatsSetting{{Key: "max_open_fds", Value: "16"}, {Key: "flow", Value: "on"}},
		Profiles: []client.TCPStatsProfile{{Name: "all", Filter: ""}, {Name: "web", Filter: "local_port=443"}}, Open: 2, Reading: 1,
		Counters: map[string]uint64{"visited": 10, "emitted": 5, "skipped_state": 3, "aborted": 2}, TimeUS: 1_500_000, MaxUS: 1000,
		Flow: &client.TCPStatsFlow{Flows: 7, MaxFlows: 16384, HalfOpen: 2, HalfLimit: 4096, Counters: map[string]uint64{"seen": 9, "pushed_out": 1}},
	}
	both(t, "tcpstats-show", s, printTCPStats)
	both(t, "tcpstats-set", s, printTCPStatsSettings)
	both(t, "tcpstats-profiles", s, printTCPStatsProfiles)
	both(t, "tcpstats-show-none", &client.TCPStats{
		Schema: 1, Socket: "/run/oxpd/tcpstats.sock", Warning: "it is in use", Settings: []client.TCPStatsSetting{}, Profiles: []client.TCPStatsProfile{}, Counters: map[string]uint64{},
	}, printTCPStats)
	both(t, "tcpstats-profiles-none", &client.TCPStats{Schema: 1, Settings: []client.TCPStatsSetting{}, Profiles: []client.TCPStatsProfile{}, Counters: map[string]uint64{}}, printTCPStatsProfiles)
}
