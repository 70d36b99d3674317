//go:build !linux || !amd64

package traps

import (
	"errors"
	"fmt"

	"oxpd/hwsim"
)

// Process is a program that drives a card.
type Process struct{}

// Start is for Linux on amd64.
func Start(*hwsim.Card, Options) (*Process, error) {
	return nil, fmt.Errorf("traps: %w", errors.ErrUnsupported)
}

// Wait waits for the end of the program.
func (p *Process) Wait() error { return errors.ErrUnsupported }

// Kill ends the program.
func (p *Process) Kill() {}

// Done is closed at the end of the program.
func (p *Process) Done() <-chan struct{} { return nil }
