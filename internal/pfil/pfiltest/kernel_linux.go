package pfiltest

import (
	"errors"
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Kernel runs classic BPF programs in the kernel. Not safe for concurrent use.
type Kernel struct {
	from, to int // a pair of sockets; the filter is on to
	room     []byte
}

// NewKernel needs no privilege. Close ends it.
func NewKernel() (*Kernel, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("pfiltest: make a pair of sockets: %w", err)
	}
	return &Kernel{pair[0], pair[1], make([]byte, 1<<16)}, nil
}

// Close closes the sockets.
func (k *Kernel) Close() error { return errors.Join(unix.Close(k.from), unix.Close(k.to)) }

// Attach makes program the one that is run. EINVAL (errors.Is): the kernel refuses it.
func (k *Kernel) Attach(program []bpf.RawInstruction) error { return attach(k.to, program) }

func attach(socket int, program []bpf.RawInstruction) error {
	if len(program) == 0 || len(program) > 1<<16-1 {
		return unix.EINVAL
	}
	filter := make([]unix.SockFilter, len(program))
	for i, in := range program {
		filter[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	return unix.SetsockoptSockFprog(socket, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}

// Run sends packet and tells how many of its bytes came through: as many as the
// program returns, and at most all; 0 when it returns 0.
func (k *Kernel) Run(packet []byte) (int, error) {
	if err := unix.Send(k.from, packet, 0); err != nil {
		return 0, fmt.Errorf("pfiltest: send %d bytes: %w", len(packet), err)
	}
	n, err := unix.Read(k.to, k.room)
	if errors.Is(err, unix.EAGAIN) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("pfiltest: receive: %w", err)
	}
	return n, nil
}

// WireLength puts a length on the wire into a program's loads of it: what is left
// sees only the bytes at hand. ok: there are such loads.
func WireLength(program []bpf.RawInstruction, bytes int) (out []bpf.RawInstruction, ok bool) {
	const loadLen, loadXLen, loadImm, loadXImm = 0x80, 0x81, 0x00, 0x01
	out = append(out, program...)
	for i := range out {
		switch in := &out[i]; in.Op {
		case loadLen:
			in.Op, in.K, ok = loadImm, uint32(bytes), true
		case loadXLen:
			in.Op, in.K, ok = loadXImm, uint32(bytes), true
		}
	}
	return out, ok
}

// Judge tells of each frame how many bytes the kernel keeps by program.
func (k *Kernel) Judge(program []bpf.RawInstruction, frames []Frame) ([]int, error) {
	kept := make([]int, len(frames))
	wire := -1
	for i, f := range frames {
		if f.Wire != wire {
			fixed, needs := WireLength(program, f.Wire)
			if needs || wire < 0 {
				if err := k.Attach(fixed); err != nil {
					return nil, fmt.Errorf("pfiltest: attach: %w", err)
				}
			}
			wire = f.Wire
		}
		var err error
		if kept[i], err = k.Run(f.Bytes); err != nil {
			return nil, err
		}
	}
	return kept, nil
}
