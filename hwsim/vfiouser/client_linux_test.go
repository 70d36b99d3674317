package vfiouser

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/hwsim"
	"oxpd/internal/vfu"
)

// hang bounds every wait by the wall clock: a guard, not a measurement.
const hang = 60 * time.Second

// rig is a card in stepped time behind a socket.
type rig struct {
	t    *testing.T
	card *hwsim.Card
	mem  *Memory
	srv  *Server
	path string
}

func newRig(t *testing.T) *rig { return newRigOf(t, func(*hwsim.Options) {}) }

// newRigOf is newRig of another kind of card.
func newRigOf(t *testing.T, change func(*hwsim.Options)) *rig {
	t.Helper()
	mem, err := NewMemory()
	require.NoError(t, err)
	r := &rig{t: t, mem: mem, path: filepath.Join(t.TempDir(), "card.sock")}
	o := hwsim.Options{Timeline: hwsim.Compressed(), HostVectors: true, Windows: mem.Windows()}
	change(&o)
	r.card = hwsim.New(o)
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: r.path, Net: "unix"})
	require.NoError(t, err)
	r.srv = New(ln, r.card, mem, nil)
	done := make(chan error, 1)
	go func() { done <- r.srv.Serve() }()
	t.Cleanup(func() {
		assert.NoError(t, r.srv.Close())
		assert.NoError(t, <-done)
		r.card.Close()
		assert.NoError(t, mem.Close())
	})
	return r
}

// client is a client written for these tests alone: it sends what it is told.
type client struct {
	t    *testing.T
	conn *net.UnixConn
	id   uint16
}

func (r *rig) dial() *client {
	r.t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: r.path, Net: "unix"})
	require.NoError(r.t, err)
	require.NoError(r.t, conn.SetDeadline(time.Now().Add(hang)))
	c := &client{t: r.t, conn: conn}
	r.t.Cleanup(func() { _ = conn.Close() }) // twice where the test did
	return c
}

// connect is dial with the greeting done.
func (r *rig) connect() *client {
	r.t.Helper()
	c := r.dial()
	_, _, errno := c.call(vfu.Version, vfu.Hello{Capabilities: vfu.DefaultCapabilities()}.Append(nil))
	require.Zero(r.t, errno)
	return c
}

// send sends a message with a header of its own.
func (c *client) send(h vfu.Header, payload []byte, fds ...int) {
	c.t.Helper()
	b := append(h.Append(nil), payload...)
	n, _, err := c.conn.WriteMsgUnix(b, unix.UnixRights(fds...), nil)
	require.NoError(c.t, err)
	require.Equal(c.t, len(b), n)
}

// call sends a command and reads its answer: payload, descriptors, error.
func (c *client) call(cmd vfu.Command, payload []byte, fds ...int) ([]byte, []int, unix.Errno) {
	c.t.Helper()
	c.id++
	c.send(vfu.Header{ID: c.id, Command: cmd, Size: uint32(vfu.HeaderSize + len(payload))}, payload, fds...)
	h, reply, got := c.reply()
	require.Equal(c.t, c.id, h.ID)
	require.Equal(c.t, cmd, h.Command)
	require.EqualValues(c.t, vfu.FlagReply, h.Flags&^vfu.FlagError)
	if h.Flags&vfu.FlagError != 0 {
		require.NotZero(c.t, h.Errno)
		require.Empty(c.t, reply, "an error has no payload")
		return nil, nil, unix.Errno(h.Errno)
	}
	return reply, got, 0
}

func (c *client) reply() (vfu.Header, []byte, []int) {
	c.t.Helper()
	var h vfu.Header
	head, oob := make([]byte, vfu.HeaderSize), make([]byte, 64)
	n, oobn, _, _, err := c.conn.ReadMsgUnix(head, oob)
	require.NoError(c.t, err)
	require.Equal(c.t, len(head), n)
	require.NoError(c.t, h.Decode(head))
	payload := make([]byte, h.Size-vfu.HeaderSize)
	_, err = io.ReadFull(c.conn, payload)
	require.NoError(c.t, err)
	fds, err := descriptors(oob[:oobn])
	require.NoError(c.t, err)
	return h, payload, fds
}

// ended tells that the server has closed the connection.
func (c *client) ended() {
	c.t.Helper()
	_, err := c.conn.Read(make([]byte, 1))
	assert.True(c.t, errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET), "%v", err)
}

func (c *client) load(region uint32, off uint64, width uint32) uint64 {
	c.t.Helper()
	reply, _, errno := c.call(vfu.ReadAt, vfu.Access{Offset: off, Region: region, Count: width}.Append(nil))
	require.Zero(c.t, errno)
	var a vfu.Access
	require.NoError(c.t, a.Decode(reply))
	require.Len(c.t, a.Data, int(width))
	return binary.LittleEndian.Uint64(append(a.Data[:width:width], make([]byte, 8)...))
}

func (c *client) store(region uint32, off uint64, width uint32, v uint64) {
	c.t.Helper()
	data := binary.LittleEndian.AppendUint64(nil, v)[:width]
	_, _, errno := c.call(vfu.WriteAt, vfu.Access{Offset: off, Region: region, Count: width, Data: data}.Append(nil))
	require.Zero(c.t, errno)
}

// enable turns memory decoding and bus mastering on.
func (c *client) enable() { c.store(vfu.RegionConfig, 4, 2, 6) }

// memfd is memory of the client.
func memfd(t *testing.T, size int) (fd int, mem []byte) {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(fd, int64(size)))
	mem, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, unix.Munmap(mem))
		assert.NoError(t, unix.Close(fd))
	})
	return fd, mem
}

func eventfd(t *testing.T) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, unix.Close(fd)) })
	return fd
}

// events is how often an eventfd was raised since the last look.
func events(t *testing.T, fd int) uint64 {
	t.Helper()
	var b [8]byte
	_, err := unix.Read(fd, b[:])
	if errors.Is(err, unix.EAGAIN) {
		return 0
	}
	require.NoError(t, err)
	return binary.LittleEndian.Uint64(b[:])
}

// mapAt maps memory of the client.
func (c *client) mapAt(bus, offset, size uint64, flags uint32, fds ...int) unix.Errno {
	c.t.Helper()
	_, _, errno := c.call(vfu.MapDMA, vfu.Map{ArgSize: vfu.MapSize, Flags: flags, Offset: offset, Address: bus, Size: size}.Append(nil), fds...)
	return errno
}

func (c *client) unmap(bus, size uint64) unix.Errno {
	c.t.Helper()
	_, _, errno := c.call(vfu.UnmapDMA, vfu.Unmap{ArgSize: vfu.UnmapSize, Address: bus, Size: size}.Append(nil))
	return errno
}

const both = vfu.MapRead | vfu.MapWrite

func openFiles(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(all)
}

// noMoreFiles waits until no more files are open than before. Those of tests before may be
// closed meanwhile: less is none of this one's business.
func noMoreFiles(t *testing.T, before int, what string) {
	t.Helper()
	assert.Eventually(t, func() bool { return openFiles(t) <= before }, hang, time.Millisecond, what)
}
