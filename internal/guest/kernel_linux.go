package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"oxpd/internal/debian"
)

// Kernel is a guest's kernel and modules of it.
type Kernel struct {
	dir     string
	modules []string // files in dir/modules, in the order in which they are loaded
}

func (k *Kernel) image() string { return filepath.Join(k.dir, "vmlinuz") }

// moduleName is a file's, without the way in which it is packed.
func moduleName(file string) string {
	name, _, _ := strings.Cut(file, ".")
	return name
}

// Kernel is the one among the parts.
func (p *Parts) Kernel() *Kernel {
	k := &Kernel{dir: p.dir}
	for _, m := range Modules() {
		k.modules = append(k.modules, m+".ko")
	}
	return k
}

// Debian builds no kernel with iommufd: the configurations of 6.12, 7.2 and 7.3 have been
// looked at. Ubuntu does, and Debian has the keys of its archive.
const (
	iommufdRecipe = "iommufd-1"
	ubuntuKeys    = "usr/share/keyrings/ubuntu-archive-keyring.gpg"
	ubuntuArchive = "http://archive.ubuntu.com/ubuntu"
	ubuntuImage   = "linux-image-virtual" // depends on the image, which depends on its modules
)

// ubuntuSuites have the kernel, the last one what was updated.
func ubuntuSuites() []string { return []string{"noble", "noble-updates"} }

// iommufdModules are those of that kernel, which has more of them built in.
func iommufdModules() []string {
	return []string{"irqbypass", "iommufd", "vfio", "vfio_iommu_type1", "vfio-pci-core", "vfio-pci"}
}

// ubuntuLimit bounds the fetch by the wall clock: an archive that is out of reach may not
// say so.
const ubuntuLimit = 2 * time.Minute

// FetchIOMMUFD returns a kernel that has iommufd and the character devices of vfio, from
// the user's cache directory; when it is not there it is downloaded, 54 MB.
func FetchIOMMUFD(ctx context.Context) (*Kernel, error) {
	ctx, cancel := context.WithTimeout(ctx, ubuntuLimit)
	defer cancel()
	dir, err := debian.Cached(ctx, group, iommufdRecipe, fetchIOMMUFD)
	if err != nil {
		return nil, fmt.Errorf("guest: fetch a kernel with iommufd: %w", err)
	}
	k := &Kernel{dir: dir}
	for _, m := range iommufdModules() {
		k.modules = append(k.modules, m+".ko.zst")
	}
	return k, nil
}

func fetchIOMMUFD(ctx context.Context, base, dir string) error {
	if err := can(); err != nil {
		return err
	}
	return debian.InTemporary(base, func(work string) error {
		keys, err := ubuntuKeyring(ctx, filepath.Join(work, "debian"))
		if err != nil {
			return err
		}
		var sources []string
		for _, s := range ubuntuSuites() {
			sources = append(sources, fmt.Sprintf("deb [arch=amd64 signed-by=%s] %s %s main", keys, ubuntuArchive, s))
		}
		from, err := debian.NewRoot(ctx, filepath.Join(work, "ubuntu"), sources)
		if err != nil {
			return err
		}
		image, err := from.DependsOn(ubuntuImage, "linux-image-")
		if err != nil {
			return err
		}
		modules, err := from.DependsOn(image, "linux-modules-")
		if err != nil {
			return err
		}
		tree := filepath.Join(work, "tree")
		if err := from.Unpack(tree, image, modules); err != nil {
			return err
		}
		return pick(tree, filepath.Join(work, "parts"), dir)
	})
}

// ubuntuKeyring gets the keys of Ubuntu's archive from Debian's.
func ubuntuKeyring(ctx context.Context, work string) (string, error) {
	from, err := debian.NewRoot(ctx, work, debian.Sources(suites[0][0]))
	if err != nil {
		return "", err
	}
	tree := filepath.Join(work, "tree")
	return filepath.Join(tree, ubuntuKeys), from.Unpack(tree, "ubuntu-keyring")
}

// pick moves what is used of a kernel's tree to dir, by way of parts.
func pick(tree, parts, dir string) error {
	if err := os.MkdirAll(filepath.Join(parts, "modules"), 0o755); err != nil {
		return err
	}
	image, err := filepath.Glob(filepath.Join(tree, "boot/vmlinuz-*"))
	if err != nil || len(image) != 1 {
		return fmt.Errorf("%d kernels, want one: %w", len(image), errors.Join(err, os.ErrNotExist))
	}
	if err := os.Rename(image[0], filepath.Join(parts, "vmlinuz")); err != nil {
		return err
	}
	for _, m := range iommufdModules() {
		if err := moveModule(tree, filepath.Join(parts, "modules"), m+".ko.zst"); err != nil {
			return err
		}
	}
	return os.Rename(parts, dir)
}

// moveModule finds a module, wherever it is.
func moveModule(tree, to, file string) error {
	moved := fmt.Errorf("module %s: %w", file, os.ErrNotExist)
	err := filepath.WalkDir(tree, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Name() == file && !d.IsDir() {
			moved = os.Rename(path, filepath.Join(to, file))
			return filepath.SkipAll
		}
		return err
	})
	return errors.Join(err, moved)
}
