package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"oxpd/internal/daemon/client"
	"oxpd/octep"
	"oxpd/octep/discover"
	"oxpd/octep/sysfs"
	"oxpd/octep/vfiouser"
)

// opens opens a card.
type opens func(context.Context) (octep.Device, error)

// opener returns what opens the card that --sim and --device name, or else the
// configuration, or else the only one of this machine; nil for a simulated one inside
// this process.
func opener(sim bool, device, configured, usage string) (opens, error) {
	switch {
	case sim && device != "":
		return nil, &usageError{errors.New("--sim and --device are two cards: give one of them"), usage}
	case sim:
		return nil, nil
	case device == "":
		device = configured
	}
	if path, ok := strings.CutPrefix(device, vfiouser.Scheme); ok {
		return socketOpener(device, path, usage)
	}
	name, err := pciName(device, usage)
	if err != nil {
		return nil, err
	}
	h := host()
	c, err := h.Find(name)
	if err != nil {
		return nil, noCard(err)
	}
	return func(context.Context) (octep.Device, error) {
		c, err := h.Card(c.Address) // as it is by now
		if err != nil {
			return nil, err
		}
		d, err := sysfs.Open(h, c)
		if err != nil {
			return nil, err // and no device that holds none
		}
		return d, nil
	}, nil
}

// pciName checks the name of a PCI function; empty stays empty.
func pciName(device, usage string) (string, error) {
	if device == "" {
		return "", nil
	}
	name, err := discover.ParseAddress(device)
	if err != nil {
		return "", &usageError{fmt.Errorf("%w, or vfio-user:PATH", err), usage}
	}
	return name, nil
}

func socketOpener(device, path, usage string) (opens, error) {
	if err := client.CheckSocket(path); err != nil {
		return nil, &usageError{fmt.Errorf("device %q: %w", device, err), usage}
	}
	return func(ctx context.Context) (octep.Device, error) {
		d, err := vfiouser.Open(ctx, path)
		if err != nil {
			return nil, err // and no device that holds none
		}
		return d, nil
	}, nil
}

// noCard adds what can be done without a card.
func noCard(err error) error {
	if errors.Is(err, discover.ErrNone) {
		return &hinted{err, "oxpd run --sim drives a simulated card, oxpd run --device vfio-user:PATH one of oxpd sim serve; lspci -nn shows what is on the bus"}
	}
	return err
}
