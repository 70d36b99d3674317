package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/trace/scene"
)

// traceCommandLine runs oxpd in this process.
func traceCommandLine(ctx context.Context, args ...string) (code int, out, err string) {
	var o, e bytes.Buffer
	code = (&app{out: &o, err: &e}).main(ctx, append([]string{"sim", "trace"}, args...))
	return code, o.String(), e.String()
}

func left(t *testing.T, dir string) (names []string) {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestTraceListOutput(t *testing.T) {
	both(t, "sim-trace-list", &sceneList{Schema: 1, Scenarios: []sceneItem{{"small", "a frame"}, {"jumbo", "a long frame"}}}, printScenes)
	d := listScenes()
	require.Len(t, d.Scenarios, len(scene.Names()))
	for _, s := range d.Scenarios {
		assert.NotEmpty(t, s.About)
	}
}

func TestTraceIsWhole(t *testing.T) {
	dir := t.TempDir()
	first, second, other := filepath.Join(dir, "1.json"), filepath.Join(dir, "2.json"), filepath.Join(dir, "3.json")
	require.NoError(t, os.WriteFile(second, []byte("older"), 0o600))
	require.NoError(t, os.Symlink("2.json", filepath.Join(dir, "link")))
	for path, seed := range map[string]string{first: "5", filepath.Join(dir, "link"): "5", other: "6"} {
		code, out, err := traceCommandLine(context.Background(), "ports", "--seed", seed, "--out", path)
		require.Zero(t, code, err)
		assert.Empty(t, out)
		assert.Contains(t, err, "ports, seed "+seed)
	}
	read := func(path string) []byte {
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, json.Valid(b))
		return b
	}
	assert.True(t, bytes.Equal(read(first), read(second)), "same seed, same bytes, also over an older file")
	assert.False(t, bytes.Equal(read(first), read(other)))
	info, err := os.Stat(second)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm(), "as the older file had it")
	assert.ElementsMatch(t, []string{"1.json", "2.json", "3.json", "link"}, left(t, dir))
}

func TestTraceToAPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, unix.Mkfifo(path, 0o600))
	got := make(chan []byte, 1)
	go func() {
		b, _ := os.ReadFile(path)
		got <- b
	}()
	code, _, err := traceCommandLine(context.Background(), "small", "--out", path)
	require.Zero(t, code, err)
	assert.True(t, json.Valid(<-got))
	info, statErr := os.Stat(path)
	require.NoError(t, statErr)
	assert.Equal(t, os.ModeNamedPipe, info.Mode().Type(), "it is still one")
}

func TestTraceRefusals(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "t.json")
	for name, tc := range map[string]struct {
		args []string
		code int
		err  string
	}{
		"no scenario":               {[]string{"--out", out}, 2, "sim trace: SCENARIO is missing: want small, jumbo"},
		"two scenarios":             {[]string{"small", "jumbo", "--out", out}, 2, `"jumbo" is one argument too many`},
		"unknown scenario":          {[]string{"smal", "--out", out}, 2, `unknown scenario "smal": want small, jumbo, burst`},
		"no file":                   {[]string{"small"}, 2, "where to? --out is missing"},
		"seed is no number":         {[]string{"small", "--out", out, "--seed", "x"}, 2, "invalid argument"},
		"list of one":               {[]string{"small", "--list"}, 2, `--list is about all scenarios, and there is "small"`},
		"json without list":         {[]string{"small", "--out", out, "--json"}, 2, "--json goes with --list"},
		"file is a folder":          {[]string{"small", "--out", dir}, 1, dir + " is a folder"},
		"no such folder":            {[]string{"small", "--out", filepath.Join(dir, "none", "t.json")}, 1, filepath.Join(dir, "none", "t.json") + ": no such file"},
		"folder is a file":          {[]string{"small", "--out", "simtrace_test.go/t.json"}, 1, "not a directory"},
		"no scenario and no folder": {[]string{"smal", "--out", filepath.Join(dir, "none", "t.json")}, 2, "unknown scenario"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, err := traceCommandLine(context.Background(), tc.args...)
			assert.Equal(t, tc.code, code)
			assert.Contains(t, err, tc.err)
			assert.Empty(t, stdout)
			assert.Empty(t, left(t, dir))
		})
	}
}

func TestInterruptedTraceLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "t.json")
	require.NoError(t, os.WriteFile(path, []byte("older"), 0o644))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	code, _, err := traceCommandLine(ctx, "small", "--out", path)
	assert.Equal(t, 1, code)
	assert.Contains(t, err, "interrupted")
	assert.NotContains(t, err, "context canceled")
	b, readErr := os.ReadFile(path)
	require.NoError(t, readErr)
	assert.Equal(t, "older", string(b))
	assert.Equal(t, []string{"t.json"}, left(t, dir))
}

func TestTraceToStandardOutput(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.json")
	code, _, said := traceCommandLine(context.Background(), "small", "--out", path)
	require.Zero(t, code, said)
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	code, out, said := traceCommandLine(context.Background(), "small", "--out", "-")
	require.Zero(t, code, said)
	assert.Equal(t, string(want), out)
	assert.Contains(t, said, "of the card, in standard output")
	assert.NotContains(t, left(t, "."), "-")
}

func TestFullDiskLeavesNothing(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("no /dev/full here")
	}
	code, _, err := traceCommandLine(context.Background(), "small", "--out", "/dev/full")
	assert.Equal(t, 1, code)
	assert.Contains(t, err, "no space left")
	_, statErr := os.Stat("/dev/full")
	require.False(t, errors.Is(statErr, os.ErrNotExist), "no file of ours is removed that was there before")
}
