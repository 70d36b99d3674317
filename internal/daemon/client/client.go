package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"syscall"
	"time"
)

// ErrNoDaemon is wrapped by every error that comes from nobody listening. A
// socket that may not be opened is fs.ErrPermission instead.
var ErrNoDaemon = errors.New("no daemon answers")

// Bounds of one request.
const (
	maxAnswer = 4 << 20 // bytes of an answer
	// dialTimeout is for a full backlog, which refuses at once, and for a daemon
	// that has its lock and not its socket yet.
	dialTimeout = 2 * time.Second
	dialPoll    = 20 * time.Millisecond
	heldLimit   = 300 * time.Millisecond
	stopPoll    = 20 * time.Millisecond
)

// Client talks to one daemon. Safe for concurrent use. Each request ends with
// its context; New sets no deadline of its own besides that of connecting.
type Client struct {
	socket string
	held   time.Duration // how long a daemon may have its lock and no socket
	http   *http.Client
	peer   atomic.Int64 // process id of whoever took the last connection, 0 unknown
}

// New returns a client of the daemon on socket; nothing is sent yet. An empty
// socket is DefaultSocket.
func New(socket string) *Client {
	if socket == "" {
		socket = DefaultSocket
	}
	c := &Client{socket: socket, held: heldLimit}
	c.http = &http.Client{Transport: &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) },
		DisableKeepAlives:  true,
		DisableCompression: true,
	}, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // to another request than was asked for
	}}
	return c
}

// Socket is the path that the client talks to.
func (c *Client) Socket() string { return c.socket }

// dial connects. Errors: *SocketError, *HeldError (which is ErrNoDaemon), one that
// wraps ErrNoDaemon or fs.ErrPermission, the context's.
func (c *Client) dial(ctx context.Context) (net.Conn, error) {
	if err := CheckSocket(c.socket); err != nil {
		return nil, &SocketError{c.socket, err}
	}
	begin := time.Now()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", c.socket)
		if err == nil {
			c.peer.Store(int64(peerPID(conn)))
			return conn, nil
		}
		limit := dialTimeout
		switch {
		case ctx.Err() != nil:
			return nil, err
		case errors.Is(err, fs.ErrPermission):
			return nil, fmt.Errorf("open %s: %w", c.socket, fs.ErrPermission)
		case errors.Is(err, syscall.EAGAIN):
			err = fmt.Errorf("open %s: more connections wait for the daemon than the kernel queues: %w", c.socket, err)
		default:
			err = refused(c.socket, err)
			var held *HeldError
			if limit = c.held; !errors.As(err, &held) {
				limit = 0
			}
		}
		if time.Since(begin) >= limit {
			return nil, err
		}
		select {
		case <-time.After(dialPoll):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Status reads the daemon's state.
func (c *Client) Status(ctx context.Context) (*Status, error) {
	return get[Status](ctx, c, "/v1/status")
}

// Ports lists the front ports.
func (c *Client) Ports(ctx context.Context) (*Ports, error) {
	return get[Ports](ctx, c, "/v1/ports")
}

// Port reads one port: what it shall be and what it is.
func (c *Client) Port(ctx context.Context, port string) (*PortView, error) {
	return get[PortView](ctx, c, "/v1/ports/"+url.PathEscape(port))
}

// SetState raises or lowers a port (LinkUp, LinkDown), in the card and at the
// interface. A refusal is an *Error, and the old state stands; only a CodeTimeout
// whose text says that it has begun leaves that open.
func (c *Client) SetState(ctx context.Context, port, state string) (*PortView, error) {
	out := new(PortView)
	if err := c.do(ctx, http.MethodPut, "/v1/ports/"+url.PathEscape(port)+"/state", SetState{State: state}, out); err != nil {
		return nil, err
	}
	return out, nil
}

// MTU reads what limits the frames of a port.
func (c *Client) MTU(ctx context.Context, port string) (*MTU, error) {
	return get[MTU](ctx, c, "/v1/ports/"+url.PathEscape(port)+"/mtu")
}

// SetMTU changes the MTU of a port, LIF and interface, and returns what is in
// force then. A refusal is an *Error, and the old MTU stands on both; only a
// CodeTimeout whose text says that it has begun leaves that open.
func (c *Client) SetMTU(ctx context.Context, port string, mtu int) (*MTU, error) {
	return c.ChangeMTU(ctx, port, SetMTU{MTU: mtu})
}

// ForceMTU is SetMTU, also when the switch is known to drop such frames.
func (c *Client) ForceMTU(ctx context.Context, port string, mtu int) (*MTU, error) {
	return c.ChangeMTU(ctx, port, SetMTU{MTU: mtu, Force: true})
}

// ChangeMTU is SetMTU with everything that can be asked of it.
func (c *Client) ChangeMTU(ctx context.Context, port string, in SetMTU) (*MTU, error) {
	out := new(MTU)
	if err := c.do(ctx, http.MethodPut, "/v1/ports/"+url.PathEscape(port)+"/mtu", in, out); err != nil {
		return nil, err
	}
	return out, nil
}

// Stats reads oxpd's counters: of every port, or of one when port is not empty.
func (c *Client) Stats(ctx context.Context, port string) (*Stats, error) {
	path := "/v1/stats"
	if port != "" {
		path += "?port=" + url.QueryEscape(port)
	}
	return get[Stats](ctx, c, path)
}

// Instruments reads how the last packets began in memory.
func (c *Client) Instruments(ctx context.Context) (*Instruments, error) {
	return get[Instruments](ctx, c, "/v1/instruments")
}

// Counters reads the coprocessor's counters.
func (c *Client) Counters(ctx context.Context) (*Counters, error) {
	return get[Counters](ctx, c, "/v1/counters")
}

// Stop ends the daemon and returns when it no longer listens and has let go of its
// lock, so that another one may start.
func (c *Client) Stop(ctx context.Context, teardown bool) (*StopResult, error) {
	out := new(StopResult)
	if err := c.do(ctx, http.MethodPost, "/v1/stop", StopRequest{Teardown: teardown}, out); err != nil {
		return nil, err
	}
	for {
		conn, err := c.dial(ctx)
		var held *HeldError
		switch {
		case err == nil:
			_ = conn.Close() // opened only to see whether somebody listens
		case errors.As(err, &held):
		case errors.Is(err, ErrNoDaemon):
			return out, nil
		default:
			return out, fmt.Errorf("wait for the daemon to end: %w", err)
		}
		select {
		case <-time.After(stopPoll):
		case <-ctx.Done():
			return out, fmt.Errorf("wait for the daemon to end: %w", ctx.Err())
		}
	}
}

func get[T any](ctx context.Context, c *Client, path string) (*T, error) {
	out := new(T)
	if err := c.do(ctx, http.MethodGet, path, nil, out); err != nil {
		return nil, err
	}
	return out, nil
}

// do sends one request and decodes the answer into out.
func (c *Client) do(ctx context.Context, method, path string, in, out any) error {
	return c.long(ctx, method, path, in, out, maxAnswer)
}

// long is do for an answer of up to most bytes.
func (c *Client) long(ctx context.Context, method, path string, in, out any, most int64) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encode request: %w", err)
		}
		body = bytes.NewReader(b)
	}
	begin := time.Now()
	resp, err := c.send(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return c.refusal(resp, method, path)
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, most))
	if errors.Is(err, context.DeadlineExceeded) {
		return &SilentError{c.socket, int(c.peer.Load()), time.Since(begin)}
	}
	if err != nil {
		return fmt.Errorf("read answer of %s: %w", c.socket, err)
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("decode answer of %s: %w", c.socket, err)
	}
	return nil
}

// send sends one request, whose body may be nil. The answer's body is the caller's to
// close.
func (c *Client) send(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	if body == nil {
		body = http.NoBody
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://oxpd"+path, body)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	if body != http.NoBody {
		req.Header.Set("Content-Type", "application/json")
	}
	begin := time.Now()
	c.peer.Store(0)
	resp, err := c.http.Do(req)
	if err == nil {
		return resp, nil
	}
	var (
		ue  *url.Error
		bad *SocketError
	)
	if errors.As(err, &ue) {
		err = ue.Err // the URL's host is made up; the socket is named by dial
	}
	if errors.Is(err, ErrNoDaemon) || errors.Is(err, fs.ErrPermission) || errors.As(err, &bad) {
		return nil, err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, &SilentError{c.socket, int(c.peer.Load()), time.Since(begin)}
	}
	return nil, fmt.Errorf("ask the daemon on %s: %w", c.socket, err)
}

// refusal is the error in an answer that is none.
func (c *Client) refusal(resp *http.Response, method, path string) error {
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("read answer of %s: %w", c.socket, err)
	}
	e := new(Error)
	if err := json.Unmarshal(b, e); err != nil || e.Message == "" {
		return fmt.Errorf("%s %s on %s: %s", method, path, c.socket, resp.Status)
	}
	return e
}
