package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
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
	dir, err := cached(ctx, iommufdRecipe, fetchIOMMUFD)
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
	return inTemporary(base, func(work string) error {
		keys, err := ubuntuKeyring(ctx, filepath.Join(work, "debian"))
		if err != nil {
			return err
		}
		var sources []string
		for _, s := range ubuntuSuites() {
			sources = append(sources, fmt.Sprintf("deb [arch=amd64 signed-by=%s] %s %s main", keys, ubuntuArchive, s))
		}
		from, err := newRoot(ctx, filepath.Join(work, "ubuntu"), sources)
		if err != nil {
			return err
		}
		image, err := from.dependsOn(ubuntuImage, "linux-image-")
		if err != nil {
			return err
		}
		modules, err := from.dependsOn(image, "linux-modules-")
		if err != nil {
			return err
		}
		tree, err := from.unpack(image, modules)
		if err != nil {
			return err
		}
		return pick(tree, filepath.Join(work, "parts"), dir)
	})
}

// ubuntuKeyring gets the keys of Ubuntu's archive from Debian's.
func ubuntuKeyring(ctx context.Context, work string) (string, error) {
	r, err := newRoot(ctx, work, debian(suites[0][:1]))
	if err != nil {
		return "", err
	}
	tree, err := r.unpack("ubuntu-keyring")
	return filepath.Join(tree, ubuntuKeys), err
}

// aptAt is an apt of its own.
type aptAt struct {
	work string
	run  func(args ...string) (string, error)
}

// newRoot makes one, which knows the packages of sources.
func newRoot(ctx context.Context, work string, sources []string) (*aptAt, error) {
	conf, err := aptRoot(work, sources)
	if err != nil {
		return nil, err
	}
	r := &aptAt{work, func(args ...string) (string, error) {
		return command(ctx, work, []string{"APT_CONFIG=" + conf}, args...)
	}}
	_, err = r.run("apt-get", "update", "-qq")
	return r, err
}

// dependsOn finds the package of that prefix which another one needs.
func (r *aptAt) dependsOn(name, prefix string) (string, error) {
	about, err := r.run("apt-cache", "show", "--no-all-versions", name)
	if err != nil {
		return "", err
	}
	for _, line := range regexp.MustCompile(`(?m)^Depends: *(.*)$`).FindAllStringSubmatch(about, -1) {
		for _, d := range strings.FieldsFunc(line[1], func(c rune) bool { return c == ',' || c == ' ' }) {
			if strings.HasPrefix(d, prefix) {
				return d, nil
			}
		}
	}
	return "", fmt.Errorf("%s depends on no %s*", name, prefix)
}

// unpack downloads packages, and unpacks them into one directory.
func (r *aptAt) unpack(names ...string) (tree string, err error) {
	tree = filepath.Join(r.work, "tree")
	if _, err := r.run(append([]string{"apt-get", "download", "-qq"}, names...)...); err != nil {
		return "", err
	}
	debs, err := filepath.Glob(filepath.Join(r.work, "*.deb"))
	if err != nil || len(debs) != len(names) {
		return "", fmt.Errorf("%d packages of %d were downloaded: %w", len(debs), len(names), errors.Join(err, os.ErrNotExist))
	}
	for _, d := range debs {
		if _, err := r.run("dpkg-deb", "-x", d, tree); err != nil {
			return "", err
		}
	}
	return tree, nil
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
