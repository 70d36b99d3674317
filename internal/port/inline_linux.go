package port

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"oxpd/internal/sys"
)

// packetSockets lists the packet sockets of the reading thread's namespace.
const packetSockets = "/proc/thread-self/net/packet"

// Inline is two TAP interfaces with an inspection engine between them. Safe for
// concurrent use.
type Inline struct {
	cfg   InlineConfig
	log   *slog.Logger
	sides [2]inlineSide

	mu     sync.Mutex // the interfaces' settings
	closed bool
}

type inlineSide struct {
	name string
	file *os.File
	link *netlinkLink
}

// OpenInline makes the two interfaces, or neither: up, with InlineMTU, without ARP and
// IPv6, so that the host's own network answers nothing there. Errors: sys.ErrExists, the
// kernel's.
func OpenInline(cfg InlineConfig) (*Inline, error) {
	i := &Inline{cfg: cfg, log: cfg.Log}
	if i.log == nil {
		i.log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	for s, name := range cfg.Names {
		t, l, err := openLink(name, cfg.NetNS)
		if err != nil {
			i.close()
			return nil, err
		}
		i.sides[s] = inlineSide{name: name, file: t.File(), link: l}
	}
	if err := i.prepare(); err != nil {
		i.close()
		return nil, fmt.Errorf("port: open %s and %s: %w", cfg.Names[0], cfg.Names[1], err)
	}
	return i, nil
}

// prepare sets everything before the interfaces come up.
func (i *Inline) prepare() error {
	for _, s := range i.sides {
		if err := s.link.setMTU(InlineMTU); err != nil {
			return err
		}
		if err := s.link.setQueue(inlineQueue); err != nil {
			return err
		}
		if err := s.link.setFlag(unix.IFF_NOARP, true); err != nil {
			return err
		}
		err := sys.InNetNS(i.cfg.NetNS, func() error {
			// Without IPv6 in the kernel there is no such file.
			return errors.Join(setting("ipv6/conf/"+s.name+"/disable_ipv6"), setting("ipv4/conf/"+s.name+"/rp_filter"))
		})
		if err != nil {
			return err
		}
	}
	for _, s := range i.sides {
		if err := s.link.setUp(true); err != nil {
			return err
		}
	}
	return nil
}

// setting switches one of the kernel's network settings on.
func setting(name string) error {
	err := os.WriteFile("/proc/sys/net/"+name, []byte("1"), 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Files are the interfaces' files on the runtime's poller, in the order of the names: one
// frame a call. They are closed by Close.
func (i *Inline) Files() [2]*os.File { return [2]*os.File{i.sides[0].file, i.sides[1].file} }

// Watch puts back an MTU that somebody else has set, and says so, until ctx ends, which
// is no error.
func (i *Inline) Watch(ctx context.Context) error {
	mine := func(index int) bool { return index == i.sides[0].link.index || index == i.sides[1].link.index }
	err := Watch(ctx, WatchConfig{NetNS: i.cfg.NetNS, Filter: mine}, func(l Link) {
		if !l.Gone {
			i.putBack(l)
		}
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// putBack looks at the interface as it is now: what was reported may have been one of ours
// on its way.
func (i *Inline) putBack(l Link) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return
	}
	for s := range i.sides {
		side := &i.sides[s]
		if side.link.index != l.Index {
			continue
		}
		now, err := side.link.state()
		if err != nil || now.MTU == InlineMTU {
			continue
		}
		if err := side.link.setMTU(InlineMTU); err != nil {
			i.log.Error("somebody set the MTU of an inspection interface, and it cannot be put back", "interface", side.name, "found", now.MTU, "want", InlineMTU, "err", err)
			continue
		}
		i.log.Warn("somebody set the MTU of an inspection interface, which is always the same", "interface", side.name, "found", now.MTU, "put_back", InlineMTU)
	}
}

// Attached tells whether a packet socket, which is how engines read an interface, is open
// on both.
func (i *Inline) Attached() (bool, error) {
	var text []byte
	err := sys.InNetNS(i.cfg.NetNS, func() (err error) {
		text, err = os.ReadFile(packetSockets)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("port: look for packet sockets: %w", err)
	}
	have := packetIndexes(text)
	return have[i.sides[0].link.index] && have[i.sides[1].link.index], nil
}

// Close removes both interfaces.
func (i *Inline) Close() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return ErrClosed
	}
	return i.close()
}

func (i *Inline) close() (err error) {
	i.closed = true
	for _, s := range i.sides {
		if s.file != nil {
			err = errors.Join(err, s.file.Close(), s.link.close())
		}
	}
	return err
}
