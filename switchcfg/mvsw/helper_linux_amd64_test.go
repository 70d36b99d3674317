package mvsw

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	crossCompiler = "aarch64-linux-gnu-gcc"
	emulator      = "qemu-aarch64"
)

// need skips a test that cannot run here; `make test` sees to the programs.
func need(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("%s is not installed; make test installs it", program)
	}
}

// build compiles the program and returns where it is.
func build(t *testing.T, compiler string) string {
	t.Helper()
	need(t, compiler)
	path := filepath.Join(t.TempDir(), "mvsw")
	out, err := exec.Command("helper/build", compiler, path).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// TestEmbeddedBytesAreThoseOfTheSource builds the program again. Another compiler
// makes other bytes, which the other tests run all the same.
func TestEmbeddedBytesAreThoseOfTheSource(t *testing.T) {
	path := build(t, crossCompiler)
	version, err := exec.Command("helper/build", crossCompiler).Output()
	require.NoError(t, err)
	if string(version) != compilerVersion {
		t.Skipf("the bytes are those of\n%snot of\n%s", compilerVersion, version)
	}
	built, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, bytes.Equal(built, program), "mvsw.c or its flags have changed: make helper")
}

// everyBuild runs a test with the program built for this machine, with the
// embedded one in an emulator and in the simulator's interpreter, and with one built now
// when its bytes differ.
func everyBuild(t *testing.T, f func(t *testing.T, run func(t *testing.T, c *chip, args string) (string, int))) {
	try := func(name string, argv ...string) {
		t.Run(name, func(t *testing.T) {
			f(t, func(t *testing.T, c *chip, args string) (string, int) {
				return traced(t, c, append(slices.Clone(argv), strings.Fields(args)...)...)
			})
		})
	}
	t.Run("interpreted", func(t *testing.T) { f(t, interpreted) })
	try("host", build(t, "gcc"))
	need(t, emulator)
	embedded := filepath.Join(t.TempDir(), "mvsw")
	require.NoError(t, os.WriteFile(embedded, program, 0o700))
	try("embedded", emulator, embedded)
	now := build(t, crossCompiler)
	if built, err := os.ReadFile(now); err != nil || !bytes.Equal(built, program) {
		try("aarch64", emulator, now)
	}
}

const dumpHeader = "port  control  status   vlanmap  phy0     state\n"

// testCases are runs of the program against the model.
func testCases() []testCase {
	return []testCase{
		{name: "id", args: "0 2 id", out: "switch id 0x1930 - device 0x0193 revision 0\n"},
		{name: "id of another chip and revision", args: "0 2 id", set: func(c *chip) { c.regs[[2]int{0, 3}] = 0x0a1b }, out: "switch id 0x0a1b - device 0x00a1 revision 11\n"},
		{name: "read", args: "0 2 read 1 8", out: "0x1081\n"},
		{name: "read, hexadecimal", args: "0x0 0x2 read 0xA 0x08", out: "0x108a\n"},
		{name: "read, results of 16", args: "0 2 read 1 8", set: func(c *chip) { c.sizeResult = true }, out: "0x1081\n"},
		{name: "read of a slow chip", args: "0 2 read 1 8", set: func(c *chip) { c.busyPolls = 900 }, out: "0x1081\n"},
		{name: "write", args: "0 2 write 1 8 0x2081", trace: []string{"port 1 register 8 = 0x2081"}},
		{name: "write, decimal, results of 16", args: "0 2 write 10 8 65535", set: func(c *chip) { c.sizeResult = true }, trace: []string{"port 10 register 8 = 0xffff"}},
		{name: "write to a slow chip", args: "0 2 write 1 8 0", set: func(c *chip) { c.busyPolls = 900 }, trace: []string{"port 1 register 8 = 0x0000"}},
		{name: "phyr puts the page back", args: "0 2 phyr 3 3 16", out: "0x1017\n", trace: []string{"phy 3 page 5 register 22 = 0x0003", "phy 3 page 3 register 22 = 0x0005"}},
		{name: "phyw puts the page back", args: "0 2 phyw 3 0 9 0x0200", trace: []string{"phy 3 page 5 register 22 = 0x0000", "phy 3 page 0 register 9 = 0x0200", "phy 3 page 0 register 22 = 0x0005"}},
		{name: "phyr of a slow PHY", args: "0 2 phyr 3 3 16", set: func(c *chip) { c.phyBusyPolls = 900 }, out: "0x1017\n", trace: []string{"phy 3 page 5 register 22 = 0x0003", "phy 3 page 3 register 22 = 0x0005"}},
		{name: "c45w to a slow SERDES", args: "0 2 c45w 9 4 0xf003 4", set: func(c *chip) { c.phyBusyPolls = 900 }, trace: []string{"port 9 mmd 4 register 0xf003 = 0x0004"}},
		{name: "c45r", args: "0 2 c45r 9 4 0xf003", out: "0x0304\n"},
		{name: "c45w", args: "0 2 c45w 9 4 0xf003 4", trace: []string{"port 9 mmd 4 register 0xf003 = 0x0004"}},
		{name: "up", args: "0 2 up 2", trace: []string{"port 2 register 4 = 0x007f", "phy 2 page 5 register 22 = 0x0000", "phy 2 page 0 register 0 = 0x1140", "phy 2 page 0 register 22 = 0x0005"}},
		{name: "down", args: "0 2 down 2", set: func(c *chip) { c.regs[[2]int{2, 4}] = 0x007f; c.phys[[3]int{2, 0, 0}] = 0x1140 },
			trace: []string{"port 2 register 4 = 0x007c", "phy 2 page 5 register 22 = 0x0000", "phy 2 page 0 register 0 = 0x1940", "phy 2 page 0 register 22 = 0x0005"}},
		{name: "sup", args: "0 2 sup 9", trace: []string{"port 9 mmd 4 register 0xf002 = 0x8058", "port 9 mmd 4 register 0xf003 = 0x0004", "port 9 mmd 4 register 0x2000 = 0x1140", "port 9 register 4 = 0x007f"}},
		{name: "sdown", args: "0 2 sdown 10", set: func(c *chip) {
			c.mmds[[3]int{10, 4, 0xf002}], c.mmds[[3]int{10, 4, 0xf003}], c.mmds[[3]int{10, 4, 0x2000}] = 0x0058, 0x0004, 0x1140
		}, trace: []string{"port 10 mmd 4 register 0xf002 = 0x8078", "port 10 mmd 4 register 0xf003 = 0x0304", "port 10 mmd 4 register 0x2000 = 0x1940"}},
		{name: "dump of some", args: "0 2 dump 8 10", set: func(c *chip) { c.regs[[2]int{8, 4}], c.regs[[2]int{9, 0}] = 0x007f, 0x0e49 },
			out: dumpHeader + "  8    0x007f   0x000f   0x0001   0x1940   forwarding, no link, phy off\n" +
				"  9    0x007c   0x0e49   0x0001   0x0000   disabled, link\n" +
				"  10   0x007c   0x0249   0x0001   0x0000   disabled, no link\n",
			trace: []string{"phy 8 page 5 register 22 = 0x0000", "phy 8 page 0 register 22 = 0x0005"}},
		{name: "dump leaves out a port whose reads fail", args: "0 2 dump 0 2", set: func(c *chip) {
			c.regs[[2]int{2, 4}], c.phys[[3]int{2, 0, 0}] = 0x007f, 0x1140
			c.onRead = func(at [2]int) { c.stuck = c.stuck || at == [2]int{1, 4} } // and it stays so for the rest
		}, out: dumpHeader + "  0    0x017f   0x0f4d   0x07fe   0x0000   forwarding, link\n"},

		{name: "cannot open", args: "0 2 read 1 8", set: func(c *chip) { c.denied = true }, out: "cannot open /dev/mvmdio-uio\n", status: 1},
		{name: "the bus fails a read", args: "0 2 read 1 8", set: func(c *chip) { c.failAt, c.failure = 1, -int(syscall.EIO) }, out: "mdio read failed\n", status: 1},
		{name: "the bus fails the last read", args: "0 2 read 1 8", set: func(c *chip) { c.failAt, c.failure = 4, -int(syscall.EIO) }, out: "mdio read failed\n", status: 1},
		{name: "a read is short", args: "0 2 read 1 8", set: func(c *chip) { c.failAt, c.failure = 4, 8 }, out: "mdio read failed\n", status: 1},
		{name: "the bus fails the data", args: "0 2 write 1 8 0", set: func(c *chip) { c.failAt, c.failure = 2, -int(syscall.EIO) }, out: "mdio write failed\n", status: 1},
		{name: "the bus fails the command", args: "0 2 write 1 8 0", set: func(c *chip) { c.failAt, c.failure = 3, -int(syscall.EIO) }, out: "mdio write failed\n", status: 1},
		{name: "busy for ever", args: "0 2 write 1 8 0", set: func(c *chip) { c.stuck = true }, out: "switch command register stayed busy\n", status: 1},
		{name: "nothing answers (SW-3)", args: "0 2 write 1 8 0", set: func(c *chip) { c.absent = true }, out: "switch command register stayed busy: nothing answers at bus 0 address 2\n", status: 1},
		{name: "nothing at this address", args: "0 9 id", out: "switch command register stayed busy: nothing answers at bus 0 address 9\n", status: 1},
		{name: "the driver refuses the bus", args: "3 2 id", out: "mdio read failed\n", status: 1},
		{name: "PHY unit busy for ever", args: "0 2 phyw 3 0 9 0", set: func(c *chip) { c.phyStuck = true; c.regs[[2]int{0x1c, 0x18}] = 0x8000 }, out: "SMI PHY command register stayed busy\n", status: 1},
		{name: "no two reads agree: nothing is changed", args: "0 2 up 2", set: func(c *chip) {
			n := uint16(0)
			c.onRead = func(at [2]int) { n++; c.regs[at] = n }
		}, out: "mdio read failed: two reads in a row differ\n", status: 1},
		{name: "one wrong read: not written back", args: "0 2 sup 9", set: func(c *chip) {
			wrong := false
			c.onRead = func(at [2]int) {
				if at == [2]int{0x1c, 0x19} && !wrong {
					c.regs[at], wrong = 0, true
				}
			}
		}, trace: []string{"port 9 mmd 4 register 0xf002 = 0x8058", "port 9 mmd 4 register 0xf003 = 0x0004", "port 9 mmd 4 register 0x2000 = 0x1140", "port 9 register 4 = 0x007f"}},
	}
}

type testCase struct {
	name, args string
	set        func(*chip)
	out        string
	status     int
	trace      []string // what was written inside the switch
}

//oxpd:fault S7 behaviour
//oxpd:fault S19 behaviour
//oxpd:fault S28 symptom
func TestCommands(t *testing.T) {
	everyBuild(t, func(t *testing.T, run func(*testing.T, *chip, string) (string, int)) {
		for _, c := range testCases() {
			t.Run(c.name, func(t *testing.T) {
				chip := newChip()
				if c.set != nil {
					c.set(chip)
				}
				out, status := run(t, chip, c.args)
				assert.Equal(t, c.out, out)
				assert.Equal(t, c.status, status)
				assert.Equal(t, c.trace, chip.trace)
			})
		}
	})
}

// What cannot be meant is refused before the device is opened.
//
//oxpd:fault S25 behaviour
func TestRefusedArguments(t *testing.T) {
	cases := []struct {
		status int
		args   []string
	}{
		{2, []string{"", "0", "0 2", "8 2 id", "-1 2 id", "x 2 id", "0 32 id", "0 0x20 id", "0 2x id"}},
		{1, []string{"0 2 jumbo", "0 2 ID", "0 2 reads", "0 2 writewrite", "0 2 i"}},
		{2, []string{"0 2 id 1", "0 2 read", "0 2 read 1", "0 2 read 1 8 8", "0 2 read one 8", "0 2 read 0x 8", "0 2 read 1 0x8g", "0 2 read 32 8", "0 2 read 1 32",
			"0 2 read -1 8", "0 2 read +1 8", "0 2 read 4294967297 8", "0 2 read 0x100000001 8", "0 2 read 1a 8", "0 2 read 1 8,"}},
		{2, []string{"0 2 write 1 8", "0 2 write 1 8 65536", "0 2 write 1 8 0x10000", "0 2 write 1 8 x", "0 2 write 1 8 0x208o", "0 2 write 1 8 -1"}},
		{2, []string{"0 2 phyr 1 0", "0 2 phyr 1 256 0", "0 2 phyw 1 0 0", "0 2 phyw 1 0 0 65536", "0 2 c45r 9 4 65536", "0 2 c45r 9 32 0", "0 2 c45w 9 4 0xf002 0x1ffff"}},
		{2, []string{"0 2 up 0", "0 2 up 9", "0 2 down 10", "0 2 sup 0", "0 2 sup 8", "0 2 sdown 11", "0 2 dump 1", "0 2 dump 0 11", "0 2 dump 3 2"}},
	}
	everyBuild(t, func(t *testing.T, run func(*testing.T, *chip, string) (string, int)) {
		for _, c := range cases {
			for _, args := range c.args {
				t.Run(args, func(t *testing.T) {
					chip := newChip()
					chip.denied = true // an open would be told
					out, status := run(t, chip, args)
					assert.True(t, strings.HasPrefix(out, "usage: mvsw"), out)
					assert.Equal(t, c.status, status)
				})
			}
		}
	})
}
