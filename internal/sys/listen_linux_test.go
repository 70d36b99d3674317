package sys

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestListenUnix(t *testing.T) {
	dir := t.TempDir()
	for _, network := range []string{"unix", "unixpacket"} {
		t.Run(network, func(t *testing.T) {
			path := filepath.Join(dir, network)
			ln, err := ListenUnix(network, path)
			require.NoError(t, err)
			fi, err := os.Stat(path)
			require.NoError(t, err)
			assert.Equal(t, os.FileMode(0o600), fi.Mode().Perm())
			_, err = ListenUnix(network, path)
			assert.ErrorIs(t, err, ErrInUse)
			_, err = ListenUnix(map[string]string{"unix": "unixpacket", "unixpacket": "unix"}[network], path)
			assert.ErrorIs(t, err, ErrInUse, "by one who speaks otherwise")
			first := ln
			go func() { _, _ = first.Accept() }() // the looks of the two above
			c, err := net.Dial(network, path)
			require.NoError(t, err, "the first listens on")
			require.NoError(t, c.Close())

			ln.SetUnlinkOnClose(false)
			require.NoError(t, ln.Close())
			require.FileExists(t, path)
			ln, err = ListenUnix(network, path)
			require.NoError(t, err, "one that was left behind")
			require.NoError(t, ln.Close())
			assert.NoFileExists(t, path)
		})
	}
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
	_, err := ListenUnix("unix", file)
	assert.ErrorIs(t, err, os.ErrExist)
	assert.FileExists(t, file, "what is no socket stays")
	_, err = ListenUnix("unix", filepath.Join(dir, "none", "s"))
	assert.ErrorIs(t, err, os.ErrNotExist)
	assert.ErrorContains(t, err, "listen on "+filepath.Join(dir, "none", "s")+": ")
}
