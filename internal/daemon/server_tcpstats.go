package daemon

import (
	"errors"
	"fmt"
	"net/http"

	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
)

// statistics is what the control socket shows and changes of TCP statistics.
type statistics interface {
	view() client.TCPStats
	set(settings []config.StatsSetting) error
	setProfile(name, filter string) error
	removeProfile(name string) error
}

// statsRoutes are the requests about TCP statistics, with their methods.
func statsRoutes(mux *http.ServeMux, s statistics) map[string]string {
	mux.HandleFunc("GET /v1/tcpstats", func(w http.ResponseWriter, _ *http.Request) { answer(w, s.view(), nil) })
	mux.HandleFunc("PUT /v1/tcpstats/settings", func(w http.ResponseWriter, r *http.Request) {
		settings, err := statsSettingsIn(w, r)
		if err == nil {
			err = s.set(settings)
		}
		answer(w, s.view(), err)
	})
	mux.HandleFunc("PUT /v1/tcpstats/profiles/{name}", func(w http.ResponseWriter, r *http.Request) {
		var in client.SetTCPStatsProfile
		err := decode(http.MaxBytesReader(w, r.Body, maxBody), &in)
		if err == nil {
			err = s.setProfile(r.PathValue("name"), in.Filter)
		}
		answer(w, s.view(), err)
	})
	mux.HandleFunc("DELETE /v1/tcpstats/profiles/{name}", func(w http.ResponseWriter, r *http.Request) {
		err := s.removeProfile(r.PathValue("name"))
		answer(w, s.view(), err)
	})
	return map[string]string{"/v1/tcpstats": "GET", "/v1/tcpstats/settings": "PUT", "/v1/tcpstats/profiles/{name}": "PUT, DELETE"}
}

// statsSettingsIn are the settings that a request has, each once.
func statsSettingsIn(w http.ResponseWriter, r *http.Request) ([]config.StatsSetting, error) {
	var in client.SetTCPStats
	if err := decode(http.MaxBytesReader(w, r.Body, maxBody), &in); err != nil {
		return nil, err
	}
	var out []config.StatsSetting
	seen := map[string]bool{}
	for _, s := range in.Set {
		if seen[s.Key] {
			return nil, &refusal{fmt.Errorf("%s is set twice", s.Key), client.CodeUsage}
		}
		seen[s.Key] = true
		out = append(out, config.StatsSetting{Key: s.Key, Value: s.Value})
	}
	if len(out) == 0 {
		return nil, &refusal{errors.New("nothing is to be set"), client.CodeUsage}
	}
	return out, nil
}
