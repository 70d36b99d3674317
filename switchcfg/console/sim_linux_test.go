package console_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	far "oxpd/hwsim/console"
	"oxpd/switchcfg/console"
	"oxpd/switchcfg/mvsw"
)

// TestMain is also what runs the coprocessor's programs.
func TestMain(m *testing.M) {
	if status, called := far.Called(os.Args[1:]); called {
		os.Exit(status)
	}
	os.Exit(m.Run())
}

// errBoots is the gate's.
var errBoots = errors.New("the coprocessor boots")

// coprocessor is a simulated card with a console, and ours at the other end of the
// line.
type coprocessor struct {
	t    *testing.T
	card *hwsim.Card
	path string
}

func newCoprocessor(t *testing.T, o far.Options) *coprocessor {
	t.Helper()
	if _, err := exec.LookPath("busybox"); err != nil {
		t.Skip("busybox is not installed; make test installs it")
	}
	t.Setenv("TMPDIR", t.TempDir())
	card := hwsim.New(hwsim.Options{Seed: 7, Timeline: hwsim.Compressed()})
	t.Cleanup(card.Close)
	con, err := far.New(card, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, con.Close()) })
	return &coprocessor{t, card, con.Path()}
}

// boots lets the card come up.
func (c *coprocessor) boots() *coprocessor {
	c.t.Helper()
	c.card.Advance(time.Second)
	require.True(c.t, c.card.KernelUp())
	return c
}

func (c *coprocessor) open(o console.Options) *console.Console {
	c.t.Helper()
	o.Ready = func(context.Context) error {
		if !c.card.KernelUp() {
			return errBoots
		}
		return nil
	}
	con, err := console.Open(context.Background(), c.path, o)
	require.NoError(c.t, err)
	c.t.Cleanup(func() { _ = con.Close() })
	return con
}

func helper(t *testing.T, con *console.Console) *mvsw.Helper {
	t.Helper()
	h, err := mvsw.New(con, mvsw.Options{})
	require.NoError(t, err)
	return h
}

const controls = 8 // the register that is written here

func TestSwitchOverTheSimulatedConsole(t *testing.T) {
	for _, c := range []struct {
		name string
		o    far.Options
	}{
		{"a shell that echoes", far.Options{}},
		{"without an echo", far.Options{NoEcho: true}},
		{"a login with a password", far.Options{AskPassword: true}},
		{"115,200 baud, the driver of the published source", far.Options{Baud: far.Baud, MDIOZero: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cop := newCoprocessor(t, c.o).boots()
			h := helper(t, cop.open(console.Options{}))
			ctx := context.Background()
			id, err := h.ID(ctx)
			require.NoError(t, err)
			assert.Equal(t, mvsw.ID{Register: 0x1930, Product: 0x193}, id)
			old, err := h.Read(ctx, 3, controls)
			require.NoError(t, err)
			assert.Equal(t, cop.card.SwitchRegister(3, controls), old)
			require.NoError(t, h.Write(ctx, 3, controls, old^0x3000))
			assert.Equal(t, old^0x3000, cop.card.SwitchRegister(3, controls))
			state, err := h.Check(ctx)
			require.NoError(t, err)
			assert.Equal(t, mvsw.Present, state)
			assert.Empty(t, cop.card.Reports())
		})
	}
}

// A coprocessor that restarts: no byte until its kernel runs, then a login, and the
// program, which was in RAM, is brought again.
func TestSimulatedRestart(t *testing.T) {
	cop := newCoprocessor(t, far.Options{})
	_, err := console.Open(context.Background(), cop.path, console.Options{Ready: func(context.Context) error { return errBoots }})
	require.ErrorIs(t, err, console.NotReady)
	con := cop.boots().open(console.Options{})
	h := helper(t, con)
	ctx := context.Background()
	_, err = h.ID(ctx)
	require.NoError(t, err)

	cop.card.Reboot()
	require.False(t, cop.card.KernelUp())
	_, err = h.ID(ctx)
	require.ErrorIs(t, err, console.NotReady)
	require.ErrorIs(t, err, errBoots)
	cop.boots()
	_, err = h.ID(ctx)
	require.NoError(t, err)
	assert.Zero(t, cop.card.ReportCount(hwsim.ReportConsoleByte))
}

// Whatever the line does: what was asked is done, or an error says why not, and no other
// value is ever written.
func TestSimulatedLineFaults(t *testing.T) {
	const written = 0x2fed
	for _, c := range []struct {
		name  string
		fault func(f *hwsim.Faults)
		errs  []error // one of them; none: it is done
	}{
		{"kernel messages", func(f *hwsim.Faults) { f.ConsoleNoise = 1500 }, nil},
		{"bytes from us are lost", func(f *hwsim.Faults) { f.ConsoleLoseIn = 2003 }, nil},
		{"bytes for us are lost", func(f *hwsim.Faults) { f.ConsoleLoseOut = 2003 }, nil},
		{"most lines from us are damaged", func(f *hwsim.Faults) { f.ConsoleLoseIn = 47 }, []error{console.NoShell, console.Silent, console.Damaged, console.Unanswered, console.Unfinished}},
		{"silence", func(f *hwsim.Faults) { f.ConsoleSilent = true }, []error{console.Silent}},
		{"a line that is cut", func(f *hwsim.Faults) { f.ConsoleCutAfter = 60 }, []error{console.Silent, console.NoShell, console.Unanswered, console.Unfinished}},
		{"a second reader", func(f *hwsim.Faults) { f.ConsoleSecondReader = true }, []error{console.NoShell, console.Silent, console.Unanswered, console.Unfinished}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cop := newCoprocessor(t, far.Options{}).boots()
			h := helper(t, cop.open(console.Options{Command: 5 * time.Second, Session: 20 * time.Second}))
			ctx := context.Background()
			require.NoError(t, h.Prepare(ctx))
			old := cop.card.SwitchRegister(3, controls)
			cop.card.Faults(c.fault)
			err := h.Write(ctx, 3, controls, written)
			for range 5 { // as who reads back does it: other values cannot come of it
				if err == nil || c.errs != nil {
					break
				}
				err = h.Write(ctx, 3, controls, written)
			}
			cop.card.Faults(func(f *hwsim.Faults) { f.ConsoleFaults = hwsim.ConsoleFaults{} })
			if c.errs == nil {
				require.NoError(t, err)
				assert.EqualValues(t, written, cop.card.SwitchRegister(3, controls))
				return
			}
			said := false
			for _, e := range c.errs {
				said = said || errors.Is(err, e)
			}
			assert.True(t, said, "%v", err)
			assert.Contains(t, []uint16{old, written}, cop.card.SwitchRegister(3, controls))
		})
	}
}
