package divert

import (
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/divert/proto"
	"oxpd/internal/frame"
	"oxpd/internal/sys"
)

const (
	// asBareEnd makes a process of this program the far end of the bare loop, at
	// descriptor 3; asBatchEngine makes it an engine, at the socket that it names. Both
	// take frames of up to costFrame bytes by batches, and answer by batches.
	asBareEnd     = "OXPD_TEST_BARE_END"
	asBatchEngine = "OXPD_TEST_BATCH_ENGINE"

	answerEach, answerTogether = "each", "together" // values of asBareEnd

	bareAnswer   = 8 // bytes
	costFrame    = 9014
	costInFlight = 256
	costBuffer   = 4 << 20
	costRounds   = 5
	// verdictShare is what the way through the queue reaches of the bare loop's rate.
	verdictShare = 0.8
)

// batchEnd receives frames by batches until its socket ends.
func batchEnd(fd int, answer func(frames [][]byte) error) {
	in, bufs, frames := sys.NewMessages(sendBatch), make([][]byte, sendBatch), make([][]byte, sendBatch)
	for i := range bufs {
		bufs[i] = make([]byte, proto.FrameHeader+costFrame)
		in.Set(i, bufs[i], nil)
	}
	for {
		n, err := in.Receive(fd, sendBatch)
		if err == unix.EAGAIN {
			await(fd, unix.POLLIN)
			continue
		}
		if err != nil {
			return
		}
		for i := range n {
			bytes, _ := in.Bytes(i)
			if bytes == 0 {
				return
			}
			frames[i] = bufs[i][:bytes]
		}
		if answer(frames[:n]) != nil {
			return
		}
	}
}

func await(fd int, events int16) {
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, -1)
}

// sendAll waits until all are sent.
func sendAll(fd int, m *sys.Messages, n int) error {
	for sent := 0; sent < n; {
		k, err := m.Send(fd, sent, n)
		if err == unix.EAGAIN {
			await(fd, unix.POLLOUT)
		} else if err != nil {
			return err
		}
		sent += k
	}
	return nil
}

// bareEnd answers each frame with its first eight bytes: a message of its own for each, or
// one for all of a batch.
func bareEnd(fd int, together bool) {
	out, answer := sys.NewMessages(sendBatch), make([]byte, 0, sendBatch*bareAnswer)
	batchEnd(fd, func(frames [][]byte) error {
		answer = answer[:0]
		for i, f := range frames {
			answer = append(answer, f[:bareAnswer]...)
			out.Set(i, f[:bareAnswer], nil)
		}
		if together {
			out.Set(0, answer, nil)
			frames = frames[:1]
		}
		return sendAll(fd, out, len(frames))
	})
}

// batchEngine accepts each frame.
func batchEngine(path string) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	}
	if err == nil {
		_, err = unix.Read(fd, make([]byte, proto.HelloSize))
	}
	b := proto.AppendHello(nil, &proto.Hello{Version: proto.Version, Name: "batches"})
	if err == nil {
		_, err = unix.Write(fd, b)
	}
	if err != nil {
		os.Exit(1)
	}
	batchEnd(fd, func(frames [][]byte) error {
		b = proto.BeginVerdicts(b[:0])
		for _, m := range frames {
			f, err := proto.ParseFrame(m)
			if err != nil {
				return err
			}
			b, _ = proto.AppendRecord(b, &proto.Record{ID: f.ID, Code: proto.Accept})
		}
		_, err := unix.Write(fd, b)
		return err
	})
}

// bare is a loop of sendmmsg and recvmmsg over a pair of sockets, with costInFlight
// frames without an answer at most.
type bare struct {
	fd      int
	out, in *sys.Messages
}

func newBare(t *testing.T, size int, answers string) *bare {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fds[0]) })
	far := os.NewFile(uintptr(fds[1]), "far end")
	defer far.Close()
	for _, fd := range fds {
		require.NoError(t, setSendBuffer(fd, unix.SO_SNDBUF, costBuffer))
	}
	child(t, asBareEnd+"="+answers, far)
	b := &bare{fd: fds[0], out: sys.NewMessages(sendBatch), in: sys.NewMessages(sendBatch)}
	for i := range sendBatch {
		b.out.Set(i, make([]byte, size), nil)
		b.in.Set(i, make([]byte, sendBatch*bareAnswer), nil)
	}
	return b
}

// child starts a process of this program, which ends with the test.
func child(t *testing.T, env string, files ...*os.File) {
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe)
	cmd.Env, cmd.ExtraFiles, cmd.Stderr = append(os.Environ(), env), files, os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
}

// turn sends n frames, a multiple of a batch, and waits for all answers.
func (b *bare) turn(t *testing.T, n int) {
	for sent, back := 0, 0; back < n; {
		for sent < n && sent-back <= costInFlight-sendBatch {
			k, err := b.out.Send(b.fd, 0, sendBatch)
			if err == unix.EAGAIN {
				break
			}
			require.NoError(t, err)
			sent += k
		}
		k, err := b.in.Receive(b.fd, sendBatch)
		if err == unix.EAGAIN {
			await(b.fd, unix.POLLIN)
			continue
		}
		require.NoError(t, err)
		for i := range k {
			bytes, _ := b.in.Bytes(i)
			back += bytes / bareAnswer
		}
	}
}

// circle is an outlet that offers a frame for each that goes on.
type circle struct {
	*Queue
	frame Offered

	mu       sync.Mutex
	toOffer  int
	toReturn int
	done     chan struct{}
}

func (c *circle) Release(frames []Released) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offer(len(frames))
	if c.toReturn -= len(frames); c.toReturn == 0 {
		close(c.done)
	}
}

func (c *circle) offer(n int) {
	now := c.cfg.Clock.Now()
	for range min(n, c.toOffer) {
		if c.Queue.Offer(now, &c.frame) != Taken {
			panic("the queue is full")
		}
		c.toOffer--
	}
}

// turn has n frames inspected, with costInFlight of them in the queue.
func (c *circle) turn(t *testing.T, n int) {
	c.mu.Lock()
	c.toOffer, c.toReturn, c.done = n, n, make(chan struct{})
	c.offer(costInFlight)
	c.mu.Unlock()
	select {
	case <-c.done:
	case <-time.After(time.Minute):
		t.Fatalf("%d frames did not come back", c.toReturn)
	}
}

func newCircle(t *testing.T, size int) *circle {
	c := &circle{}
	r := newSocketRig(t, func(s *Settings) { s.QueueLen, s.BufferSize = costInFlight, costBuffer }, nil)
	r.Queue.cfg.Outlet = c
	var head frame.Packet
	b := udp(1, size, 1)
	head.Parse(b, len(b))
	c.Queue, c.frame = r.Queue, Offered{Pieces: [][]byte{b}, Bytes: size, Head: &head}
	child(t, asBatchEngine+"="+r.l.Path())
	r.eventually("attached", func() bool { return r.Queue.Stats().State != Absent })
	return c
}

// Verdicts a second through the queue and the listener's socket, beside a bare loop of the
// same frames over a pair of sockets (sendmmsg and recvmmsg, one thread at this end). In
// turns, the median of each. Without OXPD_BENCH it is a few frames, and nothing is measured.
func TestCostOfVerdicts(t *testing.T) {
	measured := os.Getenv("OXPD_BENCH") != ""
	for _, size := range []int{1514, costFrame} {
		t.Run("frame="+strconv.Itoa(size), func(t *testing.T) {
			rounds, n := 1, 20*costInFlight
			if measured {
				rounds, n = costRounds, 1000*costInFlight
			}
			ways := []struct {
				name string
				turn func(t *testing.T, n int)
				rate []float64
			}{
				{name: "bare loop, an answer a frame", turn: newBare(t, size, answerEach).turn},
				{name: "bare loop, an answer a batch", turn: newBare(t, size, answerTogether).turn},
				{name: "queue and listener", turn: newCircle(t, size).turn},
			}
			for range rounds {
				for i := range ways {
					begin := time.Now()
					ways[i].turn(t, n)
					ways[i].rate = append(ways[i].rate, float64(n)/time.Since(begin).Seconds())
				}
			}
			if !measured {
				return
			}
			var middle [3]float64
			for i, w := range ways {
				slices.Sort(w.rate)
				middle[i] = w.rate[len(w.rate)/2]
				t.Logf("frame=%d %-28s %8.0f verdicts/s", size, w.name, middle[i])
			}
			share := middle[2] / middle[0]
			t.Logf("frame=%d %.2f times the bare loop with an answer a frame, at least %.1f; %.2f times that with an answer a batch", size, share, verdictShare, middle[2]/middle[1])
			assert.GreaterOrEqual(t, share, verdictShare)
		})
	}
}

// The way of a frame to an engine and back allocates nothing of its own.
func TestVerdictsAllocateNothing(t *testing.T) {
	const n = 40 * costInFlight
	c := newCircle(t, 1514)
	c.turn(t, n)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	c.turn(t, n)
	runtime.ReadMemStats(&after)
	assert.Less(t, after.Mallocs-before.Mallocs, uint64(n/50), "allocations of %d frames: of the test and the runtime", n)
}
