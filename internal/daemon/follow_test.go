package daemon

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/rpc/msg"
)

// between is a frame of n bytes from one station to another, neither of which is of
// the card.
func between(from, to byte, n int) []byte {
	b := bytes.Repeat([]byte{from ^ to}, n)
	copy(b, []byte{2, 0x77, 0, 0, 0, to, 2, 0x77, 0, 0, 0, from, 0x88, 0xb5})
	return b
}

// heard counts the frames that leave a wire and are equal to one.
func heard(w *hwsim.Wire, want []byte) *atomic.Uint64 {
	n := new(atomic.Uint64)
	w.SetReceiver(func(b []byte) {
		if bytes.Equal(b, want) {
			n.Add(1)
		}
	})
	return n
}

// TestBridgeOfTwoPorts is a Linux bridge of two switch ports: frames between two
// stations pass both ways, of every size, and the MTU has one owner all the same.
//
//oxpd:fault D24 behaviour
func TestBridgeOfTwoPorts(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{}).running()
	r.card.SetSwitchFrame(10240)
	r.mustIP("link", "add", "br0", "type", "bridge")
	for _, name := range []string{"oxp1", "oxp2"} {
		r.mustIP("link", "set", name, "master", "br0")
		r.mustIP("link", "set", name, "up")
	}
	r.mustIP("link", "set", "br0", "up")
	for _, name := range []string{"oxp1", "oxp2"} {
		r.wait("L2 and NetAgent's filter off", func() bool { return r.lif(name).Fwd == msg.FwdL2 && r.agentPort(name).Promisc })
	}
	pass := func(t *testing.T, n int) {
		t.Helper()
		a, b := r.wire("oxp1"), r.wire("oxp2")
		there, back := between(1, 2, n), between(2, 1, n)
		atB, atA := heard(b, there), heard(a, back)
		r.wait("a frame to pass", func() bool { a.Send(there); time.Sleep(5 * time.Millisecond); return atB.Load() > 0 })
		r.wait("and one the other way", func() bool { b.Send(back); time.Sleep(5 * time.Millisecond); return atA.Load() > 0 })
	}
	t.Run("both ways", func(t *testing.T) {
		pass(t, 60)
		pass(t, 1514)
		v := r.view("oxp1")
		assert.Equal(t, "br0", v.Bridge)
		assert.Equal(t, 1500, v.BridgeMTU)
		assert.Equal(t, "L2", v.Want.Mode)
		assert.Equal(t, "L2", v.LIF.Mode)
		assert.Equal(t, true, *v.NetAgent.Promisc)
		assert.Equal(t, []string{}, v.Warnings, "a list, and no null")
	})
	t.Run("members at 9,000: each LIF follows, and the bridge", func(t *testing.T) {
		r.mustIP("link", "set", "oxp1", "mtu", "9000")
		r.mustIP("link", "set", "oxp2", "mtu", "9000")
		for _, name := range []string{"oxp1", "oxp2"} {
			r.wait("the LIF follows", func() bool { return r.effective(name) == 9000 })
			r.mtus(name, 9000)
		}
		assert.Equal(t, 9000, r.link("br0").MTU)
		pass(t, 9014)
	})
	t.Run("the bridge sets no member's MTU", func(t *testing.T) {
		r.mustIP("link", "set", "br0", "mtu", "2000")
		r.mtus("oxp1", 9000)
		r.mtus("oxp2", 9000)
		assert.Empty(t, r.view("oxp1").Warnings, "one below its members is no trouble")
	})
	t.Run("a member that is refused is put back and named, and a bridge above it too", func(t *testing.T) {
		for _, name := range []string{"oxp1", "oxp2"} {
			require.NoError(t, r.setMTU(name, 1500))
		}
		r.card.Faults(func(f *hwsim.Faults) { f.LIFRefuse = map[board.Tag]msg.RC{board.ByIndex(1).Tag: 1} })
		r.mustIP("link", "set", "oxp1", "mtu", "9000")
		r.mustIP("link", "set", "oxp2", "mtu", "9000")
		r.wait("oxp2 to be put back", func() bool { return r.link("oxp2").MTU == 1500 })
		r.wait("oxp1 to be followed", func() bool { return r.effective("oxp1") == 9000 })
		r.mtus("oxp2", 1500)
		r.wait("it to be named", func() bool {
			return strings.Contains(strings.Join(r.view("oxp2").Warnings, "\n"), "mtu 9000, set at the interface of oxp2 (Port2), was put back to 1500")
		})
		r.card.Faults(func(f *hwsim.Faults) { f.LIFRefuse = nil })
		r.mustIP("link", "set", "br0", "mtu", "9000")
		const warning = "bridge br0 has mtu 9000 and its member oxp2 (Port2) 1500"
		for _, name := range []string{"oxp1", "oxp2"} {
			w := strings.Join(r.view(name).Warnings, "\n")
			assert.Contains(t, w, warning, name)
			assert.Contains(t, w, "oxpd mtu oxp2 9000, or ip link set br0 mtu 1500", name)
		}
		r.mustIP("link", "set", "br0", "mtu", "9001")
		w := strings.Join(r.view("oxp1").Warnings, "\n")
		assert.Contains(t, w, "ip link set br0 mtu 1500")
		assert.NotContains(t, w, "oxpd mtu", "no port goes there")
		r.mustIP("link", "set", "br0", "mtu", "9000")
		require.NoError(t, r.setMTU("oxp2", 9000))
		assert.NotContains(t, strings.Join(r.view("oxp1").Warnings, "\n"), "bridge br0")
		r.wait("a change that succeeds ends the notice", func() bool { return len(r.view("oxp2").Warnings) == 0 })
		pass(t, 9014)
	})
	t.Run("a port that leaves goes back", func(t *testing.T) {
		r.mustIP("link", "set", "oxp1", "nomaster")
		r.wait("L3 and NetAgent's filter on", func() bool { return r.lif("oxp1").Fwd == msg.FwdL3 && !r.agentPort("oxp1").Promisc })
		assert.Equal(t, uint8(msg.FwdL2), r.lif("oxp2").Fwd)
		r.mustIP("link", "delete", "br0")
		r.wait("L3 and NetAgent's filter on", func() bool { return r.lif("oxp2").Fwd == msg.FwdL3 && !r.agentPort("oxp2").Promisc })
		assert.Empty(t, r.view("oxp1").Bridge)
	})
}

// asWanted tells whether every port of the card is what its owner wants.
func (r *rig) asWanted() bool {
	for _, p := range board.All() {
		v := r.d.owners[p.Index].snapshot()
		l, present := r.card.LIF(uint32(p.LIF()))
		a := r.card.AgentPort(p.Tag)
		if !v.up || !present || l.MAC != v.want.mac || int(l.MTU) != v.want.mtu || l.Fwd != v.want.mode() ||
			a.Up != v.want.up || a.Up && (a.MAC != v.want.mac || a.Promisc != v.want.promisc || a.AllMulti != v.want.allMulti) {
			return false
		}
	}
	return true
}

// TestFastPathRestarts: the coprocessor forgets LIFs and ports at moments chosen by
// a seed, with ports set up in every way and under traffic, and all of it comes back.
func TestFastPathRestarts(t *testing.T) {
	t.Parallel()
	const rounds = 6
	rng := rand.New(rand.NewPCG(7, 7))
	r := start(t, rigOptions{}).running()
	r.mustIP("link", "set", "oxp1", "promisc", "on")
	r.mustIP("link", "set", "oxp2", "allmulticast", "on")
	r.mustIP("link", "set", "oxp3", "address", "02:00:00:00:99:99")
	r.mustIP("link", "set", "oxp9", "up")
	require.NoError(t, r.setMTU("oxp9", 9000))
	_, err := r.client.SetState(context.Background(), "oxp4", client.LinkDown)
	require.NoError(t, err)
	r.wait("everything as wanted", r.asWanted)

	w := r.card.Wire(1)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				w.Send(frameOf(9014))
			}
		}
	}()
	for i := range rounds {
		time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond) // the moment is what is random
		r.card.WipeLIFs()
		if i%2 == 0 {
			r.card.ForgetPorts()
		}
		before := r.rxPackets("oxp9")
		r.wait("everything as wanted again", func() bool { return r.asWanted() && r.rxPackets("oxp9") > before })
	}
	close(stop)
	<-done
	for i := range rounds {
		mtu := 9000 - 1000*(i%2)
		asked := make(chan error, 1)
		go func() { asked <- r.setMTU("oxp9", mtu) }()
		time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond)
		r.card.WipeLIFs()
		err := <-asked
		r.wait("everything as wanted again", r.asWanted)
		if err == nil {
			r.wait("the MTU that was set stands", func() bool { return r.effective("oxp9") == mtu })
		}
	}
	r.wait("no warning to be left", func() bool { return len(r.status().Warnings) == 0 })
	assert.NotZero(t, r.view("oxp1").Repaired)
}

// TestFastPathRestartsDuringProvisioning: the twelve come up all the same.
func TestFastPathRestartsDuringProvisioning(t *testing.T) {
	t.Parallel()
	for _, seed := range []uint64{1, 2, 3} {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 0))
			r := start(t, rigOptions{stage: func(s stage, r *rig) {
				if s != stagePorts {
					return
				}
				pause := time.Duration(rng.IntN(300)) * time.Millisecond
				go func() {
					time.Sleep(pause) // the moment is what is random
					r.card.WipeLIFs()
				}()
			}}).running()
			r.wait("everything as wanted", r.asWanted)
			assert.Equal(t, board.Ports, r.status().PortsUp)
		})
	}
}

// TestMailboxThatADeadProcessLeft: its reply is thrown away, and the ports come up.
func TestMailboxThatADeadProcessLeft(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{stage: func(s stage, r *rig) {
		if s != stageNetAgent {
			return
		}
		ctx := context.Background()
		var f *octep.Facility
		r.wait("the mailbox", func() (ok bool) {
			var err error
			f, err = r.d.ep.WaitFacility(ctx, csr.FacNWA)
			return err == nil && f.Load32(msg.NWACookie) == msg.NWAMagic
		})
		body := msg.NWARequestMsg{Op: msg.OpGet, Sub: uint32(msg.AttrSpeed), Port: 1}.Append(nil)
		for i := 0; i < len(body); i += 4 {
			f.Store32(msg.NWARequest+uint32(i), binary.LittleEndian.Uint32(body[i:]))
		}
		f.Store32(msg.NWAReqLen, msg.NWAReqSize)
		f.Store32(msg.NWATurn, msg.TurnRequest)
		assert.NoError(t, f.Ring(0))
		r.wait("its reply", func() bool { return f.Load32(msg.NWAStatus) == msg.StatusReply })
	}}).running()
	assert.Equal(t, board.Ports, r.status().PortsUp)
	assert.Contains(t, r.log.String(), "nwa reply of an earlier request thrown away")
	r.wait("everything as wanted", r.asWanted)
}

// NetAgent's doorbell, and how often an exchange rings it: for the request, and when
// the reply was taken (rpc-lif.md 7).
const (
	agentSPI         = 154
	bellsPerExchange = 2
)

// TestNothingIsPolledFasterThanItMay: what is asked of the card at rest is one LIF a
// period and its counters in theirs, and of NetAgent one link a tick and one address a
// period.
func TestNothingIsPolledFasterThanItMay(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{config: func(c *config.Config) {
		c.LinkPoll, c.Reconcile = config.Duration(100*time.Millisecond), config.Duration(100*time.Millisecond)
	}}).running()
	r.wait("everything as wanted", r.asWanted)
	bells := func() uint64 { return r.card.Doorbells()[agentSPI] }
	began := r.d.clock.Now() // before what is counted begins, and the end after it
	r.card.ResetCommands()
	rung := bells()
	r.wait("some periods", func() bool { return len(r.card.Commands()) >= 20 })
	commands := r.card.Commands()
	rung = bells() - rung
	took := r.d.clock.Now() - began
	periods := int(took/(100*time.Millisecond)) + 2
	sent := map[msg.Command]int{}
	for _, c := range commands {
		sent[c.Command]++
	}
	assert.LessOrEqual(t, sent[msg.CmdLIFRead], periods)
	assert.LessOrEqual(t, sent[msg.CmdSysCntRead], int(took/flowPause)+1)
	assert.Len(t, commands, sent[msg.CmdLIFRead]+sent[msg.CmdSysCntRead], "no other: %v", sent)
	assert.LessOrEqual(t, rung, uint64(2*periods*bellsPerExchange))
	assert.Greater(t, rung, uint64(sent[msg.CmdLIFRead]*bellsPerExchange), "both are asked")
}
