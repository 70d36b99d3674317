package mvsw

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
)

// simulated is the switch of a simulated card.
type simulated struct{ *hwsim.Card }

func (s simulated) transact(write bool, bus, phy, reg int32, data uint16) (uint16, int) {
	var err error
	if write {
		err = s.MDIOWrite(int(bus), int(phy), int(reg), data)
	} else {
		data, err = s.MDIORead(int(bus), int(phy), int(reg))
	}
	if err != nil {
		return 0, -int(syscall.EIO)
	}
	return data, 16
}

// The model of the pages, written by somebody else than the one of these tests.
func TestOnTheSimulatedSwitch(t *testing.T) {
	need(t, emulator)
	path := filepath.Join(t.TempDir(), "mvsw")
	require.NoError(t, os.WriteFile(path, program, 0o700))
	card := hwsim.New(hwsim.Options{Seed: 7, Timeline: hwsim.Compressed()})
	defer card.Close()
	run := func(args string) (string, int) {
		return traced(t, simulated{card}, append([]string{emulator, path}, strings.Fields(args)...)...)
	}
	says := func(args, want string, status int) {
		t.Helper()
		out, got := run(args)
		assert.Equal(t, want, out, args)
		assert.Equal(t, status, got, args)
	}
	says("0 2 id", "mdio read failed\n", 1) // the kernel does not run
	card.Advance(time.Second)

	says("0 2 id", "switch id 0x1930 - device 0x0193 revision 0\n", 0)
	says("0 2 write 3 8 0x2fed", "", 0)
	says("0 2 read 3 8", "0x2fed\n", 0)
	assert.EqualValues(t, 0x2fed, card.SwitchRegister(3, 8))
	says("0 2 up 3", "", 0)
	says("0 2 phyr 3 0 0", "0x1140\n", 0)
	says("0 2 read 3 4", "0x007f\n", 0)
	says("0 2 down 3", "", 0)
	says("0 2 phyr 3 0 0", "0x1940\n", 0)
	says("0 2 read 3 4", "0x007c\n", 0)
	says("0 2 sdown 9", "", 0)
	says("0 2 c45r 9 4 0x2000", "0x1940\n", 0)
	says("0 2 sup 9", "", 0)
	says("0 2 c45r 9 4 0x2000", "0x1140\n", 0)
	says("0 2 c45r 9 4 0xf002", "0x0058\n", 0)
	out, status := run("0 2 dump")
	assert.Zero(t, status)
	assert.Equal(t, 12, strings.Count(out, "\n"), out)
	assert.Contains(t, out, "  3    0x007c   0x000f   0x0001   0x1940   disabled, no link, phy off\n")

	for _, c := range []struct {
		args  string
		fault func(f *hwsim.Faults)
		want  string
	}{
		{"0 2 write 3 8 0", func(f *hwsim.Faults) { f.SwitchSilent = true }, "switch command register stayed busy: nothing answers at bus 0 address 2\n"},
		{"0 2 write 3 8 0x2fed", func(f *hwsim.Faults) { f.SwitchStuckBusy = true }, "switch command register stayed busy\n"},
		{"0 2 phyw 3 0 9 0x0200", func(f *hwsim.Faults) { f.SwitchPHYStuck = true }, "SMI PHY command register stayed busy\n"},
	} {
		card.Faults(c.fault)
		says(c.args, c.want, 1)
		card.Faults(func(f *hwsim.Faults) { f.SwitchFaults = hwsim.SwitchFaults{} })
	}
	says("0 2 read 3 8", "0x2fed\n", 0)
	says("0 2 phyr 3 0 0", "0x1940\n", 0)
}
