package inetdiag

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"syscall"

	"golang.org/x/sys/unix"

	"oxpd/internal/board"
	"oxpd/internal/sys"
	"oxpd/internal/tcpstats"
)

const (
	// routeSlots is how many ways are remembered during a read.
	routeSlots    = 1 << routeSlotBits
	routeSlotBits = 12
	// linkDepth is how many interfaces may be stacked on a port: VLANs of a bridge of bonds.
	linkDepth = 8
)

// router knows the ports that sockets send by: of the interface that a socket is bound to,
// or of the kernel's route from its local to its remote address. It is one read's, and
// learns the interfaces once.
type router struct {
	fd    int
	seq   uint32
	links map[int]portSet
	ask   []byte
	room  [datagramBytes]byte

	slots [routeSlots]way
}

// wayKey is what the kernel is asked with.
type wayKey struct {
	localHi, localLo, remoteHi, remoteLo uint64
	bound, mark                          uint32
	six                                  bool
}

// way is an answer that is remembered.
type way struct {
	key   wayKey
	ports portSet
	known bool
}

// newRouter opens rtnetlink in the source's namespace and reads its interfaces.
func (s *Source) newRouter() (*router, error) {
	r := &router{fd: -1}
	err := sys.InNetNS(s.cfg.NetNS, func() (err error) {
		r.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("inetdiag: open rtnetlink: %w", err)
	}
	err = bound(r.fd)
	var links map[int]netLink
	if err == nil {
		links, err = r.interfaces()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("inetdiag: read interfaces: %w", err), unix.Close(r.fd))
	}
	var ports [board.Ports]int
	if s.cfg.Ports != nil {
		ports = s.cfg.Ports()
	}
	r.links = portsOf(links, ports)
	return r, nil
}

func (r *router) close() error { return unix.Close(r.fd) }

// of are the ports that a socket sends by. A listener, which has no other end, has those
// of the interface that it is bound to.
func (r *router) of(e *tcpstats.Ends, s *socket) portSet {
	k := wayKey{bound: binary.NativeEndian.Uint32(s.diag[diagIf:]), six: e.Family == tcpstats.FamilyIPv6}
	if k.bound != 0 {
		if ports, ok := r.links[int(k.bound)]; ok {
			return ports
		}
	}
	if e.State == tcpstats.Listen || e.RemoteHi|e.RemoteLo&^tcpstats.MappedWord == 0 {
		return 0
	}
	k.localHi, k.localLo, k.remoteHi, k.remoteLo = e.LocalHi, e.LocalLo, e.RemoteHi, e.RemoteLo
	if s.hasMark {
		k.mark = s.mark
	}
	slot := &r.slots[k.slot()]
	if !slot.known || slot.key != k {
		*slot = way{key: k, ports: r.lookUp(&k), known: true}
	}
	return slot.ports
}

// slot is where the answer is remembered, and another one's forgotten: addresses that differ
// in a few bits, of either end, are to be in different slots.
func (k *wayKey) slot() uint64 {
	h := uint64(k.bound)<<32 | uint64(k.mark)
	for _, word := range [...]uint64{k.localHi, k.localLo, k.remoteHi, k.remoteLo} {
		h = (h ^ h>>32 ^ word) * 0x9e3779b97f4a7c15
	}
	return h >> (64 - routeSlotBits)
}

// lookUp asks the kernel. A source address that it refuses is left out: one of a
// transparent proxy is not the host's. Without a route there is no port.
func (r *router) lookUp(k *wayKey) portSet {
	oif, err := r.route(k, true)
	if err != nil {
		oif, err = r.route(k, false)
	}
	if err != nil {
		return 0
	}
	return r.links[oif]
}

// Layouts of linux/rtnetlink.h and linux/if_link.h.
const (
	rtmSize  = 12 // struct rtmsg
	ifiSize  = 16 // struct ifinfomsg
	ifiIndex = 4

	rtaDst  = 1
	rtaSrc  = 2
	rtaOIF  = 4
	rtaMark = 16

	iflaLink     = 5
	iflaMaster   = 10
	iflaLinkInfo = 18
	iflaInfoKind = 1
	iflaNetNSID  = 37
)

// begin begins a request.
func (r *router) begin(kind, flags uint16, fixed int) {
	r.seq++
	r.ask = append(r.ask[:0], make([]byte, nlHeader+fixed)...)
	binary.NativeEndian.PutUint16(r.ask[nlType:], kind)
	binary.NativeEndian.PutUint16(r.ask[nlFlags:], flags)
	binary.NativeEndian.PutUint32(r.ask[8:], r.seq)
}

// attr adds an attribute, of a multiple of four bytes.
func (r *router) attr(kind uint16, value []byte) {
	r.ask = binary.NativeEndian.AppendUint16(r.ask, uint16(attrHeader+len(value)))
	r.ask = binary.NativeEndian.AppendUint16(r.ask, kind)
	r.ask = append(r.ask, value...)
}

func (r *router) send() error {
	binary.NativeEndian.PutUint32(r.ask, uint32(len(r.ask)))
	return unix.Sendto(r.fd, r.ask, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

// receive takes a datagram.
func (r *router) receive() ([]byte, error) {
	for {
		n, err := sys.Receive(r.fd, r.room[:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, err
		case n > len(r.room):
			return nil, ErrTruncated
		}
		return r.room[:n], nil
	}
}

// address is an address as the kernel takes it.
func (k *wayKey) address(hi, lo uint64) []byte {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], hi)
	binary.BigEndian.PutUint64(b[8:], lo)
	if k.six {
		return b[:]
	}
	return b[12:]
}

// route asks for the interface by which the kernel sends. Errors: the kernel's.
func (r *router) route(k *wayKey, withSource bool) (int, error) {
	const request = 0x1
	r.begin(unix.RTM_GETROUTE, request, rtmSize)
	m := r.ask[nlHeader:]
	m[0] = afINET
	size := byte(32)
	if k.six {
		m[0], size = afINET6, 128
	}
	m[1] = size // of the destination
	if withSource {
		m[2] = size
	}
	r.attr(rtaDst, k.address(k.remoteHi, k.remoteLo))
	if withSource {
		r.attr(rtaSrc, k.address(k.localHi, k.localLo))
	}
	if k.bound != 0 {
		r.attr(rtaOIF, binary.NativeEndian.AppendUint32(nil, k.bound))
	}
	if k.mark != 0 {
		r.attr(rtaMark, binary.NativeEndian.AppendUint32(nil, k.mark))
	}
	if err := r.send(); err != nil {
		return 0, err
	}
	for {
		b, err := r.receive()
		if err != nil {
			return 0, err
		}
		oif, ours, err := routeAnswer(b, r.seq)
		if ours || err != nil {
			return oif, err
		}
	}
}

// routeAnswer is the interface of an answer; ours is false for an answer to something
// else.
func routeAnswer(b []byte, seq uint32) (oif int, ours bool, err error) {
	for len(b) >= nlHeader {
		size := int(binary.NativeEndian.Uint32(b))
		if size < nlHeader || size > len(b) {
			return 0, true, ErrReply
		}
		kind, body := binary.NativeEndian.Uint16(b[nlType:]), b[nlHeader:size]
		if binary.NativeEndian.Uint32(b[8:]) == seq {
			switch {
			case kind == msgError && len(body) >= 4:
				return 0, true, &RefusedError{syscall.Errno(-int32(binary.NativeEndian.Uint32(body)))}
			case kind == unix.RTM_NEWROUTE && len(body) >= rtmSize:
				if v := nested(body[rtmSize:], rtaOIF); len(v) >= 4 {
					return int(binary.NativeEndian.Uint32(v)), true, nil
				}
			}
			return 0, true, fmt.Errorf("%w: no route in message type %d", ErrReply, kind)
		}
		b = b[min((size+nlAlign-1)&^(nlAlign-1), len(b)):]
	}
	return 0, false, nil
}

// netLink is an interface, as far as ports are concerned.
type netLink struct {
	lower  int // the one that it is a part of, in this namespace; 0: none
	master int // the bridge or bond that it is in; 0: none
}

// interfaces reads all interfaces of the namespace.
func (r *router) interfaces() (map[int]netLink, error) {
	const request, dump = 0x1, 0x300
	r.begin(unix.RTM_GETLINK, request|dump, ifiSize)
	if err := r.send(); err != nil {
		return nil, err
	}
	links := map[int]netLink{}
	for {
		b, err := r.receive()
		if err != nil {
			return nil, err
		}
		done, err := linksIn(b, r.seq, links)
		if done || err != nil {
			return links, err
		}
	}
}

// linksIn adds the interfaces of a datagram to links, and tells whether it was the last.
func linksIn(b []byte, seq uint32, links map[int]netLink) (done bool, err error) {
	for len(b) >= nlHeader {
		size := int(binary.NativeEndian.Uint32(b))
		if size < nlHeader || size > len(b) {
			return true, ErrReply
		}
		kind, body := binary.NativeEndian.Uint16(b[nlType:]), b[nlHeader:size]
		b = b[min((size+nlAlign-1)&^(nlAlign-1), len(b)):]
		switch {
		case kind == msgDone:
			return true, nil
		case kind == msgError && len(body) >= 4:
			return true, &RefusedError{syscall.Errno(-int32(binary.NativeEndian.Uint32(body)))}
		case kind != unix.RTM_NEWLINK || len(body) < ifiSize:
			continue
		}
		var l netLink
		attributes := body[ifiSize:]
		if v := nested(attributes, iflaMaster); len(v) >= 4 {
			l.master = int(binary.NativeEndian.Uint32(v))
		}
		switch string(name(nested(nested(attributes, iflaLinkInfo), iflaInfoKind))) {
		case "vlan", "macvlan", "macvtap", "ipvlan", "ipvtap":
			if v := nested(attributes, iflaLink); len(v) >= 4 && nested(attributes, iflaNetNSID) == nil {
				l.lower = int(binary.NativeEndian.Uint32(v))
			}
		}
		links[int(binary.NativeEndian.Uint32(body[ifiIndex:]))] = l
	}
	if len(b) > 0 {
		return true, io.ErrUnexpectedEOF
	}
	return false, nil
}

// portsOf finds for each interface the ports that are below it.
func portsOf(links map[int]netLink, ports [board.Ports]int) map[int]portSet {
	members := map[int][]int{}
	for index, l := range links {
		if l.master != 0 {
			members[l.master] = append(members[l.master], index)
		}
	}
	own := map[int]portSet{}
	for port, index := range ports {
		if index != 0 {
			own[index] |= 1 << port
		}
	}
	var below func(index, depth int) portSet
	below = func(index, depth int) portSet {
		set := own[index]
		if depth == linkDepth {
			return set
		}
		if lower := links[index].lower; lower != 0 {
			set |= below(lower, depth+1)
		}
		for _, m := range members[index] {
			set |= below(m, depth+1)
		}
		return set
	}
	out := make(map[int]portSet, len(links))
	for index := range links {
		out[index] = below(index, 0)
	}
	return out
}
