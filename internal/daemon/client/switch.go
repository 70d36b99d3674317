package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// SwitchPort is one port of the switch.
type SwitchPort struct {
	Port     string `json:"port"` // sw0, the uplink to the coprocessor, to sw10
	IfName   string `json:"ifname,omitempty"`
	Label    string `json:"label,omitempty"`    // of the front port; empty for the uplink
	Frame    int    `json:"frame"`              // longest frame with FCS, bytes; 0 when it was not read, or is the reserved mode
	MTU      int    `json:"mtu,omitempty"`      // the largest whose frames pass this port and the uplink
	Register string `json:"register,omitempty"` // Port Control 2 as read, 0x2080; empty when it was not read
	Link     string `json:"link,omitempty"`     // up, down; of Switch alone
	Speed    int    `json:"speed,omitempty"`    // Mbit/s; 10000 for more than 1000
	State    string `json:"state,omitempty"`    // disabled, blocking, learning, forwarding
	Outcome  string `json:"outcome,omitempty"`  // of SwitchRun alone, see the words
	Before   int    `json:"before,omitempty"`   // frame when the run began
	Error    string `json:"error,omitempty"`    // why it is not as asked
}

// Words for SwitchPort.Outcome.
const (
	SwitchUnchanged   = "unchanged"    // it was as asked
	SwitchChanged     = "changed"      // it was written, and reads as asked
	SwitchWouldChange = "would change" // of a dry run
	SwitchLeft        = "left"         // it was not asked for
	SwitchNotBegun    = "not begun"    // it is as it was
	SwitchFailed      = "failed"       // see Error
)

// Switch is the switch as it reads now.
type Switch struct {
	Schema   int          `json:"schema"`
	Product  string       `json:"product"` // 0x193
	Revision int          `json:"revision"`
	Ports    []SwitchPort `json:"ports"` // all eleven, the uplink first
}

// SetSwitch asks for the frame size of ports of the switch.
type SetSwitch struct {
	All   bool     `json:"all,omitempty"`
	Ports []string `json:"ports,omitempty"` // front ports by name, or sw1 to sw10
	Frame int      `json:"frame"`           // 1522, 2048 or 10240
	// LeaveUplink leaves sw0 as it is. Otherwise it is raised when the ports need it.
	LeaveUplink bool `json:"leave_uplink,omitempty"`
	DryRun      bool `json:"dry_run,omitempty"`   // reads only
	LowerMTU    bool `json:"lower_mtu,omitempty"` // first lower MTUs that the size does not pass
}

// SwitchRun is what became of SetSwitch.
type SwitchRun struct {
	Schema   int          `json:"schema"`
	OK       bool         `json:"ok"` // every port is as asked
	Frame    int          `json:"frame"`
	DryRun   bool         `json:"dry_run,omitempty"`
	Ports    []SwitchPort `json:"ports"`             // all eleven, the uplink first; none when nothing could be read
	Lowered  []SwitchMTU  `json:"lowered,omitempty"` // MTUs that were lowered first, or would be
	Warnings []string     `json:"warnings,omitempty"`
	Failure  *Error       `json:"failure,omitempty"` // why it is not OK
}

// SwitchMTU is an MTU that was lowered before the switch.
type SwitchMTU struct {
	IfName string `json:"ifname"`
	Label  string `json:"label"`
	Before int    `json:"before"`
	MTU    int    `json:"mtu"`
}

// SwitchEvent is one line of the answer to SetSwitch: Port, as each is decided, and Run
// at the end.
type SwitchEvent struct {
	Port *SwitchPort `json:"port,omitempty"`
	Run  *SwitchRun  `json:"run,omitempty"`
}

// SwitchRegister is one register of a device inside the switch.
type SwitchRegister struct {
	Schema   int    `json:"schema"`
	Device   string `json:"device"` // sw0 to sw10, global1, global2
	IfName   string `json:"ifname,omitempty"`
	Label    string `json:"label,omitempty"`
	Register int    `json:"register"`
	Value    string `json:"value"`            // 0x2080
	Before   string `json:"before,omitempty"` // of a write
}

// WriteRegister asks for a write of a register of the switch.
type WriteRegister struct {
	Value int  `json:"value"`
	IKnow bool `json:"i_know"` // must be true: a wrong value takes ports down
}

// Switch reads the switch, from the coprocessor, now.
func (c *Client) Switch(ctx context.Context) (*Switch, error) {
	return get[Switch](ctx, c, "/v1/switch")
}

// SetSwitch sets the frame size of ports of the switch. progress, which may be nil, is
// told of each port as it is decided. The document says of every port what stands, also
// when not all is as asked; an error says that nothing was begun, or that the daemon did
// not say how it ended.
//
// A run ends early, with its document, by InterruptSwitch.
func (c *Client) SetSwitch(ctx context.Context, in SetSwitch, progress func(SwitchPort)) (*SwitchRun, error) {
	b, err := json.Marshal(in)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	resp, err := c.send(ctx, http.MethodPut, "/v1/switch/jumbo", bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, c.refusal(resp, http.MethodPut, "/v1/switch/jumbo")
	}
	lines := bufio.NewScanner(io.LimitReader(resp.Body, maxAnswer))
	lines.Buffer(nil, maxAnswer)
	for lines.Scan() {
		var e SwitchEvent
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("decode answer of %s: %w", c.socket, err)
		}
		switch {
		case e.Run != nil:
			return e.Run, nil
		case e.Port != nil && progress != nil:
			progress(*e.Port)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read answer of %s: %w", c.socket, err)
	}
	return nil, fmt.Errorf("the daemon on %s ended before it said how the switch stands: %w", c.socket, io.ErrUnexpectedEOF)
}

// InterruptSwitch ends a run of SetSwitch at the next port; its caller gets the document.
func (c *Client) InterruptSwitch(ctx context.Context) error {
	return c.do(ctx, http.MethodDelete, "/v1/switch/jumbo", nil, new(struct{}))
}

// SwitchRegister reads one register of a device inside the switch.
func (c *Client) SwitchRegister(ctx context.Context, device string, register int) (*SwitchRegister, error) {
	return get[SwitchRegister](ctx, c, registerPath(device, register))
}

// WriteSwitchRegister writes one and reads it back. Some are never written.
func (c *Client) WriteSwitchRegister(ctx context.Context, device string, register, value int) (*SwitchRegister, error) {
	out := new(SwitchRegister)
	if err := c.do(ctx, http.MethodPut, registerPath(device, register), WriteRegister{Value: value, IKnow: true}, out); err != nil {
		return nil, err
	}
	return out, nil
}

func registerPath(device string, register int) string {
	return fmt.Sprintf("/v1/switch/registers/%s/%d", url.PathEscape(device), register)
}

// Check returns nil when every port is as asked, and otherwise why not.
func (r *SwitchRun) Check() error {
	switch {
	case r.OK:
		return nil
	case r.Failure != nil:
		return r.Failure
	}
	return errors.New("not every port of the switch is as asked")
}
