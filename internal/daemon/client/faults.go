package client

import (
	"context"
	"net/http"
	"net/url"
)

// Fault is a fault of a simulated card: one that is on, that waits, or that has acted.
type Fault struct {
	Name        string  `json:"name"`
	Argument    string  `json:"argument,omitempty"`
	State       string  `json:"state"`                 // on, timed, waiting, over
	At          float64 `json:"at_seconds,omitempty"`  // of a timed one: when it begins, since the card was made
	Probability float64 `json:"probability,omitempty"` // absent: it acts at each opportunity
	Opportunity string  `json:"opportunity,omitempty"` // what that is; absent: it has none
	Acted       uint64  `json:"acted"`                 // how often so far
}

// Faults are the faults of a simulated card.
type Faults struct {
	Schema int     `json:"schema"`
	Now    float64 `json:"now_seconds"` // since the card was made
	Cycle  uint64  `json:"cycle"`       // the same in cycles of its clock
	Faults []Fault `json:"faults"`
}

// SetFaults asks for faults: NAME[=ARGUMENT][@WHEN][%P] each. All or none begin.
type SetFaults struct {
	Faults []string `json:"faults"`
}

const faultsPath = "/v1/sim/faults"

// Faults reads which faults of the daemon's simulated card are on. A daemon whose card
// is none answers with an *Error of CodeRefused.
func (c *Client) Faults(ctx context.Context) (*Faults, error) {
	return get[Faults](ctx, c, faultsPath)
}

// SetFaults puts faults into force, all of them or none.
func (c *Client) SetFaults(ctx context.Context, faults ...string) (*Faults, error) {
	out := new(Faults)
	if err := c.do(ctx, http.MethodPost, faultsPath, SetFaults{Faults: faults}, out); err != nil {
		return nil, err
	}
	return out, nil
}

// ClearFault ends a fault by name; "all" ends every one.
func (c *Client) ClearFault(ctx context.Context, name string) (*Faults, error) {
	out := new(Faults)
	if err := c.do(ctx, http.MethodDelete, faultsPath+"/"+url.PathEscape(name), nil, out); err != nil {
		return nil, err
	}
	return out, nil
}
