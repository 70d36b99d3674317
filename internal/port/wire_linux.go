package port

import "fmt"

// OpenWire creates the interface name with an MTU of up to 65,521 in the network
// namespace of path netns (empty: the process's own) and sets it up.
func OpenWire(name, netns string, mtu int) (*Wire, error) {
	t, l, err := openLink(name, netns)
	if err != nil {
		return nil, err
	}
	defer l.close()
	if err = l.setMTU(mtu); err == nil {
		err = l.setUp(true)
	}
	if err != nil {
		t.Close()
		return nil, fmt.Errorf("port: open wire %s with MTU %d: %w", name, mtu, err)
	}
	return &Wire{file: t.File(), name: name}, nil
}
