package console

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sys/unix"
)

// TestTracerHasNoOtherChild: a thread that somebody has started a process on is not the
// tracer's, or the tracer would wait for that process and its end would be lost.
func TestTracerHasNoOtherChild(t *testing.T) {
	ended := false
	onThread(func() { // not the first thread, which is never taken
		other := exec.Command("sleep", "600")
		if !assert.NoError(t, other.Start()) {
			return
		}
		assert.False(t, childless())
		onThread(func() {
			assert.True(t, childless())
			_, err := unix.Wait4(-1, nil, unix.WALL|unix.WNOTHREAD|unix.WNOHANG, nil)
			assert.ErrorIs(t, err, unix.ECHILD)
			ended = true
		})
		assert.NoError(t, other.Process.Kill())
		var exit *exec.ExitError
		assert.ErrorAs(t, other.Wait(), &exit, "its end was nobody else's")
	})
	assert.True(t, ended)
}
