package nwa

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"oxpd/internal/board"
	"oxpd/rpc/msg"
)

// Payload sizes of the attributes' answers (rpc-lif.md 7.2).
const (
	stateBytes = 1
	macBytes   = 8
	speedBytes = 4
)

// WaitReady waits until the mailbox is published and NetAgent answers for a port,
// 40 s at most. Only ErrNotReady, ErrRestarted, ErrTimeout, ErrUnanswered and ErrRefused are
// worth another call.
func (a *Agent) WaitReady(ctx context.Context) error {
	probe := board.ByIndex(9).Tag // PortF2, the reference's choice
	start := a.clock.Now()
	for {
		waited := a.clock.Now() - start
		_, err := a.macBytes(ctx, probe)
		switch {
		case err == nil:
			return nil
		case !passes(err):
			return fmt.Errorf("nwa: wait for NetAgent: %w", err)
		case waited >= readyLimit:
			return fmt.Errorf("nwa: wait for NetAgent: %w after %v: %w", ErrTimeout, waited, err)
		}
		if err := a.clock.Sleep(ctx, min(readyPoll, readyLimit-waited)); err != nil {
			return fmt.Errorf("nwa: wait for NetAgent: %w", err)
		}
	}
}

// passes tells whether an error of a starting NetAgent may go away by itself.
func passes(err error) bool {
	for _, e := range []error{ErrNotReady, ErrRestarted, ErrTimeout, ErrUnanswered, ErrRefused} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Discover returns the port table: the front ports and the switch uplink, with
// the MAC's MTU (9,182), which is not the LIF's.
func (a *Agent) Discover(ctx context.Context) ([]msg.NWAPort, error) {
	reply := make([]byte, msg.DiscoverSize-msg.NWAReplyHdr)
	n, err := a.transact(ctx, msg.NWARequestMsg{Op: msg.OpDiscover}, reply)
	if err != nil {
		return nil, fmt.Errorf("nwa: discover: %w", err)
	}
	_, ports, err := msg.DecodeDiscover(reply[:n])
	if err != nil {
		return nil, fmt.Errorf("nwa: discover: %w: %w", ErrMalformed, err)
	}
	return ports, nil
}

// LinkUp tells whether the port has a link; attribute state reads the link and
// not what SetState wrote. After SetState a link needs one to two seconds.
func (a *Agent) LinkUp(ctx context.Context, tag board.Tag) (bool, error) {
	var p [stateBytes]byte
	if err := a.get(ctx, tag, msg.AttrState, p[:]); err != nil {
		return false, err
	}
	switch p[0] {
	case 0, 1:
		return p[0] == 1, nil
	}
	return false, fmt.Errorf("nwa: get %v of %v: %w", msg.AttrState, tag, a.bad("link is %d, want 0 or 1", p[0]))
}

// SetState raises or lowers a port.
func (a *Agent) SetState(ctx context.Context, tag board.Tag, up bool) error {
	return a.set(ctx, tag, msg.AttrState, flag(up))
}

// MAC returns the address of a port, in wire order. ErrNoMAC: all zero, which
// the port's address is until it is raised.
func (a *Agent) MAC(ctx context.Context, tag board.Tag) ([6]byte, error) {
	mac, err := a.macBytes(ctx, tag)
	switch {
	case err != nil:
		return [6]byte{}, err
	case mac == [6]byte{}:
		return mac, fmt.Errorf("nwa: get %v of %v: %w", msg.AttrMAC, tag, ErrNoMAC)
	case mac[0]&1 != 0:
		return [6]byte{}, fmt.Errorf("nwa: get %v of %v: %w", msg.AttrMAC, tag, a.bad("%x is a group address", mac))
	}
	return mac, nil
}

func (a *Agent) macBytes(ctx context.Context, tag board.Tag) (mac [6]byte, err error) {
	var p [macBytes]byte
	if err := a.get(ctx, tag, msg.AttrMAC, p[:]); err != nil {
		return mac, err
	}
	copy(mac[:], p[:])
	return mac, nil
}

// SetMAC tells NetAgent the port's address. It is what opens the switch's address
// filter: before it, only broadcast reaches the coprocessor.
func (a *Agent) SetMAC(ctx context.Context, tag board.Tag, mac [6]byte) error {
	var p [macBytes]byte
	copy(p[:], mac[:])
	return a.set(ctx, tag, msg.AttrMAC, [2]uint32{binary.LittleEndian.Uint32(p[0:]), binary.LittleEndian.Uint32(p[4:])})
}

// Speed returns the port's nominal speed in Mbit/s. It says the same with the
// link down; ask LinkUp first.
func (a *Agent) Speed(ctx context.Context, tag board.Tag) (mbps int, err error) {
	var p [speedBytes]byte
	if err := a.get(ctx, tag, msg.AttrSpeed, p[:]); err != nil {
		return 0, err
	}
	return int(binary.LittleEndian.Uint32(p[:])), nil
}

// SetPromisc switches the port's address filter off or on. Bridge members need
// it beside the L2 mode of their LIF.
func (a *Agent) SetPromisc(ctx context.Context, tag board.Tag, on bool) error {
	return a.set(ctx, tag, msg.AttrPromisc, flag(on))
}

// SetAllMulti lets every multicast address through, or not.
func (a *Agent) SetAllMulti(ctx context.Context, tag board.Tag, on bool) error {
	return a.set(ctx, tag, msg.AttrAllMulti, flag(on))
}

func flag(on bool) [2]uint32 {
	if on {
		return [2]uint32{1}
	}
	return [2]uint32{}
}

// get asks for an attribute whose answer has exactly len(p) bytes.
func (a *Agent) get(ctx context.Context, tag board.Tag, attr msg.Attr, p []byte) error {
	n, err := a.transact(ctx, msg.NWARequestMsg{Op: msg.OpGet, Sub: uint32(attr), Port: uint32(tag)}, p)
	if err == nil && n != len(p) {
		err = a.bad("answer of %d bytes, want %d", n, len(p))
	}
	if err != nil {
		return fmt.Errorf("nwa: get %v of %v: %w", attr, tag, err)
	}
	return nil
}

func (a *Agent) set(ctx context.Context, tag board.Tag, attr msg.Attr, payload [2]uint32) error {
	// Whether an accepted SET answers with a payload is not recorded; it is ignored.
	var ignored [64]byte
	_, err := a.transact(ctx, msg.NWARequestMsg{Op: msg.OpSet, Sub: uint32(attr), Port: uint32(tag), Payload: payload}, ignored[:])
	if err != nil {
		return fmt.Errorf("nwa: set %v of %v: %w", attr, tag, err)
	}
	return nil
}
