package netlab

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNoReply says that an echo request was sent and not answered in time.
var ErrNoReply = errors.New("netlab: no echo reply")

// Sizes and types of ICMP echo messages (RFC 792) and of IPv4's header.
const (
	icmpEchoReply   = 0
	icmpEchoRequest = 8
	icmpHeader      = 8 // type, code, checksum, identifier, sequence
	ipv4MinHeader   = 20
)

// Ping sends one ICMP echo request with dataBytes of data and the DF bit, whole:
// the path's MTU is neither learned nor obeyed (IP_PMTUDISC_PROBE), so that a
// frame that is too long reaches whoever has to refuse it. It returns the round
// trip of the reply, whose data must equal the request's.
//
// ErrNoReply after timeout; EMSGSIZE when dataBytes exceeds the sending
// interface's MTU; the context's error when it ends first.
func (n *NS) Ping(ctx context.Context, to netip.Addr, dataBytes int, timeout time.Duration) (time.Duration, error) {
	sock, err := n.icmpSocket(to)
	if err != nil {
		return 0, fmt.Errorf("netlab: ping %s: %w", to, err)
	}
	defer sock.Close()
	stop := context.AfterFunc(ctx, func() { _ = sock.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	request := echoRequest(uint16(n.ids.Add(1)), dataBytes)
	start := time.Now()
	if err := sock.SetDeadline(start.Add(timeout)); err != nil {
		return 0, fmt.Errorf("netlab: ping %s: %w", to, err)
	}
	if _, err := sock.Write(request); err != nil {
		return 0, fmt.Errorf("netlab: ping %s with %d bytes: %w", to, dataBytes, err)
	}
	buf := make([]byte, 1<<16)
	for {
		got, err := sock.Read(buf)
		switch {
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case errors.Is(err, os.ErrDeadlineExceeded):
			return 0, fmt.Errorf("%w from %s to %d bytes of data in %v", ErrNoReply, to, dataBytes, timeout)
		case err != nil:
			return 0, fmt.Errorf("netlab: ping %s: %w", to, err)
		case isReply(buf[:got], request):
			return time.Since(start), nil
		}
	}
}

// icmpSocket opens a non-blocking raw socket connected to an address.
func (n *NS) icmpSocket(to netip.Addr) (*os.File, error) {
	fd := -1
	err := n.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_ICMP)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open an ICMP socket: %w", err)
	}
	sock := os.NewFile(uintptr(fd), "icmp")
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE); err != nil {
		return nil, errors.Join(fmt.Errorf("set DF: %w", err), sock.Close())
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.As4()}); err != nil {
		return nil, errors.Join(err, sock.Close())
	}
	return sock, nil
}

// echoRequest builds a request with a data pattern that depends on its place.
func echoRequest(id uint16, dataBytes int) []byte {
	b := make([]byte, icmpHeader+dataBytes)
	b[0] = icmpEchoRequest
	binary.BigEndian.PutUint16(b[4:], id)
	for i := range b[icmpHeader:] {
		b[icmpHeader+i] = byte(i ^ i>>8)
	}
	binary.BigEndian.PutUint16(b[2:], checksum(b))
	return b
}

// isReply tells whether an IPv4 packet is the whole and right answer to request.
func isReply(packet, request []byte) bool {
	if len(packet) < ipv4MinHeader {
		return false
	}
	header := int(packet[0]&0xf) * 4
	if len(packet) != header+len(request) {
		return false
	}
	b := packet[header:]
	return b[0] == icmpEchoReply && bytes.Equal(b[4:], request[4:])
}

// checksum is the Internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
