package netlab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jsimonetti/rtnetlink/v2"
	"github.com/jsimonetti/rtnetlink/v2/driver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// holderEnv makes the test binary play the process that is killed in
// TestKilledProcessLeavesNothing.
const holderEnv = "OXPD_NETLAB_HOLDER"

func TestMain(m *testing.M) {
	if os.Getenv(holderEnv) != "" {
		hold()
	}
	os.Exit(m.Run())
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
}

func newNS(t *testing.T) *NS {
	t.Helper()
	needRoot(t)
	n, err := New()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, n.Close()) })
	return n
}

const (
	addrA = "10.9.0.1"
	addrB = "10.9.0.2"
)

// pair is two namespaces joined by a cable of the given MTU, a0 in a to b0 in b.
func pair(t *testing.T, mtu int) (a, b *NS) {
	t.Helper()
	a, b = newNS(t), newNS(t)
	require.NoError(t, a.conn.Link.New(&rtnetlink.LinkMessage{
		Attributes: &rtnetlink.LinkAttributes{
			Name: "a0", MTU: uint32(mtu),
			Info: &rtnetlink.LinkInfo{Kind: "veth", Data: &driver.Veth{PeerInfo: &rtnetlink.LinkMessage{
				Attributes: &rtnetlink.LinkAttributes{Name: "b0", MTU: uint32(mtu), NetNS: rtnetlink.NetNSForFD(uint32(b.File().Fd()))},
			}}},
		},
	}))
	require.NoError(t, a.AddAddr("a0", netip.MustParsePrefix(addrA+"/24")))
	require.NoError(t, b.AddAddr("b0", netip.MustParsePrefix(addrB+"/24")))
	require.NoError(t, a.SetUp("a0", true))
	require.NoError(t, b.SetUp("b0", true))
	la, err := a.Link("a0")
	require.NoError(t, err)
	lb, err := b.Link("b0")
	require.NoError(t, err)
	require.NoError(t, a.AddNeighbour("a0", netip.MustParseAddr(addrB), lb.MAC))
	require.NoError(t, b.AddNeighbour("b0", netip.MustParseAddr(addrA), la.MAC))
	// The kernel starts a queue a moment after its carrier; what is sent before is lost.
	require.Eventually(t, func() bool {
		_, err := a.Ping(context.Background(), netip.MustParseAddr(addrB), 0, 50*time.Millisecond)
		return err == nil
	}, 10*time.Second, time.Millisecond, "the cable stays dead")
	return a, b
}

func inode(t *testing.T, n *NS) uint64 {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(int(n.File().Fd()), &st))
	return st.Ino
}

func TestNamespaceIsPrivate(t *testing.T) {
	a, b := newNS(t), newNS(t)
	var own unix.Stat_t
	require.NoError(t, unix.Stat("/proc/self/ns/net", &own))
	assert.NotEqual(t, own.Ino, inode(t, a), "the process itself must stay where it was")
	assert.NotEqual(t, inode(t, a), inode(t, b))

	links, err := a.Links()
	require.NoError(t, err)
	names := make([]string, 0, len(links))
	for _, l := range links {
		if l.Up {
			names = append(names, l.Name)
		}
	}
	assert.Equal(t, []string{"lo"}, names, "interfaces that are up in a new namespace")
}

func TestDo(t *testing.T) {
	n := newNS(t)
	t.Run("runs on the namespace's thread", func(t *testing.T) {
		require.NoError(t, n.Do(func() error {
			var st unix.Stat_t
			if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
				return err
			}
			assert.Equal(t, inode(t, n), st.Ino)
			return nil
		}))
	})
	t.Run("hands back the error", func(t *testing.T) {
		want := errors.New("own error")
		assert.ErrorIs(t, n.Do(func() error { return want }), want)
	})
	t.Run("refused after close", func(t *testing.T) {
		needRoot(t)
		closed, err := New()
		require.NoError(t, err)
		require.NoError(t, closed.Close())
		assert.ErrorIs(t, closed.Do(func() error { return nil }), ErrClosed)
	})
}

func TestLinkChanges(t *testing.T) {
	a, b := pair(t, 9000)
	require.NoError(t, a.SetMTU("a0", 1500))
	l, err := a.Link("a0")
	require.NoError(t, err)
	assert.Equal(t, 1500, l.MTU)
	assert.True(t, l.Up)
	assert.True(t, l.Carrier)
	l, err = b.Link("b0")
	require.NoError(t, err)
	assert.Equal(t, 9000, l.MTU, "the far end keeps its own")

	_, err = a.Link("b0")
	assert.ErrorIs(t, err, unix.ENODEV)
	assert.ErrorIs(t, a.SetMTU("b0", 1500), unix.ENODEV)
}

func TestSysctlIsTheNamespacesOwn(t *testing.T) {
	n := newNS(t)
	const name = "ipv4/conf/default/forwarding"
	before, err := os.ReadFile(filepath.Join("/proc/sys/net", name))
	require.NoError(t, err)
	other := "1"
	if strings.TrimSpace(string(before)) == "1" {
		other = "0"
	}
	require.NoError(t, n.Sysctl(name, other))
	after, err := os.ReadFile(filepath.Join("/proc/sys/net", name))
	require.NoError(t, err)
	assert.Equal(t, before, after, "the machine's own setting")
	assert.ErrorIs(t, n.Sysctl("ipv4/no_such_setting", "1"), os.ErrNotExist)
}

func TestPing(t *testing.T) {
	a, b := pair(t, 9000)
	far := netip.MustParseAddr(addrB)
	for _, c := range []struct {
		name string
		data int
		want error
	}{
		{"no data", 0, nil},
		{"ordinary", 56, nil},
		{"largest that fits", 8972, nil},
		{"one byte too long for the interface", 8973, unix.EMSGSIZE},
	} {
		t.Run(c.name, func(t *testing.T) {
			rtt, err := a.Ping(context.Background(), far, c.data, 5*time.Second)
			if c.want != nil {
				assert.ErrorIs(t, err, c.want)
				return
			}
			require.NoError(t, err)
			assert.Positive(t, rtt)
		})
	}
	t.Run("one frame each way, never cut", func(t *testing.T) {
		before, err := b.Link("b0")
		require.NoError(t, err)
		_, err = a.Ping(context.Background(), far, 8972, 5*time.Second)
		require.NoError(t, err)
		after, err := b.Link("b0")
		require.NoError(t, err)
		assert.Equal(t, uint64(9014), after.Stats.RXBytes-before.Stats.RXBytes)
		assert.Equal(t, uint64(1), after.Stats.RXPackets-before.Stats.RXPackets)
	})
	t.Run("a frame too long for the far end is not answered", func(t *testing.T) {
		require.NoError(t, b.SetMTU("b0", 1500))
		_, err := a.Ping(context.Background(), far, 8972, 200*time.Millisecond)
		assert.ErrorIs(t, err, ErrNoReply)
		_, err = a.Ping(context.Background(), far, 1472, time.Minute)
		assert.NoError(t, err)
	})
	t.Run("ends with the context", func(t *testing.T) {
		require.NoError(t, b.SetUp("b0", false))
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(50*time.Millisecond, cancel)
		_, err := a.Ping(ctx, far, 56, time.Minute)
		assert.ErrorIs(t, err, context.Canceled)
	})
}

func TestBridge(t *testing.T) {
	n, _ := pair(t, 1500)
	require.NoError(t, n.AddBridge("br0"))
	require.NoError(t, n.SetMaster("a0", "br0"))
	master := func() uint32 {
		msgs, err := n.conn.Link.List()
		require.NoError(t, err)
		for _, m := range msgs {
			if m.Attributes.Name == "a0" && m.Attributes.Master != nil {
				return *m.Attributes.Master
			}
		}
		return 0
	}
	br0, err := n.Link("br0")
	require.NoError(t, err)
	assert.Equal(t, br0.Index, master())
	require.NoError(t, n.SetMaster("a0", ""))
	assert.Zero(t, master())

	assert.ErrorIs(t, n.AddBridge("br0"), unix.EEXIST)
	assert.ErrorIs(t, n.SetMaster("a0", "br1"), unix.ENODEV)
	require.NoError(t, n.Delete("br0"))
	assert.ErrorIs(t, n.Delete("br0"), unix.ENODEV)
}

func TestNeighbourGivesWay(t *testing.T) {
	a, b := pair(t, 1500)
	right, err := b.Link("b0")
	require.NoError(t, err)
	addr := netip.MustParseAddr(addrB)
	require.NoError(t, a.AddNeighbour("a0", addr, net.HardwareAddr{2, 0, 0, 0, 0, 0x77}))
	_, err = a.Ping(context.Background(), addr, 0, 50*time.Millisecond)
	require.ErrorIs(t, err, ErrNoReply, "to a MAC that nobody has")
	require.NoError(t, a.AddNeighbour("a0", addr, right.MAC))
	_, err = a.Ping(context.Background(), addr, 0, time.Minute)
	assert.NoError(t, err)
}

func TestIsReply(t *testing.T) {
	request := echoRequest(7, 5)
	reply := func(change func(ip, icmp []byte)) []byte {
		p := make([]byte, ipv4MinHeader, ipv4MinHeader+len(request))
		p[0] = 0x45
		p = append(p, request...)
		p[ipv4MinHeader] = icmpEchoReply
		change(p[:ipv4MinHeader], p[ipv4MinHeader:])
		return p
	}
	for _, c := range []struct {
		name   string
		packet []byte
		want   bool
	}{
		{"the answer", reply(func(_, _ []byte) {}), true},
		{"nothing", nil, false},
		{"header cut", reply(func(_, _ []byte) {})[:19], false},
		{"data cut", reply(func(_, _ []byte) {})[:ipv4MinHeader+len(request)-1], false},
		{"the request itself", reply(func(_, icmp []byte) { icmp[0] = icmpEchoRequest }), false},
		{"another identifier", reply(func(_, icmp []byte) { icmp[5]++ }), false},
		{"one byte of data differs", reply(func(_, icmp []byte) { icmp[len(icmp)-1]++ }), false},
		{"header length of 15 words", reply(func(ip, _ []byte) { ip[0] = 0x4f }), false},
	} {
		t.Run(c.name, func(t *testing.T) { assert.Equal(t, c.want, isReply(c.packet, request)) })
	}
}

func TestChecksum(t *testing.T) {
	for _, c := range []struct {
		name string
		in   []byte
		want uint16
	}{
		// The example of RFC 1071, section 3: the sum is ddf2.
		{"RFC 1071", []byte{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7}, ^uint16(0xddf2)},
		{"odd length", []byte{0x01}, ^uint16(0x0100)},
		{"nothing", nil, 0xffff},
	} {
		t.Run(c.name, func(t *testing.T) { assert.Equal(t, c.want, checksum(c.in)) })
	}
}

func TestStream(t *testing.T) {
	a, b := pair(t, 1500)
	far := netip.MustParseAddr(addrB)
	for _, reverse := range []bool{false, true} {
		t.Run(fmt.Sprintf("reverse=%t", reverse), func(t *testing.T) {
			sent := func() uint64 {
				l, err := a.Link("a0")
				require.NoError(t, err)
				if reverse {
					return l.Stats.RXBytes
				}
				return l.Stats.TXBytes
			}
			s, err := Connect(context.Background(), a, b, far, reverse)
			require.NoError(t, err)
			defer s.Close()
			before := sent()
			got, err := s.Send(context.Background(), 3<<20+1)
			require.NoError(t, err)
			assert.Equal(t, int64(3<<20+1), got.Bytes)
			assert.Equal(t, 1448, got.MSS)
			assert.Greater(t, sent()-before, uint64(3<<20), "bytes in the direction asked for")

			got, err = s.SendFor(context.Background(), 50*time.Millisecond)
			require.NoError(t, err)
			assert.Positive(t, got.Bytes)
			assert.GreaterOrEqual(t, got.Elapsed, 50*time.Millisecond)
			assert.Positive(t, got.Mbps())

			stop, received := make(chan struct{}), s.Received()
			time.AfterFunc(20*time.Millisecond, func() { close(stop) })
			got, err = s.SendUntil(context.Background(), stop)
			require.NoError(t, err)
			assert.Positive(t, got.Bytes)
			assert.Equal(t, got.Bytes, s.Received()-received, "all of it is verified")
			assert.GreaterOrEqual(t, got.Elapsed, 20*time.Millisecond)
		})
	}
}

func TestStreamErrors(t *testing.T) {
	a, b := pair(t, 1500)
	far := netip.MustParseAddr(addrB)
	connect := func(t *testing.T) *Stream {
		s, err := Connect(context.Background(), a, b, far, false)
		require.NoError(t, err)
		t.Cleanup(func() { s.Close() })
		return s
	}
	t.Run("another byte than was sent", func(t *testing.T) {
		s := connect(t)
		_, err := s.out.Write([]byte{s.pattern[0], s.pattern[1] ^ 1})
		require.NoError(t, err)
		_, err = s.Send(context.Background(), 1000)
		var corrupt *CorruptError
		assert.ErrorAs(t, err, &corrupt)
	})
	t.Run("the far end closes", func(t *testing.T) {
		s := connect(t)
		require.NoError(t, s.in.Close())
		_, err := s.Send(context.Background(), 1<<30)
		assert.Error(t, err)
	})
	t.Run("the context ends while sending", func(t *testing.T) {
		s := connect(t)
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		_, err := s.Send(ctx, 1<<50)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
	})
	t.Run("nobody at the address", func(t *testing.T) {
		_, err := Connect(context.Background(), a, b, netip.MustParseAddr("10.9.0.77"), false)
		assert.ErrorIs(t, err, unix.EADDRNOTAVAIL)
	})
	t.Run("no way there", func(t *testing.T) {
		require.NoError(t, a.SetUp("a0", false))
		_, err := Connect(context.Background(), a, b, far, false)
		assert.ErrorIs(t, err, unix.ENETUNREACH)
	})
}

func TestStart(t *testing.T) {
	n := newNS(t)
	t.Run("child lives in the namespace", func(t *testing.T) {
		cmd := exec.Command("readlink", "/proc/self/ns/net")
		var out strings.Builder
		cmd.Stdout = &out
		require.NoError(t, n.Start(cmd))
		require.NoError(t, cmd.Wait())
		assert.Equal(t, fmt.Sprintf("net:[%d]", inode(t, n)), strings.TrimSpace(out.String()))
	})
	t.Run("child ends with the namespace", func(t *testing.T) {
		own, err := New()
		require.NoError(t, err)
		cmd := exec.Command("sleep", "600")
		require.NoError(t, own.Start(cmd))
		require.NoError(t, own.Close())
		err = cmd.Wait()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
		assert.Equal(t, "signal: killed", exit.Error())
	})
	t.Run("no such program", func(t *testing.T) {
		assert.ErrorIs(t, n.Start(exec.Command("/no/such/program")), os.ErrNotExist)
	})
}

func TestScratch(t *testing.T) {
	needRoot(t)
	s, err := NewScratch()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(s.Path("a file"), []byte("of one process"), 0o600))

	t.Run("a child reads it through its own descriptor", func(t *testing.T) {
		cmd := exec.Command("cat", ChildFDPath(0)+"/a file")
		cmd.ExtraFiles = []*os.File{s.File()}
		out, err := cmd.Output()
		require.NoError(t, err)
		assert.Equal(t, "of one process", string(out))
	})
	t.Run("a socket can be bound in it", func(t *testing.T) {
		l, err := net.Listen("unix", s.Path("socket"))
		require.NoError(t, err)
		defer l.Close()
		c, err := net.Dial("unix", s.Path("socket"))
		require.NoError(t, err)
		require.NoError(t, c.Close())
	})
	t.Run("it is mounted nowhere", func(t *testing.T) {
		var st unix.Stat_t
		require.NoError(t, unix.Fstat(int(s.File().Fd()), &st))
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		require.NoError(t, err)
		assert.NotContains(t, string(mounts), fmt.Sprintf(" %d:%d ", unix.Major(st.Dev), unix.Minor(st.Dev)))
	})
	require.NoError(t, s.Close())
}

// hold makes a namespace with an interface and a child in it, tells about both
// and waits to be killed.
func hold() {
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	n, err := New()
	if err != nil {
		fail(err)
	}
	cmd := exec.Command("sleep", "600")
	if err := n.Start(cmd); err != nil {
		fail(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(n.File().Fd()), &st); err != nil {
		fail(err)
	}
	fmt.Println(cmd.Process.Pid, st.Ino)
	select {}
}

func TestKilledProcessLeavesNothing(t *testing.T) {
	needRoot(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holderEnv+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	child, ns := strings.Fields(line)[0], "net:["+strings.Fields(line)[1]+"]"
	assert.Contains(t, namespaces(t), ns)

	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	assert.Eventually(t, func() bool {
		return !running(child) && !contains(namespaces(t), ns)
	}, 10*time.Second, 10*time.Millisecond, "child %s or namespace %s is still there", child, ns)
}

// running tells whether a process exists and is more than an unreaped entry.
func running(pid string) bool {
	status, err := os.ReadFile("/proc/" + pid + "/stat")
	return err == nil && !strings.Contains(string(status), ") Z ")
}

// namespaces lists the network namespaces of all threads of the machine.
func namespaces(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*/ns/net")
	require.NoError(t, err)
	var found []string
	for _, p := range paths {
		if name, err := os.Readlink(p); err == nil {
			found = append(found, name)
		}
	}
	return found
}

func contains(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}

func ExampleNS() {
	n, err := New()
	if err != nil {
		log.Println("needs root:", err)
		return
	}
	defer n.Close()
	rtt, err := n.Ping(context.Background(), netip.MustParseAddr("127.0.0.1"), 56, 10*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	log.Println("answered after", rtt)
	// Output:
}
