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

// unit reads the shipped unit's assignments, the last of each name, and all command
// lines of oxpd.
func unit(t *testing.T) (out map[string]string, commands [][]string) {
	t.Helper()
	b, err := os.ReadFile("../../packaging/oxpd.service")
	require.NoError(t, err)
	out = map[string]string{}
	for _, line := range strings.Split(string(b), "\n") {
		key, value, ok := strings.Cut(line, "=")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		out[key] = value
		if args, ok := strings.CutPrefix(value, "/usr/sbin/oxpd "); ok && strings.HasPrefix(key, "Exec") {
			commands = append(commands, strings.Fields(args))
		}
	}
	return out, commands
}

func TestUnit(t *testing.T) {
	u, commands := unit(t)
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

	require.Len(t, commands, 2)
	for i, want := range []string{"run", "check"} {
		cmd, rest, err := (&app{}).root().Find(commands[i])
		require.NoError(t, err)
		assert.Equal(t, want, cmd.Name())
		assert.NoError(t, cmd.ParseFlags(rest))
		assert.NoError(t, cmd.ValidateArgs(cmd.Flags().Args()))
	}
}
