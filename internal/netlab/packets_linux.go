package netlab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"oxpd/internal/frame"
)

// Packets is a packet socket (AF_PACKET) on one interface: it takes every frame
// that arrives there, whatever becomes of it later, and sends frames as they are.
// Frames have no FCS. One goroutine may receive while another sends.
type Packets struct {
	sock *os.File
	raw  syscallConn
	buf  []byte // a frame, with room in front for the tag that the kernel took out
	oob  []byte
}

// syscallConn is the part of syscall.RawConn that Packets uses.
type syscallConn interface {
	Read(f func(fd uintptr) (done bool)) error
	Control(f func(fd uintptr)) error
}

const (
	packetBuffer = 64 << 20 // bytes that may wait to be received
	maxPacket    = 1 << 16
	oobBytes     = 256

	// packetIgnoreOutgoing is PACKET_IGNORE_OUTGOING of linux/if_packet.h.
	packetIgnoreOutgoing = 23
)

// Packets opens a packet socket on an interface of the namespace. Frames that the
// host itself sends there are not among those that it receives.
func (n *NS) Packets(name string) (*Packets, error) {
	l, err := n.Link(name)
	if err != nil {
		return nil, err
	}
	fd := -1
	err = n.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("netlab: open a packet socket: %w", err)
	}
	for _, o := range []struct{ level, option, value int }{
		{unix.SOL_PACKET, unix.PACKET_AUXDATA, 1},
		{unix.SOL_PACKET, packetIgnoreOutgoing, 1},
	} {
		if err := unix.SetsockoptInt(fd, o.level, o.option, o.value); err != nil {
			unix.Close(fd)
			return nil, fmt.Errorf("netlab: set option %d of the packet socket on %s: %w", o.option, name, err)
		}
	}
	// Where this is refused the kernel's own bound holds, and Lost counts.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, packetBuffer)
	all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: int(l.Index)}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("netlab: bind a packet socket to %s: %w", name, err)
	}
	p := &Packets{sock: os.NewFile(uintptr(fd), "packets of "+name), buf: make([]byte, frame.VLANSize+maxPacket), oob: make([]byte, oobBytes)}
	if p.raw, err = p.sock.SyscallConn(); err != nil {
		return nil, fmt.Errorf("netlab: wait for packets of %s: %w", name, errors.Join(err, p.sock.Close()))
	}
	return p, nil
}

// Send sends a frame as it is. The kernel takes up to MTU + 14 bytes and, of a
// frame that begins with a VLAN tag, MTU + 18 (EMSGSIZE beyond): packet_snd()
// lets every frame have 4 bytes more, and then asks
// packet_extra_vlan_len_allowed() whether it used them for a tag. That function
// of net/packet/af_packet.c accepts EtherType 0x8100 and no other: the 4 bytes
// were made for 802.1Q, and a frame with the service tag 0x88a8 has to fit into
// MTU + 14 with its tags.
func (p *Packets) Send(b []byte) error {
	if _, err := p.sock.Write(b); err != nil {
		return fmt.Errorf("netlab: send a frame of %d bytes: %w", len(b), err)
	}
	return nil
}

// Next waits for the next frame, whole and with its outer VLAN tag in its place:
// the kernel has taken it out and tells it beside the frame. The memory is valid
// until the call after. Errors: the context's; os.ErrClosed.
func (p *Packets) Next(ctx context.Context) ([]byte, error) {
	stop := context.AfterFunc(ctx, func() { _ = p.sock.SetReadDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() {
			_ = p.sock.SetReadDeadline(time.Time{})
		}
	}()
	var n, oobn, flags int
	var err error
	waitErr := p.raw.Read(func(fd uintptr) bool {
		n, oobn, flags, _, err = unix.Recvmsg(int(fd), p.buf[frame.VLANSize:], p.oob, 0)
		return !errors.Is(err, unix.EAGAIN)
	})
	switch {
	case waitErr != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case waitErr != nil: // the poller's own word for a closed file
		return nil, fmt.Errorf("netlab: receive a frame: %w: %v", os.ErrClosed, waitErr)
	case err != nil:
		return nil, fmt.Errorf("netlab: receive a frame: %w", err)
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		return nil, fmt.Errorf("netlab: receive a frame: longer than %d bytes, or more beside it than %d", maxPacket, oobBytes)
	}
	tag, err := outerTag(p.oob[:oobn])
	if err != nil {
		return nil, err
	}
	return restore(p.buf, n, tag), nil
}

// restore puts a tag back in front of the EtherType of a frame of n bytes that
// lies behind the room for it.
func restore(buf []byte, n int, tag []byte) []byte {
	const addresses = 12
	if tag == nil || n < addresses {
		return buf[frame.VLANSize : frame.VLANSize+n]
	}
	copy(buf, buf[frame.VLANSize:frame.VLANSize+addresses])
	copy(buf[addresses:], tag)
	return buf[:frame.VLANSize+n]
}

// outerTag finds the VLAN tag that the kernel took out of a frame (struct
// tpacket_auxdata), as it was on the wire; nil when there was none.
func outerTag(oob []byte) ([]byte, error) {
	const (
		status  = 0 // u32
		tci     = 16
		tpid    = 18
		auxSize = 20
	)
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("netlab: read what came beside a frame: %w", err)
	}
	for _, m := range msgs {
		if m.Header.Level != unix.SOL_PACKET || m.Header.Type != unix.PACKET_AUXDATA || len(m.Data) < auxSize {
			continue
		}
		s := binary.NativeEndian.Uint32(m.Data[status:])
		if s&unix.TP_STATUS_VLAN_VALID == 0 {
			return nil, nil
		}
		kind := uint16(frame.TypeVLAN)
		if s&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
			kind = binary.NativeEndian.Uint16(m.Data[tpid:])
		}
		tag := binary.BigEndian.AppendUint16(nil, kind)
		return binary.BigEndian.AppendUint16(tag, binary.NativeEndian.Uint16(m.Data[tci:])), nil
	}
	return nil, nil
}

// Lost is how many frames found the socket's buffer full since the last call.
func (p *Packets) Lost() (uint64, error) {
	var s *unix.TpacketStats
	var err error
	controlErr := p.raw.Control(func(fd uintptr) {
		s, err = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS)
	})
	if err = errors.Join(controlErr, err); err != nil {
		return 0, fmt.Errorf("netlab: read packet statistics: %w", err)
	}
	return uint64(s.Drops), nil
}

// Close closes the socket and ends a waiting Next.
func (p *Packets) Close() error { return p.sock.Close() }
