package guest

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/hwsim/vfiouser"
)

// unitLimit bounds the boot of a guest under systemd: a minute and a half on a machine
// that has nothing else to do.
const unitLimit = 10 * time.Minute

// plugged is a card at a socket, with a kernel at the far end of PortF1, until the end of
// the test.
func plugged(t *testing.T) (socket string) {
	t.Helper()
	mem, err := vfiouser.NewMemory()
	require.NoError(t, err)
	card := hwsim.New(hwsim.Options{Timeline: hwsim.Compressed(), HostVectors: true, Windows: mem.Windows()})
	socket = filepath.Join(t.TempDir(), "card.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	require.NoError(t, err)
	srv := vfiouser.New(ln, card, mem, slog.New(slog.NewTextHandler(io.Discard, nil)))
	served := make(chan error, 1)
	go func() { served <- srv.Serve() }()
	card.Start()
	t.Cleanup(func() {
		assert.NoError(t, srv.Close())
		assert.NoError(t, <-served)
		card.Close()
		assert.NoError(t, mem.Close())
	})
	newFar(t, card)
	return socket
}

// TestUnit boots a guest whose first process is systemd, with the card, the shipped unit
// and oxpd, and runs internal/guest/systemd there. Each test of it is a subtest here.
func TestUnit(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: a kernel in a network namespace is at the other end of the wires")
	}
	ctx, cancel := context.WithTimeout(context.Background(), unitLimit)
	defer cancel()
	parts := fetched(t, ctx)
	unit, err := os.ReadFile("../../packaging/oxpd.service")
	require.NoError(t, err)
	commands, err := Boot(ctx, parts, t.TempDir(), program(t, "build", "./init"), Options{
		Socket: plugged(t), Systemd: true,
		// The IOMMU lets everybody through who does not ask it: first sysfs, then vfio.
		IOMMU: true, Append: []string{"iommu=pt"}, Modules: map[string]string{"vfio-pci": "disable_idle_d3=1"},
		Files: map[string][]byte{
			"systemd.test": program(t, "test", "-c", "./systemd"), "oxpd": program(t, "build", "oxpd/cmd/oxpd"), "oxpd.service": unit,
		},
		Commands: []string{"/systemd.test -test.v"}, Limit: unitLimit,
	})
	require.NoError(t, err)
	require.Len(t, commands, 1)
	t.Log(commands[0].Output)
	tests := commands[0].Tests()
	require.NotEmpty(t, tests, commands[0].Output)
	for _, in := range tests {
		t.Run(strings.TrimPrefix(in.Name, "TestUnit/"), func(t *testing.T) { assert.Equal(t, "PASS", in.Result) })
	}
	assert.Equal(t, 0, commands[0].Exit, commands[0].Output)
}
