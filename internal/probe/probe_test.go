package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/dma"
	"oxpd/internal/mmio"
	"oxpd/internal/probe/staged"
	"oxpd/internal/simdev/simtest"
	"oxpd/octep"
	"oxpd/octep/csr"
)

var bg = context.Background()

// counted is a device that notes what reaches it, behind whatever octep does.
type counted struct {
	octep.Device
	loads        int // of both BARs
	bar2         []span
	stores       int // to both BARs
	configWrites int
	others       int // memory and interrupts
	steps        int // accesses, config reads included
	at           int // step before which hit is called; -1 never
	hit          func()
	dead         bool // hit was called
	late         int  // BAR accesses after config space was seen dead
	seenDead     bool
}

type span struct{ off, end uint32 }

func count(d octep.Device) *counted { return &counted{Device: d, at: -1} }

func (c *counted) step() {
	if c.steps == c.at {
		c.hit()
		c.dead = true
	}
	c.steps++
}

func (c *counted) ConfigRead(off, width int) (uint32, error) {
	c.step()
	v, err := c.Device.ConfigRead(off, width)
	if off == csr.CfgVendor && v == csr.CfgVendorNone {
		c.seenDead = true
	}
	return v, err
}
func (c *counted) ConfigWrite(off, width int, v uint32) error {
	c.configWrites++
	return c.Device.ConfigWrite(off, width, v)
}
func (c *counted) BAR0() mmio.Space  { return countedBAR{c.Device.BAR0(), c, 0} }
func (c *counted) BAR2() mmio.Space  { return countedBAR{c.Device.BAR2(), c, 2} }
func (c *counted) DMA() dma.Provider { c.others++; return c.Device.DMA() }
func (c *counted) BindIRQ(v int, fn func()) error {
	c.others++
	return c.Device.BindIRQ(v, fn)
}

type countedBAR struct {
	mmio.Space
	c *counted
	n int
}

func (b countedBAR) load(off uint32, width uint32) {
	b.c.step()
	b.c.loads++
	if b.c.seenDead {
		b.c.late++
	}
	if b.n == 2 {
		b.c.bar2 = append(b.c.bar2, span{off, off + width})
	}
}
func (b countedBAR) Load32(off uint32) uint32     { b.load(off, 4); return b.Space.Load32(off) }
func (b countedBAR) Load64(off uint32) uint64     { b.load(off, 8); return b.Space.Load64(off) }
func (b countedBAR) Store32(off uint32, v uint32) { b.c.stores++; b.Space.Store32(off, v) }
func (b countedBAR) Store64(off uint32, v uint64) { b.c.stores++; b.Space.Store64(off, v) }

// card is a simulated one at a moment, with compressed times.
func card(t *testing.T, host staged.Host, after time.Duration, faults ...func(*hwsim.Faults)) *staged.Card {
	t.Helper()
	c, err := staged.Open(bg, staged.Moment{Timeline: hwsim.Compressed(), Host: host, After: after})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	for _, f := range faults {
		c.Card.Faults(f)
	}
	return c
}

// look looks, and holds every access against what a look may do.
func look(t *testing.T, c *staged.Card) *Report {
	t.Helper()
	c.Card.ResetReports()
	c.Card.ResetAccesses()
	command := c.Card.ConfigRead(csr.CfgCommand, 2)
	d := count(c)
	r, err := Look(bg, d, Options{})
	require.NoError(t, err)
	untouched(t, d, c)
	assert.Equal(t, command, c.Card.ConfigRead(csr.CfgCommand, 2))
	assert.Zero(t, r.Refused)
	return r
}

// untouched: no store, no config write, no memory, no interrupt; no load of BAR2
// outside what the barmap advertises, by a list of the test's own.
func untouched(t *testing.T, d *counted, c *staged.Card) {
	t.Helper()
	assert.Zero(t, d.stores, "stores")
	assert.Zero(t, d.configWrites, "config writes")
	assert.Zero(t, d.others, "memory or interrupts")
	for name, n := range c.Card.Accesses() {
		assert.Zero(t, n.Writes, name)
	}
	simtest.Clean(t, c.Card)
	for _, s := range d.bar2 {
		ok := false
		for _, may := range []span{{0x02000000, 0x0200005c}, {0x02200000, 0x02300000}, {0x02300000, 0x02400000}} {
			ok = ok || may.off <= s.off && s.end <= may.end
		}
		assert.True(t, ok, "load at BAR2+%#x", s.off)
	}
}

func stage(t *testing.T, r *Report, name string) Stage {
	t.Helper()
	for _, s := range r.Run.Stages {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("no stage %s", name)
	return Stage{}
}

func stops(r *Report) (all []string) {
	for _, f := range r.Findings {
		if f.Level == LevelStop {
			all = append(all, f.Text)
		}
	}
	return all
}

func TestMoments(t *testing.T) {
	const later = time.Second
	for _, tc := range []struct {
		host      staged.Host
		after     time.Duration
		readiness string // "" when nothing behind the BARs may be read
		handshake string
		fastPath  bool
		stopsIn   string
		waits     []string
		stop      string
	}{
		{host: staged.HostAbsent, after: later},
		{host: staged.HostFirmware, after: 0, readiness: "booting", handshake: "idle", waits: []string{"ready", "rpc", "netagent"}},
		{host: staged.HostFirmware, after: later, readiness: "ready", handshake: "idle", waits: []string{"rpc", "netagent"}},
		{host: staged.HostOffer, after: 0, readiness: "booting", handshake: "offered", waits: []string{"ready", "rpc", "netagent"}},
		{
			host: staged.HostOffer, after: later, readiness: "ready", handshake: "asked", stopsIn: "bus-master",
			stop: "SLI_EPF_SCRATCH[0x28100]=0x00000000beefdeed: an exchange that another program began is in flight",
		},
		{host: staged.HostRings, after: 0, readiness: "booting", handshake: "idle", stopsIn: "bus-master", stop: "the coprocessor knows rings of an earlier run"},
		{host: staged.HostHandshake, after: 0, readiness: "ready", handshake: "idle", stopsIn: "bus-master", stop: "the coprocessor knows rings of an earlier run"},
		{
			host: staged.HostHandshake, after: later, readiness: "ready", handshake: "started", fastPath: true, stopsIn: "bus-master",
			stop: "the coprocessor knows rings of an earlier run",
		},
	} {
		t.Run(fmt.Sprintf("%s, %v", tc.host, tc.after), func(t *testing.T) {
			r := look(t, card(t, tc.host, tc.after))
			assert.False(t, r.Gone)
			assert.True(t, r.Config.Recognised)
			assert.Equal(t, tc.stopsIn != "", r.Run.Stops)
			assert.Equal(t, tc.stopsIn, r.Run.Stage)
			var waits []string
			for _, s := range r.Run.Stages {
				if s.Verdict == Waits {
					waits = append(waits, s.Name)
				}
			}
			assert.Equal(t, tc.waits, waits)
			if tc.stop == "" {
				assert.Empty(t, stops(r))
			} else {
				require.Len(t, stops(r), 1)
				assert.Contains(t, stops(r)[0], tc.stop)
				assert.Contains(t, stage(t, r, tc.stopsIn).Why, tc.stop)
			}
			if tc.readiness == "" {
				assert.Nil(t, r.RingInfo)
				assert.Nil(t, r.Rings)
				assert.Equal(t, []Finding{{LevelNote, "memory decoding is off: nothing behind the BARs was read", "oxpd run turns it on"}}, r.Findings)
				return
			}
			assert.Equal(t, &RingInfo{Value: "0x0000000000400000", TRS: 64}, r.RingInfo)
			assert.Equal(t, tc.readiness, r.Readiness.State)
			assert.Equal(t, tc.handshake, r.Handshake.State)
			assert.Equal(t, tc.fastPath, r.Handshake.FastPath)
			assert.Equal(t, tc.readiness == "ready", r.Barmap != nil)
			assert.Equal(t, tc.fastPath, r.RPC != nil)
			assert.Equal(t, tc.fastPath, r.NetAgent != nil)
			require.Len(t, r.Rings, 8)
			armed := tc.host == staged.HostRings || tc.host == staged.HostHandshake
			for _, q := range r.Rings {
				assert.Equal(t, armed, q.Out.Enabled, "ring %d", q.Ring)
				assert.Equal(t, armed && q.Ring == 0, q.In.Enabled, "ring %d", q.Ring)
				assert.True(t, q.Out.Idle && q.In.Idle)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	for _, tc := range []struct {
		name  string
		card  func(t *testing.T) *staged.Card
		stage string
		text  string
		hint  string
	}{
		{"barmap of another version", func(t *testing.T) *staged.Card {
			return card(t, staged.HostFirmware, time.Second, func(f *hwsim.Faults) { f.BarmapVersion = 3 })
		}, "ready", "octep: read barmap: version 0.3; only 0.2 is known", "do not run oxpd on it"},
		{"no rings", func(t *testing.T) *staged.Card {
			return card(t, staged.HostFirmware, time.Second, func(f *hwsim.Faults) { f.RInfoNoRings = true })
		}, "device", "the card has no rings", ""},
		{"virtual functions", func(t *testing.T) *staged.Card {
			c := card(t, staged.HostFirmware, time.Second)
			c.BAR0().Store64(uint32(csr.RInfo), 0x0008000100400000)
			return c
		}, "device", "virtual functions own the first rings", "oxpd works without virtual functions"},
		{"barmap pointer overwritten", func(t *testing.T) *staged.Card {
			c := card(t, staged.HostFirmware, time.Second)
			c.BAR0().Store64(uint32(csr.SDPScratch), csr.ScratchQueuesUp)
			return c
		}, "bus-master", "SDP_SCRATCH[0x20180]=0x0000000011223344: the coprocessor knows rings of an earlier run", "reboot the coprocessor"},
		{"barmap pointer into the forbidden part", func(t *testing.T) *staged.Card {
			c := card(t, staged.HostFirmware, time.Second)
			c.BAR0().Store64(uint32(csr.SDPScratch), 0x03c00000<<32|csr.ScratchMagic)
			return c
		}, "ready", "pointer 0x3c00000 is not below the forbidden part of BAR2", "do not run oxpd on it"},
		{"a foreign word in the handshake register", func(t *testing.T) *staged.Card {
			c := card(t, staged.HostFirmware, time.Second)
			c.BAR0().Store64(uint32(csr.SLIScratch), 0x1122334455667788)
			return c
		}, "bus-master", "the register holds a word that is not of the handshake", "another driver uses the card"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := look(t, tc.card(t))
			assert.True(t, r.Run.Stops)
			assert.Equal(t, tc.stage, r.Run.Stage)
			assert.Contains(t, stage(t, r, tc.stage).Why, tc.text)
			assert.Contains(t, stops(r)[0], tc.text)
			assert.Contains(t, r.Findings[0].Hint, tc.hint)
			after := false
			for _, s := range r.Run.Stages {
				if after {
					assert.Equal(t, NotReached, s.Verdict, s.Name)
					assert.Empty(t, s.Why)
				}
				after = after || s.Name == tc.stage
			}
		})
	}
}

// foreign is a function of other ids, whose BARs must not be touched.
type foreign struct {
	octep.Device
	vendor, device uint32
}

func (f foreign) ConfigRead(off, width int) (uint32, error) {
	switch off {
	case csr.CfgVendor:
		return f.vendor, nil
	case csr.CfgDevice:
		return f.device, nil
	}
	return f.Device.ConfigRead(off, width)
}

func TestForeignDevice(t *testing.T) {
	for _, tc := range []struct {
		name           string
		vendor, device uint32
		text           string
	}{
		{"another device of the vendor", 0x177d, 0xb200, "another device of the same vendor"},
		{"virtual function", 0x177d, 0xa303, "a virtual function of the CN83XX endpoint"},
		{"another vendor", 0x8086, 0xa300, "not a CN83XX endpoint"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := card(t, staged.HostFirmware, time.Second)
			d := count(foreign{c, tc.vendor, tc.device})
			r, err := Look(bg, d, Options{})
			require.NoError(t, err)
			untouched(t, d, c)
			assert.Zero(t, d.loads, "its BARs are not the card's")
			assert.False(t, r.Config.Recognised)
			assert.Equal(t, "device", r.Run.Stage)
			require.Len(t, r.Findings, 1)
			assert.Contains(t, r.Findings[0].Text, tc.text)
		})
	}
}

func TestGone(t *testing.T) {
	c := card(t, staged.HostHandshake, time.Second)
	c.Card.Kill()
	d := count(c)
	r, err := Look(bg, d, Options{})
	require.NoError(t, err)
	assert.Zero(t, d.loads, "no BAR is touched")
	assert.True(t, r.Gone)
	assert.False(t, r.Run.Stops, "run waits for it")
	assert.Equal(t, Waits, r.Run.Stages[0].Verdict)
	require.Len(t, r.Findings, 1, "said once")
	assert.Equal(t, "octep: read vendor id of sim: card is gone (read all ones)", r.Findings[0].Text)
	assert.Nil(t, r.RingInfo)
}

// TestGoneAtEveryStep takes the card away before an access of a look: each of the
// first and of the last ones, where config space and BAR2 are read, and every fifth
// of the registers between.
func TestGoneAtEveryStep(t *testing.T) {
	whole := count(card(t, staged.HostFirmware, time.Second))
	_, err := Look(bg, whole, Options{})
	require.NoError(t, err)
	total := whole.steps
	require.Greater(t, total, 500)
	c := card(t, staged.HostFirmware, time.Second)
	for at := range total {
		if at > 40 && at < total-200 && at%5 != 0 {
			continue
		}
		c.Card.Reboot()
		c.Card.ConfigWrite(csr.CfgCommand, 2, csr.CfgCommandMemory)
		c.Card.Advance(100 * time.Millisecond)
		d := count(c)
		d.at, d.hit = at, c.Card.Kill
		r, err := Look(bg, d, Options{})
		require.NoError(t, err)
		require.True(t, d.dead)
		require.Zero(t, d.stores+d.configWrites+d.others, "step %d", at)
		require.Zero(t, d.late, "step %d: a BAR was touched after config space was seen dead", at)
		require.True(t, r.Gone, "step %d", at)
		require.Len(t, r.Findings, 1, "step %d", at)
		require.Contains(t, r.Findings[0].Text, "card is gone", "step %d", at)
		require.Equal(t, Waits, r.Run.Stages[0].Verdict, "step %d", at)
	}
}

// unreadable is a config space that the system does not give.
type unreadable struct{ octep.Device }

var errDenied = errors.New("permission denied")

func (unreadable) ConfigRead(int, int) (uint32, error) { return 0, errDenied }

func TestErrors(t *testing.T) {
	c := card(t, staged.HostFirmware, time.Second)
	_, err := Look(bg, unreadable{c}, Options{})
	require.ErrorIs(t, err, errDenied)
	assert.ErrorContains(t, err, "probe: read config space of sim at 0x0: ")
	ctx, cancel := context.WithCancel(bg)
	cancel()
	_, err = Look(ctx, c, Options{})
	require.ErrorIs(t, err, context.Canceled)
}

func TestNotes(t *testing.T) {
	c := card(t, staged.HostFirmware, time.Second)
	require.NoError(t, octep.SetBusMaster(c, true))
	c.BAR0().Store64(uint32(csr.SDPIRErrW1S), 1)
	c.BAR0().Store64(uint32(csr.VFNum.Queue(3)), 2)
	r := look(t, c)
	assert.False(t, r.Run.Stops)
	var notes []string
	for _, f := range r.Findings {
		assert.Equal(t, LevelNote, f.Level)
		notes = append(notes, f.Text)
	}
	assert.Equal(t, []string{
		"bus mastering is on: the card can reach host memory",
		"SDP_IRERR=0x0000000000000001: the card has noted ring errors",
		"ring 3 belongs to virtual function 2",
	}, notes)
}

// The worked values of the pages (endpoint.md 5.1, 5.2, 5.5).
func TestDecode(t *testing.T) {
	var r Ring
	r.decode(map[csr.RingReg]uint64{
		csr.InControl: 0x17000002, csr.InEnable: 1, csr.InInstrBaddr: 0x123456000, csr.InInstrRsize: 256, csr.InInstrDBell: 0x0000098000000000,
		csr.InCnts: 0x2000000000000026, csr.OutCnts: 0x20000000000005fc, csr.OutIntLevels: 0x0000005600000008, csr.OutSlistRsize: 1024,
		csr.OutSlistDBell: 0x00000100fffffff2, csr.OutControl: 0x1004000642, csr.OutEnable: 1, csr.VFNum: 0,
	})
	assert.Equal(t, In{
		Enabled: true, Idle: true, Base: "0x0000000123456000", Entries: 256, Wide: true, Position: 38 * 64, Finished: 38,
	}, r.In)
	assert.Equal(t, Out{
		Enabled: true, Idle: true, Base: "0x0000000000000000", Entries: 1024, Buffer: 1602, Credit: -14, Position: 256, Waiting: 1532, Level: 8, Ticks: 86,
	}, r.Out)
}

// A report survives its JSON, and no 64-bit value is a JSON number.
func TestReportAsJSON(t *testing.T) {
	r := look(t, card(t, staged.HostHandshake, time.Second))
	b, err := json.Marshal(r)
	require.NoError(t, err)
	back := new(Report)
	require.NoError(t, json.Unmarshal(b, back))
	assert.Equal(t, r, back)
	assert.Equal(t, 1, back.Schema)
	assert.NotContains(t, strings.ToLower(string(b)), "null")
}
