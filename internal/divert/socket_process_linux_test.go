package divert

import (
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/divert/proto"
)

// asEngine makes a process of this program an engine at the socket that it names.
const asEngine = "OXPD_TEST_ENGINE"

func TestMain(m *testing.M) {
	if path := os.Getenv(asEngine); path != "" {
		acceptAll(path)
		os.Exit(0)
	}
	if path := os.Getenv(asBatchEngine); path != "" {
		batchEngine(path)
		os.Exit(0)
	}
	if answers := os.Getenv(asBareEnd); answers != "" {
		bareEnd(3, answers == answerTogether)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// acceptAll is an engine that accepts each frame at once, until the socket ends.
func acceptAll(path string) {
	c, err := net.DialUnix(seqpacket, nil, &net.UnixAddr{Name: path, Net: seqpacket})
	if err != nil {
		os.Exit(1)
	}
	b := make([]byte, proto.MaxMessage)
	if _, err = c.Read(b); err == nil {
		_, err = c.Write(proto.AppendHello(nil, &proto.Hello{Version: proto.Version, Name: "a process"}))
	}
	for err == nil {
		var n int
		if n, err = c.Read(b); err != nil {
			return
		}
		f, bad := proto.ParseFrame(b[:n])
		if bad != nil {
			return
		}
		answer, _ := proto.AppendRecord(proto.BeginVerdicts(nil), &proto.Record{ID: f.ID, Code: proto.Accept})
		_, err = c.Write(answer)
	}
}

// process starts an engine and waits until it is attached.
func (r *socketRig) process() *exec.Cmd {
	exe, err := os.Executable()
	require.NoError(r, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), asEngine+"="+r.l.Path())
	require.NoError(r, cmd.Start())
	r.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	r.eventually("attached", func() bool {
		e := r.l.Engine()
		return e != nil && e.PID == cmd.Process.Pid && r.Queue.Stats().State != Absent
	})
	return cmd
}

// An engine is stopped with its socket full, goes on, is killed, and is started again:
// each time the policy holds, and each frame is in one counter.
func TestEngineProcess(t *testing.T) {
	r := newSocketRig(t, func(s *Settings) { s.OnStall = Pass }, nil)
	cmd := r.process()
	r.offerAll(100)
	r.eventually("accepted", func() bool { return r.out.len() == 100 })

	require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
	r.stopped(cmd.Process.Pid)
	r.flood(700)
	r.clock.pass(r.Settings().Stall)
	r.Expire()
	assert.Equal(t, Stalled, r.Queue.Stats().State)
	assert.Equal(t, Passed, r.offer(udp(1, 1514, 1)), "at once")
	assert.Equal(t, Counts{Seen: 801, Accepted: 100, PassStall: 701}, r.Counts(0, In))

	require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
	handed := r.Queue.Stats().Events.Handed - 100
	r.eventually("it answers what it has", func() bool { s := r.Queue.Stats(); return s.Events.Late >= handed && s.State == Idle })
	r.offerAll(50)
	r.eventually("accepted", func() bool { return r.Counts(0, In).Accepted == 150 })

	require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
	r.stopped(cmd.Process.Pid)
	r.offerAll(20)
	require.NoError(t, cmd.Process.Kill())
	r.eventually("gone", func() bool { return r.Queue.Stats().State == Absent })
	assert.Equal(t, Lost, r.offer(udp(1, 1514, 1)))

	r.process()
	r.offerAll(30)
	r.eventually("accepted", func() bool { return r.Counts(0, In).Accepted == 180 })
	assert.Equal(t, Counts{Seen: 902, Accepted: 180, PassStall: 701, DropAbsent: 21}, r.Counts(0, In))
}

// stopped waits until every thread of a process has stopped.
func (r *socketRig) stopped(pid int) {
	var info syscall.WaitStatus
	for end := time.Now().Add(hang); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if got, err := syscall.Wait4(pid, &info, syscall.WUNTRACED|syscall.WNOHANG, nil); err == nil && got == pid && info.Stopped() {
			return
		}
	}
	r.Fatal("the engine does not stop")
}
