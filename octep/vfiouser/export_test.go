package vfiouser

import (
	"net"

	"oxpd/internal/vfu"
)

// Reset asks for a function reset, which no code of the driver does.
func (d *Device) Reset() error {
	_, _, err := d.conn.call(vfu.Reset, nil)
	return err
}

// Ask sends a question and never reads its answer, as a process that dies.
func (d *Device) Ask(cmd vfu.Command, payload []byte) error {
	d.conn.mu.Lock()
	defer d.conn.mu.Unlock()
	return d.conn.send(cmd, 0, payload, nil)
}

// SamePath is samePath.
func SamePath(served, path string) bool { return samePath(served, path) }

// Raw is the socket, for halves of messages.
func (d *Device) Raw() *net.UnixConn { return d.conn.sock }
