package netlab

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/sys"
)

// etherFrame makes a frame of n bytes with an EtherType that no stack answers.
func etherFrame(n int, tags ...byte) []byte {
	b := append([]byte{0x02, 0, 0, 0, 0, 9, 0x02, 0, 0, 0, 0, 1}, tags...)
	b = append(b, 0x88, 0xb5)
	for len(b) < n {
		b = append(b, byte(len(b)))
	}
	return b
}

// TestPackets: what arrives is handed over whole, with its outer tag.
func TestPackets(t *testing.T) {
	n := newNS(t)
	require.NoError(t, n.Sysctl("ipv6/conf/default/disable_ipv6", "1"))
	var tap *os.File
	require.NoError(t, n.Do(func() error {
		d, err := sys.OpenTAP("wire0")
		if err == nil {
			tap = d.File()
		}
		return err
	}))
	defer tap.Close()
	require.NoError(t, n.SetMTU("wire0", 9000))
	require.NoError(t, n.SetUp("wire0", true))
	p, err := n.Packets("wire0")
	require.NoError(t, err)
	defer p.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	q := []byte{0x81, 0x00, 0xe0, 0x64}       // priority 7, VLAN 100
	service := []byte{0x88, 0xa8, 0x20, 0xc8} // VLAN 200
	priority := []byte{0x81, 0x00, 0xa0, 0x00}
	null := []byte{0x81, 0x00, 0x00, 0x00} // a tag of zeros is a tag
	for name, f := range map[string][]byte{
		"shortest":        etherFrame(14),
		"untagged":        etherFrame(60),
		"longest":         etherFrame(9014),
		"tagged":          etherFrame(64, q...),
		"longest, tagged": etherFrame(9018, q...),
		"service tag":     etherFrame(64, service...),
		"two tags":        etherFrame(9022, append(append([]byte{}, service...), q...)...),
		"priority tag":    etherFrame(64, priority...),
		"tag of zeros":    etherFrame(64, null...),
		"three tags":      etherFrame(72, append(append(append([]byte{}, q...), q...), q...)...),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tap.Write(f)
			require.NoError(t, err)
			got, err := p.Next(ctx)
			require.NoError(t, err)
			assert.True(t, bytes.Equal(f, got), "% x... %d bytes, want % x... %d bytes", got[:min(32, len(got))], len(got), f[:min(32, len(f))], len(f))
		})
	}
	t.Run("what the host sends itself is not received", func(t *testing.T) {
		other, err := n.Packets("wire0") // the kernel gives a socket's own frames to others only
		require.NoError(t, err)
		defer other.Close()
		require.NoError(t, other.Send(etherFrame(60)))
		b := make([]byte, 100)
		_, err = tap.Read(b)
		require.NoError(t, err, "it is on the wire")
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		_, err = p.Next(short)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
	})
	t.Run("after a wait that ended, the next one waits again", func(t *testing.T) {
		_, err := tap.Write(etherFrame(60))
		require.NoError(t, err)
		_, err = p.Next(ctx)
		assert.NoError(t, err)
	})
	t.Run("too long for the kernel", func(t *testing.T) {
		assert.ErrorIs(t, p.Send(etherFrame(9015)), unix.EMSGSIZE)
	})
	t.Run("nothing was lost", func(t *testing.T) {
		lost, err := p.Lost()
		require.NoError(t, err)
		assert.Zero(t, lost)
	})
	t.Run("closed while somebody waits", func(t *testing.T) {
		done := make(chan error, 1)
		go func() { _, err := p.Next(ctx); done <- err }()
		time.Sleep(5 * time.Millisecond) // let it wait; right in either order
		require.NoError(t, p.Close())
		assert.True(t, errors.Is(<-done, os.ErrClosed))
	})
	t.Run("no such interface", func(t *testing.T) {
		_, err := n.Packets("wire1")
		assert.ErrorIs(t, err, unix.ENODEV)
	})
}
