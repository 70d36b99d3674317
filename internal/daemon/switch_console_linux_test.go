package daemon

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/daemon/client"
	"oxpd/switchcfg/reg"
)

// startConsole is a rig whose switch is reached as that of a real card is: a shell on the
// coprocessor's console, and a program there.
func startConsole(t *testing.T, card func(c *hwsim.Card)) *rig {
	t.Helper()
	if _, err := exec.LookPath("busybox"); err != nil {
		t.Skip("needs busybox: the shell of the simulated coprocessor")
	}
	return start(t, rigOptions{console: true, card: card})
}

// register2 is Port Control 2 of all ports.
func (r *rig) register2() (out [reg.Ports]uint16) {
	for p := range out {
		out[p] = r.card.SwitchRegister(p, reg.PortControl2)
	}
	return out
}

// restore2 writes them as somebody else does.
func (r *rig) restore2(to [reg.Ports]uint16) {
	for p, v := range to {
		r.card.SetSwitchRegister(p, reg.PortControl2, v)
	}
}

// trap is something wrong with the way to the switch.
type trap struct {
	name  string
	fault func(f *hwsim.Faults)
	errs  []string // one of them is in the error; none: it succeeds
}

// traps puts them up one after the other: nothing is written that should not be, the
// error says what it is, and the next command works.
func (r *rig) traps(t *testing.T, traps ...trap) {
	found := r.register2()
	const port, sw = "oxp2", 2
	wanted := found
	wanted[sw] = reg.Jumbo10240.Put(found[sw])
	jumbo := func() (*client.SwitchRun, error) {
		run, err := r.client.SetSwitch(context.Background(), client.SetSwitch{Ports: []string{port}, Frame: 10240}, nil)
		if err == nil {
			err = run.Check()
		}
		return run, err
	}
	for _, tc := range append(traps, trap{name: "and then none", fault: func(*hwsim.Faults) {}}) {
		t.Run(tc.name, func(t *testing.T) {
			r.restore2(found)
			r.card.Faults(tc.fault)
			run, err := jumbo()
			r.card.Faults(func(f *hwsim.Faults) { f.SwitchFaults, f.ConsoleFaults = hwsim.SwitchFaults{}, hwsim.ConsoleFaults{} })
			if tc.errs == nil {
				require.NoError(t, err)
				assert.Equal(t, wanted, r.register2())
				return
			}
			require.Error(t, err)
			said := false
			for _, text := range tc.errs {
				said = said || strings.Contains(err.Error(), text)
			}
			assert.True(t, said, "%v", err)
			now := r.register2()
			if now[sw] == wanted[sw] {
				now[sw] = found[sw] // it had been written when the way was lost
			}
			assert.Equal(t, found, now)
			if run != nil {
				for _, p := range run.Ports {
					assert.NotEqual(t, client.SwitchChanged, p.Outcome)
				}
			}
		})
	}
}

//oxpd:fault S1 behaviour
//oxpd:fault S2 behaviour
//oxpd:fault S4 behaviour
//oxpd:fault S5 behaviour
//oxpd:fault S6 behaviour
//oxpd:fault S10 behaviour
//oxpd:fault S14 behaviour
//oxpd:fault S15 behaviour
//oxpd:fault S26 behaviour
func TestTrapsOfTheSwitch(t *testing.T) {
	t.Parallel()
	start(t, rigOptions{way: &simWay{}, config: withConsole()}).running().traps(t, []trap{
		{"busy for ever", func(f *hwsim.Faults) { f.SwitchStuckBusy = true }, []string{"switch command register stayed busy"}},
		{"nothing answers", func(f *hwsim.Faults) { f.SwitchSilent = true }, []string{"nothing answers at MDIO bus 0 address 2"}},
		{"every second read is wrong", func(f *hwsim.Faults) { f.SwitchWrongReads = 2 }, []string{"does not read the same twice"}},
		{"every fifth read is wrong", func(f *hwsim.Faults) { f.SwitchWrongReads = 5 }, []string{"too many to write anything"}},
		{"a value that does not stick", func(f *hwsim.Faults) { f.SwitchNoStick[2] = -1 }, []string{"written 3 times: the old value stands"}},
		{"a value that sticks at the second try", func(f *hwsim.Faults) { f.SwitchNoStick[2] = 1 }, nil},
		{"a foreign command between data and command", func(f *hwsim.Faults) { f.SwitchForeignData = 1 }, nil},
		{"a foreign command before the data is read", func(f *hwsim.Faults) { f.SwitchForeignRead = 2 }, nil},
		{"a foreign command while one is begun", func(f *hwsim.Faults) { f.SwitchForeignBusy = 2 }, nil},
		{"another product", func(f *hwsim.Faults) { f.SwitchID = 0x1920 }, []string{"product 0x192, want product 0x193"}},
	}...)
}

//oxpd:fault S27 behaviour
//oxpd:fault R57 behaviour
func TestTrapsOfTheConsole(t *testing.T) {
	t.Parallel()
	r := startConsole(t, nil).running()
	r.wait("the switch is read by itself", func() bool {
		m, err := r.client.MTU(context.Background(), "oxp1")
		return err == nil && m.Switch == client.SwitchRead
	})
	nothing := []string{"no shell", "nothing comes back", "come through", "come back", "no bytes", "not understood"}
	r.traps(t, []trap{
		{"nothing is wrong", func(*hwsim.Faults) {}, nil},
		{"it says nothing", func(f *hwsim.Faults) { f.ConsoleSilent = true }, []string{"nothing comes back"}},
		{"it is slow, with kernel messages", func(f *hwsim.Faults) { f.ConsoleByteTime, f.ConsoleNoise = 50*time.Microsecond, 2000 }, nil},
		{"it is all kernel messages", func(f *hwsim.Faults) { f.ConsoleNoise = 3 }, nothing},
		{"a second reader", func(f *hwsim.Faults) { f.ConsoleSecondReader = true }, nothing},
		{"it is cut", func(f *hwsim.Faults) { f.ConsoleCutAfter = 1500 }, nothing},
	}...)
	assert.Empty(t, r.card.Reports(), "no byte before its time")
}

// TestConsoleIsCutDuringTheUpload: the program is there whole, or it is not used.
func TestConsoleIsCutDuringTheUpload(t *testing.T) {
	t.Parallel()
	// The switch is read when the ports are up, or by the command that comes before.
	r := startConsole(t, func(c *hwsim.Card) { c.Faults(func(f *hwsim.Faults) { f.ConsoleCutAfter = 4000 }) }).running()
	found := r.register2()
	_, err := r.client.SetSwitch(context.Background(), client.SetSwitch{Ports: []string{"oxp2"}, Frame: 10240}, nil)
	require.Error(t, err)
	assert.Equal(t, found, r.register2())
	r.card.Faults(func(f *hwsim.Faults) { f.ConsoleFaults = hwsim.ConsoleFaults{} })
	v, err := r.client.SwitchRegister(context.Background(), "oxp2", reg.Identifier)
	require.NoError(t, err)
	assert.Equal(t, "0x1930", v.Value)
}
