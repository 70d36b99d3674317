package pfiltest

import (
	"errors"
	"fmt"
	"net"
	"os/exec"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"oxpd/internal/netlab"
	"oxpd/internal/sys"
)

// TAP is an interface in a namespace of its own, and a packet socket on it. What is
// written to it comes in as if from a wire, before Run returns. Not safe for
// concurrent use.
type TAP struct {
	ns     *netlab.NS
	tap    *sys.TAP
	socket int
	room   []byte
}

const tapName = "pfil0"

// NewTAP needs CAP_NET_ADMIN and CAP_NET_RAW. Close ends it.
func NewTAP() (t *TAP, err error) {
	t = &TAP{socket: -1, room: make([]byte, 1<<16)}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.Close())
		}
	}()
	if t.ns, err = netlab.New(); err != nil {
		return t, err
	}
	if err = t.ns.Do(func() (err error) {
		t.tap, err = sys.OpenTAP(tapName)
		return err
	}); err != nil {
		return t, err
	}
	// Nothing but what is written to it: no router solicitations.
	if err = t.ns.Sysctl("ipv6/conf/"+tapName+"/disable_ipv6", "1"); err != nil {
		return t, err
	}
	if err = t.ns.SetUp(tapName, true); err != nil {
		return t, err
	}
	return t, t.ns.Do(t.listen)
}

func (t *TAP) listen() error {
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in network order
	ifi, err := net.InterfaceByName(tapName)
	if err != nil {
		return err
	}
	if t.socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return fmt.Errorf("pfiltest: open a packet socket: %w", err)
	}
	if err := unix.Bind(t.socket, &unix.SockaddrLinklayer{Protocol: all, Ifindex: ifi.Index}); err != nil {
		return fmt.Errorf("pfiltest: bind a packet socket: %w", err)
	}
	return nil
}

// Close removes the interface and its namespace.
func (t *TAP) Close() error {
	var errs []error
	if t.socket >= 0 {
		errs = append(errs, unix.Close(t.socket))
	}
	if t.tap != nil {
		errs = append(errs, t.tap.Close())
	}
	if t.ns != nil {
		errs = append(errs, t.ns.Close())
	}
	return errors.Join(errs...)
}

// Compile is the program that tcpdump makes of an expression for this interface: one
// that asks for VLAN tags beside the frame as well.
func (t *TAP) Compile(expression string) (text []byte, err error) {
	err = t.ns.Do(func() error {
		text, err = exec.Command("tcpdump", "-i", tapName, "-ddd", expression).Output()
		return err
	})
	return text, err
}

// Attach makes program the one that is run.
func (t *TAP) Attach(program []bpf.RawInstruction) error { return attach(t.socket, program) }

// Run tells whether the program takes a frame of at least 14 bytes.
func (t *TAP) Run(frame []byte) (bool, error) {
	if _, err := t.tap.Write(frame); err != nil {
		return false, fmt.Errorf("pfiltest: write %d bytes to the interface: %w", len(frame), err)
	}
	_, err := unix.Read(t.socket, t.room)
	if errors.Is(err, unix.EAGAIN) {
		return false, nil
	}
	return err == nil, err
}
