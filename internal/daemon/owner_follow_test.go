package daemon

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/nwa"
	"oxpd/lif"
	"oxpd/rpc/msg"
)

var (
	tagF1   = board.ByIndex(8).Tag
	foreign = [6]byte{2, 0, 0, 0, 0x99, 0x99}
	group   = [6]byte{3, 0, 0, 0, 0x99, 0x99}
)

// everything is what NetAgent is told about PortF1 when it may have forgotten it.
func everything(promisc, allMulti bool) []string {
	return []string{
		"state 0x0001 true", "set mac 0x0001", "mac 0x0001",
		fmt.Sprintf("promisc 0x0001 %v", promisc), fmt.Sprintf("allmulti 0x0001 %v", allMulti),
	}
}

func cat(lists ...[]string) (out []string) {
	for _, l := range lists {
		out = append(out, l...)
	}
	return out
}

// agree requires that NetAgent, LIF and interface are what is wanted.
func (b *bench) agree(t *testing.T) {
	t.Helper()
	w := b.want
	assert.Equal(t, w.up, b.agent.up, "NetAgent's state")
	assert.Equal(t, [6]byte(b.table.entry.MAC), w.mac, "the LIF's address")
	assert.Equal(t, w.mac, b.iface.mac, "the interface's address")
	assert.Equal(t, w.mode(), b.table.entry.Fwd, "the LIF's mode")
	assert.Equal(t, w.mtu, int(b.table.entry.MTU), "the LIF's MTU")
	assert.Equal(t, w.mtu, b.iface.mtu, "the interface's MTU")
	if w.up {
		assert.Equal(t, w.promisc, b.agent.promisc, "NetAgent's filter")
		assert.Equal(t, w.allMulti, b.agent.allMulti, "NetAgent's multicast filter")
		mac, err := b.agent.MAC(context.Background(), b.port.Tag)
		require.NoError(t, err)
		assert.Equal(t, w.mac, mac, "NetAgent's address")
	}
}

func TestTheCardFollowsTheInterface(t *testing.T) {
	promiscOn := []string{"lif mask 0x4 mode 1", "promisc 0x0001 true"}
	promiscOff := []string{"promisc 0x0001 false", "lif mask 0x4 mode 2"}
	type step struct {
		change func(i *fakeIface)
		log    []string
	}
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"a new interface is down, and its port is raised", []step{{func(*fakeIface) {}, nil}}},
		{"up: the port is raised already", []step{{func(i *fakeIface) { i.isUp = true }, nil}}},
		{"down and up", []step{
			{func(i *fakeIface) { i.isUp = true }, nil},
			{func(i *fakeIface) { i.isUp = false }, []string{"state 0x0001 false"}},
			{func(i *fakeIface) { i.isUp = true }, everything(false, false)},
		}},
		{"down and up between two looks is nothing", []step{{func(i *fakeIface) { i.isUp = true; i.isUp = false }, nil}}},
		{"promiscuous: the LIF first; and back, the LIF last", []step{
			{func(i *fakeIface) { i.promisc = true }, promiscOn},
			{func(i *fakeIface) { i.promisc = false }, promiscOff},
		}},
		{"a bridge, promiscuous in it, and out of both", []step{
			{func(i *fakeIface) { i.bridge = "br0" }, promiscOn},
			{func(i *fakeIface) { i.promisc = true }, nil},
			{func(i *fakeIface) { i.bridge = "" }, nil},
			{func(i *fakeIface) { i.promisc = false }, promiscOff},
		}},
		{"all multicast", []step{
			{func(i *fakeIface) { i.allMulti = true }, []string{"allmulti 0x0001 true"}},
			{func(i *fakeIface) { i.allMulti = false }, []string{"allmulti 0x0001 false"}},
		}},
		{"an address, and the card's own again", []step{
			{func(i *fakeIface) { i.mac = foreign }, []string{"lif mask 0x1 mac 020000009999", "set mac 0x0001", "mac 0x0001"}},
			{func(i *fakeIface) { i.mac = ownMAC(tagF1) }, []string{"lif mask 0x1 mac 020000000001", "set mac 0x0001", "mac 0x0001"}},
		}},
		{"filters of a port that is down wait until it is raised", []step{
			{func(i *fakeIface) { i.isUp = true }, nil},
			{func(i *fakeIface) { i.isUp = false }, []string{"state 0x0001 false"}},
			{func(i *fakeIface) { i.promisc, i.allMulti = true, true }, []string{"lif mask 0x4 mode 1"}},
			{func(i *fakeIface) { i.mac = foreign }, []string{"lif mask 0x1 mac 020000009999"}},
			{func(i *fakeIface) { i.isUp = true }, everything(true, true)},
		}},
		{"all at once", []step{{
			func(i *fakeIface) { i.isUp, i.promisc, i.allMulti, i.mac, i.mtu = true, true, true, foreign, 9000 },
			[]string{
				"lif mask 0x1 mac 020000009999", "set mac 0x0001", "mac 0x0001",
				"lif mask 0x4 mode 1", "promisc 0x0001 true", "allmulti 0x0001 true",
				"limit 9000", "lif mask 0x2 mtu 9000",
			},
		}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx := context.Background()
			b := newBench(t, 8, 0).up(t)
			for i, s := range tc.steps {
				s.change(b.iface)
				require.NoError(t, b.follow(ctx, false))
				assert.Equal(t, s.log, b.log, "step %d", i)
				b.agree(t)
				b.settle(ctx)
				b.log = nil
				require.NoError(t, b.follow(ctx, false))
				assert.Empty(t, b.log, "step %d: the news of what was just done", i)
			}
			require.NoError(t, b.reconcile(ctx))
			if b.want.up {
				assert.Equal(t, []string{"mac 0x0001"}, b.log, "a reconcile asks, and changes nothing")
			} else {
				assert.Empty(t, b.log)
			}
		})
	}
}

func TestAddressThatIsPutBack(t *testing.T) {
	refused := &nwa.StatusError{Status: 1}
	own := ownMAC(tagF1)
	for _, tc := range []struct {
		name string
		to   [6]byte
		set  func(b *bench)
		err  error
		log  []string
	}{
		{"a group address", group, nil, lif.ErrBadMAC, nil},
		{"no address", [6]byte{}, nil, lif.ErrBadMAC, nil},
		{"LIF refuses", foreign, func(b *bench) { b.table.update = msg.RC(1).Err() }, lif.ErrRefused, []string{"lif mask 0x1 mac 020000009999"}},
		{"LIF takes it and keeps the old", foreign, func(b *bench) { b.table.ignore = true }, lif.ErrMismatch, []string{"lif mask 0x1 mac 020000009999"}},
		{
			"NetAgent refuses: the LIF is put back", foreign, func(b *bench) { b.agent.refuse["set mac"] = refused }, nwa.ErrRefused,
			[]string{"lif mask 0x1 mac 020000009999", "set mac 0x0001", "lif mask 0x1 mac 020000000001", "state 0x0001 true", "set mac 0x0001"},
		},
		{
			"NetAgent takes it and keeps the old", foreign, func(b *bench) { b.agent.deaf = true }, errReadBack,
			cat([]string{"lif mask 0x1 mac 020000009999", "set mac 0x0001", "mac 0x0001", "lif mask 0x1 mac 020000000001"}, everything(false, false)),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx := context.Background()
			b := newBench(t, 8, 0).up(t)
			if tc.set != nil {
				tc.set(b)
			}
			b.iface.mac = tc.to
			err := b.follow(ctx, false)
			require.ErrorIs(t, err, tc.err)
			assert.ErrorContains(t, err, "was put back to "+hwAddr(own))
			assert.Equal(t, append(tc.log, fmt.Sprintf("interface mac %x", own)), b.log)
			assert.Equal(t, own, b.want.mac)
			v := b.snapshot()
			assert.Equal(t, uint64(1), v.putBack)
			assert.Contains(t, v.macBack, hwAddr(tc.to))
			b.log = nil
			require.NoError(t, b.follow(ctx, false))
			assert.Empty(t, b.log, "the news of putting it back")

			b.table.update, b.table.ignore, b.agent.deaf = nil, false, false
			clear(b.agent.refuse)
			require.NoError(t, b.reconcile(ctx))
			b.agree(t)
			assert.NotEmpty(t, b.snapshot().macBack, "the notice stays")
			b.iface.mac = foreign
			require.NoError(t, b.follow(ctx, false))
			assert.Empty(t, b.snapshot().macBack, "until a change succeeds")
			b.agree(t)
		})
	}
	t.Run("another port's", func(t *testing.T) {
		ctx := context.Background()
		b := newBench(t, 8, 0).up(t)
		other := board.ByIndex(9)
		require.NoError(t, b.lifs.Provision(ctx, other, foreign))
		b.iface.mac = foreign
		require.ErrorIs(t, b.follow(ctx, false), lif.ErrMACInUse)
		assert.Equal(t, own, b.iface.mac)
		assert.ErrorContains(t, errors.New(b.snapshot().macBack), "oxp10", "who has it is named")
	})
	t.Run("a LIF that does not take it back is tried again", func(t *testing.T) {
		ctx := context.Background()
		b := newBench(t, 8, 0).up(t)
		b.agent.refuse["set mac"] = refused
		b.table.before = func(r msg.LIFUpdateReq) {
			if r.LIF.MAC == own {
				b.table.update = msg.RC(1).Err()
			}
		}
		b.iface.mac = foreign
		require.ErrorContains(t, b.follow(ctx, false), "which is tried again")
		assert.Equal(t, foreign, b.table.entry.MAC)
		assert.Equal(t, own, b.iface.mac)
		clear(b.agent.refuse)
		b.table.update, b.table.before = nil, nil
		require.NoError(t, b.reconcile(ctx))
		b.agree(t)
	})
	t.Run("an interface that does not take it back is tried again", func(t *testing.T) {
		ctx := context.Background()
		b := newBench(t, 8, 0).up(t)
		b.iface.mac, b.iface.refuse, b.table.update = foreign, errors.New("EBUSY"), msg.RC(1).Err()
		require.ErrorContains(t, b.follow(ctx, false), "EBUSY")
		b.iface.refuse, b.table.update = nil, nil
		require.NoError(t, b.reconcile(ctx))
		b.agree(t)
	})
}

// TestWhatTheCardRefuses of the interface's flags stands, is shown, and is tried
// again by each reconcile and by no other news.
func TestWhatTheCardRefuses(t *testing.T) {
	refused := &nwa.StatusError{Status: 1}
	for _, tc := range []struct {
		name   string
		change func(i *fakeIface)
		set    func(b *bench)
		err    error
	}{
		{"NetAgent does not lower the port", func(i *fakeIface) { i.isUp = false }, func(b *bench) { b.agent.refuse["state"] = refused }, nwa.ErrRefused},
		{"NetAgent is silent", func(i *fakeIface) { i.isUp = false }, func(b *bench) { b.agent.refuse["state"] = nwa.ErrTimeout }, nwa.ErrTimeout},
		{"LIF refuses L2", func(i *fakeIface) { i.bridge = "br0" }, func(b *bench) { b.table.update = msg.RC(1).Err() }, lif.ErrRefused},
		{"LIF takes L2 and keeps L3", func(i *fakeIface) { i.promisc = true }, func(b *bench) { b.table.ignore = true }, lif.ErrMismatch},
		{"NetAgent refuses to be promiscuous", func(i *fakeIface) { i.promisc = true }, func(b *bench) { b.agent.refuse["promisc"] = refused }, nwa.ErrRefused},
		{"NetAgent refuses all multicast", func(i *fakeIface) { i.allMulti = true }, func(b *bench) { b.agent.refuse["allmulti"] = refused }, nwa.ErrRefused},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx := context.Background()
			b := newBench(t, 8, 0).up(t)
			b.iface.isUp = true
			require.NoError(t, b.follow(ctx, false))
			tc.set(b)
			tc.change(b.iface)
			was := *b.iface
			b.notice(markIface)
			b.heed(ctx)
			require.ErrorIs(t, b.snapshot().err, tc.err)
			assert.Equal(t, was.isUp, b.iface.isUp, "the interface is left alone")
			assert.Equal(t, was.promisc, b.iface.promisc)
			b.log = nil
			require.NoError(t, b.follow(ctx, false))
			assert.Empty(t, b.log, "no news, no try")
			require.Error(t, b.reconcile(ctx))
			assert.NotEmpty(t, b.log)

			clear(b.agent.refuse)
			b.table.update, b.table.ignore = nil, false
			b.clk.now += time.Minute
			require.NoError(t, b.reconcile(ctx))
			assert.NoError(t, b.snapshot().err)
			b.agree(t)
		})
	}
}

func TestPortUpAndDownByRequest(t *testing.T) {
	ctx := context.Background()
	refused := &nwa.StatusError{Status: 1}
	set := func(b *bench, up bool) error {
		err := b.setUp(ctx, up)
		b.publish()
		return err
	}
	t.Run("down, the card first; and up", func(t *testing.T) {
		b := newBench(t, 8, 0).up(t)
		b.iface.isUp = true
		require.NoError(t, b.follow(ctx, false))
		require.NoError(t, b.setLink(true))
		require.NoError(t, set(b, false))
		assert.Equal(t, []string{"state 0x0001 false", "interface up false"}, b.log)
		assert.False(t, b.iface.carrier, "a lowered port has no link")
		require.NoError(t, b.setLink(true))
		assert.False(t, b.iface.carrier, "whatever was read on the way there")
		assert.True(t, b.snapshot().up, "it stays provisioned")
		b.log = nil
		require.NoError(t, b.follow(ctx, false))
		assert.Empty(t, b.log, "the news of it")

		require.NoError(t, set(b, true))
		assert.Equal(t, cat(everything(false, false), []string{"interface up true"}), b.log)
		require.NoError(t, b.setLink(true))
		assert.True(t, b.iface.carrier)
		b.agree(t)
	})
	t.Run("up raises the interface of a port that is raised", func(t *testing.T) {
		b := newBench(t, 8, 0).up(t)
		require.NoError(t, set(b, true))
		assert.Equal(t, []string{"interface up true"}, b.log)
	})
	t.Run("NetAgent refuses: nothing is changed", func(t *testing.T) {
		b := newBench(t, 8, 0).up(t)
		b.iface.isUp = true
		require.NoError(t, b.follow(ctx, false))
		b.agent.refuse["state"] = refused
		err := set(b, false)
		require.ErrorIs(t, err, nwa.ErrRefused)
		assert.Equal(t, client.CodeRefused, describe(err).Code)
		assert.True(t, b.iface.isUp)
		clear(b.agent.refuse)
		require.NoError(t, b.reconcile(ctx))
		assert.True(t, b.iface.isUp)
		assert.True(t, b.agent.up)
		b.agree(t)
	})
	t.Run("down by ip link right after up by request is seen", func(t *testing.T) {
		b := newBench(t, 8, 0).up(t)
		require.NoError(t, set(b, true))
		b.iface.isUp = false
		require.NoError(t, b.follow(ctx, false))
		assert.False(t, b.agent.up)
	})
	t.Run("a raised port whose interface is made again stays raised", func(t *testing.T) {
		b := newBench(t, 8, 0).up(t)
		require.NoError(t, set(b, true))
		b.ifaceGone()
		b.agent.start()
		require.NoError(t, b.provision(ctx))
		assert.False(t, b.iface.isUp)
		assert.True(t, b.agent.up, "a new interface is down, and that is nobody's request")
		b.agree(t)
	})
	t.Run("the interface refuses: the card's port is put back", func(t *testing.T) {
		b := newBench(t, 8, 0).up(t)
		b.iface.refuse = errors.New("EBUSY")
		err := set(b, false)
		require.ErrorIs(t, err, b.iface.refuse)
		assert.Equal(t, client.CodeRefused, describe(err).Code)
		b.agree(t)
		assert.True(t, b.agent.up)
	})
	t.Run("a port that waits", func(t *testing.T) {
		b := newBench(t, 8, 0)
		err := set(b, false)
		require.ErrorIs(t, err, errNotUp)
		assert.Empty(t, b.log)
	})
	t.Run("a lowered port whose interface is made again stays lowered", func(t *testing.T) {
		b := newBench(t, 8, 0).up(t)
		require.NoError(t, set(b, false))
		b.ifaceGone()
		require.NoError(t, b.provision(ctx))
		b.agree(t)
		assert.False(t, b.agent.up)
		b.iface.isUp = true
		require.NoError(t, b.follow(ctx, false))
		assert.True(t, b.agent.up, "until somebody raises it")
	})
}

func TestNetAgentThatForgets(t *testing.T) {
	ctx := context.Background()
	busy := func(t *testing.T) *bench {
		b := newBench(t, 8, 0).up(t)
		b.iface.isUp, b.iface.promisc, b.iface.allMulti, b.iface.mac = true, true, true, foreign
		require.NoError(t, b.follow(ctx, false))
		b.log = nil
		return b
	}
	t.Run("all of it: the address reads zero", func(t *testing.T) {
		b := busy(t)
		b.agent.start()
		require.NoError(t, b.reconcile(ctx))
		assert.Equal(t, cat([]string{"mac 0x0001"}, everything(true, true)), b.log)
		b.agree(t)
		assert.Equal(t, uint64(1), b.snapshot().forgot)
		assert.Equal(t, 1, logged(b, "NetAgent may have forgotten it"))
	})
	t.Run("the address alone", func(t *testing.T) {
		b := busy(t)
		b.agent.mac = ownMAC(tagF1)
		require.NoError(t, b.reconcile(ctx))
		assert.Equal(t, cat([]string{"mac 0x0001"}, everything(true, true)), b.log)
		b.agree(t)
	})
	t.Run("the LIF is missing", func(t *testing.T) {
		b := busy(t)
		b.table.present = false
		b.agent.promisc, b.agent.allMulti = false, false // and its address is the right one
		require.NoError(t, b.reconcile(ctx))
		b.agree(t)
		assert.Equal(t, uint64(1), b.snapshot().forgot)
	})
	t.Run("no answer says nothing", func(t *testing.T) {
		b := busy(t)
		b.agent.err[tagF1] = nwa.ErrTimeout
		require.ErrorIs(t, b.reconcile(ctx), nwa.ErrTimeout)
		assert.Equal(t, []string{"mac 0x0001"}, b.log)
		assert.Zero(t, b.snapshot().forgot)
		delete(b.agent.err, tagF1)
		require.NoError(t, b.reconcile(ctx))
		assert.NoError(t, b.snapshot().err)
	})
	t.Run("a lowered port is not asked", func(t *testing.T) {
		b := busy(t)
		require.NoError(t, b.setUp(ctx, false))
		b.agent.start()
		b.log = nil
		require.NoError(t, b.reconcile(ctx))
		assert.Empty(t, b.log)
		require.NoError(t, b.setUp(ctx, true))
		b.agree(t)
	})
}

func TestSettingsOfAConfiguration(t *testing.T) {
	ctx := context.Background()
	yes, no := true, false
	with := func(s portSettings) *bench {
		b := newBench(t, 8, 0)
		b.pending = s
		return b
	}
	t.Run("at the start: address, MTU, promiscuous, and up last", func(t *testing.T) {
		b := with(portSettings{mtu: 9000, up: &yes, mac: foreign, promisc: &yes})
		require.NoError(t, b.provision(ctx))
		assert.Equal(t, []string{
			"lif mask 0x1 mac 020000009999", "set mac 0x0001", "mac 0x0001", "interface mac 020000009999",
			"limit 9000", "lif mask 0x2 mtu 9000", "interface mtu 9000",
			"interface promisc true", "lif mask 0x4 mode 1", "promisc 0x0001 true",
			"interface up true",
		}, b.log[5:])
		assert.NoError(t, b.snapshot().err)
		b.agree(t)
	})
	t.Run("up: false lowers the port once its address is known", func(t *testing.T) {
		b := with(portSettings{up: &no})
		require.NoError(t, b.provision(ctx))
		assert.Equal(t, []string{"state 0x0001 true", "mac 0x0001", "lif mask 0xff mtu 1500", "bind", "attach mtu 1500", "state 0x0001 false", "interface up false"}, b.log)
		b.agree(t)
	})
	t.Run("later, and what fails is tried again", func(t *testing.T) {
		b := newBench(t, 8, 0).up(t)
		b.iface.refuse = errors.New("EBUSY")
		require.ErrorIs(t, b.apply(ctx, portSettings{mtu: 2000, mac: foreign}), b.iface.refuse)
		assert.Equal(t, 2000, b.iface.mtu, "one that fails keeps no other back")
		assert.Equal(t, ownMAC(tagF1), b.iface.mac)
		require.Error(t, b.reconcile(ctx))
		b.iface.refuse = nil
		require.NoError(t, b.reconcile(ctx))
		assert.Equal(t, foreign, b.iface.mac)
		b.agree(t)
	})
	t.Run("another configuration leaves what it does not name", func(t *testing.T) {
		b := newBench(t, 8, 0).up(t)
		b.iface.refuse = errors.New("EBUSY")
		require.Error(t, b.apply(ctx, portSettings{mac: foreign, up: &no}))
		require.Error(t, b.apply(ctx, portSettings{mtu: 2000, up: &yes}))
		b.iface.refuse = nil
		require.NoError(t, b.reconcile(ctx))
		assert.Equal(t, foreign, b.iface.mac)
		assert.True(t, b.iface.isUp, "the later one of two")
		b.agree(t)
	})
	t.Run("until somebody sets it otherwise", func(t *testing.T) {
		b := newBench(t, 8, 0).up(t)
		b.iface.refuse = errors.New("EBUSY")
		require.Error(t, b.apply(ctx, portSettings{mac: foreign, up: &no}))
		b.iface.refuse = nil
		b.iface.isUp, b.iface.mac = true, [6]byte{2, 1, 1, 1, 1, 1}
		require.NoError(t, b.follow(ctx, false))
		require.NoError(t, b.reconcile(ctx))
		assert.Equal(t, [6]byte{2, 1, 1, 1, 1, 1}, b.iface.mac)
		assert.True(t, b.iface.isUp)
		b.agree(t)
	})
	t.Run("before the port is up", func(t *testing.T) {
		b := newBench(t, 8, 0)
		err := b.apply(ctx, portSettings{mtu: 2000})
		require.ErrorIs(t, err, errNotUp)
		require.ErrorContains(t, err, "applied when it is up")
		require.ErrorIs(t, b.apply(ctx, portSettings{promisc: &yes, mtu: 3000}), errNotUp)
		require.NoError(t, b.provision(ctx))
		assert.Equal(t, 3000, b.iface.mtu)
		assert.True(t, b.iface.promisc)
		b.agree(t)
	})
}

// logged is how often a message is in the owner's log.
func logged(b *bench, message string) int {
	return strings.Count(b.logs.String(), message)
}

// Somebody sets an interface up and down again faster than its owner looks.
func TestInterfaceThatWasUpBetweenTwoLooks(t *testing.T) {
	ctx := context.Background()
	b := newBench(t, 8, 0).up(t)
	is := func(up bool, m mark, want ...string) {
		t.Helper()
		b.iface.isUp, b.log = up, nil
		b.notice(m)
		b.heed(ctx)
		assert.Equal(t, want, b.log)
		assert.Equal(t, b.want.up, b.agent.up)
		b.agree(t)
	}
	is(false, markIface)
	is(false, markIface|markRaised, "state 0x0001 false")
	is(false, markIface|markRaised)
	is(true, markIface|markRaised, everything(false, false)...)
	is(false, markIface, "state 0x0001 false")
	is(true, markIface, everything(false, false)...)

	require.NoError(t, b.setUp(ctx, false))
	is(false, markIface|markRaised) // the late news of what was before that
	require.NoError(t, b.setUp(ctx, true))
	is(true, markIface|markRaised)

	b.ifaceGone()
	b.notice(markRaised) // of the one that has gone
	b.heed(ctx)
	require.NoError(t, b.provision(ctx))
	assert.True(t, b.want.up)
}
