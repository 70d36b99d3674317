package guest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/netlab"
	"oxpd/internal/port"
	"oxpd/octep/csr"
	"oxpd/rpc/msg"
)

// What is at the other end of PortF1's wire: a kernel of its own, which answers pings by
// itself, and a service that does for the guest what only the host can. Inside has the
// same addresses.
const (
	farAddress   = "10.77.0.2/24"
	guestAddress = "10.77.0.1"
	farService   = "10.77.0.2:7"
	farMTU       = 9100 // sends what no port of the card takes
	pingLimit    = 2 * time.Second
)

// far is that end.
type far struct {
	ns   *netlab.NS
	card *hwsim.Card
	ln   net.Listener
	work sync.WaitGroup
	ctx  context.Context
	busy atomic.Int32 // connections
}

// portF1 is the port that the wire is at.
func portF1() board.Port {
	p, _ := board.Parse("F1")
	return p
}

// newFar makes the end, until the test does.
func newFar(t *testing.T, card *hwsim.Card) *far {
	t.Helper()
	ns, err := netlab.New()
	require.NoError(t, err)
	wire, err := port.OpenWire("far", netlab.FDPath(int(ns.File().Fd())), farMTU)
	require.NoError(t, err)
	unplug := card.Wire(uint16(portF1().Tag)).Attach(wire)
	require.NoError(t, ns.AddAddr("far", netip.MustParsePrefix(farAddress)))
	ctx, cancel := context.WithCancel(context.Background())
	f := &far{ns: ns, card: card, ctx: ctx}
	require.NoError(t, ns.Do(func() (err error) {
		f.ln, err = net.Listen("tcp4", farService)
		return err
	}))
	f.work.Add(1)
	go f.serve()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, f.ln.Close())
		f.work.Wait()
		unplug()
		assert.NoError(t, ns.Close())
	})
	return f
}

// serve serves one connection after the other.
func (f *far) serve() {
	defer f.work.Done()
	for {
		c, err := f.ln.Accept()
		if err != nil {
			return
		}
		f.work.Add(1)
		f.busy.Add(1)
		go func() {
			defer f.work.Done()
			defer f.busy.Add(-1)
			stop := context.AfterFunc(f.ctx, func() { _ = c.Close() })
			defer stop()
			defer c.Close()
			r := bufio.NewReader(c)
			for {
				line, err := r.ReadString('\n')
				if err != nil || f.do(strings.TrimSpace(line), r, c) != nil {
					return
				}
			}
		}()
	}
}

// do does what a line asks for and answers with one.
func (f *far) do(line string, r io.Reader, w io.Writer) error {
	var n int
	answer := "ok"
	switch what, number, _ := strings.Cut(line, " "); {
	case what == "refused":
		answer = fmt.Sprint(f.card.Counter(msg.CntDropMTUExceeded))
	case what == "once": // what is done once in a boot
		answer = once(f.card)
	case numbered(number, &n) != nil:
		answer = "what? " + line
	case what == "ping": // the guest, with n bytes
		switch _, err := f.ns.Ping(f.ctx, netip.MustParseAddr(guestAddress), n, pingLimit); {
		case errors.Is(err, netlab.ErrNoReply):
			answer = "no reply"
		case err != nil:
			answer = err.Error()
		}
	case what == "echo": // n bytes that follow
		b := make([]byte, n)
		if _, err := io.ReadFull(r, b); err != nil {
			return err
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
	case what == "stream": // n bytes that follow, as they come
		if _, err := io.CopyN(w, r, int64(n)); err != nil {
			return err
		}
	case what == "lose": // the card, for n milliseconds
		f.work.Add(1)
		go func() {
			defer f.work.Done()
			time.Sleep(100 * time.Millisecond) // the answer goes through the card
			f.card.Kill()
			time.Sleep(time.Duration(n) * time.Millisecond)
			f.card.Reboot()
		}()
	}
	_, err := fmt.Fprintln(w, answer)
	return err
}

// once counts the handshakes that were offered and the stores to base addresses of rings.
func once(card *hwsim.Card) string {
	offers, bases := 0, uint64(0)
	for _, w := range card.HandshakeWrites() {
		if w.Value == csr.HostLoaded {
			offers++
		}
	}
	for reg, n := range card.Accesses() {
		if strings.HasPrefix(reg, "IN_INSTR_BADDR[") || strings.HasPrefix(reg, "OUT_SLIST_BADDR[") {
			bases += n.Writes
		}
	}
	return fmt.Sprintf("%d handshakes, %d base addresses", offers, bases)
}

func numbered(s string, n *int) error {
	_, err := fmt.Sscan(s, n)
	return err
}
