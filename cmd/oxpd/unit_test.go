package main

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
)

// unit reads the shipped unit's assignments, the last of each name.
func unit(t *testing.T) map[string]string {
	t.Helper()
	b, err := os.ReadFile("../../packaging/oxpd.service")
	require.NoError(t, err)
	out := map[string]string{}
	for _, line := range strings.Split(string(b), "\n") {
		if key, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			out[key] = value
		}
	}
	return out
}

func TestUnit(t *testing.T) {
	u := unit(t)
	number := func(key string) int {
		n, err := strconv.Atoi(u[key])
		require.NoError(t, err, key)
		return n
	}
	assert.Equal(t, "notify", u["Type"])
	assert.Equal(t, "yes", u["FileDescriptorStorePreserve"], "what the card writes to outlives a stop of the service")
	const others = 3 // state, connection, memory
	assert.GreaterOrEqual(t, number("FileDescriptorStoreMax"), board.Ports+others)
	assert.Equal(t, exitFinal, number("RestartPreventExitStatus"), "and not 2, which is a panic's too")
	assert.Equal(t, "on-failure", u["Restart"])
	assert.Greater(t, time.Duration(number("WatchdogSec"))*time.Second, 5*time.Second, "a busy machine")

	exec := strings.Fields(u["ExecStart"])
	require.Equal(t, "/usr/sbin/oxpd", exec[0])
	cmd, rest, err := (&app{}).root().Find(exec[1:])
	require.NoError(t, err)
	assert.Equal(t, "run", cmd.Name())
	assert.NoError(t, cmd.ParseFlags(rest))
}
