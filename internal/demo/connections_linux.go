package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"oxpd/internal/board"
	"oxpd/internal/netlab"
)

const (
	clampedMSS  = 1406    // what a peer behind a tunnel announces
	clampedSend = 1 << 20 // bytes
	timestamps  = 12      // bytes of them in each segment
)

// connection is what the demo looks at of a line of `oxpd tcpstats --json`.
type connection struct {
	Source    string `json:"source"`
	Port      string `json:"port"`
	SndMSS    int    `json:"snd_mss"`
	PeerMSS   int    `json:"peer_mss"`
	Diagnosis []struct {
		Cause string `json:"cause"`
		Text  string `json:"text"`
	} `json:"diagnosis"`
}

// connections asks why a transfer is no faster at 9,000 bytes, of a peer that has clamped
// the MSS: the host's socket and the flow at the port must both tell.
func connections(ctx context.Context, l *lab, r *reporter, p board.Port) (err error) {
	r.begin("tcpstats", "A transfer by %s at an MTU of 9,000 to a peer that announced an MSS of 1,406: why is it slow?", p.Label)
	if err := l.byCommand(ctx, p, board.MaxMTU, r); err != nil {
		return err
	}
	if err := l.oxpd(ctx, "tcpstats", "set", "flow=on"); err != nil {
		return err
	}
	ln, c, in, err := l.clamped(p)
	if err != nil {
		return err
	}
	defer ln.Close()
	defer c.Close()
	defer in.Close()
	done := make(chan error, 1)
	go func() {
		_, err := c.Write(make([]byte, clampedSend))
		done <- err
	}()
	for buf, n := make([]byte, 64<<10), 0; n < clampedSend; {
		k, err := in.Read(buf)
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		n += k
	}
	if err := <-done; err != nil {
		return fmt.Errorf("send: %w", err)
	}
	port := netip.MustParseAddrPort(ln.Addr().String()).Port()
	for _, s := range []struct {
		source string
		mss    int
	}{{"host", clampedMSS - timestamps}, {"flow", clampedMSS}} {
		source, mss := s.source, s.mss
		found, err := l.connectionsBy(ctx, fmt.Sprintf("source=%s via=%s remote_port=%d include_state=established", source, p.Name, port))
		if err != nil {
			return err
		}
		r.count("connections of source="+source, uint64(len(found)), 1)
		for i := range found {
			f := &found[i]
			r.check("it crosses", f.Port, p.Name)
			r.count("MSS: what the kernel uses, or what the peer announced", uint64(f.SndMSS+f.PeerMSS), uint64(mss))
			cause, text := "", ""
			if len(f.Diagnosis) > 0 {
				cause, text = f.Diagnosis[0].Cause, f.Diagnosis[0].Text
			}
			r.check("what its numbers show", cause, "mss-clamped")
			r.say("  %-*s  %s", wordWidth, "", text)
		}
	}
	if err := l.oxpd(ctx, "tcpstats", "set", "flow=off"); err != nil {
		return err
	}
	return l.byNetlink(ctx, p, board.DefaultMTU, r)
}

// clamped makes a connection from the host to a peer at a port's wire that announces a
// small MSS.
func (l *lab) clamped(p board.Port) (ln net.Listener, c, in net.Conn, err error) {
	small := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		if cerr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, clampedMSS) }); cerr != nil {
			return cerr
		}
		return err
	}}
	err = l.farOf(p).Do(func() (err error) {
		ln, err = small.Listen(context.Background(), "tcp4", netip.AddrPortFrom(farAddr(p), 0).String())
		return err
	})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("listen at the far side: %w", err)
	}
	if err = l.host.Do(func() (err error) { c, err = net.DialTimeout("tcp4", ln.Addr().String(), settleLimit); return err }); err != nil {
		ln.Close()
		return nil, nil, nil, fmt.Errorf("connect to the far side: %w", err)
	}
	if in, err = ln.Accept(); err != nil {
		ln.Close()
		c.Close()
		return nil, nil, nil, fmt.Errorf("accept: %w", err)
	}
	return ln, c, in, nil
}

// connectionsBy asks `oxpd tcpstats`, as its user would.
func (l *lab) connectionsBy(ctx context.Context, filter string) (all []connection, err error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	args := append([]string{"--socket", netlab.ChildFDPath(extraScratch) + "/" + socketName, "tcpstats", "--json"}, strings.Fields(filter)...)
	cmd := exec.CommandContext(ctx, l.exe, args...)
	cmd.ExtraFiles = []*os.File{extraScratch: l.scratch.File()}
	var talk bytes.Buffer
	cmd.Stderr = &talk
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("oxpd tcpstats %s: %w: %s", filter, err, bytes.TrimSpace(talk.Bytes()))
	}
	for _, line := range bytes.Split(bytes.TrimSpace(out), []byte("\n")) {
		var c connection
		if err := json.Unmarshal(line, &c); err != nil {
			return nil, fmt.Errorf("read oxpd tcpstats --json: %w", err)
		}
		if c.Source != "" {
			all = append(all, c)
		}
	}
	return all, nil
}
