package rpc

import (
	"context"
	"fmt"

	"oxpd/internal/board"
	"oxpd/rpc/msg"
)

// minIfaces is how many interface ids the front ports need: 0 to 11.
const minIfaces = board.Ports

// Platform reads what the coprocessor says about the board. It has no side
// effect and is the first command after Configure.
func (c *Channel) Platform(ctx context.Context) (msg.Platform, error) {
	var reply [msg.PlatformSize]byte
	var p msg.Platform
	n, err := c.read(ctx, msg.CmdPlatformRead, msg.TableRead{Num: 1}, reply[:])
	if err != nil {
		return p, err
	}
	if err := p.Decode(reply[:n]); err != nil {
		return p, fmt.Errorf("rpc: %s: %w", msg.CmdPlatformRead, err)
	}
	return p, nil
}

// CheckBoard returns a *BoardError when p does not describe the board that the
// port table is for.
func CheckBoard(p msg.Platform) error {
	if p.Assembly != board.Assembly {
		return &BoardError{"assembly", board.Assembly, p.Assembly}
	}
	if p.MaxIfaces < minIfaces {
		return &BoardError{"max interfaces", fmt.Sprintf("at least %d", minIfaces), fmt.Sprint(p.MaxIfaces)}
	}
	return nil
}

// LIFRead reads one entry of the LIF table. How an empty one reads was never
// recorded: a short reply and forwarding mode 0 both mean absent
// (rpc-lif.md 5.5).
func (c *Channel) LIFRead(ctx context.Context, index uint32) (lif msg.LIF, present bool, err error) {
	var reply [2 * msg.LIFEntrySize]byte // a target that pads is understood
	n, err := c.read(ctx, msg.CmdLIFRead, msg.TableRead{Start: index, Num: 1, End: index}, reply[:])
	if err != nil || n < msg.LIFEntrySize {
		return msg.LIF{}, false, err
	}
	if err := lif.DecodeEntry(reply[:n]); err != nil {
		return msg.LIF{}, false, fmt.Errorf("rpc: %s: %w", msg.CmdLIFRead, err)
	}
	if lif.Fwd == msg.FwdFree {
		return msg.LIF{}, false, nil
	}
	return lif, true, nil
}

// LIFUpdate sends one LIF_ADD_UPDATE of 18 bytes. No error means rc 0, which is
// no proof: read the entry back (rpc-lif.md 5.6).
func (c *Channel) LIFUpdate(ctx context.Context, r msg.LIFUpdateReq) error {
	_, err := c.Call(ctx, msg.CmdLIFAddUpdate, r.Append(make([]byte, 0, msg.LIFSize)), nil)
	return err
}

// PPort binds a data-path tag to an interface id, both ways. The map cannot be
// read back.
func (c *Channel) PPort(ctx context.Context, p msg.PPort) error {
	_, err := c.Call(ctx, msg.CmdPPortUpdate, p.Append(make([]byte, 0, msg.PPortSize)), nil)
	return err
}

// SysCounters reads the fast path's counters by index (msg.CounterNames).
func (c *Channel) SysCounters(ctx context.Context, dst *[msg.CountersSys]uint64) error {
	return c.counters(ctx, msg.CmdSysCntRead, 0, dst[:])
}

// PortCounters reads the counters of the fast path's own ports, counter first:
// dst[msg.CounterPortRX][1] is what PortF1 received. Three commands, so the
// three rows are not of one instant.
func (c *Channel) PortCounters(ctx context.Context, dst *[msg.CountersPort][msg.CountersPortStride]uint64) error {
	for i := range dst {
		if err := c.counters(ctx, msg.CmdPortCntRead, uint32(i*msg.CountersPortStride), dst[i][:]); err != nil {
			return err
		}
	}
	return nil
}

func (c *Channel) counters(ctx context.Context, cmd msg.Command, first uint32, dst []uint64) error {
	reply := make([]byte, 8*len(dst))
	n, err := c.read(ctx, cmd, msg.TableRead{Start: first, Num: uint16(len(dst)), End: first + uint32(len(dst)) - 1}, reply)
	if err != nil {
		return err
	}
	if n != len(reply) {
		return fmt.Errorf("rpc: %s from %d: %w: %d bytes for %d counters", cmd, first, ErrMalformed, n, len(dst))
	}
	msg.DecodeCounters(dst, reply)
	return nil
}

func (c *Channel) read(ctx context.Context, cmd msg.Command, r msg.TableRead, reply []byte) (int, error) {
	return c.Call(ctx, cmd, r.Append(make([]byte, 0, msg.TableReadSize)), reply)
}
