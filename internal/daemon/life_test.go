package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/internal/mmio"
	"oxpd/internal/simdev"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/rpc/msg"
)

const lostText = "card is lost and waited for"

func (r *rig) state() client.State { return r.status().State }

// away takes the card off the bus and waits until that was noticed.
func (r *rig) away() {
	r.t.Helper()
	before := strings.Count(r.log.String(), lostText)
	r.card.Kill()
	r.wait("the loss to be noticed", func() bool { return strings.Count(r.log.String(), lostText) > before })
}

// A card that has left config space makes everything fail, and not all of that says so.
func TestWhatIsALoss(t *testing.T) {
	card := hwsim.New(hwsim.Options{Timeline: hwsim.Compressed()})
	defer card.Close()
	d := New(Options{})
	other := errors.New("assembly is not the one of the board")
	assert.False(t, d.isLoss(mmio.ErrGone), "of a card that was never opened")
	d.dev = simdev.New(card)
	assert.False(t, d.isLoss(other))
	assert.True(t, d.isLoss(fmt.Errorf("ring 3: %w", mmio.ErrGone)), "though it answers again")
	card.Kill()
	assert.True(t, d.isLoss(other))
}

// device is the daemon's own counters.
func (r *rig) device() map[string]uint64 {
	r.t.Helper()
	s, err := r.client.Stats(context.Background(), "")
	require.NoError(r.t, err)
	return s.Device
}

// counts are all counters of the daemon, the rings and the ports, but for those that
// tell how things are.
func (r *rig) counts() map[string]uint64 {
	r.t.Helper()
	s, err := r.client.Stats(context.Background(), "")
	require.NoError(r.t, err)
	all := map[string]uint64{}
	add := func(of string, m map[string]uint64) {
		for name, v := range m {
			if !strings.HasPrefix(name, "gather_") && name != "credit_carry" && name != "rx_seen" {
				all[of+" "+name] = v
			}
		}
	}
	add("device", s.Device)
	for _, q := range s.Rings {
		add(fmt.Sprintf("ring %d", q.Ring), q.Counters)
	}
	for _, p := range s.Ports {
		add(p.IfName, p.Counters)
	}
	return all
}

// addresses are those of an interface, and its bridge.
func (r *rig) addresses(name string) string {
	r.t.Helper()
	var l []struct {
		Index  int    `json:"ifindex"`
		Master string `json:"master"`
		Addrs  []struct {
			Local string `json:"local"`
			Scope string `json:"scope"`
		} `json:"addr_info"`
	}
	require.NoError(r.t, json.Unmarshal([]byte(r.mustIP("-j", "addr", "show", name)), &l))
	require.Len(r.t, l, 1)
	out := fmt.Sprintf("index %d master %q", l[0].Index, l[0].Master)
	for _, a := range l[0].Addrs {
		if a.Scope == "global" {
			out += " " + a.Local
		}
	}
	return out
}

// TestCardComesBack: everything that somebody has set is as it was, at interfaces that
// have never gone, and nothing was done by hand.
func TestCardComesBack(t *testing.T) {
	t.Parallel()
	card := sharedCard(t, hwsim.Compressed())
	r := start(t, rigOptions{shared: card}).running()
	r.mustIP("link", "add", "br0", "type", "bridge")
	r.mustIP("link", "set", "oxp1", "master", "br0")
	r.mustIP("link", "set", "oxp1", "up")
	r.mustIP("addr", "add", "192.0.2.9/24", "dev", "oxp9")
	r.mustIP("link", "set", "oxp9", "up")
	r.mustIP("route", "add", "198.51.100.0/24", "via", "192.0.2.1", "dev", "oxp9")
	require.NoError(t, r.setMTU("oxp9", 9000))
	r.mustIP("link", "set", "oxp10", "address", "02:00:00:00:00:aa")
	r.mustIP("link", "set", "oxp2", "up")
	r.mustIP("link", "set", "oxp2", "down")
	asSet := func() bool {
		own := r.lif("oxp10").MAC
		return r.lif("oxp1").Fwd == msg.FwdL2 && r.agentPort("oxp1").Promisc && r.effective("oxp9") == 9000 &&
			own == [6]byte{2, 0, 0, 0, 0, 0xaa} && !r.agentPort("oxp2").Up && r.agentPort("oxp9").Up
	}
	r.wait("the card to follow", asSet)
	links := func(want string) bool {
		for _, p := range []string{"oxp1", "oxp9", "oxp10"} {
			if r.port(p).Link != want {
				return false
			}
		}
		return true
	}
	r.wait("links", func() bool { return links(client.LinkUp) })
	pour(t, card, 1)
	r.wait("traffic", func() bool { return r.rxPackets("oxp9") > 100 })
	before := r.counts()
	at9, at1 := r.addresses("oxp9"), r.addresses("oxp1")
	old := r.memory.names()

	for i := range 2 {
		r.away()
		assert.Equal(t, client.StateGone, r.state())
		for _, p := range board.All() {
			if slices.Contains(r.link(p.Name).Flags, "UP") {
				r.carrier(p.Name, false)
			}
		}
		assert.Equal(t, at9, r.addresses("oxp9"))
		assert.Equal(t, at1, r.addresses("oxp1"))
		s := r.status()
		assert.False(t, s.Device.Alive)
		assert.EqualValues(t, i+1, s.Device.Lost)
		assert.Equal(t, client.StageActive, s.Stages[stageDevice].State)
		assert.Contains(t, s.Stages[stageDevice].Awaiting, "the card to come back")
		assert.Equal(t, client.StagePending, s.Stages[stagePorts].State)
		assert.Contains(t, strings.Join(s.Warnings, "\n"), "the card is lost")
		assert.Zero(t, s.PortsUp)
		assert.True(t, links(client.LinkDown))
		assert.Equal(t, client.CodeGone, code(r.setMTU("oxp9", 1500)), "what sets is refused")
		_, err := r.client.SetState(context.Background(), "oxp9", client.LinkDown)
		assert.Equal(t, client.CodeGone, code(err))
		_, err = r.client.Counters(context.Background())
		assert.Equal(t, client.CodeGone, code(err), "what asks the card is too")
		seen, asked := r.accesses.Load(), time.Now()
		assert.ElementsMatch(t, old, r.memory.names(), "the memory stays")
		for time.Since(asked) < 600*time.Millisecond { // more than a tick of the wait, twelve sweeps
			_, err := r.client.Ports(context.Background())
			require.NoError(t, err)
			for name, v := range r.counts() {
				assert.GreaterOrEqual(t, v, before[name], name)
			}
			r.view("oxp9")
			time.Sleep(20 * time.Millisecond)
		}
		assert.Equal(t, seen, r.accesses.Load(), "no BAR is touched after the loss")

		card.Reboot()
		r.wait("running", func() bool { return r.state() == client.StateRunning })
		r.wait("everything to be as it was set", asSet)
		r.wait("links", func() bool { return links(client.LinkUp) })
		assert.Equal(t, at9, r.addresses("oxp9"), "the interface is the same")
		assert.Equal(t, at1, r.addresses("oxp1"))
		assert.Contains(t, r.mustIP("route"), "198.51.100.0/24 via 192.0.2.1 dev oxp9")
		assert.ElementsMatch(t, old, r.memory.names(), "the memory of before was released")
		rx := r.rxPackets("oxp9")
		r.wait("traffic", func() bool { return r.rxPackets("oxp9") > rx+100 })
		for name, v := range r.counts() {
			assert.GreaterOrEqual(t, v, before[name], name)
		}
		before = r.counts()
		s = r.status()
		assert.Empty(t, s.Warnings)
		assert.Equal(t, board.Ports, s.PortsUp)
		assert.Equal(t, i+1, strings.Count(r.log.String(), lostText), "said once")
		assert.Equal(t, i+1, strings.Count(r.log.String(), "card is back"))
		require.NoError(t, r.setMTU("oxp9", 1500+i))
		require.NoError(t, r.setMTU("oxp9", 9000))
	}
	assert.Empty(t, card.Reports())
	r.faulty = true // frames that arrive after bus mastering was cleared
}

// Every stage of the bring-up may be the one in which the card is lost, of the first
// life and of a later one.
func TestCardLostInEachStage(t *testing.T) {
	t.Parallel()
	for s := stage(0); s < stages; s++ {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			card := sharedCard(t, hwsim.Compressed())
			seen := 0
			r := start(t, rigOptions{shared: card, stage: func(at stage, r *rig) {
				if at != s {
					return
				}
				if seen++; seen <= 2 && !(s == stageDevice && seen == 2) { // there it is away already
					card.Kill()
				}
			}})
			times := map[bool]uint64{true: 1, false: 2}[s == stageDevice]
			for i := range times {
				r.wait("the loss to be noticed", func() bool { return r.status().Device.Lost == i+1 })
				r.wait("gone", func() bool { return r.state() == client.StateGone })
				card.Reboot()
			}
			r.running()
			r.wait("every port", func() bool { return r.status().PortsUp == board.Ports })
			r.wait("links", func() bool { return r.port("oxp9").Link == client.LinkUp })
			assert.EqualValues(t, times, r.status().Device.Lost)
			assert.Empty(t, card.Reports())
		})
	}
}

// The stop sequence of a card that was lost in each way.
func TestStopOfALostCard(t *testing.T) {
	t.Parallel()
	var again atomic.Bool // it is lost once more, with rings that it knows
	for _, tc := range []struct {
		name string
		do   func(t *testing.T, r *rig, card *hwsim.Card)
		kept bool
	}{
		{"while it is away", func(*testing.T, *rig, *hwsim.Card) {}, true},
		{"twice, and it never ran in between", func(t *testing.T, r *rig, card *hwsim.Card) {
			again.Store(true)
			card.Reboot()
			r.wait("both losses", func() bool { return r.status().Device.Lost == 2 })
		}, true},
		{"when it has just come back", func(t *testing.T, r *rig, card *hwsim.Card) { card.Reboot() }, false},
		{"when it runs again", func(t *testing.T, r *rig, card *hwsim.Card) { card.Reboot(); r.running() }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			card := sharedCard(t, hwsim.Compressed())
			r := start(t, rigOptions{shared: card, stage: func(s stage, _ *rig) {
				if s == stageReady && again.CompareAndSwap(true, false) {
					card.Kill()
				}
			}}).running()
			r.faulty = true
			r.away()
			tc.do(t, r, card)
			r.cancel()
			require.NoError(t, r.end())
			assert.Equal(t, tc.kept, r.d.result.MemoryKept)
			assert.Equal(t, 1, strings.Count(r.log.String(), "msg=stopping"))
			assert.Empty(t, card.Reports())
		})
	}
}

// A card that only could not be reached for a while knows the rings of before, and may
// write to them: their memory is kept until it was reset.
func TestCardThatComesBackAsItWas(t *testing.T) {
	t.Parallel()
	card := sharedCard(t, hwsim.Compressed())
	r := start(t, rigOptions{shared: card}).running()
	r.mustIP("link", "set", "oxp9", "up")
	pour(t, card, 1)
	r.wait("traffic", func() bool { return r.rxPackets("oxp9") > 100 })
	old := r.memory.names()
	card.Faults(func(f *hwsim.Faults) { f.Gone = true })
	r.wait("the loss to be noticed", func() bool { return r.state() == client.StateGone })
	card.Faults(func(f *hwsim.Faults) { f.Gone = false })
	r.wait("it to be told", func() bool {
		s := r.status().Stages[stageBusMaster]
		return strings.Contains(s.Awaiting, "a reset of the coprocessor") && strings.Contains(s.Error, "earlier run")
	})
	assert.ElementsMatch(t, old, r.memory.names(), "the card may still write to it")
	assert.NotZero(t, card.ConfigRead(csr.CfgCommand, 2)&csr.CfgCommandBusMaster, "as it was found")
	card.Reboot()
	r.wait("running", func() bool { return r.state() == client.StateRunning })
	assert.ElementsMatch(t, old, r.memory.names())
	rx := r.rxPackets("oxp9")
	r.wait("traffic", func() bool { return r.rxPackets("oxp9") > rx+100 })
	assert.Empty(t, card.Reports())
	r.faulty = true
}

// A reset that falls between two looks at config space.
func TestResetThatNobodySaw(t *testing.T) {
	t.Parallel()
	card := sharedCard(t, hwsim.Compressed())
	r := start(t, rigOptions{shared: card}).running()
	r.faulty = true // the first accesses meet a card that does not decode
	card.Reboot()
	r.wait("the loss to be noticed", func() bool { return r.status().Device.Lost == 1 })
	r.running()
	r.wait("every port", func() bool { return r.status().PortsUp == board.Ports })
}

// What is asked of a card that is away, and what somebody changes at its interfaces,
// is done when it is back.
func TestChangesWhileTheCardIsAway(t *testing.T) {
	t.Parallel()
	card := sharedCard(t, hwsim.Compressed())
	r := start(t, rigOptions{shared: card}).running()
	r.mustIP("link", "set", "oxp9", "up")
	r.mustIP("link", "set", "oxp11", "up")
	r.wait("followed", func() bool { return r.port("oxp11").Admin == client.OperUp })
	r.away()
	r.mustIP("link", "set", "oxp9", "mtu", "9000")
	r.mustIP("link", "set", "oxp11", "down")
	r.mustIP("link", "del", "oxp12")
	r.reload(func(c *config.Config) {
		c.Ports = map[string]config.Port{"oxp10": {MTU: 4000}}
	})
	assert.True(t, r.logged("settings wait for the card", "port=oxp10"))
	card.Reboot()
	r.wait("running", func() bool { return r.state() == client.StateRunning })
	r.wait("the MTU of the interface", func() bool { return r.effective("oxp9") == 9000 })
	r.wait("the MTU of the configuration", func() bool { return r.effective("oxp10") == 4000 })
	r.wait("lowered", func() bool { return !r.agentPort("oxp11").Up })
	r.wait("made again", func() bool { return r.port("oxp12").State == client.PortUp })
}

// The carriers go down before anything is waited for, and who is late finds the card
// behind a fence, also when it is back.
func TestCarriersGoFirst(t *testing.T) {
	t.Parallel()
	card := sharedCard(t, hwsim.Compressed())
	r := start(t, rigOptions{shared: card}).running()
	r.mustIP("link", "set", "oxp9", "up")
	r.wait("link", func() bool { return r.port("oxp9").OperState == client.OperUp })
	late := r.d.card.BAR0()
	hold := &r.d.life.tasks
	hold.Add(1) // a part that takes its time
	card.Kill()
	r.carrier("oxp9", false)
	assert.Equal(t, client.StateGone, r.state())
	seen := r.accesses.Load()
	assert.Equal(t, ^uint64(0), late.Load64(uint32(csr.RInfo)))
	hold.Done()
	card.Reboot()
	r.wait("running", func() bool { return r.state() == client.StateRunning })
	assert.Greater(t, r.accesses.Load(), seen)
	assert.Equal(t, ^uint64(0), late.Load64(uint32(csr.RInfo)))
}

// Somebody has put back what a reset took away, bus mastering too, or nobody has.
func TestConfigSpaceOfACardThatIsBack(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		back func(card *hwsim.Card)
	}{
		{"as a reset leaves it", func(card *hwsim.Card) {
			card.Faults(func(f *hwsim.Faults) { f.LoseAddresses = true })
			card.Reboot()
		}},
		{"bus mastering is on", func(card *hwsim.Card) {
			card.Reboot()
			card.ConfigWrite(csr.CfgCommand, 2, csr.CfgCommandMemory|csr.CfgCommandBusMaster)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			card := sharedCard(t, hwsim.Compressed())
			card.ConfigWrite(csr.CfgDevCtl, 2, 0x2830)
			bars := func() (out []uint32) {
				for off := csr.CfgBAR0; off < csr.CfgBAR0+24; off += 4 {
					out = append(out, card.ConfigRead(off, 4))
				}
				return append(out, card.ConfigRead(csr.CfgDevCtl, 2))
			}
			r := start(t, rigOptions{shared: card}).running()
			before := bars()
			r.away()
			tc.back(card)
			r.wait("running", func() bool { return r.state() == client.StateRunning })
			assert.Equal(t, before, bars())
			assert.EqualValues(t, 1, r.status().Device.Lost)
			assert.Empty(t, card.Reports())
		})
	}
}

// node is a way to a card that somebody may take away for good.
type node struct {
	octep.Device
	removed atomic.Bool
	closed  atomic.Int32
}

func (n *node) Ended() bool { return n.removed.Load() }

func (n *node) ConfigRead(off, width int) (uint32, error) {
	if n.removed.Load() {
		return ^uint32(0) >> (32 - 8*width), nil
	}
	return n.Device.ConfigRead(off, width)
}

func (n *node) Close() error {
	n.closed.Add(1)
	return n.Device.Close()
}

// A card whose way has ended is opened anew. What it knew by the old way is given back
// there, and not before it is known to have been reset.
func TestCardThatIsFoundAnew(t *testing.T) {
	t.Parallel()
	card := sharedCard(t, hwsim.Compressed())
	var mu sync.Mutex
	var nodes []*node
	r := start(t, rigOptions{shared: card, wrap: func(d octep.Device) octep.Device {
		n := &node{Device: d}
		mu.Lock()
		nodes = append(nodes, n)
		mu.Unlock()
		return n
	}}).running()
	at := r.addresses("oxp9")
	first := r.memory
	nodes[0].removed.Store(true)
	r.wait("it to be found anew, as it was", func() bool {
		return strings.Contains(r.status().Stages[stageBusMaster].Awaiting, "a reset of the coprocessor")
	})
	assert.NotEmpty(t, first.names(), "the card may still write to it")
	assert.Zero(t, nodes[0].closed.Load())
	card.Reboot()
	r.running()
	assert.Empty(t, first.names())
	mu.Lock()
	assert.Len(t, nodes, 2)
	mu.Unlock()
	assert.EqualValues(t, 1, nodes[0].closed.Load())
	assert.Equal(t, at, r.addresses("oxp9"))
	r.cancel()
	require.NoError(t, r.end())
	assert.EqualValues(t, 1, nodes[0].closed.Load())
	assert.EqualValues(t, 1, nodes[1].closed.Load())
	assert.Empty(t, card.Reports())
}

// vendors is a card whose vendor id reads one thing after the other, the last for ever.
type vendors struct {
	octep.Device
	reads []uint32
	asked []int // offsets
}

func (v *vendors) Name() string { return "card" }

func (v *vendors) ConfigRead(off, width int) (uint32, error) {
	v.asked = append(v.asked, off)
	now := v.reads[0]
	if len(v.reads) > 1 {
		v.reads = v.reads[1:]
	}
	return now, nil
}

// A card is back when it has been there twice in a row.
func TestAwaitCard(t *testing.T) {
	for _, tc := range []struct {
		name  string
		reads []uint32
		looks int
	}{
		{"there", []uint32{0x177d}, 2},
		{"after a while", []uint32{0xffff, 0xffff, 0xffff, 0x177d}, 5},
		{"a link that trains", []uint32{0x177d, 0xffff, 0x177d, 0xffff, 0xffff, 0x177d}, 7},
	} {
		t.Run(tc.name, func(t *testing.T) {
			clk, dev := &leapClock{}, &vendors{reads: tc.reads}
			d := New(Options{Config: config.Default(), Clock: clk})
			d.dev, d.state = dev, client.StateGone
			require.NoError(t, d.awaitCard(context.Background()))
			assert.Equal(t, make([]int, tc.looks), dev.asked, "the vendor id and nothing else")
			assert.Equal(t, time.Duration(tc.looks)*goneTick, clk.Now())
			assert.Equal(t, client.StateBringUp, d.state)
		})
	}
	t.Run("the daemon stops", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		dev := &vendors{reads: []uint32{0xffff}}
		d := New(Options{Config: config.Default(), Clock: &leapClock{}})
		d.dev, d.state = dev, client.StateStopping
		require.ErrorIs(t, d.awaitCard(ctx), context.Canceled)
		assert.Empty(t, dev.asked)
		assert.Equal(t, client.StateStopping, d.state)
	})
}
