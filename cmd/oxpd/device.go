package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/internal/fdstore"
	"oxpd/octep"
	"oxpd/octep/discover"
	"oxpd/octep/sysfs"
	"oxpd/octep/vfio"
	"oxpd/octep/vfiouser"
)

// opens opens a card, or goes on with one that a store has kept.
type opens func(context.Context, *fdstore.Store, *slog.Logger) (octep.Device, error)

// source is where a card comes from.
type source struct {
	name string // of the device that open returns
	open opens
}

// choice is what the flags of oxpd run say about the card.
type choice struct {
	sim         bool
	device      string
	acceptReset bool
	faults      []string
}

// opener returns what opens the card that the flags name, or else the configuration, or
// else the only one of this machine; nil for a simulated one inside this process.
func opener(flags choice, cfg config.Config, usage string) (*source, error) {
	device := flags.device
	switch {
	case flags.sim && device != "":
		return nil, &usageError{errors.New("--sim and --device are two cards: give one of them"), usage}
	case len(flags.faults) > 0 && !flags.sim:
		return nil, &usageError{errors.New("--fault is about the simulated card: give --sim, or give it to oxpd sim serve"), usage}
	case flags.acceptReset && (flags.sim || cfg.Access != config.AccessVFIO):
		return nil, &usageError{errors.New("--i-accept-reset is about a card that is reached with access: vfio"), usage}
	case flags.sim:
		return nil, nil
	case device == "":
		device = cfg.Device
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
	return &source{c.Address, func(ctx context.Context, store *fdstore.Store, _ *slog.Logger) (octep.Device, error) {
		c, err := h.Card(c.Address) // as it is by now
		if err != nil {
			return nil, err
		}
		if cfg.Access == config.AccessVFIO {
			return opened(openVFIO(ctx, h, c, store, flags.acceptReset))
		}
		return opened(sysfs.Open(h, c))
	}}, nil
}

// keeping is a store, as far as a card behind vfio uses it: *fdstore.Store.
type keeping interface {
	vfio.Store
	Came(name string) bool
	Take(name string) (fd int, ok bool)
	Remove(name string) error
	Settle(ctx context.Context) error
}

// openVFIO opens the card by vfio, or goes on with that of the process before. One that
// died while it left its descriptors had told the card nothing yet: what came is thrown
// away, and gone before the card is opened, which one process alone may have open.
//
// Errors: *vfio.ResetError, *vfio.OpenError, *vfio.AdoptError.
func openVFIO(ctx context.Context, h discover.Host, c *discover.Card, store keeping, acceptReset bool) (*vfio.Device, error) {
	o := vfio.Options{AcceptReset: acceptReset, Store: store}
	if store.Came(vfio.KeptDevice) {
		return vfio.Adopt(c, o, store.Take)
	}
	if slices.ContainsFunc(vfio.Kept(), store.Came) {
		var errs []error
		for _, name := range vfio.Kept() {
			errs = append(errs, store.Remove(name))
		}
		if err := errors.Join(append(errs, store.Settle(ctx))...); err != nil {
			return nil, err
		}
	}
	return vfio.Open(ctx, h, c, o)
}

// opened is d, and no device that holds none.
func opened[D octep.Device](d D, err error) (octep.Device, error) {
	if err != nil {
		return nil, err
	}
	return d, nil
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

func socketOpener(device, path, usage string) (*source, error) {
	if err := client.CheckSocket(path); err != nil {
		return nil, &usageError{fmt.Errorf("device %q: %w", device, err), usage}
	}
	return &source{device, func(ctx context.Context, store *fdstore.Store, log *slog.Logger) (octep.Device, error) {
		return opened(openSocket(ctx, path, store, log))
	}}, nil
}

// openSocket opens the card at a socket, or goes on with that of the process before. One
// that has ended since leaves nothing to go on with: the next is a fresh one.
//
// Errors: *vfiouser.OpenError, *vfiouser.AdoptError.
func openSocket(ctx context.Context, path string, store *fdstore.Store, log *slog.Logger) (*vfiouser.Device, error) {
	if !store.Came(vfiouser.KeptConn) {
		return vfiouser.Open(ctx, path)
	}
	d, err := vfiouser.Adopt(ctx, path, store.Take)
	var kept *vfiouser.AdoptError
	if !errors.As(err, &kept) || !kept.Ended {
		return d, err
	}
	log.Warn("the card of the process before has ended", "path", path, "err", err)
	if err := errors.Join(store.Remove(vfiouser.KeptConn), store.Remove(vfiouser.KeptMemory)); err != nil {
		return nil, err
	}
	return vfiouser.Open(ctx, path)
}

// noCard adds what can be done without a card.
func noCard(err error) error {
	if errors.Is(err, discover.ErrNone) {
		return &hinted{err, "oxpd run --sim drives a simulated card, oxpd run --device vfio-user:PATH one of oxpd sim serve; lspci -nn shows what is on the bus"}
	}
	return err
}
