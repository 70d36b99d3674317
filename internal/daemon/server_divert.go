package daemon

import (
	"errors"
	"fmt"
	"maps"
	"net/http"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/divert"
)

// diverting is what the control socket shows and changes of inspection.
type diverting interface {
	view(only *board.Port) client.Divert
	set(settings []divert.Setting) error
	setPort(p board.Port, all bool, kind *divert.Kind) error
}

// divertRoutes are the requests about inspection, with their methods.
func divertRoutes(mux *http.ServeMux, d diverting) map[string]string {
	mux.HandleFunc("GET /v1/divert", func(w http.ResponseWriter, r *http.Request) {
		only, err := portOf(r.URL.Query().Get("port"))
		if err != nil {
			answer(w, nil, err)
			return
		}
		answer(w, d.view(only), nil)
	})
	mux.HandleFunc("PUT /v1/divert/settings", func(w http.ResponseWriter, r *http.Request) {
		settings, err := settingsIn(w, r)
		if err == nil {
			err = d.set(settings)
		}
		answer(w, d.view(nil), err)
	})
	mux.HandleFunc("PUT /v1/divert/ports/{port}", func(w http.ResponseWriter, r *http.Request) {
		p, err := board.Parse(r.PathValue("port"))
		var in client.SetDivertPort
		if err == nil {
			err = decode(http.MaxBytesReader(w, r.Body, maxBody), &in)
		}
		if err == nil {
			err = setDivertPort(d, p, in)
		}
		answer(w, d.view(&p), err)
	})
	return map[string]string{"/v1/divert": "GET", "/v1/divert/settings": "PUT", "/v1/divert/ports/{port}": "PUT"}
}

// portOf is the port of a name, nil for none.
func portOf(name string) (*board.Port, error) {
	if name == "" {
		return nil, nil
	}
	p, err := board.Parse(name)
	return &p, err
}

// settingsIn are the settings that a request has, each once.
func settingsIn(w http.ResponseWriter, r *http.Request) ([]divert.Setting, error) {
	var in client.SetDivert
	if err := decode(http.MaxBytesReader(w, r.Body, maxBody), &in); err != nil {
		return nil, err
	}
	var out []divert.Setting
	seen := map[string]bool{}
	for _, s := range in.Set {
		if seen[s.Key] {
			return nil, &refusal{fmt.Errorf("%s is set twice", s.Key), client.CodeUsage}
		}
		seen[s.Key] = true
		out = append(out, divert.Setting{Key: s.Key, Value: s.Value})
	}
	if len(out) == 0 {
		return nil, &refusal{errors.New("nothing is to be set"), client.CodeUsage}
	}
	return out, nil
}

func setDivertPort(d diverting, p board.Port, in client.SetDivertPort) error {
	if in.Frames != client.FramesAll && in.Frames != client.FramesFilter {
		return &refusal{fmt.Errorf("frames %q: want %s or %s", in.Frames, client.FramesAll, client.FramesFilter), client.CodeUsage}
	}
	var kind *divert.Kind
	if in.Engine != "" {
		k, err := divert.ParseKind(in.Engine)
		if err != nil {
			return &refusal{fmt.Errorf("engine: %w", err), client.CodeUsage}
		}
		kind = &k
	}
	return d.setPort(p, in.Frames == client.FramesAll, kind)
}

// divertSettings are settings as documents have them.
func divertSettings(s divert.Settings) client.DivertSettings {
	return client.DivertSettings{
		QueueLen: s.QueueLen, QueueBytes: s.QueueBytes, BufferSize: s.BufferSize,
		OnFull: s.OnFull.String(), OnAbsent: s.OnAbsent.String(), OnStall: s.OnStall.String(),
		StallMS: s.Stall.Milliseconds(), Order: s.Order.String(),
	}
}

// divertQueue is a queue as documents have it.
func divertQueue(s *divert.QueueStats, kind divert.Kind, e *engineView) client.DivertQueue {
	q := client.DivertQueue{
		Name: s.Name, Kind: kind.String(), State: s.State.String(), Engine: e.name, PID: e.pid, SocketBuffer: e.buffer,
		Queued: s.Frames, QueuedBytes: s.Bytes, MostQueued: s.MaxFrames, MostBytes: s.MaxBytes, Flows: s.Flows,
		DelayP50US: s.P50.Microseconds(), DelayP99US: s.P99.Microseconds(), DelayMaxUS: s.Max.Microseconds(),
		Counters: map[string]uint64{
			"handed": s.Events.Handed, "verdicts_late": s.Events.Late, "verdicts_unknown": s.Events.Unknown, "stalls": s.Events.Stalls,
			"engines_attached": s.Events.Attached, "flows_accepted": s.Events.Flows, "flows_refused": s.Events.NoFlow,
		},
	}
	maps.Copy(q.Counters, e.counters)
	return q
}

// framesWord is which frames of a port are inspected.
func framesWord(all bool) string {
	if all {
		return client.FramesAll
	}
	return client.FramesFilter
}

// divertPort is what became of a port's frames, as documents have it.
func divertPort(p board.Port, all bool, kind divert.Kind, counts [divert.Directions]divert.Counts) client.DivertPort {
	out := client.DivertPort{IfName: p.Name, Label: p.Label, DivertMode: client.DivertMode{Frames: framesWord(all), Engine: kind.String()}, In: map[string]uint64{}, Out: map[string]uint64{}}
	counts[divert.In].Each(func(name string, value uint64) { out.In[name] = value })
	counts[divert.Out].Each(func(name string, value uint64) { out.Out[name] = value })
	return out
}
