package divert

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// lines is a log that several goroutines write.
type lines struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(b)
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.String()
}

// unprivileged is setSendBuffer of a thread without CAP_NET_ADMIN.
func unprivileged(fd, option, size int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&hdr, &caps[0]); err != nil {
		return err
	}
	less := caps
	less[0].Effective &^= 1 << unix.CAP_NET_ADMIN
	if err := unix.Capset(&hdr, &less[0]); err != nil {
		return err
	}
	err := setSendBuffer(fd, option, size)
	if back := unix.Capset(&hdr, &caps[0]); back != nil {
		panic(back) // the thread would be another's next
	}
	return err
}

// kernelDefault is what a new socket has.
func kernelDefault(t *testing.T) int {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	n, err := unix.GetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_SNDBUF)
	require.NoError(t, err)
	return n
}

// option is a call of SetBuffer.
type option struct{ option, size int }

func TestBufferSize(t *testing.T) {
	const forced, plain = unix.SO_SNDBUFFORCE, unix.SO_SNDBUF
	usual := kernelDefault(t)
	for _, tc := range []struct {
		name    string
		size    int64
		set     func(fd, option, size int) error
		options []option
		granted int // 0: less than twice the size
		warning string
	}{
		{name: "unset", options: nil, granted: usual},
		{name: "least", size: 64 << 10, options: []option{{forced, 64 << 10}}, granted: 128 << 10},
		{name: "most", size: 64 << 20, options: []option{{forced, 64 << 20}}, granted: 128 << 20},
		{name: "without CAP_NET_ADMIN, small enough", size: 64 << 10, set: unprivileged, options: []option{{forced, 64 << 10}, {plain, 64 << 10}}, granted: 128 << 10},
		{
			name: "without CAP_NET_ADMIN, more than wmem_max", size: 64 << 20, set: unprivileged, options: []option{{forced, 64 << 20}, {plain, 64 << 20}},
			warning: fmt.Sprintf("net.core.wmem_max=%d", 128<<20),
		},
		{
			name: "both fail", size: 1 << 20, set: func(int, int, int) error { return unix.ENOPROTOOPT }, options: []option{{forced, 1 << 20}, {plain, 1 << 20}},
			granted: usual, warning: "keeps the kernel's buffer size",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.set == nil && tc.size != 0 && os.Geteuid() != 0 {
				t.Skip("SO_SNDBUFFORCE needs CAP_NET_ADMIN")
			}
			if tc.granted == 0 && wmemMax(t) >= int(tc.size) {
				t.Skipf("net.core.wmem_max of this machine is above any buffer-size: it allows %d", tc.size)
			}
			log := &lines{}
			var options []option
			r := newSocketRig(t, func(s *Settings) { s.BufferSize = tc.size; require.NoError(t, s.Check()) }, func(c *ListenerConfig) {
				c.Log = slog.New(slog.NewTextHandler(log, nil))
				c.SetBuffer = func(fd, name, size int) error {
					options = append(options, option{name, size})
					if tc.set != nil {
						return tc.set(fd, name, size)
					}
					return setSendBuffer(fd, name, size)
				}
			})
			p := r.attach()
			assert.Equal(t, tc.options, options)
			granted := r.l.Engine().Buffer
			if tc.granted != 0 {
				assert.Equal(t, tc.granted, granted)
			} else {
				assert.Less(t, granted, 2*int(tc.size))
			}
			if tc.warning == "" {
				assert.NotContains(t, log.text(), "level=WARN")
			} else {
				assert.Contains(t, log.text(), tc.warning)
			}
			r.offerAll(1)
			p.frames(1) // with any of them
		})
	}
}

// The engine's socket takes what its size allows, and the others wait in the queue: none
// is lost, and both are bounded together.
func TestBufferSizeBoundsTheSocketAlone(t *testing.T) {
	handed := func(t *testing.T, size int64) uint64 {
		r := newSocketRig(t, func(s *Settings) { s.BufferSize = size }, nil)
		p := r.attach()
		r.flood(1000)
		n := r.Queue.Stats().Events.Handed
		assert.Equal(t, Counts{Seen: 1000, Queued: 1000}, r.Counts(0, In))
		p.say(records(p.frames(1000), 1)...)
		r.eventually("all are back", func() bool { return r.out.len() == 1000 })
		return n
	}
	small, large := handed(t, 64<<10), handed(t, 256<<10)
	assert.Greater(t, small, uint64(30))
	assert.Greater(t, large, 2*small, "each with up to a batch that waits for room")
}

// wmemMax is the largest buffer that the kernel grants without CAP_NET_ADMIN.
func wmemMax(t *testing.T) int {
	text, err := os.ReadFile("/proc/sys/net/core/wmem_max")
	require.NoError(t, err)
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	return n
}
