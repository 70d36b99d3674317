package guest

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/hwsim/vfiouser"
	"oxpd/internal/board"
)

// limit bounds a fetch, and a boot, by the wall clock.
const limit = 4 * time.Minute

// program builds something for the guest.
func program(t *testing.T, args ...string) []byte {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command("go", append(append([]string{args[0], "-o", exe}, "-ldflags=-s -w"), args[1:]...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	b, err := os.ReadFile(exe)
	require.NoError(t, err)
	return b
}

// fetched is Fetch, unless somebody has said that there is to be no guest.
func fetched(t *testing.T, ctx context.Context) *Parts {
	t.Helper()
	if os.Getenv("OXPD_NO_GUEST") == "1" {
		t.Skip("OXPD_NO_GUEST=1")
	}
	parts, err := Fetch(ctx)
	require.NoError(t, err, "without a network, or on a machine that cannot, say OXPD_NO_GUEST=1")
	return parts
}

// TestGuest boots a guest whose PCI device is the model in this process, and runs
// internal/guest/inside there. Each test of it is a subtest here.
func TestGuest(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: a kernel in a network namespace is at the other end of the wires")
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	parts := fetched(t, ctx)
	init, inside := program(t, "build", "./init"), program(t, "test", "-c", "./inside")
	both := map[string][]byte{"inside.test": inside, "oxpd": program(t, "build", "oxpd/cmd/oxpd")}

	awake := map[string]string{"vfio-pci": "disable_idle_d3=1"}
	for _, tt := range []struct {
		name    string
		iommu   bool
		files   map[string][]byte
		modules map[string]string
		command string
		kernel  func(context.Context) (*Kernel, error) // nil: that of the parts
	}{
		{"sysfs", false, both, nil, "/inside.test -test.v -test.skip ^TestVFIO", nil},
		{"IOMMU", true, both, awake, "/inside.test -test.v -test.skip ^(TestDaemon|TestSysfs.*)$", nil},
		{"iommufd", true, both, awake, "/inside.test -test.v -test.run ^(TestBARs|TestVFIO|TestVFIOKilled)$/^cdev$", FetchIOMMUFD},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			var kernel *Kernel // the third boot is for the cdev form alone, and not worth a failure elsewhere
			if tt.kernel != nil {
				k, err := tt.kernel(ctx)
				if err != nil {
					t.Skipf("its kernel is Ubuntu's: %v", err)
				}
				kernel = k
			}
			dir := t.TempDir()
			mem, err := vfiouser.NewMemory()
			require.NoError(t, err)
			card := hwsim.New(hwsim.Options{Timeline: hwsim.Compressed(), HostVectors: true, Windows: mem.Windows()})
			path := filepath.Join(dir, "card.sock")
			ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			require.NoError(t, err)
			var log bytes.Buffer // read once the server has ended
			srv := vfiouser.New(ln, card, mem, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
			served := make(chan error, 1)
			go func() { served <- srv.Serve() }()
			card.Start()
			end := newFar(t, card)
			done, quiet := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(quiet)
				broadcasts(card, done, func() bool { return end.busy.Load() > 0 })
			}()
			defer func() {
				close(done)
				<-quiet
				assert.NoError(t, srv.Close())
				assert.NoError(t, <-served)
				for _, line := range strings.Split(log.String(), "\n") {
					assert.NotContains(t, line, "command=DMA_MAP", "no memory of the guest is refused")
				}
				card.Close()
				assert.NoError(t, mem.Close())
			}()

			commands, err := Boot(ctx, parts, dir, init, Options{
				Socket: path, IOMMU: tt.iommu, Files: tt.files, Modules: tt.modules, Kernel: kernel,
				Commands: []string{tt.command}, Limit: limit,
			})
			require.NoError(t, err)
			require.Len(t, commands, 1)
			tests := commands[0].Tests()
			require.NotEmpty(t, tests, commands[0].Output)
			for _, in := range tests {
				t.Run(in.Name, func(t *testing.T) { assert.Equal(t, "PASS", in.Result) })
			}
			assert.Equal(t, 0, commands[0].Exit, commands[0].Output)
			assert.EqualValues(t, 1, card.Doorbells()[153], "the doorbell of the guest has arrived")
			reports(t, card, tt.iommu)
		})
	}
}

// reports judges what the model has found wrong: what the guest provokes, and nothing
// else. Behind the IOMMU a ring is told addresses that are nobody's.
func reports(t *testing.T, card *hwsim.Card, iommu bool) {
	t.Helper()
	provoked := map[string]string{
		hwsim.ReportDecodeOff:    "", // accesses that were under way when decoding went off
		hwsim.ReportBusMasterOff: "", // nobody tells the card that oxpd has ended, or that bus mastering went with the decoding
	}
	if iommu {
		provoked[hwsim.ReportInstruction] = "tlen 0 is below"
		provoked[hwsim.ReportDMAOutside] = "instruction fetch of 64 bytes at 0x76543000, from IN_INSTR_BADDR, instruction fetch of 64 bytes at 0x100000, from IN_INSTR_BADDR, read of 0 bytes at 0x0"
		all := fmt.Sprint(card.Reports())
		assert.Contains(t, all, "instruction fetch of 64 bytes at 0x76543000", "an address that was never mapped")
		assert.Contains(t, all, "instruction fetch of 64 bytes at 0x100000", "one that was, and is not any more")
	}
	for _, r := range card.Reports() {
		text, ok := provoked[r.Name]
		assert.True(t, ok && (text == "" || strings.Contains(text, r.Text) || strings.Contains(r.Text, text)), "%s", r)
	}
}

// broadcasts sends frames into PortF2, of one buffer and of six, until done. Those that
// are too long for the port are counted, and disturb who counts: pause.
func broadcasts(card *hwsim.Card, done <-chan struct{}, pause func() bool) {
	every := time.NewTicker(5 * time.Millisecond)
	defer every.Stop()
	for n := 0; ; n++ {
		select {
		case <-done:
			return
		case <-every.C:
			if pause() {
				continue
			}
			f := make([]byte, []int{60, 9014}[n%2])
			copy(f, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x88, 0xb5})
			card.Wire(uint16(board.ByIndex(9).Tag)).Send(f)
		}
	}
}

// TestGuestThatHangs: a guest that does not come to its end is ended.
func TestGuestThatHangs(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	parts := fetched(t, ctx)
	dir := t.TempDir()
	path := filepath.Join(dir, "silent.sock")
	ln, err := net.Listen("unix", path) // a device that never answers
	require.NoError(t, err)
	defer ln.Close()
	began := time.Now()
	commands, err := Boot(ctx, parts, dir, nil, Options{Socket: path, Limit: 2 * time.Second})
	assert.ErrorContains(t, err, "guest: ")
	assert.Empty(t, commands)
	assert.GreaterOrEqual(t, time.Since(began), time.Second)
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, f := range all {
		b, _ := os.ReadFile(f) // it may have ended
		assert.NotContains(t, string(b), path, "%s", f)
	}
}

func TestParse(t *testing.T) {
	commands, ended := parse("init: load x: no\n=== run /a -v\n--- PASS: TestA (0.00s)\n    --- FAIL: TestA/b (0.00s)\r\n=== exit 1\n=== run /none\ninit: no such file\n=== exit -1\n=== end\n")
	assert.True(t, ended)
	assert.Equal(t, []Command{
		{"/a -v", "--- PASS: TestA (0.00s)\n    --- FAIL: TestA/b (0.00s)\n", 1},
		{"/none", "init: no such file\n", -1},
	}, commands)
	assert.Equal(t, []Test{{"TestA", "PASS"}, {"TestA/b", "FAIL"}}, commands[0].Tests())
	commands, ended = parse("=== run /a\nhalf")
	assert.False(t, ended)
	assert.Equal(t, []Command{{"/a", "half\n", -1}}, commands)
}
