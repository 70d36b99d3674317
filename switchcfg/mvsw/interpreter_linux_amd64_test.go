package mvsw

import (
	"encoding/binary"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"oxpd/hwsim/a64"
)

// interpreted runs the embedded program in the simulator's interpreter.
func interpreted(t *testing.T, c *chip, args string) (string, int) {
	t.Helper()
	k := &kernel{t: t, chip: c}
	status, err := a64.Run(slices.Clone(program), append([]string{"mvsw"}, strings.Fields(args)...), k)
	require.NoError(t, err)
	return k.out.String(), status
}

// kernel is what an interpreted program calls.
type kernel struct {
	t    *testing.T
	chip *chip
	out  strings.Builder
}

// Open implements a64.System.
func (k *kernel) Open(path string, _ int) int64 {
	require.Equal(k.t, "/dev/mvmdio-uio", path)
	if k.chip.denied {
		return -int64(syscall.ENOENT)
	}
	return deviceFD
}

// Close implements a64.System.
func (*kernel) Close(int) int64 { return 0 }

// Read implements a64.System.
func (k *kernel) Read(fd int, p []byte) int64 {
	require.Equal(k.t, deviceFD, fd)
	return k.move(false, p)
}

// Write implements a64.System.
func (k *kernel) Write(fd int, p []byte) int64 {
	if fd == 1 {
		k.out.Write(p)
		return int64(len(p))
	}
	require.Equal(k.t, deviceFD, fd)
	return k.move(true, p)
}

func (k *kernel) move(write bool, p []byte) int64 {
	require.Len(k.t, p, 16)
	require.Less(k.t, k.chip.transactions, transactionsMax, "a wait without an end")
	word := func(at int) int32 { return int32(binary.LittleEndian.Uint32(p[at:])) }
	data, result := k.chip.transact(write, word(0), word(4), word(8), binary.LittleEndian.Uint16(p[12:]))
	if !write && result >= 0 {
		binary.LittleEndian.PutUint16(p[12:], data)
	}
	return int64(result)
}
