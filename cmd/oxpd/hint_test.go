package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// What is not permitted is root's, or it is a file of the user's own.
func TestHintOfWhatIsNotPermitted(t *testing.T) {
	dir := t.TempDir()
	file, socket := filepath.Join(dir, "c.yaml"), filepath.Join(dir, "s")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer l.Close()
	at := func(path string) error {
		return fmt.Errorf("read: %w", &fs.PathError{Op: "open", Path: path, Err: unix.EACCES})
	}
	const root = "run it as root (sudo)"
	for _, tc := range []struct {
		name string
		err  error
		hint string
	}{
		{"the user's file", at(file), "ls -ld " + file},
		{"a folder", at(dir), "ls -ld " + dir},
		{"a file in a folder that hides it", at(filepath.Join(dir, "none")), "ls -ld " + filepath.Join(dir, "none")},
		{"a control socket", at(socket), root},
		{"a device", at("/dev/net/tun"), root},
		{"a file of the kernel's", at("/sys/bus/pci/devices/0000:03:00.0/config"), root},
		{"no file", fmt.Errorf("make a namespace: %w", unix.EPERM), root},
	} {
		t.Run(tc.name, func(t *testing.T) {
			assert.Contains(t, hintOf(tc.err, ""), tc.hint)
			assert.Equal(t, tc.hint == root, hintOf(tc.err, "") == hintOf(fs.ErrPermission, ""))
		})
	}
}

func TestInterruptedSaysSo(t *testing.T) {
	err := &interrupted{fmt.Errorf("read counters: %w", context.Canceled)}
	assert.EqualError(t, err, "read counters: interrupted")
	assert.True(t, errors.Is(err, context.Canceled))
}
