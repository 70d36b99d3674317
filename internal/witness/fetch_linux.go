package witness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"oxpd/internal/debian"
)

const (
	// group is the folder of the cache.
	group = "dpdk"
	// recipe names what is in the cache; it changes with what fetch makes.
	recipe = "1"
	// suite is Debian 12: its DPDK 22.11 has the driver, releases after 23 have not.
	suite = "bookworm"
	// testers is the package of testpmd. It depends on the libraries, and on what nobody
	// needs who builds nothing.
	testers = "dpdk-dev"
)

// needless are packages of those that testers depends on.
func needless() []string { return []string{"libdpdk-dev", "python3"} }

// drivers are packages that testpmd loads: the card's, that of its memory, and that of
// files.
func drivers() []string {
	return []string{"librte-net-octeon-ep23", "librte-mempool-ring23", "librte-net-pcap23"}
}

// plugins are what it loads, in this order.
func plugins() []string {
	return []string{"librte_bus_pci.so.23", "librte_bus_vdev.so.23", "librte_mempool_ring.so.23", "librte_net_octeon_ep.so.23", "librte_net_pcap.so.23"}
}

// Folders and files of the packages that are kept.
const (
	loaderDir = "lib/x86_64-linux-gnu"
	libraries = "usr/lib/x86_64-linux-gnu"
	pluginDir = "dpdk/pmds-23.0" // in libraries
	testpmd   = "usr/bin/dpdk-testpmd"
)

// Parts are a testpmd and what it needs.
type Parts struct {
	dir string
}

// command is testpmd through the loader that came with it. Plugins are named, and found
// as libraries: one with a path is refused by DPDK wherever somebody else may write to a
// folder above it, as in /tmp.
func (p *Parts) command(args ...string) []string {
	c := p.loader(filepath.Join(p.dir, testpmd))
	for _, f := range plugins() {
		c = append(c, "-d", f)
	}
	return append(c, args...)
}

func (p *Parts) loader(args ...string) []string {
	lib := filepath.Join(p.dir, loaderDir)
	return append([]string{filepath.Join(lib, "ld-linux-x86-64.so.2"), "--library-path", strings.Join([]string{lib, filepath.Join(p.dir, libraries), filepath.Join(p.dir, libraries, pluginDir)}, ":")}, args...)
}

// Fetch returns the parts from the user's cache directory; what is not there is
// downloaded, 30 MB. Processes that fetch at once wait for the first.
func Fetch(ctx context.Context) (*Parts, error) {
	dir, err := debian.Cached(ctx, group, recipe, fetch)
	if err != nil {
		return nil, fmt.Errorf("witness: fetch DPDK: %w", err)
	}
	return &Parts{dir}, nil
}

// fetch makes dir, whole or not at all.
func fetch(ctx context.Context, base, dir string) error {
	if err := debian.Can(); err != nil {
		return err
	}
	return debian.InTemporary(base, func(work string) error {
		from, err := debian.NewRoot(ctx, work, debian.Sources(suite))
		if err != nil {
			return err
		}
		needs, err := from.Depends(testers)
		if err != nil {
			return err
		}
		needs = slices.DeleteFunc(needs, func(n string) bool { return slices.Contains(needless(), n) })
		root := filepath.Join(work, "root")
		if err := from.Unpack(root, testers); err != nil {
			return err
		}
		if err := from.Download(suite, root, append(needs, drivers()...)...); err != nil {
			return err
		}
		parts := &Parts{filepath.Join(work, "parts")}
		for _, f := range []string{loaderDir, libraries, testpmd} {
			to := filepath.Join(parts.dir, f)
			if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
				return err
			}
			if err := os.Rename(filepath.Join(root, f), to); err != nil {
				return err
			}
		}
		if _, err := debian.Command(ctx, work, nil, parts.loader("--list", filepath.Join(parts.dir, testpmd))...); err != nil {
			return fmt.Errorf("a library is missing: %w", err)
		}
		return os.Rename(parts.dir, dir)
	})
}
