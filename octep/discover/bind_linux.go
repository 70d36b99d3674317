package discover

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Bind gives the card to a kernel driver: driver_override, the driver that has it is
// unbound, drivers_probe, and a look at who has it now. It tells whether anything
// changed. vfio-pci must have been loaded with disable_idle_d3 and find no way to
// reset the card, or acceptReset must say that this is known.
//
// Errors: *BindError, around ErrBusy, ErrReset, fs.ErrNotExist for a driver that is
// not loaded, fs.ErrPermission; those of Find.
func (h Host) Bind(name, driver string, acceptReset bool) (c *Card, changed bool, err error) {
	c, err = h.Find(name)
	if err != nil {
		return nil, false, err
	}
	fail := func(err error, do string) (*Card, bool, error) {
		return c, false, &BindError{c.Address, driver, c.Driver, err, do}
	}
	if driver == "" || driver != filepath.Base(driver) || driver == "." || driver == ".." {
		return fail(fmt.Errorf("%q is no name of a driver", driver), "")
	}
	if _, err := os.Stat(filepath.Join(h.Sys, "bus/pci/drivers", driver)); err != nil {
		load := "modprobe " + driver
		if driver == VFIO {
			load += " disable_idle_d3=1"
		}
		return fail(err, load)
	}
	if c.Driver == driver && c.Override == driver {
		return c, false, nil
	}
	if driver == VFIO && !acceptReset {
		if missing := h.Resets(c); len(missing) > 0 {
			return fail(ErrReset, Commands(missing)+"; or --i-accept-reset")
		}
	}
	unlock, err := lock(c)
	if err != nil {
		return fail(err, "stop it first: oxpd stop")
	}
	defer unlock()
	if err := h.handOver(c, driver); err != nil {
		return fail(errors.Join(err, h.setOverride(c, c.Override)), hintOf(err))
	}
	now, err := h.Card(c.Address)
	if err != nil {
		return c, true, err
	}
	if now.Driver != driver {
		err := h.setOverride(c, c.Override) // as it was found
		return now, true, &BindError{c.Address, driver, now.Driver, err, "dmesg says why"}
	}
	return now, true, nil
}

// handOver lets go of the driver that has the card, and has the kernel look for one
// anew. An empty driver is none.
func (h Host) handOver(c *Card, driver string) error {
	if err := h.setOverride(c, driver); err != nil {
		return err
	}
	if c.Driver != "" && c.Driver != driver {
		if err := h.put(filepath.Join(c.dir, "driver/unbind"), c.Address); err != nil {
			return err
		}
	}
	if driver == "" || c.Driver == driver {
		return nil
	}
	return h.put(filepath.Join(h.Sys, "bus/pci/drivers_probe"), c.Address)
}

// Resets returns which conditions are missing under which vfio-pci leaves a function
// alone that it gets, or that is opened.
func (h Host) Resets(c *Card) (missing []Condition) {
	if h.text(h.Sys, "module/vfio_pci/parameters/disable_idle_d3") != "Y" {
		missing = append(missing, Condition{
			"vfio-pci sends a function to sleep (D3hot) that nobody has open",
			"modprobe -r vfio-pci; modprobe vfio-pci disable_idle_d3=1",
		})
	}
	if m := h.text(c.dir, "reset_method"); m != "" {
		missing = append(missing, Condition{
			"vfio-pci resets a function that is opened (reset_method: " + m + ")",
			"echo > /sys/bus/pci/devices/" + c.Address + "/reset_method",
		})
	}
	return missing
}

// Unbind takes the card away from whatever kernel driver has it, and lets the kernel
// choose again by itself when one comes. It tells whether anything changed.
//
// Errors: those of Bind.
func (h Host) Unbind(name string) (c *Card, changed bool, err error) {
	c, err = h.Find(name)
	if err != nil {
		return nil, false, err
	}
	if c.Driver == "" && c.Override == "" {
		return c, false, nil
	}
	fail := func(err error, do string) (*Card, bool, error) {
		return c, false, &BindError{c.Address, "", c.Driver, err, do}
	}
	unlock, err := lock(c)
	if err != nil {
		return fail(err, "stop it first: oxpd stop")
	}
	defer unlock()
	if err := h.handOver(c, ""); err != nil {
		return fail(err, hintOf(err))
	}
	now, err := h.Card(c.Address)
	if err != nil {
		return c, true, err
	}
	if now.Driver != "" {
		return now, true, &BindError{c.Address, "", now.Driver, nil, "dmesg says why"}
	}
	return now, true, nil
}

// setOverride names the only driver that may have the card; empty: none is named. It
// reads it back.
func (h Host) setOverride(c *Card, driver string) error {
	at := filepath.Join(c.dir, "driver_override")
	if override(h.text(at)) == driver {
		return nil
	}
	if err := h.put(at, driver+"\n"); err != nil {
		return err
	}
	if got := override(h.text(at)); got != driver {
		return fmt.Errorf("driver_override of %s: wrote %q, reads %q", c.Address, driver, got)
	}
	return nil
}

// put writes a file of sysfs in one write. It makes none.
func (h Host) put(path, text string) error {
	if h.write != nil {
		return h.write(path, text)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

func hintOf(err error) string {
	if errors.Is(err, fs.ErrPermission) {
		return "run it as root (sudo)"
	}
	return ""
}

// lock keeps a process that drives the card by sysfs out, and is kept out by one.
func lock(c *Card) (unlock func(), err error) {
	f, err := os.Open(filepath.Join(c.dir, "config"))
	if err != nil {
		return nil, err
	}
	if err := Lock(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil // nothing was written
}

// Lock claims the card for this process by its config file, as long as that is open.
// Error: ErrBusy.
func Lock(config *os.File) error {
	err := unix.Flock(int(config.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrBusy
	}
	return os.NewSyscallError("flock", err)
}
