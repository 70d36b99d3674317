package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"oxpd/internal/daemon/client"
	"oxpd/octep"
	"oxpd/switchcfg"
	"oxpd/switchcfg/reg"
)

// switchLimit bounds a request that uses the switch: some 150 commands on a console, and
// the upload of a program, take seconds; a console that garbles them takes longer.
const switchLimit = 3 * time.Minute

// switchRoutes are the requests about the switch, with their methods.
func switchRoutes(mux *http.ServeMux, c control) map[string]string {
	mux.HandleFunc("GET /v1/switch", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := long(w, r, switchLimit)
		defer cancel()
		v, err := c.showSwitch(ctx)
		answer(w, v, err)
	})
	mux.HandleFunc("PUT /v1/switch/jumbo", func(w http.ResponseWriter, r *http.Request) {
		var in client.SetSwitch
		if err := decode(http.MaxBytesReader(w, r.Body, maxBody), &in); err != nil {
			answer(w, nil, err)
			return
		}
		ctx, cancel := long(w, r, switchLimit)
		defer cancel()
		lines := &stream{w: w}
		run, err := c.setSwitch(ctx, in, func(p client.SwitchPort) { lines.send(client.SwitchEvent{Port: &p}) })
		switch {
		case err != nil && !lines.begun:
			answer(w, nil, err)
			return
		case err != nil:
			run.Failure = describe(err)
		}
		lines.send(client.SwitchEvent{Run: &run})
	})
	mux.HandleFunc("DELETE /v1/switch/jumbo", func(w http.ResponseWriter, _ *http.Request) {
		c.interruptSwitch()
		answer(w, struct{}{}, nil)
	})
	mux.HandleFunc("GET /v1/switch/registers/{device}/{register}", func(w http.ResponseWriter, r *http.Request) {
		at, err := registerOf(r)
		if err != nil {
			answer(w, nil, err)
			return
		}
		ctx, cancel := long(w, r, switchLimit)
		defer cancel()
		v, err := c.switchRegister(ctx, at)
		answer(w, v, err)
	})
	mux.HandleFunc("PUT /v1/switch/registers/{device}/{register}", func(w http.ResponseWriter, r *http.Request) {
		var in client.WriteRegister
		at, err := registerOf(r)
		if err == nil {
			err = decode(http.MaxBytesReader(w, r.Body, maxBody), &in)
		}
		if err == nil {
			err = mayWrite(in)
		}
		if err != nil {
			answer(w, nil, err)
			return
		}
		ctx, cancel := long(w, r, switchLimit)
		defer cancel()
		v, err := c.writeSwitch(ctx, at, uint16(in.Value))
		answer(w, v, err)
	})
	return map[string]string{
		"/v1/switch": "GET", "/v1/switch/jumbo": "PUT, DELETE", "/v1/switch/registers/{device}/{register}": "GET, PUT",
	}
}

const maxValue = 1<<16 - 1

// mayWrite refuses a write that its sender does not stand for, and a value that is none.
func mayWrite(in client.WriteRegister) error {
	switch {
	case !in.IKnow:
		return &refusal{errors.New("a wrong value takes ports down: want i_know true"), client.CodeUsage}
	case in.Value < 0 || in.Value > maxValue:
		return &switchcfg.RangeError{What: "value", Value: in.Value, Lo: 0, Hi: maxValue}
	}
	return nil
}

// registerOf is the register that a request is about.
func registerOf(r *http.Request) (switchcfg.Register, error) {
	dev, err := switchcfg.ParseDevice(r.PathValue("device"))
	if err != nil {
		return switchcfg.Register{}, err
	}
	n, err := strconv.Atoi(r.PathValue("register"))
	if err != nil || n < 0 || n >= reg.PortRegisters {
		return switchcfg.Register{}, &switchcfg.NumberError{What: "register", Text: r.PathValue("register"), Most: reg.PortRegisters - 1}
	}
	return switchcfg.Register{Dev: dev, Reg: n}, nil
}

// long is the context of a request that may take longer than others, with its answer.
func long(w http.ResponseWriter, r *http.Request, limit time.Duration) (context.Context, context.CancelFunc) {
	c := http.NewResponseController(w)
	_ = c.SetWriteDeadline(time.Now().Add(limit + readLimit))
	return context.WithTimeoutCause(r.Context(), limit, fmt.Errorf("it took more than %v", limit))
}

// stream is an answer of several documents, one a line.
type stream struct {
	w     http.ResponseWriter
	begun bool
}

func (s *stream) send(doc any) {
	if !s.begun {
		s.begun = true
		s.w.Header().Set("Content-Type", "application/x-ndjson")
		s.w.WriteHeader(http.StatusOK)
	}
	if json.NewEncoder(s.w).Encode(doc) == nil { // a client that has gone does not want it
		_ = http.NewResponseController(s.w).Flush()
	}
}

// switchCode is the code of an error of the switch, or of the way to it.
func switchCode(err error) client.Code {
	var (
		unknown    *switchcfg.PortError
		size       *switchcfg.SizeError
		number     *switchcfg.NumberError
		outside    *switchcfg.RangeError
		incomplete *switchcfg.IncompleteError
		product    *switchcfg.ProductError
		verify     *switchcfg.VerifyError
		busy       *switchcfg.BusyError
		silent     *switchcfg.NoAnswerError
	)
	switch {
	case errors.As(err, &unknown):
		return client.CodeUnknownPort
	case errors.As(err, &size), errors.As(err, &number), errors.As(err, &outside), errors.Is(err, switchcfg.ErrForbidden):
		return client.CodeUsage
	case errors.Is(err, octep.ErrBooting), errors.Is(err, octep.ErrNoSoftware):
		return client.CodeNotReady
	case errors.As(err, &busy), errors.As(err, &silent):
		return client.CodeTimeout
	case errors.As(err, &incomplete), errors.As(err, &product), errors.As(err, &verify):
		return client.CodeRefused
	}
	return client.CodeFailed
}
