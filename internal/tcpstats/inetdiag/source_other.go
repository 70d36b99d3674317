//go:build !linux

package inetdiag

import (
	"context"
	"errors"
	"fmt"

	"oxpd/internal/board"
	"oxpd/internal/tcpstats"
)

// Config is what a Source needs.
type Config struct {
	NetNS string // path of the namespace whose sockets are read; empty: the process's own
	Ports func() [board.Ports]int
}

// Source is the kernel's TCP sockets, which only Linux tells this way.
type Source struct{}

// New makes a source.
func New(Config) *Source { return &Source{} }

// Open fails: errors.ErrUnsupported.
func (s *Source) Open(context.Context, *tcpstats.Query) (tcpstats.Cursor, error) {
	return nil, fmt.Errorf("inetdiag: %w", errors.ErrUnsupported)
}

type cursor struct {
	matcher tcpstats.Matcher
	fields  tcpstats.Groups
	format  tcpstats.Format
	tracing bool
	via     uint8
	route   *router
	socket  socket
	record  tcpstats.Record
	walked  tcpstats.Walked
}

type router struct{}

func (*router) of(*tcpstats.Ends, *socket) portSet { return 0 }
