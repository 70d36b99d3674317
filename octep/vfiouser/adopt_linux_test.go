package vfiouser_test

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/dma"
	"oxpd/internal/vfu"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/octep/vfiouser"
)

// shelf keeps descriptors as a service manager does.
type shelf map[string]int

func keep(t *testing.T, d *vfiouser.Device) shelf {
	t.Helper()
	s := shelf{}
	require.NoError(t, d.Keep(func(name string, fd int) (err error) {
		s[name], err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		return err
	}))
	t.Cleanup(func() {
		for _, fd := range s {
			unix.Close(fd)
		}
	})
	return s
}

// take is for one adoption; the shelf keeps its own.
func (s shelf) take(name string) (int, bool) {
	fd, ok := s[name]
	if !ok {
		return -1, false
	}
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	return fd, err == nil
}

func (s *served) adopt(t *testing.T, kept shelf) *vfiouser.Device {
	t.Helper()
	d, err := vfiouser.Adopt(context.Background(), s.path, kept.take)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	return d
}

func TestServerDoesNotNoticeAnAdoption(t *testing.T) {
	s := serve(t)
	first := s.open(t)
	require.NoError(t, octep.SetBusMaster(first, true))
	r, err := first.DMA().Alloc("kept", 8192, 4096)
	require.NoError(t, err)
	assert.False(t, first.DMA().Keeps())
	first.SetKeeps(true)
	assert.True(t, first.DMA().Keeps())
	require.NoError(t, first.BindIRQ(csr.MSIXRingVector, func() {}))
	kept := keep(t, first)
	var order []string
	require.NoError(t, first.Keep(func(name string, _ int) error {
		order = append(order, name)
		return nil
	}))
	assert.Equal(t, []string{vfiouser.KeptMemory, vfiouser.KeptConn}, order, "a process that dies between the two leaves nothing to go on with")
	require.NoError(t, first.Close())

	// Where the process was when it died: nothing asked; a word of configuration
	// space; the memory of BAR2, whose answer has a descriptor; several in a row.
	read := vfu.Access{Region: vfu.RegionConfig, Count: 4}.Append(nil)
	region := vfu.Region{ArgSize: 1 << 10, Index: vfu.RegionBAR0 + 2}.Append(nil)
	for _, tc := range []struct {
		name string
		ask  func(d *vfiouser.Device)
	}{
		{"nothing asked", func(*vfiouser.Device) {}},
		{"a word asked", func(d *vfiouser.Device) { require.NoError(t, d.Ask(vfu.ReadAt, read)) }},
		{"memory asked", func(d *vfiouser.Device) { require.NoError(t, d.Ask(vfu.RegionInfo, region)) }},
		{"a refusal", func(d *vfiouser.Device) { require.NoError(t, d.Ask(vfu.IRQInfo, nil)) }},
		{"three processes died", func(d *vfiouser.Device) {
			require.NoError(t, d.Ask(vfu.RegionInfo, region))
			require.NoError(t, d.Ask(vfu.GetInfo, vfu.Device{ArgSize: vfu.DeviceSize}.Append(nil)))
			require.NoError(t, d.Ask(vfu.ReadAt, read))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dying := s.adopt(t, kept)
			tc.ask(dying)
			require.NoError(t, dying.Close())
			files := openFiles(t)
			d, err := vfiouser.Adopt(context.Background(), s.path, kept.take)
			require.NoError(t, err)
			assert.Equal(t, "vfio-user:"+s.path, d.Name())
			require.NoError(t, d.Keep(func(name string, _ int) error {
				t.Errorf("%s is put again, which takes it out for a moment", name)
				return nil
			}))
			assert.True(t, octep.Alive(d))
			on, err := d.ConfigRead(csr.CfgCommand, 2)
			require.NoError(t, err)
			assert.NotZero(t, on&csr.CfgCommandBusMaster, "nobody has reset anything")
			same, err := d.DMA().(dma.Holder).Held("kept", 8192, 4096)
			require.NoError(t, err)
			assert.Equal(t, r.Bus(), same.Bus())
			more, err := d.DMA().Alloc("more", 4096, 4096)
			require.NoError(t, err, "the server maps no address twice")
			assert.Greater(t, more.Bus(), same.Bus())
			require.NoError(t, d.BindIRQ(csr.MSIXRingVector, func() {}), "a vector of the process before")
			require.NoError(t, d.Close())
			// The server in this process closes its own when it comes to it.
			noMoreFiles(t, files, "no descriptor is left over")
		})
	}
	second, err := vfiouser.Open(context.Background(), s.path)
	assert.Error(t, err, "the first client is still there")
	assert.Nil(t, second)
}

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

func TestAdoptRefuses(t *testing.T) {
	ctx := context.Background()
	refusedWithin := func(t *testing.T, limit time.Duration, path string, kept shelf) *vfiouser.AdoptError {
		t.Helper()
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		d, err := vfiouser.Adopt(ctx, path, kept.take)
		require.Error(t, err)
		assert.Nil(t, d)
		var e *vfiouser.AdoptError
		require.ErrorAs(t, err, &e)
		assert.NotEmpty(t, e.Hint())
		return e
	}
	refused := func(t *testing.T, path string, kept shelf) *vfiouser.AdoptError {
		t.Helper()
		return refusedWithin(t, hang, path, kept)
	}
	request := vfu.Access{Region: vfu.RegionConfig, Count: 4}.Append(vfu.Header{ID: 1, Command: vfu.ReadAt, Size: vfu.HeaderSize + vfu.AccessSize}.Append(nil))
	t.Run("nothing kept", func(t *testing.T) {
		e := refused(t, "/none", shelf{})
		assert.ErrorContains(t, e, "its connection was not kept")
		assert.False(t, e.Ended)
	})
	t.Run("no memory kept", func(t *testing.T) {
		s := serve(t)
		kept := keep(t, s.open(t))
		unix.Close(kept[vfiouser.KeptMemory])
		delete(kept, vfiouser.KeptMemory)
		assert.ErrorContains(t, refused(t, s.path, kept), "its memory was not kept")
	})
	t.Run("other memory", func(t *testing.T) {
		s := serve(t)
		kept := keep(t, s.open(t))
		kept[vfiouser.KeptMemory], kept["empty"] = memfd(t), kept[vfiouser.KeptMemory]
		files := openFiles(t)
		assert.ErrorIs(t, refused(t, s.path, kept), dma.ErrKept)
		noMoreFiles(t, files, "no descriptor is left over")
	})
	t.Run("another card", func(t *testing.T) {
		s := serve(t)
		assert.ErrorContains(t, refused(t, "/another", keep(t, s.open(t))), s.path)
	})
	t.Run("no socket", func(t *testing.T) {
		assert.ErrorContains(t, refused(t, "/none", shelf{vfiouser.KeptConn: memfd(t)}), "its connection")
	})
	t.Run("the server has gone", func(t *testing.T) {
		s := serve(t)
		kept := keep(t, s.open(t))
		require.NoError(t, s.srv.Close())
		e := refused(t, s.path, kept)
		assert.True(t, e.Ended)
	})
	for _, tc := range []struct {
		name string
		cut  int
	}{{"a command cut in its head", 9}, {"a command cut behind its head", vfu.HeaderSize}, {"a command cut in its payload", vfu.HeaderSize + 5}} {
		t.Run(tc.name, func(t *testing.T) {
			s := serve(t)
			d := s.open(t)
			kept := keep(t, d)
			_, err := d.Raw().Write(request[:tc.cut])
			require.NoError(t, err)
			require.NoError(t, d.Close())
			// A server that waits for the rest of a command is given up by the context.
			refusedWithin(t, hang/100, s.path, kept)
		})
	}
	t.Run("an answer that was half read", func(t *testing.T) {
		s := serve(t)
		d := s.open(t)
		kept := keep(t, d)
		_, err := d.Raw().Write(request)
		require.NoError(t, err)
		_, err = io.ReadFull(d.Raw(), make([]byte, 7))
		require.NoError(t, err)
		require.NoError(t, d.Close())
		e := refused(t, s.path, kept)
		assert.False(t, e.Ended, "what comes is no answer")
		assert.ErrorContains(t, e, "does not keep to the protocol")
	})
	t.Run("it dies while an answer comes", func(t *testing.T) {
		// What an adopting process meets is left whole until all of it is there:
		// one that dies at any place leaves no half to the next.
		far, near, path := pair(t)
		stale := vfu.Header{ID: 7, Command: vfu.ReadAt, Size: vfu.HeaderSize + 20, Flags: vfu.FlagReply}.Append(nil)
		for _, part := range [][]byte{stale[:5], stale[5:], {1, 2, 3}} {
			_, err := far.Write(part)
			require.NoError(t, err)
			before := unread(t, near)
			short, cancel := context.WithTimeout(ctx, hang/1000)
			_, err = vfiouser.Adopt(short, path, shelf{vfiouser.KeptConn: near}.take)
			cancel()
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.Equal(t, before, unread(t, near))
		}
		_, err := far.Write(make([]byte, 17)) // the rest
		require.NoError(t, err)
		require.NoError(t, far.Close())
		assert.True(t, refused(t, path, shelf{vfiouser.KeptConn: near}).Ended, "it takes what is whole, and meets the end")
	})
	t.Run("a context that ends", func(t *testing.T) {
		path := t.TempDir() + "/silent"
		ln, err := net.Listen("unix", path)
		require.NoError(t, err)
		defer ln.Close()
		c, err := net.Dial("unix", path)
		require.NoError(t, err)
		f, err := c.(*net.UnixConn).File()
		require.NoError(t, err)
		require.NoError(t, c.Close())
		defer f.Close()
		short, cancel := context.WithTimeout(ctx, hang/1000)
		defer cancel()
		_, err = vfiouser.Adopt(short, path, shelf{vfiouser.KeptConn: int(f.Fd())}.take)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// A socket is that of the card by whatever name it was made, and is asked for.
func TestSameSocket(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"card", "other"} {
		require.NoError(t, os.WriteFile(at(name), nil, 0o600))
	}
	require.NoError(t, os.Symlink("card", at("link")))
	here, err := filepath.Abs("card")
	require.NoError(t, err)
	for _, tc := range []struct {
		name, served, path string
		want               bool
	}{
		{"the same", at("card"), at("card"), true},
		{"by a way round", at("x/../card"), at("card"), true},
		{"by a link", at("card"), at("link"), true},
		{"another", at("card"), at("other"), false},
		{"one that is not there", "/none/card", "/none/other", false},
		{"a server that was started elsewhere", "card", at("card"), true},
		{"another, of a server that was started elsewhere", "run/other", at("card"), false},
		{"a client here", here, "card", true},
	} {
		t.Run(tc.name, func(t *testing.T) { assert.Equal(t, tc.want, vfiouser.SamePath(tc.served, tc.path)) })
	}
}

// pair is a connection to path: the far end, and the descriptor of the near one.
func pair(t *testing.T) (far net.Conn, near int, path string) {
	t.Helper()
	path = t.TempDir() + "/card"
	ln, err := net.Listen("unix", path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	c, err := net.Dial("unix", path)
	require.NoError(t, err)
	f, err := c.(*net.UnixConn).File()
	require.NoError(t, err)
	require.NoError(t, c.Close())
	t.Cleanup(func() { _ = f.Close() })
	far, err = ln.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = far.Close() }) // a test may have
	return far, int(f.Fd()), path
}

// unread counts the bytes that wait in a socket.
func unread(t *testing.T, fd int) int {
	t.Helper()
	n, _, err := unix.Recvfrom(fd, make([]byte, 1<<10), unix.MSG_PEEK|unix.MSG_DONTWAIT)
	require.NoError(t, err)
	return n
}

func memfd(t *testing.T) int {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}
