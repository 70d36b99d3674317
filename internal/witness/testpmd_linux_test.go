package witness

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestParseStatistics(t *testing.T) {
	got, err := parseStatistics(`show port stats 0

  ######################## NIC statistics for port 0  ########################
  RX-packets: 751872     RX-missed: 0          RX-bytes:  48119808
  RX-errors: 0
  RX-nombuf:  0         
  TX-packets: 751904     TX-errors: 0          TX-bytes:  48121856

  Throughput (since last show)
  Rx-pps:            0          Rx-bps:            0
`)
	require.NoError(t, err)
	assert.Equal(t, Statistics{"RX-packets": 751872, "RX-missed": 0, "RX-bytes": 48119808, "RX-errors": 0, "RX-nombuf": 0,
		"TX-packets": 751904, "TX-errors": 0, "TX-bytes": 48121856}, got)
	_, err = parseStatistics("Invalid port 3")
	assert.ErrorContains(t, err, "no statistics: Invalid port 3")
}

// The number of hugepages is put back when they are released.
func TestReserve(t *testing.T) {
	if unix.Getuid() != 0 {
		t.Skip("needs root: sets the number of hugepages")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool, err := lockPool(ctx)
	require.NoError(t, err)
	short, end := context.WithTimeout(ctx, 2*lockPause)
	defer end()
	_, err = Reserve(short, 1)
	assert.ErrorIs(t, err, context.DeadlineExceeded, "another test has the pool")
	before, free := count(poolPath), count(sizePath+"free_hugepages")
	require.NoError(t, pool.Close())

	release, err := Reserve(ctx, free+2)
	if err != nil {
		t.Skip("the machine has no hugepages of 2 MiB: ", err)
	}
	assert.GreaterOrEqual(t, count(sizePath+"free_hugepages"), free+2)
	require.NoError(t, release())
	pool, err = lockPool(ctx) // another test may have it already
	require.NoError(t, err)
	assert.Equal(t, before, count(poolPath))
	require.NoError(t, pool.Close())
}

// Whoever holds the pages may be killed: the number is put back all the same.
func TestKeeper(t *testing.T) {
	path := t.TempDir() + "/pool"
	keeper := keep(7, path)
	read, hold, err := os.Pipe()
	require.NoError(t, err)
	keeper.Stdin = read
	require.NoError(t, keeper.Start())
	require.NoError(t, read.Close())
	holder := exec.Command("sleep", "1000") // the process that has reserved
	holder.Stdout = hold
	require.NoError(t, holder.Start())
	require.NoError(t, hold.Close())
	assert.Zero(t, count(path), "not before")
	require.NoError(t, holder.Process.Kill())
	require.NoError(t, keeper.Wait())
	assert.Equal(t, 7, count(path))
	assert.Error(t, holder.Wait())
}
