package witness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	poolPath = "/proc/sys/vm/nr_hugepages"
	sizePath = "/sys/kernel/mm/hugepages/hugepages-2048kB/"
	nodes    = "/sys/devices/system/node/node[0-9]*"

	lockPause = 50 * time.Millisecond
)

// ErrHugepages says that the machine does not give the pages.
var ErrHugepages = errors.New("no hugepages of 2 MiB")

// Reserve sees to it that the machine has n free hugepages of 2 MiB in each memory node,
// and that it has as many as before once release was called or this process has ended. The
// pool is locked meanwhile, as other tests of this project lock it.
//
// Errors: ErrHugepages, and that of a context that ends while another has the lock.
func Reserve(ctx context.Context, n int) (release func() error, err error) {
	pool, err := lockPool(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, pool.Close())
		}
	}()
	if there, _ := filepath.Glob(nodes); len(there) > 1 { // the pattern is good
		n *= len(there)
	}
	before, free, surplus := count(poolPath), count(sizePath+"free_hugepages"), count(sizePath+"surplus_hugepages")
	keeper := keep(before, poolPath)
	hold, err := keeper.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := keeper.Start(); err != nil {
		return nil, fmt.Errorf("witness: reserve hugepages: %w", err)
	}
	release = func() error { return errors.Join(putBack(keeper, hold), pool.Close()) }
	err = os.WriteFile(poolPath, []byte(strconv.Itoa(before+surplus+max(n-free, 0))), 0)
	if have := count(sizePath + "free_hugepages"); err == nil && have < n {
		err = fmt.Errorf("witness: %d are needed and %d are free: %w", n, have, ErrHugepages)
	}
	if err != nil {
		return nil, errors.Join(err, putBack(keeper, hold))
	}
	return release, nil
}

// keep is a shell of a session of its own that puts a number back when nobody holds its
// input open any more, also after this process was killed.
func keep(number int, path string) *exec.Cmd {
	c := exec.Command("/bin/sh", "-c", `read nothing; echo "$1" >"$2"`, "sh", strconv.Itoa(number), path)
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return c
}

func putBack(keeper *exec.Cmd, hold io.Closer) error { return errors.Join(hold.Close(), keeper.Wait()) }

// lockPool keeps the pool to this process until the file is closed.
func lockPool(ctx context.Context) (*os.File, error) {
	pool, err := os.Open(poolPath)
	if err != nil {
		return nil, fmt.Errorf("witness: %w: %w", ErrHugepages, err)
	}
	for {
		err := unix.Flock(int(pool.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return pool, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("witness: lock %s: %w", poolPath, err), pool.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("witness: wait for another test's hugepages: %w", ctx.Err()), pool.Close())
		case <-time.After(lockPause):
		}
	}
}

// count reads a number of the kernel's, 0 when there is none.
func count(path string) int {
	b, _ := os.ReadFile(path)
	n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return n
}
