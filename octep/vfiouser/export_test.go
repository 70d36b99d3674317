package vfiouser

import "oxpd/internal/vfu"

// Reset asks for a function reset, which no code of the driver does.
func (d *Device) Reset() error {
	_, _, err := d.conn.call(vfu.Reset, nil)
	return err
}
