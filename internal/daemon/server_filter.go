package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/pfil"
)

// Bounds of requests about filters.
const (
	// A body, or a filter's source, longer than longBody is in memory for a request only
	// with turnsAtOnce of such.
	longBody    = 1 << 20
	turnsAtOnce = 1
	// uploadLimit is for a body of MaxFilterBody, for a source, and for the turn of one.
	uploadLimit = 20 * time.Second
	// compileLimit is for a million prefixes on a machine with other things to do.
	compileLimit = time.Minute
)

// filtering is what the control socket shows and changes of filters.
type filtering interface {
	list() client.Filters
	show(name string) (client.FilterView, error)
	source(name string) (client.FilterSource, error)
	load(src client.FilterSource) (client.FilterLoaded, error)
	unload(name string) (client.Filters, error)
	link(name string, ports []board.Port, dir pfil.Direction) (client.FilterView, error)
	unlink(name string, ports []board.Port, dir pfil.Direction) (client.FilterView, error)
	samples(name string, w io.Writer) error
}

const filterRoute = "/v1/filters/"

// filterRoutes are the requests about filters, with their methods.
func filterRoutes(mux *http.ServeMux, f filtering) map[string]string {
	sources := make(turns, turnsAtOnce)
	mux.HandleFunc("GET /v1/filters", func(w http.ResponseWriter, _ *http.Request) { answer(w, f.list(), nil) })
	mux.HandleFunc("GET /v1/filters/{name}", func(w http.ResponseWriter, r *http.Request) {
		v, err := f.show(r.PathValue("name"))
		answer(w, v, err)
	})
	mux.HandleFunc("PUT /v1/filters/{name}", func(w http.ResponseWriter, r *http.Request) {
		in, err := filterSource(w, r)
		if err != nil {
			answer(w, nil, err)
			return
		}
		_, cancel := long(w, r, compileLimit)
		defer cancel()
		v, err := f.load(in)
		answer(w, v, err)
	})
	mux.HandleFunc("DELETE /v1/filters/{name}", func(w http.ResponseWriter, r *http.Request) {
		v, err := f.unload(r.PathValue("name"))
		answer(w, v, err)
	})
	mux.HandleFunc("GET /v1/filters/{name}/source", func(w http.ResponseWriter, r *http.Request) {
		v, err := f.source(r.PathValue("name"))
		done := func() {}
		if err == nil && sourceBytes(&v) > longBody {
			done, err = sources.wait(r.Context(), "somebody else is reading the rules of a filter")
		}
		if err != nil {
			answer(w, nil, err)
			return
		}
		defer done()
		_, cancel := long(w, r, uploadLimit)
		defer cancel()
		answer(w, v, nil)
	})
	for method, do := range map[string]func(string, []board.Port, pfil.Direction) (client.FilterView, error){
		http.MethodPut: f.link, http.MethodDelete: f.unlink,
	} {
		mux.HandleFunc(method+" /v1/filters/{name}/links/{port}/{direction}", func(w http.ResponseWriter, r *http.Request) {
			ports, dir, err := linkOf(r)
			if err != nil {
				answer(w, nil, err)
				return
			}
			v, err := do(r.PathValue("name"), ports, dir)
			answer(w, v, err)
		})
	}
	mux.HandleFunc("GET /v1/samples", func(w http.ResponseWriter, r *http.Request) {
		var b bytes.Buffer
		if err := f.samples(r.URL.Query().Get("filter"), &b); err != nil {
			answer(w, nil, err)
			return
		}
		w.Header().Set("Content-Type", "application/x-pcapng")
		_, _ = w.Write(b.Bytes()) // a client that has gone does not want it
	})
	return map[string]string{
		"/v1/filters": "GET", "/v1/filters/{name}": "GET, PUT, DELETE", "/v1/filters/{name}/source": "GET",
		"/v1/filters/{name}/links/{port}/{direction}": "PUT, DELETE", "/v1/samples": "GET",
	}
}

// filterSource is the filter that a request loads, by the name in its path.
func filterSource(w http.ResponseWriter, r *http.Request) (client.FilterSource, error) {
	var in client.FilterSource
	if err := decode(http.MaxBytesReader(w, r.Body, client.MaxFilterBody), &in); err != nil {
		return in, err
	}
	name := r.PathValue("name")
	if in.Name != "" && in.Name != name {
		return in, &refusal{fmt.Errorf("the body is about filter %q, the request about %q", in.Name, name), client.CodeUsage}
	}
	in.Name = name
	if err := client.CheckFilterName(name); err != nil {
		return in, &refusal{err, client.CodeUsage}
	}
	return in, nil
}

// sourceBytes is how long the files are that a filter was made of.
func sourceBytes(s *client.FilterSource) int {
	n := len(s.Rules)
	for _, b := range s.Files {
		n += len(b)
	}
	return n
}

// linkOf is the place that a request names.
func linkOf(r *http.Request) ([]board.Port, pfil.Direction, error) {
	dir, err := directionOf(r.PathValue("direction"))
	if err != nil {
		return nil, 0, &refusal{err, client.CodeUsage}
	}
	name := r.PathValue("port")
	if name == client.AllPorts {
		all := board.All()
		return all[:], dir, nil
	}
	p, err := board.Parse(name)
	return []board.Port{p}, dir, err
}

func directionOf(word string) (pfil.Direction, error) {
	switch word {
	case client.DirectionIn:
		return pfil.In, nil
	case client.DirectionOut:
		return pfil.Out, nil
	case client.DirectionBoth:
		return pfil.Both, nil
	}
	return 0, fmt.Errorf("direction %q: want %s, %s or %s", word, client.DirectionIn, client.DirectionOut, client.DirectionBoth)
}

// bodyLimit is how long the body of a request may be.
func bodyLimit(r *http.Request) int64 {
	name, found := strings.CutPrefix(r.URL.Path, filterRoute)
	if found && r.Method == http.MethodPut && !strings.Contains(name, "/") {
		return client.MaxFilterBody
	}
	return maxBody
}

// turns lets as many at a time as it holds do what takes much memory.
type turns chan struct{}

// wait waits for a turn. The function gives it back. Errors: a refusal, when what others
// do takes too long; the context's.
func (t turns) wait(ctx context.Context, others string) (done func(), err error) {
	limit := time.NewTimer(uploadLimit)
	defer limit.Stop()
	select {
	case t <- struct{}{}:
		return func() { <-t }, nil
	case <-limit.C:
		return nil, &refusal{errors.New(others + ", for longer than it should take"), client.CodeTimeout}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// take waits for the turn of a request whose body may be long, and gives it the time that
// such a body needs. The function gives the turn back.
func (t turns) take(w http.ResponseWriter, r *http.Request, most int64) (done func(), err error) {
	if most <= longBody || r.ContentLength >= 0 && r.ContentLength <= longBody {
		return func() {}, nil
	}
	if done, err = t.wait(r.Context(), "another filter is being loaded"); err != nil {
		return nil, err
	}
	c := http.NewResponseController(w)
	_ = c.SetReadDeadline(time.Now().Add(uploadLimit))
	_ = c.SetWriteDeadline(time.Now().Add(uploadLimit + compileLimit + readLimit))
	return done, nil
}

// places are what is wrong with rules, nil when err is about something else.
func places(err error) []client.Place {
	var out []client.Place
	for _, e := range parts(err) {
		var p *pfil.Error
		if !errors.As(e, &p) {
			continue
		}
		out = append(out, client.Place{File: p.File, Line: p.Line, Column: p.Col, Why: fmt.Sprintf("found %s, expected %s", p.Found, p.Expected), Text: p.Text})
	}
	return out
}

// parts are the errors that were joined somewhere in err.
func parts(err error) []error {
	for err != nil {
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			return joined.Unwrap()
		}
		next := errors.Unwrap(err)
		if next == nil {
			break
		}
		err = next
	}
	return []error{err}
}

// filterCode is the code of an error of filters.
func filterCode(err error) client.Code {
	var (
		rules   *pfil.Error
		name    *pfil.NameError
		unknown *pfil.UnknownError
		linked  *pfil.LinkedError
		not     *pfil.NotLinkedError
		full    *pfil.LimitError
	)
	switch {
	case errors.As(err, &rules), errors.As(err, &name):
		return client.CodeUsage
	case errors.As(err, &unknown):
		return client.CodeNotFound
	case errors.As(err, &linked), errors.As(err, &not), errors.As(err, &full):
		return client.CodeRefused
	}
	return client.CodeFailed
}
