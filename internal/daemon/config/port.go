package config

import (
	"fmt"
	"net"

	"go.yaml.in/yaml/v3"

	"oxpd/internal/board"
)

// Port are the settings of one port. A key that is not there leaves what is.
type Port struct {
	// MTU is asked for once the port is up; 0 leaves that of the LIF, board.DefaultMTU when it is new. It is never forced: with a known
	// switch.size it must fit.
	MTU int `yaml:"mtu,omitempty"`
	// Up sets port and interface up (true) or down (false). Without it the port is raised and its interface is left down.
	Up *bool `yaml:"up,omitempty"`
	// MAC is the address that card and interface have instead of the card's own: of one station, and of no other port. An address that
	// another port has in force is refused until that one has given it up, so two ports cannot swap theirs in one file.
	MAC *MAC `yaml:"mac,omitempty"`
	// Promisc makes the interface promiscuous (true), or takes that back (false); a bridge or a capture keeps it promiscuous all the same.
	Promisc *bool `yaml:"promisc,omitempty"`
}

// MAC is a station's address, written as 02:00:5e:00:53:01.
type MAC [6]byte

// String is the address as `ip link` shows it.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// UnmarshalYAML implements yaml.Unmarshaler.
func (m *MAC) UnmarshalYAML(n *yaml.Node) error {
	b, err := net.ParseMAC(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil || len(b) != len(m) {
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: %q is not a MAC address: want 02:00:5e:00:53:01", n.Line, n.Value)}}
	}
	*m = MAC(b)
	return nil
}

// MarshalYAML implements yaml.Marshaler.
func (m MAC) MarshalYAML() (any, error) { return m.String(), nil }

// check refuses an address that makes a port deaf (all zero), or is a group's.
func (m MAC) check() error {
	switch {
	case m == MAC{}:
		return fmt.Errorf("%v is no station's address", m)
	case m[0]&1 != 0:
		return fmt.Errorf("%v is a group address: want the address of one station, whose first byte is even", m)
	}
	return nil
}

// Port returns the settings of a port, the zero value when the file has none.
func (c Config) Port(p board.Port) Port {
	for k, v := range c.Ports {
		if q, err := board.Parse(k); err == nil && q.Index == p.Index {
			return v
		}
	}
	return Port{}
}

// Risks says what settings that are accepted may do: an MTU whose frames the switch
// may drop, as long as nobody has said what it passes; a switch to be set without a way
// to it, which only a simulated card has; a buffer of engines' sockets that cannot be.
func (c Config) Risks() (out []string) {
	if c.Switch.Jumbo != "" && c.Switch.Console == "" {
		out = append(out, "switch.jumbo: there is no switch.console, by which the switch of a real card is reached")
	}
	if w := c.Divert.Risk(); w != "" {
		out = append(out, w)
	}
	for _, k := range keys(c.Ports) {
		if p, err := board.Parse(k); err == nil {
			if w := c.SwitchLimit().Warning(p, c.Ports[k].MTU); w != "" {
				out = append(out, fmt.Sprintf("ports.%s.mtu: %s", k, w))
			}
		}
	}
	return out
}

// checkPorts refuses settings of ports that can never be.
func (c Config) checkPorts(bad func(path []string, format string, args ...any)) {
	seen, stations := map[string]string{}, map[MAC]string{}
	limit := c.SwitchLimit()
	for _, k := range keys(c.Ports) {
		path := []string{"ports", k}
		p, err := board.Parse(k)
		if err != nil {
			bad(path, "%v", err)
			continue
		}
		if first, ok := seen[p.Name]; ok {
			bad(path, "is %s, which is set as %q already", p, first)
		}
		seen[p.Name] = k
		s := c.Ports[k]
		if s.MTU != 0 {
			err := board.CheckMTU(s.MTU)
			if err == nil {
				err = limit.Check(p, s.MTU)
			}
			if err != nil {
				bad(append(path, "mtu"), "%v", err)
			}
		}
		if s.MAC != nil {
			err := s.MAC.check()
			if first, ok := stations[*s.MAC]; ok && err == nil {
				err = fmt.Errorf("%v is the address of %q already", s.MAC, first)
			}
			if err != nil {
				bad(append(path, "mac"), "%v", err)
			}
			stations[*s.MAC] = k
		}
	}
}
