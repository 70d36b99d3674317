package fdstore_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/fdstore"
	"oxpd/internal/fdstore/fdtest"
)

// hang bounds every wait by the wall clock: a guard, not a measurement.
const hang = 60 * time.Second

// asService makes this test binary the service that a test's manager starts.
const asService = "OXPD_TEST_SERVICE"

func TestMain(m *testing.M) {
	if life := os.Getenv(asService); life != "" {
		if err := service(life); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// report is what a service says of its life before it waits for its death.
type report struct {
	Why      string
	Names    []string
	State    string
	Memory   string // first bytes of the memory that is kept
	Nonblock bool   // of the descriptor that was made so
	Env      []string
	Ping     time.Duration
}

// service is one life: it finds what the one before left, and leaves its own mark.
func service(life string) error {
	s := fdstore.Open()
	r := report{Why: s.Why(), Names: s.Names(), Ping: s.Ping()}
	slices.Sort(r.Names)
	for _, key := range []string{"NOTIFY_SOCKET", "FDSTORE", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_USEC"} {
		if v, ok := os.LookupEnv(key); ok {
			r.Env = append(r.Env, key+"="+v)
		}
	}
	blob, mem, pipe, err := things(s)
	if err != nil {
		return err
	}
	state, err := blob.Load()
	if err != nil {
		return err
	}
	r.State = string(state)
	first := make([]byte, 8)
	if _, err := unix.Pread(mem, first, 0); err != nil {
		return err
	}
	r.Memory = string(first)
	flags, err := unix.FcntlInt(uintptr(pipe), unix.F_GETFL, 0)
	if err != nil {
		return err
	}
	r.Nonblock = flags&unix.O_NONBLOCK != 0
	if _, err := unix.Pwrite(mem, []byte(life), 0); err != nil {
		return err
	}
	if err := blob.Save(append(state, life...)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	if err := s.Settle(ctx); err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		return err
	}
	_, _ = os.Stdin.Read(make([]byte, 1))
	return nil
}

// things are the descriptors of the service, from the store or new and put into it.
func things(s *fdstore.Store) (*fdstore.Blob, int, int, error) {
	if fd, ok := s.Take("state"); ok {
		blob, err := fdstore.OpenBlob(fd)
		mem, _ := s.Take("memory one")
		pipe, _ := s.Take("pipe")
		return blob, mem, pipe, err
	}
	blob, fd, err := fdstore.NewBlob()
	if err != nil {
		return nil, -1, -1, err
	}
	mem, err := unix.MemfdCreate("memory", 0)
	if err == nil {
		err = unix.Ftruncate(mem, 8)
	}
	var pipe [2]int
	if err == nil {
		err = unix.Pipe2(pipe[:], unix.O_NONBLOCK)
	}
	for name, fd := range map[string]int{"state": fd, "memory one": mem, "pipe": pipe[0]} {
		if err == nil {
			err = s.Put(name, fd)
		}
	}
	return blob, mem, pipe[0], err
}

func newManager(t *testing.T, most int) *fdtest.Manager {
	t.Helper()
	m, err := fdtest.New(t.TempDir(), most)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, m.Close()) })
	return m
}

// live starts the service, reads its report, and kills it.
func live(t *testing.T, m *fdtest.Manager, life string) report {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), asService+"="+life)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	defer in.Close()
	require.NoError(t, m.Start(cmd))
	var r report
	line, err := bufio.NewReader(out).ReadBytes('\n')
	require.NoError(t, err, "report of life %s", life)
	require.NoError(t, json.Unmarshal(line, &r))
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // killed
	return r
}

func TestKilledServiceFindsItsThings(t *testing.T) {
	m := newManager(t, 8)
	m.Setenv("WATCHDOG_USEC", "1500000")
	names := []string{"memory one", "pipe", "state"}
	first := live(t, m, "life-1")
	assert.Equal(t, report{Memory: "\x00\x00\x00\x00\x00\x00\x00\x00", Nonblock: true, Ping: 1500 * time.Millisecond}, first)
	assert.ElementsMatch(t, names, m.Names())
	second := live(t, m, "life-2")
	assert.Equal(t, names, second.Names)
	assert.Equal(t, "life-1", second.State)
	assert.Equal(t, "life-1\x00\x00", second.Memory, "the same memory")
	assert.True(t, second.Nonblock, "descriptors are as they were")
	assert.Empty(t, second.Env, "no child inherits what was for this process")
	third := live(t, m, "life-3")
	assert.Equal(t, "life-1life-2", third.State)
	assert.ElementsMatch(t, names, m.Names(), "nothing is stored twice")
	assert.Zero(t, m.Refused())
}

// open is a Store in this process.
func open(t *testing.T, m *fdtest.Manager, most int) *fdstore.Store {
	t.Helper()
	t.Setenv("NOTIFY_SOCKET", m.Path())
	t.Setenv("FDSTORE", strconv.Itoa(most))
	s := fdstore.Open()
	require.Empty(t, s.Why())
	return s
}

func settled(t *testing.T, s *fdstore.Store) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	require.NoError(t, s.Settle(ctx))
}

func TestNoStore(t *testing.T) {
	m := newManager(t, 4)
	for _, tc := range []struct{ name, socket, most, want string }{
		{"no service manager", "", "4", "not started by a service manager"},
		{"socket of nobody", t.TempDir() + "/none", "4", "the service manager cannot be reached"},
		{"systemd before 254", m.Path(), "", "it needs systemd 254"},
		{"no descriptors", m.Path(), "0", `keeps "0" descriptors`},
		{"no number", m.Path(), "many", `keeps "many" descriptors`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv("NOTIFY_SOCKET", tc.socket)
			t.Setenv("FDSTORE", tc.most)
			s := fdstore.Open()
			assert.Contains(t, s.Why(), tc.want)
			assert.ErrorIs(t, s.Put("x", 0), fdstore.ErrNone)
			assert.NoError(t, s.Remove("x"))
			assert.NoError(t, s.Notify("STATUS="+tc.name), "telling nobody is no error")
			settled(t, s)
		})
	}
	settled(t, open(t, m, 4))
	assert.Equal(t, 1, m.Told("STATUS=systemd before 254"), "a manager without a store is told all the same")
	assert.Empty(t, m.Names())
	var none *fdstore.Store
	assert.NotEmpty(t, none.Why())
	assert.ErrorIs(t, none.Put("x", 0), fdstore.ErrNone)
	assert.NoError(t, none.Abandon("whatever"))
	assert.Zero(t, none.Most()+len(none.Names()))
}

func TestPut(t *testing.T) {
	m := newManager(t, 2)
	s := open(t, m, 2)
	fd := int(os.Stderr.Fd())
	for _, bad := range []string{"", "a:b", "a\nREADY=1", string(make([]byte, 256)), "é"} {
		assert.ErrorContains(t, s.Put(bad, fd), "bad name")
	}
	require.NoError(t, s.Put("one", fd))
	require.NoError(t, s.Put("two", fd))
	assert.ErrorIs(t, s.Put("three", fd), fdstore.ErrFull)
	require.NoError(t, s.Put("one", fd), "in the place of the other")
	settled(t, s)
	assert.Equal(t, []string{"two", "one"}, m.Names())
	require.NoError(t, s.Remove("two"))
	require.NoError(t, s.Put("three", fd))
	settled(t, s)
	assert.Equal(t, []string{"one", "three"}, m.Names())
	assert.Zero(t, m.Refused())
	require.NoError(t, s.Abandon("the test says so"))
	settled(t, s)
	assert.Empty(t, m.Names())
	assert.Equal(t, "the test says so", s.Why())
	assert.ErrorIs(t, s.Put("one", fd), fdstore.ErrNone)
}

func TestSettleEndsWithItsContext(t *testing.T) {
	m := newManager(t, 2)
	s := open(t, m, 2)
	m.Deaf(true)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	assert.ErrorIs(t, s.Settle(ctx), context.DeadlineExceeded)
	m.Deaf(false)
	settled(t, s)
}
