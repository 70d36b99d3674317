package client

import (
	"context"
	"net/http"
	"net/url"
)

// Which frames of a port are inspected.
const (
	FramesAll    = "all"    // every frame, in both directions
	FramesFilter = "filter" // those that a rule of a filter says divert of
)

// What inspects the frames of a port.
const (
	EngineSocket  = "socket"   // the engines at the listeners
	EngineTapPair = "tap-pair" // a program that copies between two interfaces of the port's own
)

// States of an inspection queue.
const (
	QueueAbsent  = "absent"  // no engine is there
	QueueIdle    = "idle"    // nothing waits for a verdict
	QueueBusy    = "busy"    // frames wait for a verdict
	QueueStalled = "stalled" // the engine has stopped giving verdicts
)

// Divert is the inspection of frames: its settings, its queues, and what became of the
// frames of each port.
type Divert struct {
	Schema   int            `json:"schema"`
	Settings DivertSettings `json:"settings"`
	// Queues are those of the listeners, then of the ports that have, or had, a tap-pair.
	Queues   []DivertQueue `json:"queues"`
	Ports    []DivertPort  `json:"ports"`
	Warnings []string      `json:"warnings"`
}

// DivertSettings hold for every queue; each has the bounds for itself.
type DivertSettings struct {
	QueueLen   int    `json:"queue_len"`   // frames without a verdict
	QueueBytes int64  `json:"queue_bytes"` // of those, each with 64 more
	BufferSize int64  `json:"buffer_size"` // of an engine's socket, bytes; 0: the kernel's default
	OnFull     string `json:"on_full"`     // drop or pass, as the next two
	OnAbsent   string `json:"on_absent"`
	OnStall    string `json:"on_stall"`
	StallMS    int64  `json:"stall_ms"`
	Order      string `json:"order"` // any or keep
}

// DivertQueue is one queue. Its events are those of its engine.
type DivertQueue struct {
	Name   string `json:"name"`             // path of the listener's socket, or name of the port with the tap-pair
	Kind   string `json:"kind"`             // socket or tap-pair
	State  string `json:"state"`            // absent, idle, busy, stalled
	Engine string `json:"engine,omitempty"` // what the engine calls itself
	PID    int    `json:"pid,omitempty"`    // of the engine's process, where the kernel tells
	// SocketBuffer is that of the engine's socket, bytes, as the kernel tells it: twice
	// what it was asked for.
	SocketBuffer int `json:"socket_buffer,omitempty"`

	Queued      int   `json:"queued"` // frames without a verdict
	QueuedBytes int64 `json:"queued_bytes"`
	MostQueued  int   `json:"most_queued"` // ever
	MostBytes   int64 `json:"most_queued_bytes"`
	Flows       int   `json:"flows"` // connections that were accepted whole

	// From offer to verdict, of the last 10 to 20 s; the longest ever.
	DelayP50US int64 `json:"delay_p50_us"`
	DelayP99US int64 `json:"delay_p99_us"`
	DelayMaxUS int64 `json:"delay_max_us"`

	Counters map[string]uint64 `json:"counters"`
}

// DivertEngine is a queue and its engine in brief.
type DivertEngine struct {
	Queue  string `json:"queue"` // as DivertQueue.Name, and the next three
	Kind   string `json:"kind"`
	State  string `json:"state"`
	Engine string `json:"engine,omitempty"`
	Queued int    `json:"queued"`
}

// DivertMode is which frames of a port are inspected, and by what.
type DivertMode struct {
	Frames string `json:"frames"` // all or filter
	Engine string `json:"engine"` // socket or tap-pair
}

// DivertPort is which frames of a port are inspected, by what, and what became of them.
type DivertPort struct {
	IfName string `json:"ifname"`
	Label  string `json:"label"`
	DivertMode
	// divert_seen is the sum of all others but divert_reordered and divert_injected, at
	// any moment.
	In  map[string]uint64 `json:"in"`  // from the wire to the host
	Out map[string]uint64 `json:"out"` // from the host to the wire
}

// Total is a counter of both directions.
func (p *DivertPort) Total(name string) uint64 { return p.In[name] + p.Out[name] }

// DivertSetting is one setting, by its key of the configuration.
type DivertSetting struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// SetDivert asks for other settings: all of them, or none when one is refused.
type SetDivert struct {
	Set []DivertSetting `json:"set"`
}

// SetDivertPort asks for other frames of a port to be inspected, or by something else.
type SetDivertPort struct {
	Frames string `json:"frames"`           // all or filter
	Engine string `json:"engine,omitempty"` // socket or tap-pair; empty: as it is
}

const divertPath = "/v1/divert"

// Divert reads the inspection: of every port, or of one when port is not empty.
func (c *Client) Divert(ctx context.Context, port string) (*Divert, error) {
	path := divertPath
	if port != "" {
		path += "?port=" + url.QueryEscape(port)
	}
	return get[Divert](ctx, c, path)
}

// SetDivert changes settings, and returns what is in force then.
func (c *Client) SetDivert(ctx context.Context, set ...DivertSetting) (*Divert, error) {
	out := new(Divert)
	if err := c.do(ctx, http.MethodPut, divertPath+"/settings", SetDivert{Set: set}, out); err != nil {
		return nil, err
	}
	return out, nil
}

// SetDivertPort changes which frames of a port are inspected, and by what.
func (c *Client) SetDivertPort(ctx context.Context, port string, in SetDivertPort) (*Divert, error) {
	out := new(Divert)
	if err := c.do(ctx, http.MethodPut, divertPath+"/ports/"+url.PathEscape(port), in, out); err != nil {
		return nil, err
	}
	return out, nil
}
