package client

import (
	"context"
	"net/http"
	"net/url"
)

// TCPStats is the service that `oxpd tcpstats` asks: its settings, and what it has counted.
type TCPStats struct {
	Schema   int               `json:"schema"`
	Socket   string            `json:"socket"`
	Warning  string            `json:"warning,omitempty"` // why nobody can ask, or root alone
	Settings []TCPStatsSetting `json:"settings"`
	Profiles []TCPStatsProfile `json:"profiles"`

	Open    int `json:"open"`    // clients now
	Reading int `json:"reading"` // reads now
	// Of the reads that have ended: visited is the sum of emitted, all that begin with
	// skipped_, and aborted.
	Counters map[string]uint64 `json:"counters"`
	TimeUS   int64             `json:"time_us"` // of all reads
	MaxUS    int64             `json:"max_us"`  // of the longest

	Flow *TCPStatsFlow `json:"flow,omitempty"` // absent when flows are not followed
}

// TCPStatsFlow is the table of TCP flows.
type TCPStatsFlow struct {
	Flows     int               `json:"flows"`
	MaxFlows  int               `json:"max_flows"`
	HalfOpen  int               `json:"half_open"` // or seen in one direction only
	HalfLimit int               `json:"half_limit"`
	Counters  map[string]uint64 `json:"counters"`
}

// TCPStatsSetting is one setting.
type TCPStatsSetting struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// TCPStatsProfile is a filter with a name.
type TCPStatsProfile struct {
	Name   string `json:"name"`
	Filter string `json:"filter"` // canonical
}

// SetTCPStats asks for other settings: all of them, or none when one is refused.
type SetTCPStats struct {
	Set []TCPStatsSetting `json:"set"`
}

// SetTCPStatsProfile asks for a profile.
type SetTCPStatsProfile struct {
	Filter string `json:"filter"`
}

const statsPath = "/v1/tcpstats"

// TCPStats reads the service's settings and counters.
func (c *Client) TCPStats(ctx context.Context) (*TCPStats, error) {
	return get[TCPStats](ctx, c, statsPath)
}

// SetTCPStats changes settings, and returns what is in force then.
func (c *Client) SetTCPStats(ctx context.Context, set ...TCPStatsSetting) (*TCPStats, error) {
	out := new(TCPStats)
	if err := c.do(ctx, http.MethodPut, statsPath+"/settings", SetTCPStats{Set: set}, out); err != nil {
		return nil, err
	}
	return out, nil
}

// SetTCPStatsProfile makes or changes a profile.
func (c *Client) SetTCPStatsProfile(ctx context.Context, name, filter string) (*TCPStats, error) {
	out := new(TCPStats)
	if err := c.do(ctx, http.MethodPut, statsPath+"/profiles/"+url.PathEscape(name), SetTCPStatsProfile{Filter: filter}, out); err != nil {
		return nil, err
	}
	return out, nil
}

// RemoveTCPStatsProfile removes a profile. Clients that have opened with it keep its filter.
func (c *Client) RemoveTCPStatsProfile(ctx context.Context, name string) (*TCPStats, error) {
	out := new(TCPStats)
	if err := c.do(ctx, http.MethodDelete, statsPath+"/profiles/"+url.PathEscape(name), nil, out); err != nil {
		return nil, err
	}
	return out, nil
}
