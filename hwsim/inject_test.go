package hwsim

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/octep/csr"
)

func TestParseInjection(t *testing.T) {
	for _, c := range []struct {
		text string
		want Injection
	}{
		{"Gone", Injection{Name: "Gone"}},
		{"D1", Injection{Name: "D1"}},
		{"LateTail=0,3", Injection{Name: "LateTail", Arg: "0,3"}},
		{"Gone@10ms", Injection{Name: "Gone", At: 8_000_000}},
		{"Gone@8000000", Injection{Name: "Gone", At: 8_000_000}},
		{"Gone@+1us", Injection{Name: "Gone", At: 800, After: true}},
		{"Gone@+0", Injection{Name: "Gone", After: true}},
		{"LoseMessages=3@1s%0.25", Injection{Name: "LoseMessages", Arg: "3", At: Hz, P: 0.25}},
		{"Gone%1", Injection{Name: "Gone", P: 1}},
		{"Gone%1e-6", Injection{Name: "Gone", P: 1e-6}},
		{"Assembly=a=b", Injection{Name: "Assembly", Arg: "a=b"}},
	} {
		t.Run(c.text, func(t *testing.T) {
			got, err := ParseInjection(c.text)
			require.NoError(t, err)
			assert.Equal(t, c.want, got)
			again, err := ParseInjection(got.String())
			require.NoError(t, err)
			assert.Equal(t, got, again, got.String())
		})
	}
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", `fault "": no name: want NAME[=ARGUMENT][@WHEN][%P]`},
		{"only an argument", "=1", "no name"},
		{"only a time", "@10ms", "no name"},
		{"no time", "Gone@", "@: want a time such as @10ms, or a cycle"},
		{"no time behind the plus", "Gone@+", "@+: want a time"},
		{"a time without a unit", "Gone@1.5", "@1.5: want a time"},
		{"a time before the start", "Gone@-1s", "@-1s: want a time"},
		{"two signs", "Gone@++1", "@++1: want a time"},
		{"a cycle too far", "Gone@18446744073709551615", "want a time"},
		{"no probability", "Gone%", "%: want a probability above 0 and up to 1, such as %0.01"},
		{"probability 0", "Gone%0", "%0: want a probability"},
		{"above 1", "Gone%1.1", "%1.1: want a probability"},
		{"below 0", "Gone%-0.5", "%-0.5: want a probability"},
		{"not a number", "Gone%NaN", "%NaN: want a probability"},
		{"in per cent", "Gone%5%", "%: want a probability"},
		{"probability before the time", "Gone%0.5@1s", "%0.5@1s: want a probability"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ParseInjection(c.text)
			require.ErrorContains(t, err, c.want)
			assert.Zero(t, got)
		})
	}
}

func FuzzParseInjection(f *testing.F) {
	for _, s := range []string{"Gone", "LateTail=0,3@10ms%0.5", "D1@+80", "LIFRefuse=F1:31", "=@%", "statistics=3%1", "AgentRefuse=4/3/F1", "scratch=0x10@1h"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		i, err := ParseInjection(text)
		if err != nil {
			return
		}
		again, err := ParseInjection(i.String())
		require.NoError(t, err)
		require.Equal(t, i, again)
		_, _ = i.resolve() // names what is wrong, or takes it: it must not panic
	})
}

func TestEveryFieldIsASwitch(t *testing.T) {
	have := map[string]bool{}
	for _, s := range faultSwitches {
		assert.NotEmpty(t, s.field)
		assert.Equal(t, s.per == never, s.when == "", s.field)
		have[s.field] = true
	}
	assert.Equal(t, len(faultSwitches), len(have))
	for _, name := range FaultNames() {
		assert.True(t, have[name], "%s has no row in faultSwitches", name)
	}
	for _, a := range faultActions {
		assert.NotContains(t, []opportunity{perSite, never}, a.per, a.name)
		for _, s := range faultSwitches {
			assert.False(t, sameName(a.name, s.field), a.name)
		}
		if r, ok := FaultRowOf(a.name); ok {
			t.Errorf("action %s is the name of row %s too", a.name, r.ID)
		}
	}
}

func TestFaultTextIsTakenAgain(t *testing.T) {
	for _, set := range []string{
		"Gone", "LoseMessages=all", "LateTail=0,3,63", "LateBy=250us", "SkipEntries=0:5,7:1", "IgnoreBaddr=2:-1", "WaitForCredit=8", "BarmapVersion=0x10003",
		"Assembly=AMDA0999-0001", "FacilityMissing=2,3", "SwitchNoStick=10:2", "LIFRefuse=oxp9:31,oxp2:1", "LIFNotStored=oxp1", "AgentRefuse=1,4/3,4/3/0x8000", "RPCError=0x8016",
	} {
		name, arg, _ := strings.Cut(set, "=")
		var f, again Faults
		require.NoError(t, SetFault(&f, name, arg))
		require.NoError(t, SetFault(&again, name, faultText(reflect.ValueOf(f).FieldByName(name))), set)
		assert.Equal(t, f, again, set)
	}
}

func inject(t *testing.T, c *Card, texts ...string) {
	t.Helper()
	for _, text := range texts {
		i, err := ParseInjection(text)
		require.NoError(t, err)
		require.NoError(t, c.Inject(i))
	}
}

func state(t *testing.T, c *Card, name string) FaultState {
	t.Helper()
	for _, s := range c.FaultStates() {
		if s.Name == name {
			return s
		}
	}
	return FaultState{}
}

func TestInjectionAtACycle(t *testing.T) {
	c := New(Options{})
	defer c.Close()
	inject(t, c, "RInfoNoRings@10ms", "SwitchID=0x1760@16000000")
	assert.Equal(t, FaultState{Name: "RInfoNoRings", State: FaultTimed, At: 10 * time.Millisecond, Per: "a read of SDP_EPF_RINFO"}, state(t, c, "RInfoNoRings"))
	c.Advance(10*time.Millisecond - 10*time.Nanosecond)
	assert.Equal(t, FaultTimed, state(t, c, "RInfoNoRings").State)
	c.Advance(10 * time.Nanosecond)
	assert.Equal(t, FaultOn, state(t, c, "RInfoNoRings").State)
	assert.Equal(t, FaultTimed, state(t, c, "SwitchID").State)
	c.Advance(10 * time.Millisecond)
	assert.Equal(t, FaultState{Name: "SwitchID", Arg: "0x1760", State: FaultOn, Per: "a read of an identifier"}, state(t, c, "SwitchID"))
	assert.Equal(t, uint16(0x1760), c.SwitchRegister(1, 3))
	assert.Equal(t, uint64(1), state(t, c, "SwitchID").Acted)

	past, err := ParseInjection("Gone@15ms")
	require.NoError(t, err)
	fine, err := ParseInjection("StopFetch")
	require.NoError(t, err)
	err = c.Inject(fine, past)
	require.ErrorIs(t, err, ErrFaultPast)
	assert.EqualError(t, err, "hwsim: fault Gone, cycle 12000000 (15ms): the card is past that cycle: it is at 16000000 (20ms)")
	assert.Zero(t, state(t, c, "StopFetch"), "one that is refused keeps the others out")
	inject(t, c, "Gone@+1ms")
	assert.Equal(t, 21*time.Millisecond, state(t, c, "Gone").At)
}

func TestInjectionOfActions(t *testing.T) {
	c := newMiniHost(t).c
	c.Provision()
	inject(t, c, "wipe-lifs")
	_, there := c.LIF(uint32(board.ByIndex(0).LIF()))
	assert.False(t, there)
	_, bound := c.PPort(uint16(board.ByIndex(0).Tag))
	assert.True(t, bound)
	inject(t, c, "unbind-tags", "scratch=0x1234")
	_, bound = c.PPort(uint16(board.ByIndex(0).Tag))
	assert.False(t, bound)
	assert.Equal(t, uint64(0x1234), c.Load(0, uint64(csr.SDPScratch), 8))
	inject(t, c, "software-gone@+1ms")
	assert.NotEqual(t, ^uint64(0), c.Load(2, csr.BAR2Facilities, 8))
	c.Advance(time.Millisecond)
	assert.Equal(t, ^uint64(0), c.Load(2, csr.BAR2Facilities, 8))
	assert.Equal(t, FaultState{Name: "software-ends", State: FaultOver, Per: "a command of rpc or NetAgent", Acted: 1}, state(t, c, "software-ends"))
	inject(t, c, "kill")
	assert.Equal(t, ^uint64(0), c.Load(0, uint64(csr.SDPScratch), 8))
	inject(t, c, "reboot")
	assert.Zero(t, c.Load(2, csr.BAR2Facilities, 8)+1, "before the kernel")
	for _, bad := range []struct{ text, want string }{
		{"kill=1", `fault kill="1": takes no argument`},
		{"statistics=11", `fault statistics="11": "11": want a number of 1 to 10`},
		{"stray-tag=1", `fault stray-tag="1": "1": a port has this tag`},
		{"lif-mtu=x", `want a number of 0 to 65535`},
		{"LateBy=1ms%0.5", "LateBy is a number that others use, and has no opportunities: leave %0.5 out"},
		{"F3", "fault F3 handshake-abandoned is not switched: no more stores"},
		{"Fire", `no fault "Fire": want the id`},
	} {
		i, err := ParseInjection(bad.text)
		require.NoError(t, err)
		assert.ErrorContains(t, c.Inject(i), bad.want, bad.text)
	}
}

func TestInjectionClears(t *testing.T) {
	c := New(Options{})
	defer c.Close()
	inject(t, c, "count-before-data=3", "NeverIdle%0.5", "Gone@1s", "kill%0.001")
	for _, name := range []string{"D3", "NeverIdle", "gone", "kill"} {
		require.NoError(t, c.ClearFault(name), name)
		assert.ErrorIs(t, c.ClearFault(name), ErrFaultOff, name)
	}
	assert.Empty(t, c.FaultStates())
	inject(t, c, "NeverIdle")
	assert.Zero(t, state(t, c, "NeverIdle").P, "a probability does not outlast its fault")
	inject(t, c, "Gone@1s", "Watermark=4096", "kill%0.001")
	require.NoError(t, c.ClearFault("all"))
	assert.Equal(t, []FaultState{{Name: "Watermark", State: FaultOver, Per: "a register access", Acted: 1}}, c.FaultStates(), "it was on")
	assert.ErrorContains(t, c.ClearFault("Fire"), `no fault "Fire"`)
	assert.ErrorContains(t, c.ClearFault("F3"), "is not switched")
}

// Each look at IDLE draws, the same seed draws the same, and how often it acted is
// what the host saw.
func TestInjectionWithAProbability(t *testing.T) {
	looks := func(seed int64) (seen string, acted uint64) {
		c := New(Options{Seed: seed})
		defer c.Close()
		c.ConfigWrite(4, 2, 2)
		inject(t, c, "NeverIdle=0%0.25")
		for range 400 {
			if c.Load(0, uint64(csr.OutControl.Queue(0)), 8)&csr.OutControlIdle == 0 {
				seen += "x"
			} else {
				seen += "."
			}
		}
		return seen, state(t, c, "NeverIdle").Acted
	}
	seen, acted := looks(1)
	n := strings.Count(seen, "x")
	assert.Equal(t, uint64(n), acted)
	assert.InDelta(t, 100, n, 35)
	again, _ := looks(1)
	assert.Equal(t, seen, again)
	other, _ := looks(2)
	assert.NotEqual(t, seen, other)
}

// A state of the card begins at one opportunity and stays.
func TestInjectionOfAStateWithAProbability(t *testing.T) {
	c := New(Options{})
	defer c.Close()
	c.ConfigWrite(4, 2, 2)
	inject(t, c, "Gone%0.1")
	assert.Equal(t, FaultState{Name: "Gone", State: FaultWaiting, P: 0.1, Per: "a register access"}, state(t, c, "Gone"))
	n := 0
	for c.Load(0, uint64(csr.OutControl.Queue(0)), 8) != ^uint64(0) {
		if n++; n > 1000 {
			t.Fatal("never")
		}
	}
	for range 100 {
		require.Equal(t, ^uint64(0), c.Load(0, uint64(csr.OutControl.Queue(0)), 8))
	}
	assert.Equal(t, FaultState{Name: "Gone", State: FaultOn, Per: "a register access", Acted: 101}, state(t, c, "Gone"))
}

func TestWatermarkComesBack(t *testing.T) {
	c := New(Options{Watermark: 512})
	defer c.Close()
	inject(t, c, "D11")
	assert.Equal(t, 256, c.o.Watermark)
	inject(t, c, "Watermark=100")
	assert.Equal(t, 100, c.o.Watermark)
	require.NoError(t, c.ClearFault("Watermark"))
	assert.Equal(t, 512, c.o.Watermark)
	assert.Equal(t, FaultState{Name: "Watermark", State: FaultOver, Per: "a register access", Acted: 2}, state(t, c, "Watermark"))
}
