package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	realclock "oxpd/internal/clock"
	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/internal/mmio"
	"oxpd/internal/nwa"
	"oxpd/lif"
	"oxpd/rpc"
	"oxpd/rpc/msg"
	"oxpd/switchcfg"
	"oxpd/switchcfg/reg"
)

// fakeControl is a daemon that only answers.
type fakeControl struct {
	err     error
	release chan struct{} // when set, counters waits for it

	progress    []client.SwitchPort // of setSwitch
	set         client.SetSwitch
	hold        chan struct{} // when set, setSwitch waits for the end of its request, and closes it
	interrupted bool

	sim *fakeFaults // nil: the card is no simulated one

	filters *filterService // nil: one that is empty
}

func (f *fakeControl) status() client.Status { return client.Status{Schema: client.Schema, PID: 7} }
func (f *fakeControl) ports() client.Ports {
	return client.Ports{Schema: client.Schema, Ports: []client.Port{{IfName: "oxp1", Label: "Port1"}}}
}
func (f *fakeControl) portView(p board.Port) client.PortView {
	return client.PortView{IfName: p.Name, Want: client.PortValues{Admin: client.OperUp}}
}
func (f *fakeControl) setUp(_ context.Context, p board.Port, up bool) (client.PortView, error) {
	return client.PortView{IfName: p.Name, Want: client.PortValues{Admin: oper(up)}}, f.err
}
func (f *fakeControl) mtu(p board.Port) client.MTU { return client.MTU{IfName: p.Name, LIF: 1500} }
func (f *fakeControl) setMTU(_ context.Context, p board.Port, in client.SetMTU) (client.MTU, error) {
	if limit := (lif.SwitchLimit{Panel: 2048}); !in.Force && !in.Switch && f.err == nil {
		f.err = limit.Check(p, in.MTU)
	}
	return client.MTU{IfName: p.Name, LIF: in.MTU}, f.err
}
func (f *fakeControl) showSwitch(context.Context) (client.Switch, error) {
	return client.Switch{Schema: client.Schema, Product: "0x193"}, f.err
}
func (f *fakeControl) setSwitch(ctx context.Context, in client.SetSwitch, progress func(client.SwitchPort)) (client.SwitchRun, error) {
	if _, err := switchPlan(in); err != nil {
		return client.SwitchRun{}, err
	}
	f.set = in
	for _, p := range f.progress {
		progress(p)
	}
	if f.hold != nil {
		<-ctx.Done()
		close(f.hold)
	}
	return client.SwitchRun{Schema: client.Schema, OK: f.err == nil, Frame: in.Frame}, f.err
}
func (f *fakeControl) interruptSwitch() { f.interrupted = true }
func (f *fakeControl) switchRegister(_ context.Context, at switchcfg.Register) (client.SwitchRegister, error) {
	return registerView(at, 0x2080), f.err
}
func (f *fakeControl) writeSwitch(_ context.Context, at switchcfg.Register, v uint16) (client.SwitchRegister, error) {
	return registerView(at, v), errors.Join(f.err, switchcfg.CheckWrite(at, v))
}
func (f *fakeControl) stats(only *board.Port) client.Stats {
	s := client.Stats{Schema: client.Schema}
	if only != nil {
		s.Ports = []client.PortStats{{IfName: only.Name}}
	}
	return s
}
func (f *fakeControl) instruments() client.Instruments {
	return client.Instruments{Schema: client.Schema, PrefixSeq: 5, Rings: []client.RingInstruments{{Ring: 2, PrefixSeq: 5, LastPrefix: client.Hex{0, 0x86}}}}
}
func (f *fakeControl) counters(ctx context.Context) (client.Counters, error) {
	if f.release != nil {
		select {
		case <-f.release:
		case <-ctx.Done():
			return client.Counters{}, ctx.Err()
		}
	}
	return client.Counters{Counters: []client.Counter{{Index: 29, Name: "FROM_WIRE_DROP_MTU_EXCEEDED", Value: 3}}}, f.err
}
func (f *fakeControl) faulty() (faulty, error) {
	if f.sim == nil {
		return nil, &refusal{&hinted{errors.New("no simulated card"), "use one"}, client.CodeRefused}
	}
	return f.sim, nil
}
func (f *fakeControl) diverting() diverting { return newDivertRig("inspect.sock") }
func (f *fakeControl) statistics() statistics {
	c := realclock.NewReal()
	return newStatsService(config.Default(), "", newFanout(nil, c), c, slog.New(slog.NewTextHandler(io.Discard, nil)))
}
func (f *fakeControl) filtering() filtering {
	if f.filters == nil {
		f.filters = newFilterService(slog.New(slog.NewTextHandler(io.Discard, nil)))
	}
	return f.filters
}
func (f *fakeControl) stop(_ context.Context, teardown bool) (client.StopResult, error) {
	return client.StopResult{RebootNeeded: teardown}, f.err
}

// serveFake starts a control socket over f.
func serveFake(t *testing.T, f *fakeControl) string {
	t.Helper()
	return serveWith(t, f, connGrace)
}

// serveWith is serveFake with another grace of those that say nothing.
func serveWith(t *testing.T, f *fakeControl, grace time.Duration) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	sock, err := listen(path)
	require.NoError(t, err)
	srv := newServer(f, slog.New(slog.NewTextHandler(io.Discard, nil)))
	done := make(chan struct{})
	l := limit(sock, maxClients)
	l.grace = grace
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() {
		_ = srv.Close()
		<-done
		assert.NoError(t, sock.release())
	})
	return path
}

func TestClientAndServer(t *testing.T) {
	f := &fakeControl{}
	c := client.New(serveFake(t, f))
	ctx := context.Background()

	s, err := c.Status(ctx)
	require.NoError(t, err)
	assert.Equal(t, 7, s.PID)
	p, err := c.Ports(ctx)
	require.NoError(t, err)
	q, ok := p.Find("Port1")
	assert.True(t, ok)
	assert.Equal(t, "oxp1", q.IfName)
	m, err := c.MTU(ctx, "F1")
	require.NoError(t, err)
	assert.Equal(t, "oxp9", m.IfName, "a short label names the port")
	m, err = c.SetMTU(ctx, "PortF1", 9000)
	require.NoError(t, err)
	assert.Equal(t, 9000, m.LIF)
	m, err = c.ForceMTU(ctx, "Port1", 9000)
	require.NoError(t, err)
	assert.Equal(t, 9000, m.LIF)
	v, err := c.Port(ctx, "F1")
	require.NoError(t, err)
	assert.Equal(t, "oxp9", v.IfName)
	v, err = c.SetState(ctx, "F1", client.LinkDown)
	require.NoError(t, err)
	assert.Equal(t, client.OperDown, v.Want.Admin)
	v, err = c.SetState(ctx, "F1", client.LinkUp)
	require.NoError(t, err)
	assert.Equal(t, client.OperUp, v.Want.Admin)
	_, err = c.SetState(ctx, "F1", "sideways")
	require.ErrorContains(t, err, `state "sideways": want up or down`)
	assert.Equal(t, client.CodeUsage, code(err))
	_, err = c.SetState(ctx, "oxp13", client.LinkUp)
	assert.Equal(t, client.CodeUnknownPort, code(err))
	_, err = c.Port(ctx, "oxp13")
	assert.Equal(t, client.CodeUnknownPort, code(err))
	st, err := c.Stats(ctx, "oxp3")
	require.NoError(t, err)
	assert.Equal(t, "oxp3", st.Ports[0].IfName)
	in, err := c.Instruments(ctx)
	require.NoError(t, err)
	assert.Equal(t, f.instruments(), *in)
	cnt, err := c.Counters(ctx)
	require.NoError(t, err)
	assert.Equal(t, uint64(3), cnt.Get("FROM_WIRE_DROP_MTU_EXCEEDED"))
	assert.Equal(t, uint64(0), cnt.Get("NO_SUCH"))
}

func TestSwitchOverTheSocket(t *testing.T) {
	ctx := context.Background()
	f := &fakeControl{progress: []client.SwitchPort{{Port: "sw1", Outcome: client.SwitchChanged}, {Port: "sw2", Outcome: client.SwitchFailed}}}
	path := serveFake(t, f)
	c := client.New(path)
	sw, err := c.Switch(ctx)
	require.NoError(t, err)
	assert.Equal(t, "0x193", sw.Product)

	var told []string
	in := client.SetSwitch{Ports: []string{"oxp1", "sw2"}, Frame: 10240}
	run, err := c.SetSwitch(ctx, in, func(p client.SwitchPort) { told = append(told, p.Port+" "+p.Outcome) })
	require.NoError(t, err)
	assert.True(t, run.OK)
	require.NoError(t, run.Check())
	assert.Equal(t, in, f.set)
	assert.Equal(t, []string{"sw1 changed", "sw2 failed"}, told)

	t.Run("a failure after the first port is in the document", func(t *testing.T) {
		f.err = &switchcfg.BusyError{What: "switch command register"}
		defer func() { f.err = nil }()
		run, err := c.SetSwitch(ctx, in, nil)
		require.NoError(t, err)
		assert.False(t, run.OK)
		assert.Equal(t, client.CodeTimeout, run.Failure.Code)
		assert.ErrorContains(t, run.Check(), "stayed busy")
	})
	t.Run("one before it is a refusal", func(t *testing.T) {
		c := client.New(serveFake(t, &fakeControl{err: &hinted{&refusal{errNoConsole, client.CodeNotReady}, "name it"}}))
		_, err := c.SetSwitch(ctx, in, nil)
		var e *client.Error
		require.ErrorAs(t, err, &e)
		assert.Equal(t, client.CodeNotReady, e.Code)
		assert.Equal(t, "name it", e.Hint)
	})
	for name, tc := range map[string]struct {
		in   client.SetSwitch
		code client.Code
		text string
	}{
		"no port":            {client.SetSwitch{Frame: 2048}, client.CodeUsage, "want all, or names"},
		"all and one":        {client.SetSwitch{Frame: 2048, All: true, Ports: []string{"oxp1"}}, client.CodeUsage, "one of the two"},
		"a size of no mode":  {client.SetSwitch{Frame: 9000, All: true}, client.CodeUsage, "want 1522, 2048 or 10240"},
		"a bare number":      {client.SetSwitch{Frame: 2048, Ports: []string{"9"}}, client.CodeUnknownPort, `port "9" of the switch`},
		"not behind it":      {client.SetSwitch{Frame: 2048, Ports: []string{"F1"}}, client.CodeUnknownPort, "oxp9 (PortF1) is not behind the switch"},
		"the uplink by name": {client.SetSwitch{Frame: 2048, Ports: []string{"sw0"}}, client.CodeUsage, "never lowered"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.SetSwitch(ctx, tc.in, nil)
			assert.Equal(t, tc.code, code(err))
			assert.ErrorContains(t, err, tc.text)
		})
	}
	t.Run("a client that has gone ends its run", func(t *testing.T) {
		f := &fakeControl{hold: make(chan struct{})}
		ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		_, err := client.New(serveFake(t, f)).SetSwitch(ctx, in, nil)
		require.Error(t, err)
		select {
		case <-f.hold:
		case <-time.After(hang):
			t.Fatal("it goes on")
		}
	})
	t.Run("interrupt", func(t *testing.T) {
		require.NoError(t, c.InterruptSwitch(ctx))
		assert.True(t, f.interrupted)
	})
	t.Run("a write that nobody stands for", func(t *testing.T) {
		body := `{"value":124}`
		assert.Equal(t, "HTTP/1.1 400 Bad Request", raw(t, path,
			"PUT /v1/switch/registers/sw1/4 HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"+body))
	})
	t.Run("registers", func(t *testing.T) {
		r, err := c.SwitchRegister(ctx, "F3", 8)
		require.NoError(t, err)
		assert.Equal(t, &client.SwitchRegister{Schema: client.Schema, Device: "sw9", IfName: "oxp11", Label: "PortF3", Register: 8, Value: "0x2080"}, r)
		r, err = c.SwitchRegister(ctx, "global2", 0x18)
		require.NoError(t, err)
		assert.Equal(t, "global2", r.Device)
		r, err = c.WriteSwitchRegister(ctx, "sw1", reg.PortControl, 0x7c)
		require.NoError(t, err)
		assert.Equal(t, "0x007c", r.Value)
		for name, err := range map[string]error{
			"bare number": second(c.SwitchRegister(ctx, "9", 8)),
			"register":    second(c.SwitchRegister(ctx, "sw9", 32)),
			"value":       second(c.WriteSwitchRegister(ctx, "sw9", 8, 0x10000)),
			"VLAN map":    second(c.WriteSwitchRegister(ctx, "sw9", reg.PortVLANMap, 0x7fe)),
			"uplink":      second(c.WriteSwitchRegister(ctx, "sw0", reg.PortControl, 0x17f)),
			"reserved":    second(c.WriteSwitchRegister(ctx, "sw9", reg.PortControl2, 0x3080)),
		} {
			var e *client.Error
			require.ErrorAs(t, err, &e, name)
			assert.True(t, e.Usage(), name)
		}
	})
}

func second[T any](_ T, err error) error { return err }

func TestRefusalsOverTheSocket(t *testing.T) {
	for _, tc := range []struct {
		name  string
		err   error
		code  client.Code
		usage bool
	}{
		{"out of range", &board.MTURangeError{MTU: 71}, client.CodeUsage, true},
		{"more than the switch passes", (lif.SwitchLimit{Panel: 2048}).Check(board.ByIndex(0), 9000), client.CodeRefused, false},
		{"fast path refused", msg.RC(1).Err(), client.CodeRefused, false},
		{"no answer", &rpc.TimeoutError{What: "LIF_ADD_UPDATE"}, client.CodeTimeout, false},
		{"stalled", &rpc.StalledError{Cause: rpc.ErrTimeout}, client.CodeTimeout, false},
		{"gone", mmio.ErrGone, client.CodeGone, false},
		{"not up", &refusal{errNotUp, client.CodeNotReady}, client.CodeNotReady, false},
		{"NetAgent refused", &nwa.StatusError{Status: 1}, client.CodeRefused, false},
		{"NetAgent does not answer", nwa.ErrTimeout, client.CodeTimeout, false},
		{"NetAgent keeps another address", errReadBack, client.CodeRefused, false},
		{"another port's address", lif.ErrMACInUse, client.CodeRefused, false},
		{"a group address", lif.ErrBadMAC, client.CodeUsage, true},
		{"before rpc", rpc.ErrNotConfigured, client.CodeNotReady, false},
		{"anything else", errors.New("odd"), client.CodeFailed, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := client.New(serveFake(t, &fakeControl{err: tc.err})).SetMTU(context.Background(), "oxp9", 9000)
			var e *client.Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, tc.code, e.Code)
			assert.Equal(t, tc.err.Error(), e.Message)
			assert.Equal(t, tc.usage, e.Usage())
		})
	}
	t.Run("unknown port", func(t *testing.T) {
		_, err := client.New(serveFake(t, &fakeControl{})).MTU(context.Background(), "oxp13")
		var e *client.Error
		require.ErrorAs(t, err, &e)
		assert.Equal(t, client.CodeUnknownPort, e.Code)
		assert.True(t, e.Usage())
	})
	t.Run("hint", func(t *testing.T) {
		_, err := client.New(serveFake(t, &fakeControl{err: &hinted{errNotUp, "wait"}})).SetMTU(context.Background(), "oxp9", 9000)
		var e *client.Error
		require.ErrorAs(t, err, &e)
		assert.Equal(t, "wait", e.Hint)
	})
	t.Run("hint of what is not there yet", func(t *testing.T) {
		_, err := client.New(serveFake(t, &fakeControl{err: fmt.Errorf("read counters: %w", rpc.ErrNotConfigured)})).Counters(context.Background())
		var e *client.Error
		require.ErrorAs(t, err, &e)
		assert.Equal(t, client.CodeNotReady, e.Code)
		assert.Contains(t, e.Hint, "oxpd status")
	})
	t.Run("nobody listens", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "none")
		_, err := client.New(path).Status(context.Background())
		require.ErrorIs(t, err, client.ErrNoDaemon)
		assert.ErrorContains(t, err, path)
	})
}

// raw sends bytes to the socket and returns the first line of the answer.
func raw(t *testing.T, path, text string) string {
	t.Helper()
	c, err := net.Dial("unix", path)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(hang)))
	_, err = io.WriteString(c, text)
	require.NoError(t, err)
	b, _ := io.ReadAll(c) // the server may close with bytes of ours unread
	line, _, _ := strings.Cut(string(b), "\r\n")
	return line
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	path := serveFake(t, &fakeControl{})
	put := func(body string) string {
		return "PUT /v1/ports/oxp9/mtu HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body
	}
	for _, tc := range []struct{ name, text, want string }{
		{"unknown path", "GET /v2/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 404 Not Found"},
		{"wrong method", "DELETE /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"},
		{"wrong method of a port", "POST /v1/ports/oxp9/mtu HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"},
		{"body too long", put(`{"mtu":1500` + strings.Repeat(" ", maxBody) + "}"), "HTTP/1.1 413 Request Entity Too Large"},
		{"unknown field", put(`{"mtv":1500}`), "HTTP/1.1 400 Bad Request"},
		{"text for a number", put(`{"mtu":"abc"}`), "HTTP/1.1 400 Bad Request"},
		{"no body", put(""), "HTTP/1.1 400 Bad Request"},
		{"nothing but space", put(" \n"), "HTTP/1.1 400 Bad Request"},
		{"null", put("null"), "HTTP/1.1 400 Bad Request"},
		{"two objects", put(`{"mtu":1500}{"mtu":9000}`), "HTTP/1.1 400 Bad Request"},
		{"rubbish behind the object", put(`{"mtu":1500}]`), "HTTP/1.1 400 Bad Request"},
		{"space behind the object", put("{\"mtu\":1500}\r\n "), "HTTP/1.1 200 OK"},
		{"stop without a body", "POST /v1/stop HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 400 Bad Request"},
		{"header too long", "GET /v1/status HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("y", 2*maxHeader) + "\r\n\r\n", "HTTP/1.1 431 Request Header Fields Too Large"},
		{"not HTTP", "\x00\x01\x02\r\n\r\n", "HTTP/1.1 400 Bad Request"},
	} {
		t.Run(tc.name, func(t *testing.T) { assert.Equal(t, tc.want, raw(t, path, tc.text)) })
	}
	t.Run("and it still answers", func(t *testing.T) {
		_, err := client.New(path).Status(context.Background())
		require.NoError(t, err)
	})
}

// TestWordsOfABadBody are those of somebody who writes JSON.
func TestWordsOfABadBody(t *testing.T) {
	for _, tc := range []struct{ name, body, want string }{
		{"nothing", "", "the body is empty"},
		{"null", "null", "the body is null, want an object"},
		{"a list", "[1]", "the body is no object: array"},
		{"text for a number", `{"mtu":"x"}`, "mtu is string: want a whole number"},
		{"a fraction", `{"mtu":1.5}`, "mtu is number 1.5: want a whole number"},
		{"beyond a word", `{"mtu":99999999999999999999}`, "mtu is number 99999999999999999999: want a whole number"},
		{"unknown field", `{"mtv":1}`, `unknown field "mtv"`},
		{"no JSON", "mtu=9000", "no JSON at byte 1: invalid character 'm' looking for beginning of value"},
		{"half of it", `{"mtu":`, "the JSON ends too early"},
		{"two of them", `{"mtu":1500}{"mtu":9000}`, "something stands behind the object"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			assert.EqualError(t, decode(strings.NewReader(tc.body), new(client.SetMTU)), "decode request: "+tc.want)
		})
	}
	t.Run("text for a word", func(t *testing.T) {
		assert.EqualError(t, decode(strings.NewReader(`{"teardown":1}`), new(client.StopRequest)), "decode request: teardown is number: want true or false")
	})
}

// FuzzDecode: what is accepted is one object of the known field, and nothing else
// of the body counts.
func FuzzDecode(f *testing.F) {
	for _, b := range []string{
		`{"mtu":1500}`, `{"mtu":9000}` + "\n", "", " ", "null", "{}", `{"mtu":1500}{"mtu":9000}`, `{"mtu":1500}x`, `{"mtu":"1500"}`, `{"mtv":1}`, `[{"mtu":1}]`,
		`{"mtu":1e3}`, `{"mtu":99999999999999999999}`, `{"MTU":72}`, "\xff\xfe",
	} {
		f.Add([]byte(b))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var in client.SetMTU
		err := decode(bytes.NewReader(b), &in)
		if err != nil {
			require.Equal(t, client.CodeUsage, describe(err).Code, "%v", err)
			return
		}
		require.True(t, json.Valid(b), "one value, whole")
		var fields map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(b, &fields))
		require.NotNil(t, fields)
		for name := range fields {
			require.True(t, strings.EqualFold(name, "mtu"), name)
		}
		again := client.SetMTU{}
		out, err := json.Marshal(in)
		require.NoError(t, err)
		require.NoError(t, decode(bytes.NewReader(out), &again))
		require.Equal(t, in, again)
	})
}

func TestManyClients(t *testing.T) {
	f := &fakeControl{release: make(chan struct{})}
	path := serveFake(t, f)
	errs := make(chan error, 2*maxClients)
	for range 2 * maxClients {
		go func() {
			_, err := client.New(path).Counters(context.Background())
			errs <- err
		}()
	}
	time.Sleep(50 * time.Millisecond) // lets them arrive; nothing depends on it
	close(f.release)
	for range 2 * maxClients {
		require.NoError(t, <-errs)
	}
}

func TestServerBounds(t *testing.T) {
	srv := newServer(&fakeControl{}, slog.New(slog.NewTextHandler(io.Discard, nil)))
	assert.Positive(t, srv.ReadHeaderTimeout)
	assert.Positive(t, srv.ReadTimeout)
	assert.Positive(t, srv.IdleTimeout)
	assert.Greater(t, srv.WriteTimeout, max(mtuLimit, countersLimit, stopAnswerWait))
}

// TestHalfOpenClients: those that connect and do not finish their request keep
// nobody from an answer, and by the grace that each of them has not for longer than
// `oxpd status` waits, 5 s.
func TestHalfOpenClients(t *testing.T) {
	t.Parallel()
	const most, grace = 900, 20 * time.Millisecond
	assert.Less(t, (most/maxClients+1)*connGrace, 4*time.Second, "the pauses of the real grace")
	for _, tc := range []struct {
		name, text string
		clients    int
	}{
		{"nothing is said", "", most},
		{"half a line", "GET /v1/sta", 200},
		{"no end of the headers", "GET /v1/status HTTP/1.1\r\nHost: x\r\n", 200},
		{"no body", "PUT /v1/ports/oxp9/mtu HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\n\r\n", 200},
		{"half a body", "PUT /v1/ports/oxp9/mtu HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\n\r\n{", 200},
		{"answered, and kept open", "GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n", 200},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := serveWith(t, &fakeControl{}, grace)
			for range tc.clients {
				c, err := net.Dial("unix", path)
				require.NoError(t, err)
				defer c.Close()
				_, _ = io.WriteString(c, tc.text) // it may have been closed already
			}
			ctx, cancel := context.WithTimeout(context.Background(), hang)
			defer cancel()
			s, err := client.New(path).Status(ctx)
			require.NoError(t, err)
			assert.Equal(t, 7, s.PID)
		})
	}
}

// TestAnswersAreNotCutOff by those who come after: a request that is being
// answered keeps its connection.
func TestAnswersAreNotCutOff(t *testing.T) {
	t.Parallel()
	f := &fakeControl{release: make(chan struct{})}
	path := serveFake(t, f)
	errs := make(chan error, maxClients/2)
	for range maxClients / 2 {
		go func() {
			_, err := client.New(path).Counters(context.Background())
			errs <- err
		}()
	}
	for range 4 * maxClients {
		c, err := net.Dial("unix", path)
		require.NoError(t, err)
		defer c.Close()
	}
	_, err := client.New(path).Status(context.Background()) // comes after all of them
	require.NoError(t, err)
	close(f.release)
	for range maxClients / 2 {
		require.NoError(t, <-errs)
	}
}
