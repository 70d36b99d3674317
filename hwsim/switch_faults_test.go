package hwsim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func (h smiHost) fault(name, arg string) {
	h.c.Faults(func(f *Faults) { assert.NoError(h.t, SetFault(f, name, arg)) })
}

// What a fault of the switch looks like on the coprocessor's MDIO bus.
//
//oxpd:fault S1 symptom
//oxpd:fault S2 symptom
//oxpd:fault S4 symptom
//oxpd:fault S5 symptom
//oxpd:fault S6 symptom
//oxpd:fault S10 symptom
//oxpd:fault S14 symptom
//oxpd:fault S15 symptom
//oxpd:fault S16 symptom
//oxpd:fault S19 symptom
//oxpd:fault S26 symptom
func TestSwitchFaults(t *testing.T) {
	for _, tc := range []struct {
		name string
		run  func(t *testing.T, h smiHost)
	}{
		{"silent", func(t *testing.T, h smiHost) {
			was := h.c.SwitchRegister(1, 8)
			h.fault("SwitchSilent", "")
			assert.Equal(t, []uint16{0xffff, 0xffff}, []uint16{h.r(0), h.r(1)})
			h.w(1, was^0x3000)
			h.w(0, 0x9428)
			h.fault("SwitchSilent", "false")
			assert.Equal(t, was, h.read(1, 8))
		}},
		{"stuck busy", func(t *testing.T, h smiHost) {
			was := h.c.SwitchRegister(1, 8)
			h.fault("SwitchStuckBusy", "")
			h.w(1, was^0x3000)
			h.w(0, 0x9428)
			for range 2000 {
				assert.Equal(t, uint16(0x9428), h.r(0))
			}
			h.c.Advance(time.Minute)
			assert.Equal(t, uint16(0x9428), h.r(0))
			assert.Equal(t, was, h.c.SwitchRegister(1, 8))
		}},
		{"PHY stuck busy", func(t *testing.T, h smiHost) {
			h.fault("SwitchPHYStuck", "")
			h.write(gl2, 0x18, 0x9800|1<<5|22)
			for range 20 {
				assert.Equal(t, uint16(0x9800|1<<5|22), h.read(gl2, 0x18))
			}
			assert.Equal(t, uint16(0x1930), h.read(1, 3), "the switch itself answers")
		}},
		{"every second read wrong", func(t *testing.T, h smiHost) {
			h.fault("SwitchWrongReads", "2")
			var got []uint16
			for range 8 {
				got = append(got, h.read(1, 3))
			}
			assert.Equal(t, []uint16{0x1930, 0x0000, 0x1930, 0x007f, 0x1930, 0x0000, 0x1930, 0x007f}, got)
		}},
		{"every fourth", func(t *testing.T, h smiHost) {
			h.fault("SwitchWrongReads", "4")
			for i := 1; i <= 16; i++ {
				assert.Equal(t, i%4 != 0, h.read(1, 3) == 0x1930, "read %d", i)
			}
		}},
		{"a foreign command between data and command", func(t *testing.T, h smiHost) {
			was := h.c.SwitchRegister(1, 8)
			h.fault("SwitchForeignData", "1")
			h.write(1, 8, was^0x3000)
			assert.Equal(t, h.c.SwitchRegister(0, 0), h.read(1, 8), "what the other one read is written")
			h.write(1, 8, was^0x3000)
			assert.Equal(t, was^0x3000, h.read(1, 8), "once")
			assert.Empty(t, h.c.Reports(), "neither the wrong write nor its repair is a misuse")
		}},
		{"a foreign command between command and data", func(t *testing.T, h smiHost) {
			h.fault("SwitchForeignRead", "3")
			first, second, third := h.read(1, 3), h.read(1, 3), h.read(1, 3)
			assert.NotEqual(t, first, second, "no two in turn alike")
			assert.NotEqual(t, second, third)
			assert.NotContains(t, []uint16{first, second, third}, uint16(0x1930))
			assert.Equal(t, uint16(0x1930), h.read(1, 3))
		}},
		{"a foreign command in the way", func(t *testing.T, h smiHost) {
			was := h.c.SwitchRegister(1, 8)
			h.fault("SwitchForeignBusy", "2")
			h.write(1, 8, was^0x3000)
			h.write(1, 8, was^0x3000)
			assert.Equal(t, was, h.read(1, 8), "both writes are lost")
			h.write(1, 8, was^0x3000)
			assert.Equal(t, was^0x3000, h.read(1, 8))
			assert.Empty(t, h.c.Reports())
		}},
		{"writes that do not stick", func(t *testing.T, h smiHost) {
			h.fault("SwitchNoStick", "1:2,3:-1")
			for i := range 4 {
				for p, sticks := range map[int]bool{1: i >= 2, 2: true, 3: false} {
					was := h.read(p, 8)
					h.write(p, 8, was^0x3000)
					assert.Equal(t, sticks, h.read(p, 8) == was^0x3000, "port %d, write %d", p, i)
				}
			}
			h.write(3, 5, 0x0123)
			assert.Equal(t, uint16(0x0123), h.read(3, 5), "register 8 alone")
		}},
		{"bad product", func(t *testing.T, h smiHost) {
			h.fault("SwitchID", "0x1760")
			for p := range allPorts {
				assert.Equal(t, uint16(0x1760), h.read(p, 3))
			}
		}},
		{"port 0 found at a smaller mode", func(t *testing.T, h smiHost) {
			was := h.read(0, 8)
			h.fault("SwitchUplink", "2048")
			assert.Equal(t, was&^0x3000|0x1000, h.read(0, 8), "at once")
			h.mode(0, 2)
			h.fault("SwitchStuckBusy", "false") // another fault is switched
			assert.Equal(t, was, h.read(0, 8), "raised, and it stays")
			h.c.Reboot()
			h.c.Advance(time.Second)
			assert.Equal(t, was&^0x3000|0x1000, h.read(0, 8), "after a start")
			h.fault("SwitchUplink", "1522")
			assert.Equal(t, was&^0x3000, h.read(0, 8))
			h.fault("SwitchUplink", "0")
			assert.Equal(t, was, h.read(0, 8))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.run(t, newSMIHost(t)) })
	}
}

// Whether NetAgent rewrites register 8 is not known (switch.md 11).
//
//oxpd:fault S17 symptom
func TestSwitchRegister8RewrittenByNetAgent(t *testing.T) {
	const set, state = 3, 0
	for name, rewritten := range map[string]bool{"false": false, "true": true} {
		m := newMiniHost(t).agent()
		h := smiHost{t, m.c}
		h.fault("SwitchRewrite", name)
		for _, up := range []uint32{1, 0} {
			was := h.read(1, 8)
			h.mode(1, 2)
			h.mode(2, 2)
			assert.Zero(t, m.ask(set, state, 0x8100, up).status)
			want := was
			if !rewritten {
				want = was&^0x3000 | 0x2000
			}
			assert.Equal(t, want, h.read(1, 8), "SwitchRewrite %s, state %d", name, up)
			assert.Equal(t, uint16(2), h.read(2, 8)>>12&3, "no other port's")
		}
	}
}
