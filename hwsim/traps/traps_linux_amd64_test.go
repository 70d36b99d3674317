package traps

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/hwsim"
	"oxpd/internal/mmio"
)

// hang is how long anything here may take on a machine that is very busy.
const hang = 2 * time.Minute

// asked names what this program does instead of the tests: it is the one that drives the
// card.
const asked = "OXPD_TRAPS_PROGRAM"

func TestMain(m *testing.M) {
	if what := os.Getenv(asked); what != "" {
		if err := program(what); err != nil {
			fmt.Println(err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// program drives a card from user space, as it finds it.
func program(what string) error {
	dev := filepath.Join(os.Getenv("SYSFS_PCI_DEVICES"), Address)
	for _, f := range []string{"vendor", "device", "class", "resource"} {
		b, err := os.ReadFile(filepath.Join(dev, f))
		if err != nil {
			return err
		}
		fmt.Printf("%s %s\n", f, bytes.SplitN(b, []byte("\n"), 2)[0])
	}
	if _, err := os.Stat("/sys/class/uio/uio0/device/config"); err != nil {
		return err
	}
	if _, err := os.Stat("/dev/uio0"); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dev, "resource0"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, 8<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	bar, err := mmio.NewMapped(mem)
	if err != nil {
		return err
	}
	switch what {
	case "byte":
		fmt.Println(mem[0x10000])
		return errors.New("it went on")
	case "sleep":
		bar.Load32(0x10000)
		time.Sleep(10 * hang)
	case "fail":
		return errors.New("no")
	}
	fmt.Printf("IN_CONTROL %#x\n", bar.Load64(0x10000))
	bar.Store64(0x10060, 0x1122334455667788)
	fmt.Printf("IN_INT_LEVELS %#x, its halves %#x %#x\n", bar.Load64(0x10060), bar.Load32(0x10060), bar.Load32(0x10064))
	bar.Store32(0x10064, 0x99aabbcc)
	fmt.Printf("IN_INT_LEVELS %#x\n", bar.Load64(0x10060))
	bar.Store64(0x10120, 0x12345670)
	done := make(chan uint64)
	for range 4 { // from several threads at once
		go func() {
			runtime.LockOSThread()
			var v uint64
			for range 100 {
				v += bar.Load64(0x10120)
			}
			done <- v
		}()
	}
	for range 4 {
		if v := <-done; v != 100*0x12345670 {
			return fmt.Errorf("the sum of 100 loads is %#x", v)
		}
	}
	return nil
}

// drive runs this program on a card, and returns what it said and how it ended.
func drive(t *testing.T, card *hwsim.Card, what string, o Options, during func(p *Process, said *bufferedPipe)) (string, error) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: ptrace, mounts")
	}
	if raceEnabled {
		t.Skip("this program, with the race detector in it, makes other accesses than those that are meant")
	}
	self, err := os.Executable()
	require.NoError(t, err)
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer null.Close()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	o.Dir, o.Command, o.Env, o.CPU, o.Stdin, o.Output = t.TempDir(), []string{self}, []string{asked + "=" + what}, -1, null, w
	p, err := Start(card, o)
	require.NoError(t, errors.Join(err, w.Close()))
	said := &bufferedPipe{r: r}
	watch := time.AfterFunc(hang, p.Kill)
	defer watch.Stop()
	if during != nil {
		during(p, said)
	}
	text, err := io.ReadAll(r)
	require.NoError(t, err)
	err = p.Wait()
	mounts, e := os.ReadFile("/proc/self/mounts")
	require.NoError(t, e)
	assert.NotContains(t, string(mounts), o.Dir, "nothing is left mounted")
	return said.text + string(text), err
}

// bufferedPipe is what a program says, line by line.
type bufferedPipe struct {
	r    io.Reader
	text string
}

// until reads up to a text.
func (b *bufferedPipe) until(t *testing.T, want string) {
	t.Helper()
	one := make([]byte, 1)
	for !strings.Contains(b.text, want) {
		n, err := b.r.Read(one)
		require.NoError(t, err, b.text)
		b.text += string(one[:n])
	}
}

func TestProgram(t *testing.T) {
	card := hwsim.New(hwsim.Options{Function: hwsim.VF})
	defer card.Close()
	var accesses []Access
	said, err := drive(t, card, "use", Options{Observe: func(a Access, _ func(uint64, []byte) bool) { accesses = append(accesses, a) }}, nil)
	require.NoError(t, err, said)
	assert.Equal(t, `vendor 0x177d
device 0xa303
class 0x020000
resource 0x00000000f0000000 0x00000000f07fffff 0x0000000000000200
IN_CONTROL 0x1000014000000
IN_INT_LEVELS 0x1122334455667788, its halves 0x55667788 0x11223344
IN_INT_LEVELS 0x99aabbcc55667788
`, said)
	assert.Equal(t, []Access{
		{false, 0x10000, 8, 0x1000014000000}, {true, 0x10060, 8, 0x1122334455667788}, {false, 0x10060, 8, 0x1122334455667788},
		{false, 0x10060, 4, 0x55667788}, {false, 0x10064, 4, 0x11223344}, {true, 0x10064, 4, 0x99aabbcc}, {false, 0x10060, 8, 0x99aabbcc55667788},
		{true, 0x10120, 8, 0x12345670},
	}, accesses[:8], "each access at its width, in order")
	assert.Len(t, accesses, 8+400)
	assert.Equal(t, hwsim.AccessCount{Reads: 4, Writes: 2, Reads32: 2, Writes32: 1}, card.Accesses()["IN_INT_LEVELS[0]"])
	assert.Empty(t, card.Reports())
}

func TestProgramEnds(t *testing.T) {
	for _, tt := range []struct {
		name, what string
		err        string
		is         error
		during     func(t *testing.T) func(*Process, *bufferedPipe)
	}{
		{"with an error", "fail", "the program ended with status 3", nil, nil},
		{"an access of one byte", "byte", "BAR0+0x10000", ErrInstruction, nil},
		{"killed", "sleep", "", nil, func(t *testing.T) func(*Process, *bufferedPipe) {
			return func(p *Process, said *bufferedPipe) { said.until(t, "resource"); p.Kill() }
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			card := hwsim.New(hwsim.Options{Function: hwsim.VF})
			defer card.Close()
			var during func(*Process, *bufferedPipe)
			if tt.during != nil {
				during = tt.during(t)
			}
			said, err := drive(t, card, tt.what, Options{}, during)
			if tt.err == "" {
				assert.NoError(t, err)
				return
			}
			assert.ErrorContains(t, err, tt.err)
			assert.NotContains(t, said, "it went on")
			if tt.is != nil {
				assert.ErrorIs(t, err, tt.is)
			}
		})
	}
}

func TestStartOfNothing(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: mounts")
	}
	card := hwsim.New(hwsim.Options{Function: hwsim.VF})
	defer card.Close()
	_, err := Start(card, Options{Dir: t.TempDir(), Command: []string{"/none/such"}, CPU: -1, Stdin: os.Stdin, Output: os.Stdout})
	assert.ErrorIs(t, err, os.ErrNotExist)
	assert.ErrorContains(t, err, "traps: start /none/such")
}

// Files that come and go are memory that the card reaches, and does not any more.
func TestMemory(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: page frames")
	}
	card := hwsim.New(hwsim.Options{Function: hwsim.VF})
	defer card.Close()
	m := memory{card: card, dir: t.TempDir(), pages: map[uint64]page{}}
	path := func(name string) string { return filepath.Join(m.dir, name) }
	content := bytes.Repeat([]byte("oxpd"), os.Getpagesize()/4)
	require.NoError(t, m.look())
	assert.Empty(t, m.pages)
	require.NoError(t, os.WriteFile(path("a"), content, 0o600))
	require.NoError(t, os.WriteFile(path("empty"), nil, 0o600))
	require.NoError(t, m.look())
	require.Len(t, m.pages, 1)
	var p page
	for _, p = range m.pages {
	}
	got := make([]byte, 8)
	assert.True(t, m.read(p.bus+4, got))
	assert.Equal(t, "oxpdoxpd", string(got))
	assert.False(t, m.read(p.bus+uint64(len(content))-4, got), "beyond its end")
	assert.False(t, m.read(p.bus-1, got), "before its beginning")
	assert.Error(t, card.MapDMA(p.bus, make([]byte, 64)), "the card has it there")

	require.NoError(t, os.WriteFile(path("empty"), content, 0o600), "and the folder is as it was")
	require.NoError(t, m.look())
	assert.Len(t, m.pages, 2, "a page that comes late")
	require.NoError(t, os.Remove(path("a")))
	require.NoError(t, m.look())
	assert.Len(t, m.pages, 1)
	assert.NoError(t, card.MapDMA(p.bus, make([]byte, 64)), "the card has it no more")
	require.NoError(t, m.close())
	assert.Empty(t, m.pages)
}
