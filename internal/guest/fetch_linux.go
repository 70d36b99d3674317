package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// recipe names what is in the cache; it changes with what fetch makes.
const recipe = "2"

// keyring verifies the packages.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

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
	dir, err := cached(ctx, recipe, fetch)
	if err != nil {
		return nil, fmt.Errorf("guest: fetch QEMU, a kernel and systemd: %w", err)
	}
	return &Parts{dir}, nil
}

// cached returns a directory of the cache, which make makes if it is not there: whole or
// not at all.
func cached(ctx context.Context, name string, make func(ctx context.Context, base, dir string) error) (dir string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a place to keep it: %w", err)
	}
	base := filepath.Join(cache, "oxpd", "guest")
	if err := os.MkdirAll(base, 0o755); err != nil {
		return "", err
	}
	lock, err := os.Create(filepath.Join(base, "lock"))
	if err != nil {
		return "", err
	}
	defer lock.Close() // and unlocks it
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	dir = filepath.Join(base, name)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	return dir, make(ctx, base, dir)
}

// fetch makes dir, whole or not at all.
func fetch(ctx context.Context, base, dir string) error {
	if err := can(); err != nil {
		return err
	}
	var errs []error
	for _, s := range suites {
		err := inTemporary(base, func(work string) error {
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

// inTemporary has a directory below base while do runs.
func inTemporary(base string, do func(work string) error) error {
	work, err := os.MkdirTemp(base, "fetch")
	if err != nil {
		return err
	}
	return errors.Join(do(work), os.RemoveAll(work))
}

// can tells why this machine cannot fetch.
func can() error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("the guest runs on amd64 alone: %w", errors.ErrUnsupported)
	}
	for _, tool := range []string{"apt-get", "apt-cache", "dpkg-deb", "xz"} {
		if _, err := exec.LookPath(tool); err != nil {
			return err
		}
	}
	if _, err := os.Stat(keyring); err != nil {
		return fmt.Errorf("the packages are Debian's: %w", err)
	}
	return nil
}

// fetchFrom makes work/parts of the last of the suites.
func fetchFrom(ctx context.Context, work string, suites []string) error {
	conf, err := aptRoot(work, debian(suites))
	if err != nil {
		return err
	}
	run := func(args ...string) (string, error) {
		return command(ctx, work, []string{"APT_CONFIG=" + conf}, args...)
	}
	parts := &Parts{filepath.Join(work, "parts")}
	root := filepath.Join(parts.dir, "root")
	if err := os.MkdirAll(filepath.Dir(parts.module("")), 0o755); err != nil {
		return err
	}
	if _, err := run("apt-get", "update", "-qq"); err != nil {
		return err
	}
	if _, err := run("apt-get", "install", "--download-only", "-y", "-qq", "-t", suites[len(suites)-1], "qemu-system-x86"); err != nil {
		return err
	}
	if err := unpack(run, work, root); err != nil {
		return err
	}
	help, err := command(ctx, work, nil, parts.qemu("-device", "help")...)
	if err != nil {
		return err
	}
	if !strings.Contains(help, `"`+device+`"`) {
		return fmt.Errorf("its QEMU has no %s", device)
	}
	if err := fetchKernel(run, work, suites[0], parts); err != nil {
		return err
	}
	return fetchSystemd(run, work, suites[0], parts)
}

// unpack unpacks what apt has downloaded, and removes the packages.
func unpack(run func(args ...string) (string, error), work, root string) error {
	debs, err := filepath.Glob(filepath.Join(work, "apt/cache/archives/*.deb"))
	if err != nil {
		return err
	}
	for _, d := range debs {
		if _, err := run("dpkg-deb", "-x", d, root); err != nil {
			return err
		}
		if err := os.Remove(d); err != nil {
			return err
		}
	}
	return nil
}

// fetchKernel gets the kernel and its modules, of which few are kept.
func fetchKernel(run func(args ...string) (string, error), work, suite string, parts *Parts) error {
	about, err := run("apt-cache", "show", "linux-image-cloud-amd64/"+suite)
	if err != nil {
		return err
	}
	m := regexp.MustCompile(`(?m)^Depends: *([^ ,]+)`).FindStringSubmatch(about)
	if m == nil {
		return fmt.Errorf("linux-image-cloud-amd64 of %s depends on no kernel", suite)
	}
	if _, err := run("apt-get", "download", "-qq", m[1]); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(work, m[1]+"_*.deb"))
	if err != nil || len(debs) != 1 {
		return fmt.Errorf("%d packages of %s were downloaded: %w", len(debs), m[1], errors.Join(err, os.ErrNotExist))
	}
	tree := filepath.Join(work, "kernel")
	if _, err := run("dpkg-deb", "-x", debs[0], tree); err != nil {
		return err
	}
	image, err := filepath.Glob(filepath.Join(tree, "boot/vmlinuz-*"))
	if err != nil || len(image) != 1 {
		return fmt.Errorf("%d kernels in %s", len(image), m[1])
	}
	if err := os.Rename(image[0], parts.kernel()); err != nil {
		return err
	}
	for _, name := range Modules() {
		found, err := run("find", tree, "-name", name+".ko.xz")
		if err != nil {
			return err
		}
		packed := strings.TrimSpace(found)
		if packed == "" {
			return fmt.Errorf("%s has no module %s", m[1], name)
		}
		if _, err := run("xz", "-d", packed); err != nil {
			return err
		}
		if err := os.Rename(strings.TrimSuffix(packed, ".xz"), parts.module(name)); err != nil {
			return err
		}
	}
	return nil
}

// debian is where the packages of suites come from.
func debian(suites []string) (sources []string) {
	for _, s := range suites {
		sources = append(sources, fmt.Sprintf("deb [signed-by=%s] %s %s main", keyring, mirror("/etc/apt"), s))
	}
	return sources
}

// aptRoot makes what apt needs to know nothing of this machine's packages, and
// returns its configuration.
func aptRoot(work string, sources []string) (string, error) {
	apt := filepath.Join(work, "apt")
	for _, d := range []string{"lists/partial", "cache/archives/partial", "state", "empty"} {
		if err := os.MkdirAll(filepath.Join(apt, d), 0o755); err != nil {
			return "", err
		}
	}
	conf := filepath.Join(apt, "apt.conf")
	for name, text := range map[string]string{
		"status":       "",
		"sources.list": strings.Join(sources, "\n") + "\n",
		"apt.conf": fmt.Sprintf(`Dir::Etc::sourcelist "%[1]s/sources.list";
Dir::Etc::sourceparts "%[1]s/empty";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "%[1]s/empty";
Dir::State "%[1]s/state";
Dir::State::lists "%[1]s/lists";
Dir::State::status "%[1]s/status";
Dir::Cache "%[1]s/cache";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Acquire::Languages "none";
`, apt),
	} {
		if err := os.WriteFile(filepath.Join(apt, name), []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	return conf, nil
}

// mirror is where this machine gets its Debian packages, or where everybody may.
func mirror(etc string) string {
	files, _ := filepath.Glob(filepath.Join(etc, "sources.list.d/*")) // the pattern is good
	archive := regexp.MustCompile(`(?m)^(?:URIs:|deb(?: \[[^]]*\])?) *(\S+/debian)/?(?:\s|$)`)
	for _, f := range append(files, filepath.Join(etc, "sources.list")) {
		if !strings.HasSuffix(f, ".sources") && !strings.HasSuffix(f, ".list") {
			continue
		}
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		if m := archive.FindSubmatch(b); m != nil {
			return string(m[1])
		}
	}
	return "http://deb.debian.org/debian"
}

// command runs a program and returns its standard output; what it said otherwise is
// in the error.
func command(ctx context.Context, dir string, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(args[:min(len(args), 6)], " "), err, tail(said.String()+out.String()))
	}
	return out.String(), nil
}

// tail is the end of a long text.
func tail(s string) string {
	const most = 4000
	if len(s) > most {
		s = "..." + s[len(s)-most:]
	}
	return strings.TrimSpace(s)
}
