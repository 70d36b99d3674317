package inside

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// oxpd is the program in the guest.
const oxpd = "/oxpd"

// TestDaemon: oxpd runs in the guest on a simulated card of its own: its kernel gives
// the twelve ports their interfaces, and takes them away again.
func TestDaemon(t *testing.T) {
	card(t) // skips on the host
	socket := t.TempDir() + "/oxpd.sock"
	d := exec.Command(oxpd, "run", "--sim", "--socket", socket)
	log, err := os.Create(t.TempDir() + "/log")
	require.NoError(t, err)
	defer log.Close()
	d.Stdout, d.Stderr = log, log
	require.NoError(t, d.Start())
	said := func() string {
		b, err := os.ReadFile(log.Name())
		require.NoError(t, err)
		return string(b)
	}
	out, err := exec.Command(oxpd, "status", "--wait=90s", "--socket", socket).CombinedOutput()
	require.NoError(t, err, "%s\n%s", out, said())
	for i := range 12 {
		assert.Equal(t, "1500", read(t, fmt.Sprintf("/sys/class/net/oxp%d", i+1), "mtu"))
	}
	out, err = exec.Command(oxpd, "mtu", "oxp9", "9000", "--socket", socket).CombinedOutput()
	require.NoError(t, err, "%s\n%s", out, said())
	assert.Equal(t, "9000", read(t, "/sys/class/net/oxp9", "mtu"))

	require.NoError(t, d.Process.Signal(unix.SIGTERM))
	ended := make(chan error, 1)
	go func() { ended <- d.Wait() }()
	select {
	case err := <-ended:
		assert.NoError(t, err, said())
	case <-time.After(90 * time.Second):
		t.Fatalf("the daemon does not end\n%s", said())
	}
	assert.NoDirExists(t, "/sys/class/net/oxp1")
}
