package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"oxpd/internal/daemon/client"
	"oxpd/octep"
	"oxpd/octep/vfiouser"
)

// errNoCard says what this version cannot reach.
var errNoCard = errors.New("this version reaches no PCI device, only a simulated card")

// opens opens a card.
type opens func(context.Context) (octep.Device, error)

// opener returns what opens the card that --sim and --device name; nil for a
// simulated one inside this process.
func opener(sim bool, device, usage string) (opens, error) {
	switch {
	case sim && device != "":
		return nil, &usageError{errors.New("--sim and --device are two cards: give one of them"), usage}
	case sim:
		return nil, nil
	case device == "":
		return nil, &hinted{errNoCard, "oxpd run --sim, or oxpd run --device vfio-user:PATH with a card of oxpd sim serve"}
	}
	path, ok := strings.CutPrefix(device, vfiouser.Scheme)
	if !ok {
		return nil, &usageError{fmt.Errorf("device %q: want vfio-user:PATH", device), usage}
	}
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
