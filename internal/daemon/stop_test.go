package daemon

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	realclock "oxpd/internal/clock"
	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/internal/simdev"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/ring"
)

// A command to the card on behalf of the control socket is on its way when the
// daemon stops: its buffer and the BARs are there until it is back.
func TestCountersWhileItStops(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{0, 100 * time.Millisecond, 300 * time.Millisecond, 600 * time.Millisecond} {
		t.Run(after.String(), func(t *testing.T) {
			t.Parallel()
			card := sharedCard(t, hwsim.Compressed())
			r := start(t, rigOptions{shared: card}).running()
			card.Faults(func(f *hwsim.Faults) { f.RPCDelay = 700 * time.Millisecond })
			asked := make(chan error)
			for range 3 {
				go func() {
					_, err := r.client.Counters(context.Background())
					asked <- err
				}()
			}
			time.Sleep(after)
			r.cancel()
			var seen uint64
			for range 3 {
				if err := <-asked; err != nil {
					assert.Equal(t, client.CodeNotReady, code(err), "%v", err)
				}
			}
			require.NoError(t, r.end())
			seen = r.accesses.Load()
			time.Sleep(time.Second) // longer than a command
			assert.Equal(t, seen, r.accesses.Load(), "no BAR is touched after Close")
		})
	}
}

// TX-3: the card has stopped fetching with frames posted, and packets have come
// that nobody takes any more. The stop is bounded and names them.
func TestStopNamesWhatIsLeft(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name     string
		tx, rx   int
		teardown bool
		gone     bool
	}{
		{name: "nothing"},
		{name: "frames and packets", tx: 100, rx: 5},
		{name: "a full ring", tx: 255},
		{name: "after a teardown", tx: 100, rx: 5, teardown: true},
		{name: "the card has gone", tx: 100, gone: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			card := sharedCard(t, hwsim.Compressed())
			r := start(t, rigOptions{shared: card}).running()
			r.faulty = true // the model's books have the packets that nobody took
			iq := r.d.rings.IQ()
			require.True(t, iq.Post(1, frameOf(60)))
			r.wait("the card fetches", func() bool { return iq.Settle() == 0 })
			card.Faults(func(f *hwsim.Faults) { f.StopFetch = true })
			for range tc.tx {
				require.True(t, iq.Post(1, frameOf(60)))
			}
			r.d.teardown.Store(tc.teardown)
			r.d.tasks.Add(1) // holds the stop sequence until the workers have ended
			r.cancel()
			r.wait("the workers to end", func() bool {
				return !strings.Contains(strings.Join(goroutines(t, r.name()), ""), "daemon.(*Daemon).spawn")
			})
			for range tc.rx {
				card.DeliverRaw(3, 1, frameOf(60), 60+74)
			}
			if tc.gone {
				card.Kill()
			}
			r.d.tasks.Done()
			require.NoError(t, r.end())
			assert.Equal(t, tc.tx, r.d.result.TXUnfinished)
			assert.Equal(t, tc.rx, r.d.result.RXLeft)
			named := func(format string, n int) {
				text := fmt.Sprintf(format, n)
				assert.Equal(t, n > 0, strings.Contains(r.log.String(), text), "log: %s", text)
				assert.Equal(t, n > 0, slices.ContainsFunc(r.d.result.Warnings, func(w string) bool { return strings.HasPrefix(w, text) }), text)
			}
			named("%d frames were posted", tc.tx)
			named("%d packets of the card", tc.rx)
			for _, x := range card.Reports() {
				assert.Equal(t, hwsim.ReportBusMasterOff, x.Name, "%+v", x)
			}
		})
	}
}

// TX-3: the wait for a card that has stopped is bounded. The clock is the card's.
func TestStopGivesUpACardThatHasStopped(t *testing.T) {
	ctx := context.Background()
	card := hwsim.New(hwsim.Options{Timeline: hwsim.Compressed()})
	defer card.Close()
	dev := simdev.New(card)
	require.NoError(t, dev.ConfigWrite(csr.CfgCommand, 2, csr.CfgCommandMemory))
	require.NoError(t, octep.SetBusMaster(dev, true))
	rings, err := ring.New(ring.Config{BAR0: dev.BAR0(), DMA: dev.DMA(), Clock: card.Clock(), Sink: nobody{}})
	require.NoError(t, err)
	require.NoError(t, rings.Program(ctx))
	require.NoError(t, rings.SetClocks(csr.ClocksPerUS))
	card.Provision()
	card.Faults(func(f *hwsim.Faults) { f.StopFetch = true })
	require.True(t, rings.IQ().Post(1, frameOf(60)))
	d := New(Options{Config: config.Default(), Clock: card.Clock()})
	began := card.Clock().Now()
	d.settle(dev, rings)
	took := card.Clock().Now() - began
	assert.GreaterOrEqual(t, took, settleLimit, "it was given its time")
	assert.LessOrEqual(t, took, settleLimit+10*time.Millisecond)
	assert.LessOrEqual(t, settleLimit, time.Second, "a fifth of the bound of the known bug")
	require.NoError(t, octep.SetBusMaster(dev, false))
	require.NoError(t, rings.Free())
}

// nobody takes what the rings deliver.
type nobody struct{}

func (nobody) Deliver(int, []ring.Frame) {}

// heldClock is the machine's time, which may be held: nothing is too late meanwhile.
type heldClock struct {
	*realclock.Real
	at atomic.Int64 // 0: it goes
}

func (c *heldClock) Now() time.Duration {
	if at := c.at.Load(); at != 0 {
		return time.Duration(at)
	}
	return c.Real.Now()
}

// A card that is only slow is waited for.
func TestStopLetsTheCardFinish(t *testing.T) {
	t.Parallel()
	card, clk := sharedCard(t, hwsim.Compressed()), &heldClock{Real: realclock.NewReal()}
	r := start(t, rigOptions{shared: card, clock: clk}).running()
	card.Faults(func(f *hwsim.Faults) { f.StopFetch = true })
	for range 100 {
		require.True(t, r.d.rings.IQ().Post(1, frameOf(60)))
	}
	r.d.tasks.Add(1) // the stop sequence begins when it is done
	r.cancel()
	r.wait("stopping", func() bool { return strings.Contains(r.log.String(), "msg=stopping") })
	clk.at.Store(int64(clk.Now()))
	r.d.tasks.Done()
	seen := r.accesses.Load()
	r.wait("the card to be asked some times", func() bool { return r.accesses.Load() > seen+20 })
	card.Faults(func(f *hwsim.Faults) { f.StopFetch = false })
	require.NoError(t, r.end())
	assert.Zero(t, r.d.result.TXUnfinished)
	assert.Equal(t, uint64(100), card.Wire(1).Stats().Out)
}

// A request that never comes back keeps memory and device, and the stop goes on.
func TestStopWithARequestThatStaysInside(t *testing.T) {
	t.Parallel()
	card := sharedCard(t, hwsim.Compressed())
	r := start(t, rigOptions{shared: card}).running()
	_, leave, ok := r.d.visit.enter(context.Background())
	require.True(t, ok)
	before := r.memory.names()
	r.cancel()
	require.ErrorContains(t, r.end(), "does not come back")
	assert.ElementsMatch(t, before, r.memory.names(), "nothing is released")
	assert.True(t, r.d.result.MemoryKept)
	assert.Zero(t, card.ConfigRead(csr.CfgCommand, 2)&csr.CfgCommandBusMaster, "it goes with the process: the card may not reach it")
	leave()
	r.memory.keeps = true // for the look at what is left
	r.faulty = true
}
