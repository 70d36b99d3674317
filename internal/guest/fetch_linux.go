package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"oxpd/internal/debian"
)

// recipe names what is in the cache; it changes with what fetch makes.
const recipe = "2"

// group is the folder of the cache.
const group = "guest"

// suites are tried in turn for a QEMU that has the device.
var suites = [][]string{{"trixie", "trixie-backports"}, {"forky"}}

// device is what QEMU calls a PCI device on a socket.
const device = "vfio-user-pci"

// Modules are the guest kernel's, in the order in which they are loaded.
func Modules() []string {
	return []string{"irqbypass", "vfio", "vfio_iommu_type1", "vfio-pci-core", "vfio-pci", "tun", "llc", "stp", "bridge"}
}

// Parts are a QEMU, a guest kernel, and a systemd.
type Parts struct {
	dir string
}

func (p *Parts) kernel() string            { return filepath.Join(p.dir, "vmlinuz") }
func (p *Parts) module(name string) string { return filepath.Join(p.dir, "modules", name+".ko") }
func (p *Parts) root(path ...string) string {
	return filepath.Join(append([]string{p.dir, "root/usr"}, path...)...)
}

// qemu is the command that runs QEMU, through the loader that came with it.
func (p *Parts) qemu(args ...string) []string {
	lib := p.root("lib/x86_64-linux-gnu")
	return append([]string{filepath.Join(lib, "ld-linux-x86-64.so.2"), "--library-path", lib, p.root("bin/qemu-system-x86_64"),
		"-L", p.root("share/qemu"), "-L", p.root("share/seabios")}, args...)
}

// Fetch returns the parts from the user's cache directory; what is not there yet is
// downloaded. Processes that fetch at once wait for the first.
func Fetch(ctx context.Context) (*Parts, error) {
	dir, err := debian.Cached(ctx, group, recipe, fetch)
	if err != nil {
		return nil, fmt.Errorf("guest: fetch QEMU, a kernel and systemd: %w", err)
	}
	return &Parts{dir}, nil
}

// can tells why this machine cannot fetch.
func can() error { return debian.Can("xz") }

// fetch makes dir, whole or not at all.
func fetch(ctx context.Context, base, dir string) error {
	if err := can(); err != nil {
		return err
	}
	var errs []error
	for _, s := range suites {
		err := debian.InTemporary(base, func(work string) error {
			if err := fetchFrom(ctx, work, s); err != nil {
				return err
			}
			return os.Rename(filepath.Join(work, "parts"), dir)
		})
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", s[len(s)-1], err))
	}
	return errors.Join(errs...)
}

// fetchFrom makes work/parts of the last of the suites.
func fetchFrom(ctx context.Context, work string, suites []string) error {
	parts := &Parts{filepath.Join(work, "parts")}
	if err := os.MkdirAll(filepath.Dir(parts.module("")), 0o755); err != nil {
		return err
	}
	from, err := debian.NewRoot(ctx, work, debian.Sources(suites...))
	if err != nil {
		return err
	}
	if err := from.Download(suites[len(suites)-1], filepath.Join(parts.dir, "root"), "qemu-system-x86"); err != nil {
		return err
	}
	help, err := debian.Command(ctx, work, nil, parts.qemu("-device", "help")...)
	if err != nil {
		return err
	}
	if !strings.Contains(help, `"`+device+`"`) {
		return fmt.Errorf("its QEMU has no %s", device)
	}
	if err := fetchKernel(from, work, suites[0], parts); err != nil {
		return err
	}
	return fetchSystemd(from, work, suites[0], parts)
}

// fetchKernel gets the kernel and its modules, of which few are kept.
func fetchKernel(from *debian.Root, work, suite string, parts *Parts) error {
	name, err := from.DependsOn("linux-image-cloud-amd64/"+suite, "linux-image-")
	if err != nil {
		return err
	}
	tree := filepath.Join(work, "kernel")
	if err := from.Unpack(tree, name); err != nil {
		return err
	}
	image, err := filepath.Glob(filepath.Join(tree, "boot/vmlinuz-*"))
	if err != nil || len(image) != 1 {
		return fmt.Errorf("%d kernels in %s", len(image), name)
	}
	if err := os.Rename(image[0], parts.kernel()); err != nil {
		return err
	}
	for _, module := range Modules() {
		found, err := from.Run("find", tree, "-name", module+".ko.xz")
		if err != nil {
			return err
		}
		packed := strings.TrimSpace(found)
		if packed == "" {
			return fmt.Errorf("%s has no module %s", name, module)
		}
		if _, err := from.Run("xz", "-d", packed); err != nil {
			return err
		}
		if err := os.Rename(strings.TrimSuffix(packed, ".xz"), parts.module(module)); err != nil {
			return err
		}
	}
	return nil
}
