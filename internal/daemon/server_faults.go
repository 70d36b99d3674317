package daemon

import (
	"errors"
	"fmt"
	"net/http"

	"oxpd/internal/daemon/client"
)

// faulty is a simulated card, which misbehaves when it is asked to.
type faulty interface {
	Faults() client.Faults
	SetFaults(texts []string) error // all of them, or none
	ClearFault(name string) error   // all: every one
}

// faultRoutes are the requests about a simulated card's faults, with their methods.
func faultRoutes(mux *http.ServeMux, c control) map[string]string {
	reply := func(w http.ResponseWriter, do func(card faulty) error) {
		card, err := c.faulty()
		if err == nil {
			err = do(card)
		}
		if err != nil {
			answer(w, nil, err)
			return
		}
		answer(w, card.Faults(), nil)
	}
	mux.HandleFunc("GET /v1/sim/faults", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, func(faulty) error { return nil })
	})
	mux.HandleFunc("POST /v1/sim/faults", func(w http.ResponseWriter, r *http.Request) {
		var in client.SetFaults
		if err := decode(http.MaxBytesReader(w, r.Body, maxBody), &in); err != nil {
			answer(w, nil, err)
			return
		}
		reply(w, func(card faulty) error {
			if len(in.Faults) == 0 {
				return &refusal{errors.New("faults is empty: want NAME[=ARGUMENT][@WHEN][%P]"), client.CodeUsage}
			}
			if err := card.SetFaults(in.Faults); err != nil {
				return &refusal{err, client.CodeUsage}
			}
			return nil
		})
	})
	mux.HandleFunc("DELETE /v1/sim/faults/{name}", func(w http.ResponseWriter, r *http.Request) {
		reply(w, func(card faulty) error {
			if err := card.ClearFault(r.PathValue("name")); err != nil {
				return &refusal{err, client.CodeRefused}
			}
			return nil
		})
	})
	return map[string]string{"/v1/sim/faults": "GET, POST", "/v1/sim/faults/{name}": "DELETE"}
}

// faulty implements control: the daemon's card, if it can be told to misbehave.
func (d *Daemon) faulty() (faulty, error) {
	d.mu.Lock()
	dev := d.dev
	d.mu.Unlock()
	card, ok := dev.(faulty)
	switch {
	case ok:
		return card, nil
	case dev == nil:
		return nil, &refusal{errors.New("the card is not opened yet"), client.CodeNotReady}
	}
	return nil, &refusal{&hinted{fmt.Errorf("%s is no simulated card of this daemon, and cannot be told to misbehave", d.o.Device),
		"faults are those of oxpd run --sim; a card that oxpd sim serve shows takes --fault there"}, client.CodeRefused}
}
