package simcard

import (
	"fmt"

	"oxpd/hwsim/console"
	"oxpd/internal/daemon/config"
)

// OpenConsole gives the coprocessor its serial console, which ends with the board.
func (d *Board) OpenConsole(text string) error {
	spec, err := config.ParseConsole(text)
	if err != nil {
		return fmt.Errorf("simcard: console: %w", err)
	}
	o := console.Options{Link: spec.Link, NoEcho: spec.NoEcho, AskPassword: spec.Password, MDIOZero: spec.MDIOZero, Logger: d.log}
	if spec.Baud {
		o.Baud = console.Baud
	}
	c, err := console.New(d.Card, o)
	if err != nil {
		return fmt.Errorf("simcard: %w", err)
	}
	d.console = c
	d.stop = append(d.stop, c.Close)
	d.log.Info("console of the simulated coprocessor", "terminal", c.Path(), "link", spec.Link)
	return nil
}

// Console is the terminal of the coprocessor's serial console, "" without one.
func (d *Board) Console() string {
	if d.console == nil {
		return ""
	}
	return d.console.Path()
}
