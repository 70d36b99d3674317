package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"reflect"
	"strings"
	"time"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/mmio"
	"oxpd/internal/nwa"
	"oxpd/lif"
	"oxpd/rpc"
	"oxpd/rpc/msg"
	"oxpd/switchcfg"
)

// Bounds of the control socket. Whoever may open it is trusted with the card,
// but a client that hangs must not take the daemon with it.
const (
	maxBody        = 4 << 10
	maxHeader      = 16 << 10
	headerLimit    = 2 * time.Second // for the first line and the headers
	readLimit      = 5 * time.Second
	idleLimit      = 5 * time.Second
	maxClients     = 64
	mtuLimit       = 12 * time.Second // two commands of 2 s, the same to put the LIF back, and somebody else's in front
	stateLimit     = 12 * time.Second // an answer of NetAgent takes 12 ms, and a missing one 3 s
	countersLimit  = 12 * time.Second // four commands of 2 s, and somebody else's in front
	stopAnswerWait = 20 * time.Second
)

// control is what the server shows and changes: the daemon.
type control interface {
	status() client.Status
	ports() client.Ports
	portView(p board.Port) client.PortView
	setUp(ctx context.Context, p board.Port, up bool) (client.PortView, error)
	mtu(p board.Port) client.MTU
	setMTU(ctx context.Context, p board.Port, in client.SetMTU) (client.MTU, error)
	stats(only *board.Port) client.Stats
	instruments() client.Instruments
	counters(ctx context.Context) (client.Counters, error)
	showSwitch(ctx context.Context) (client.Switch, error)
	setSwitch(ctx context.Context, in client.SetSwitch, progress func(client.SwitchPort)) (client.SwitchRun, error)
	interruptSwitch()
	switchRegister(ctx context.Context, at switchcfg.Register) (client.SwitchRegister, error)
	writeSwitch(ctx context.Context, at switchcfg.Register, v uint16) (client.SwitchRegister, error)
	faulty() (faulty, error)
	filtering() filtering
	diverting() diverting
	statistics() statistics
	stop(ctx context.Context, teardown bool) (client.StopResult, error)
}

// hinted is an error together with what its reader can do.
type hinted struct {
	error
	hint string
}

func (h *hinted) Unwrap() error { return h.error }

// refusal is an error with the code that the control socket gives it.
type refusal struct {
	error
	code client.Code
}

func (r *refusal) Unwrap() error { return r.error }

// newServer makes the HTTP server of the control socket.
func newServer(c control, log *slog.Logger) *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) { answer(w, c.status(), nil) })
	mux.HandleFunc("GET /v1/ports", func(w http.ResponseWriter, _ *http.Request) { answer(w, c.ports(), nil) })
	mux.HandleFunc("GET /v1/ports/{port}", func(w http.ResponseWriter, r *http.Request) {
		p, err := board.Parse(r.PathValue("port"))
		if err != nil {
			answer(w, nil, err)
			return
		}
		answer(w, c.portView(p), nil)
	})
	mux.HandleFunc("PUT /v1/ports/{port}/state", func(w http.ResponseWriter, r *http.Request) {
		p, err := board.Parse(r.PathValue("port"))
		var in client.SetState
		if err == nil {
			err = decode(http.MaxBytesReader(w, r.Body, maxBody), &in)
		}
		if err == nil && in.State != client.LinkUp && in.State != client.LinkDown {
			err = &refusal{fmt.Errorf("state %q: want %s or %s", in.State, client.LinkUp, client.LinkDown), client.CodeUsage}
		}
		if err != nil {
			answer(w, nil, err)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), stateLimit)
		defer cancel()
		v, err := c.setUp(ctx, p, in.State == client.LinkUp)
		answer(w, v, err)
	})
	mux.HandleFunc("GET /v1/ports/{port}/mtu", func(w http.ResponseWriter, r *http.Request) {
		p, err := board.Parse(r.PathValue("port"))
		if err != nil {
			answer(w, nil, err)
			return
		}
		answer(w, c.mtu(p), nil)
	})
	mux.HandleFunc("PUT /v1/ports/{port}/mtu", func(w http.ResponseWriter, r *http.Request) {
		p, err := board.Parse(r.PathValue("port"))
		var in client.SetMTU
		if err == nil {
			err = decode(http.MaxBytesReader(w, r.Body, maxBody), &in)
		}
		if err != nil {
			answer(w, nil, err)
			return
		}
		limit := mtuLimit
		if in.Switch {
			limit += switchLimit
		}
		ctx, cancel := long(w, r, limit)
		defer cancel()
		m, err := c.setMTU(ctx, p, in)
		answer(w, m, err)
	})
	mux.HandleFunc("GET /v1/stats", func(w http.ResponseWriter, r *http.Request) {
		name := r.URL.Query().Get("port")
		if name == "" {
			answer(w, c.stats(nil), nil)
			return
		}
		p, err := board.Parse(name)
		if err != nil {
			answer(w, nil, err)
			return
		}
		answer(w, c.stats(&p), nil)
	})
	mux.HandleFunc("GET /v1/instruments", func(w http.ResponseWriter, _ *http.Request) { answer(w, c.instruments(), nil) })
	mux.HandleFunc("GET /v1/counters", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), countersLimit)
		defer cancel()
		v, err := c.counters(ctx)
		answer(w, v, err)
	})
	mux.HandleFunc("POST /v1/stop", func(w http.ResponseWriter, r *http.Request) {
		var in client.StopRequest
		if err := decode(http.MaxBytesReader(w, r.Body, maxBody), &in); err != nil {
			answer(w, nil, err)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), stopAnswerWait)
		defer cancel()
		v, err := c.stop(ctx, in.Teardown)
		answer(w, v, err)
	})
	routes := map[string]string{
		"/v1/status": "GET", "/v1/ports": "GET", "/v1/ports/{port}": "GET", "/v1/ports/{port}/state": "PUT", "/v1/ports/{port}/mtu": "GET, PUT",
		"/v1/stats": "GET", "/v1/instruments": "GET", "/v1/counters": "GET", "/v1/stop": "POST",
	}
	maps.Copy(routes, switchRoutes(mux, c))
	maps.Copy(routes, faultRoutes(mux, c))
	maps.Copy(routes, filterRoutes(mux, c.filtering()))
	maps.Copy(routes, divertRoutes(mux, c.diverting()))
	maps.Copy(routes, statsRoutes(mux, c.statistics()))
	for path, methods := range routes {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", methods)
			refuse(w, http.StatusMethodNotAllowed, fmt.Errorf("%s takes %s and no %s", r.URL.Path, methods, r.Method))
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, http.StatusNotFound, fmt.Errorf("no such request: %s %s", r.Method, r.URL.Path))
	})
	return &http.Server{
		Handler:           whole(mux),
		ConnContext:       withConn,
		ReadHeaderTimeout: headerLimit,
		ReadTimeout:       readLimit,
		WriteTimeout:      stopAnswerWait + readLimit,
		IdleTimeout:       idleLimit,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// decode reads a bounded JSON body, strictly: one object and nothing behind it.
func decode(body io.Reader, into any) error {
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	object := into // null makes it nil
	err := d.Decode(&object)
	_, behind := d.Token()
	switch {
	case errors.Is(err, io.EOF):
		err = errors.New("the body is empty")
	case err != nil:
		err = plain(err)
	case object == nil:
		err = errors.New("the body is null, want an object")
	case !errors.Is(behind, io.EOF):
		err = errors.New("something stands behind the object")
	}
	if err != nil {
		return &refusal{fmt.Errorf("decode request: %w", err), client.CodeUsage}
	}
	return nil
}

// plain says what the JSON decoder found in words without Go types.
func plain(err error) error {
	var (
		wrong  *json.UnmarshalTypeError
		syntax *json.SyntaxError
	)
	switch {
	case errors.As(err, &wrong) && wrong.Field == "":
		return fmt.Errorf("the body is no object: %s", wrong.Value)
	case errors.As(err, &wrong) && wrong.Type.Kind() == reflect.Bool:
		return fmt.Errorf("%s is %s: want true or false", wrong.Field, wrong.Value)
	case errors.As(err, &wrong) && wrong.Type.Kind() == reflect.String:
		return fmt.Errorf("%s is %s: want a string", wrong.Field, wrong.Value)
	case errors.As(err, &wrong):
		return fmt.Errorf("%s is %s: want a whole number", wrong.Field, wrong.Value)
	case errors.As(err, &syntax):
		return fmt.Errorf("no JSON at byte %d: %w", syntax.Offset, err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the JSON ends too early")
	}
	return errors.New(strings.TrimPrefix(err.Error(), "json: ")) // unknown field "mtv"
}

// whole reads the body of a request, up to its limit, before anything is done about
// it: what is slow to come is the client's time and not the daemon's.
func whole(next http.Handler) http.Handler {
	turn := make(turns, turnsAtOnce)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		most := bodyLimit(r)
		if r.ContentLength > most {
			refuse(w, http.StatusRequestEntityTooLarge, fmt.Errorf("the body is longer than %d bytes", most))
			return
		}
		done, err := turn.take(w, r, most)
		if err != nil {
			answer(w, nil, err)
			return
		}
		defer done()
		b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
		var long *http.MaxBytesError
		switch {
		case errors.As(err, &long):
			refuse(w, http.StatusRequestEntityTooLarge, fmt.Errorf("the body is longer than %d bytes", most))
			return
		case err != nil:
			refuse(w, http.StatusBadRequest, fmt.Errorf("read the body: %w", err))
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(b))
		defer answering(r)()
		next.ServeHTTP(w, r)
	})
}

// refuse answers what is no request of this socket.
func refuse(w http.ResponseWriter, status int, err error) {
	write(w, status, &client.Error{Schema: client.Schema, Code: client.CodeUsage, Message: err.Error()})
}

// answer writes a document, or the refusal that err is.
func answer(w http.ResponseWriter, doc any, err error) {
	status := http.StatusOK
	if err != nil {
		e := describe(err)
		doc, status = e, statusOf(e.Code)
	}
	write(w, status, doc)
}

func write(w http.ResponseWriter, status int, doc any) {
	b, err := json.Marshal(doc)
	if err != nil {
		http.Error(w, "encode answer: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // a client that has gone does not want it
}

// describe turns an error into the document of a refusal.
func describe(err error) *client.Error {
	e := &client.Error{Schema: client.Schema, Code: client.CodeFailed, Message: err.Error()}
	var (
		h       *hinted
		r       *refusal
		unknown *board.UnknownPortError
		outside *board.MTURangeError
		beyond  *lif.SwitchError
		rc      *msg.RCError
		hinter  interface{ Hint() string }
	)
	switch {
	case errors.As(err, &h):
		e.Hint = h.hint
	case errors.As(err, &hinter):
		e.Hint = hinter.Hint()
	}
	switch {
	case errors.As(err, &r):
		e.Code = r.code
	case errors.As(err, &unknown):
		e.Code = client.CodeUnknownPort
	case errors.As(err, &outside):
		e.Code = client.CodeUsage
	case errors.Is(err, mmio.ErrGone):
		e.Code = client.CodeGone
	case errors.Is(err, lif.ErrBadMAC):
		e.Code = client.CodeUsage
	case errors.Is(err, rpc.ErrTimeout), errors.Is(err, rpc.ErrStalled), errors.Is(err, nwa.ErrTimeout), errors.Is(err, nwa.ErrUnanswered), errors.Is(err, nwa.ErrRestarted),
		errors.Is(err, context.DeadlineExceeded):
		e.Code = client.CodeTimeout
	case errors.Is(err, rpc.ErrNotConfigured):
		e.Code = client.CodeNotReady
	case errors.As(err, &rc), errors.As(err, &beyond), errors.Is(err, lif.ErrMismatch), errors.Is(err, lif.ErrMACInUse), errors.Is(err, nwa.ErrRefused), errors.Is(err, errReadBack):
		e.Code = client.CodeRefused
	}
	if e.Code == client.CodeFailed {
		e.Code = switchCode(err)
	}
	if e.Code == client.CodeFailed {
		e.Code, e.At = filterCode(err), places(err)
	}
	if e.Code == client.CodeNotReady && e.Hint == "" {
		e.Hint = "oxpd status says what the daemon does and waits for; oxpd status --wait returns when it runs"
	}
	return e
}

func statusOf(c client.Code) int {
	switch c {
	case client.CodeUsage:
		return http.StatusBadRequest
	case client.CodeUnknownPort, client.CodeNotFound:
		return http.StatusNotFound
	case client.CodeRefused:
		return http.StatusConflict
	case client.CodeNotReady, client.CodeGone:
		return http.StatusServiceUnavailable
	case client.CodeTimeout:
		return http.StatusGatewayTimeout
	default:
		return http.StatusInternalServerError
	}
}
