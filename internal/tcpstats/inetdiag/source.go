package inetdiag

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"syscall"

	"oxpd/internal/tcpstats"
)

// datagramBytes is the room for one reply: the kernel makes none that is larger, and cuts
// what does not fit.
const datagramBytes = 32 << 10

// Errors of a dump.
var (
	// ErrReply says that the kernel's reply was not understood.
	ErrReply = errors.New("reply of the kernel is not understood")
	// ErrTruncated says that a datagram was longer than the room for it.
	ErrTruncated = errors.New("reply of the kernel was cut")
)

// RefusedError is the kernel's refusal of a request.
type RefusedError struct{ Errno syscall.Errno }

func (e *RefusedError) Error() string { return "kernel refuses the request: " + e.Errno.Error() }
func (e *RefusedError) Unwrap() error { return e.Errno }

// reply goes through the messages of a datagram.
type reply struct {
	rest []byte
	seq  uint32 // of the request

	done         bool
	inconsistent bool
}

// next is the next message about a socket. ok is false at the end of the datagram, and of
// the dump (done). Messages of another request are passed over.
func (p *reply) next() (diag *[diagSize]byte, attributes []byte, ok bool, err error) {
	for len(p.rest) >= nlHeader {
		b := p.rest
		size := int(binary.NativeEndian.Uint32(b))
		if size < nlHeader || size > len(b) {
			p.rest = nil // nobody knows where the next one begins
			return nil, nil, false, fmt.Errorf("%w: a message of %d bytes where %d are left", ErrReply, size, len(b))
		}
		p.rest = b[min((size+nlAlign-1)&^(nlAlign-1), len(b)):]
		body := b[nlHeader:size]
		if binary.NativeEndian.Uint32(b[8:]) != p.seq {
			continue
		}
		if binary.NativeEndian.Uint16(b[nlFlags:])&flagDumpIntr != 0 {
			p.inconsistent = true
		}
		switch kind := binary.NativeEndian.Uint16(b[nlType:]); kind {
		case tcpDiagGetSock:
			if len(body) < diagSize {
				return nil, nil, false, fmt.Errorf("%w: a socket in %d bytes, want %d", ErrReply, len(body), diagSize)
			}
			return (*[diagSize]byte)(body), body[diagSize:], true, nil
		case msgDone, msgError:
			p.done = true
			if len(body) < 4 {
				return nil, nil, false, fmt.Errorf("%w: an end in %d bytes", ErrReply, len(body))
			}
			if n := int32(binary.NativeEndian.Uint32(body)); n < 0 {
				return nil, nil, false, &RefusedError{syscall.Errno(-n)}
			}
			if kind == msgError {
				continue // an acknowledgement, which nobody asked for
			}
			return nil, nil, false, nil
		case msgNoop:
		case msgOverrun:
			return nil, nil, false, fmt.Errorf("%w: data was lost", ErrReply)
		default:
			return nil, nil, false, fmt.Errorf("%w: message type %d", ErrReply, kind)
		}
	}
	if n := len(p.rest); n > 0 {
		p.rest = nil
		return nil, nil, false, fmt.Errorf("%w: %d bytes behind the last message", ErrReply, n)
	}
	return nil, nil, false, nil
}

// judge decides about one socket and, when it matches, appends its record to b.
func (c *cursor) judge(diag *[diagSize]byte, attributes []byte, b []byte) (out []byte, match bool) {
	c.walked.Visited++
	s := &c.socket
	s.diag = diag
	var e tcpstats.Ends
	if !s.ends(&e) {
		c.walked.Skipped[tcpstats.SkipState]++ // of a state, or a family, that nobody can ask for
		return b, false
	}
	why := c.matcher.Ask(&e)
	var ports portSet
	if why == tcpstats.Match && c.route != nil {
		s.attributes(attributes)
		ports = c.route.of(&e, s)
		if c.via != tcpstats.ViaAny && !ports.has(int(c.via)-1) {
			why = tcpstats.SkipVia
		}
	}
	if c.tracing {
		point := tcpstats.PointMatch
		if why != tcpstats.Match {
			point = tcpstats.PointSkip
		}
		tcpstats.Probe(context.Background(), point)
	}
	if why != tcpstats.Match {
		c.walked.Skipped[why]++
		return b, false
	}
	if c.route == nil {
		s.attributes(attributes)
	}
	s.fill(&c.record, &e, c.fields)
	if p, ok := ports.only(); ok {
		c.record.SetUint(tcpstats.FieldPort, uint64(p))
	}
	if c.tracing {
		tcpstats.Probe(context.Background(), tcpstats.PointFill)
	}
	c.walked.Appended++
	return c.record.Append(b, c.fields, c.format), true
}

// portSet is a set of ports, a bit for each index.
type portSet uint16

func (p portSet) has(port int) bool { return p>>port&1 != 0 }

// only is the only port of a set; ok is false when there are none or several.
func (p portSet) only() (port int, ok bool) {
	return bits.TrailingZeros16(uint16(p)), bits.OnesCount16(uint16(p)) == 1
}
