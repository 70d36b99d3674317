package debian

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

// keyring verifies the packages.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// Cached returns folder name of a group in the cache directory of the user, which make
// makes if it is not there: whole or not at all, by a rename of what it makes below base.
// Processes that ask at once wait for the first.
func Cached(ctx context.Context, group, name string, make func(ctx context.Context, base, dir string) error) (dir string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a place to keep it: %w", err)
	}
	base := filepath.Join(cache, "oxpd", group)
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

// InTemporary has a directory below base while do runs.
func InTemporary(base string, do func(work string) error) error {
	work, err := os.MkdirTemp(base, "fetch")
	if err != nil {
		return err
	}
	return errors.Join(do(work), os.RemoveAll(work))
}

// Can tells why this machine cannot fetch, or run what it fetched. Tools are programs that
// are needed beside apt's and dpkg's.
func Can(tools ...string) error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("the packages are for amd64 alone: %w", errors.ErrUnsupported)
	}
	for _, tool := range append([]string{"apt-get", "apt-cache", "dpkg-deb"}, tools...) {
		if _, err := exec.LookPath(tool); err != nil {
			return err
		}
	}
	if _, err := os.Stat(keyring); err != nil {
		return fmt.Errorf("the packages are Debian's: %w", err)
	}
	return nil
}

// Sources are lines of apt's that say where the packages of suites come from.
func Sources(suites ...string) (sources []string) {
	for _, s := range suites {
		sources = append(sources, fmt.Sprintf("deb [signed-by=%s] %s %s main", keyring, mirror("/etc/apt"), s))
	}
	return sources
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

// Root is an apt of its own, below a folder of the caller's.
type Root struct {
	ctx  context.Context
	work string
	conf string
}

// NewRoot makes one, which knows the packages of sources. Its work ends with ctx.
func NewRoot(ctx context.Context, work string, sources []string) (*Root, error) {
	conf, err := configure(work, sources)
	if err != nil {
		return nil, err
	}
	r := &Root{ctx, work, conf}
	_, err = r.Run("apt-get", "update", "-qq")
	return r, err
}

// configure makes what apt needs to know nothing of this machine's packages, and returns
// its configuration.
func configure(work string, sources []string) (string, error) {
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

// Run runs a program in the root's folder, with its configuration of apt.
func (r *Root) Run(args ...string) (string, error) {
	return Command(r.ctx, r.work, []string{"APT_CONFIG=" + r.conf}, args...)
}

// Download gets packages of a suite with all that they depend on, and unpacks them into a
// folder.
func (r *Root) Download(suite, to string, packages ...string) error {
	if _, err := r.Run(append([]string{"apt-get", "install", "--download-only", "-y", "-qq", "-t", suite}, packages...)...); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(r.work, "apt/cache/archives/*.deb"))
	if err != nil {
		return err
	}
	return r.unpack(debs, to)
}

// Unpack gets packages without what they depend on, and unpacks them into a folder.
func (r *Root) Unpack(to string, packages ...string) error {
	if _, err := r.Run(append([]string{"apt-get", "download", "-qq"}, packages...)...); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(r.work, "*.deb"))
	if err != nil || len(debs) != len(packages) {
		return fmt.Errorf("%d packages of %d were downloaded: %w", len(debs), len(packages), errors.Join(err, os.ErrNotExist))
	}
	return r.unpack(debs, to)
}

// unpack unpacks packages, and removes them.
func (r *Root) unpack(debs []string, to string) error {
	for _, d := range debs {
		if _, err := r.Run("dpkg-deb", "-x", d, to); err != nil {
			return err
		}
		if err := os.Remove(d); err != nil {
			return err
		}
	}
	return nil
}

// Depends names the packages that another one needs. A name may have a suite behind it:
// linux-image-amd64/trixie.
func (r *Root) Depends(name string) (names []string, err error) {
	about, err := r.Run("apt-cache", "show", "--no-all-versions", name)
	if err != nil {
		return nil, err
	}
	for _, line := range regexp.MustCompile(`(?m)^Depends: *(.*)$`).FindAllStringSubmatch(about, -1) {
		for _, d := range strings.Split(line[1], ",") {
			names = append(names, regexp.MustCompile(`[^ :]+`).FindString(d))
		}
	}
	return names, nil
}

// DependsOn finds the package of that prefix which another one needs.
func (r *Root) DependsOn(name, prefix string) (string, error) {
	names, err := r.Depends(name)
	if err != nil {
		return "", err
	}
	for _, n := range names {
		if strings.HasPrefix(n, prefix) {
			return n, nil
		}
	}
	return "", fmt.Errorf("%s depends on no %s*", name, prefix)
}

// Command runs a program and returns its standard output; what it said otherwise is in the
// error.
func Command(ctx context.Context, dir string, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(args[:min(len(args), 6)], " "), err, Tail(said.String()+out.String()))
	}
	return out.String(), nil
}

// Tail is the end of a long text, for an error.
func Tail(s string) string {
	const most = 4000
	if len(s) > most {
		s = "..." + s[len(s)-most:]
	}
	return strings.TrimSpace(s)
}
