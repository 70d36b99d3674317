package console

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	busybox       = "busybox"
	worldPattern  = "oxpd-console-*"
	insideBusybox = "/bin/busybox"
	insideShell   = "/bin/sh"
	insideProgram = "/lib/a64" // the interpreter, with the name that it has inside
)

// ErrNoShell says why a console has a login and no shell behind it.
var ErrNoShell = errors.New("busybox, which is the coprocessor's shell, is not on this machine: apt-get install busybox")

// world is the root folder of the shell, and what answers at its devices.
type world struct {
	dir  *os.File // locked, so that nobody takes it for one that was left behind
	path string
	busy string // busybox of this machine

	mdio   *net.UnixListener
	served chan struct{}
}

// shellWorld makes the world at the first login.
func (c *Console) shellWorld() (*world, error) {
	if c.world == nil {
		w, err := newWorld(c.card, &c.o)
		if err != nil {
			c.log.Warn("the simulated coprocessor has no shell", "err", err)
			return nil, err
		}
		c.world = w
	}
	return c.world, nil
}

// newWorld makes a world with busybox and the interpreter in it.
func newWorld(card Card, o *Options) (_ *world, err error) {
	busy, err := exec.LookPath(busybox)
	if err != nil {
		return nil, ErrNoShell
	}
	removeLeft()
	path, err := os.MkdirTemp("", worldPattern)
	if err != nil {
		return nil, fmt.Errorf("console: make the shell's folder: %w", err)
	}
	w := &world{path: path, busy: busy}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("console: make the shell's folder: %w", err), w.close())
		}
	}()
	if err := w.lock(); err != nil {
		return nil, err
	}
	for _, d := range []string{"bin", "dev", "etc", "lib", "proc", "root", "sbin", "sys", "usr/bin", "usr/sbin"} {
		if err := os.MkdirAll(w.at(d), 0o755); err != nil {
			return nil, err
		}
	}
	if err := os.Mkdir(w.at("tmp"), 0o777); err != nil {
		return nil, err
	}
	for _, f := range []struct{ name, text string }{
		{"etc/passwd", "root::0:0:root:/root:/bin/sh\n"}, {"etc/group", "root:x:0:\n"}, {"etc/hostname", "octeon\n"},
		{"etc/profile", "cd\n"},
	} {
		if err := os.WriteFile(w.at(f.name), []byte(f.text), 0o644); err != nil {
			return nil, err
		}
	}
	for _, d := range devices {
		if err := os.WriteFile(w.at("dev/"+d), nil, 0o666); err != nil {
			return nil, err
		}
	}
	if err := w.install(busy, insideBusybox); err != nil {
		return nil, err
	}
	if err := w.applets(); err != nil {
		return nil, err
	}
	if err := w.install(o.program(), insideProgram); err != nil {
		return nil, err
	}
	if err := w.serve(card, o.MDIOZero); err != nil {
		return nil, err
	}
	return w, nil
}

// devices are those of this machine that are put into the world.
var devices = [...]string{"null", "zero", "full", "random", "urandom", "tty"}

func (w *world) at(name string) string { return filepath.Join(w.path, name) }

// program is the interpreter's file.
func (o *Options) program() string {
	if o.Interpreter != "" {
		return o.Interpreter
	}
	return "/proc/self/exe" // also when the file has been replaced meanwhile
}

func (w *world) lock() (err error) {
	if w.dir, err = os.Open(w.path); err != nil {
		return err
	}
	return unix.Flock(int(w.dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
}

// removeLeft removes the folders of consoles that were killed.
func removeLeft() {
	all, _ := filepath.Glob(filepath.Join(os.TempDir(), worldPattern)) // the pattern is a good one
	for _, path := range all {
		left := world{path: path}
		if left.lock() == nil {
			_ = os.RemoveAll(path) // it may be somebody else's
		}
		if left.dir != nil {
			_ = left.dir.Close()
		}
	}
}

// install copies a program, with the libraries that it is linked to, to where it finds
// them. A copy, so that nothing in the world is a file of this machine.
func (w *world) install(file, inside string) error {
	if err := copyFile(file, w.at(inside)); err != nil {
		return err
	}
	libs, err := libraries(file)
	if err != nil {
		return err
	}
	for _, l := range libs {
		if err := os.MkdirAll(filepath.Dir(w.at(l)), 0o755); err != nil {
			return err
		}
		if err := copyFile(l, w.at(l)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// libraries are the dynamic linker and the libraries of a program, and those of these.
func libraries(program string) ([]string, error) {
	f, err := elf.Open(program)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	linker := f.Section(".interp")
	if linker == nil {
		return nil, nil
	}
	b, err := linker.Data()
	if err != nil {
		return nil, err
	}
	found := []string{strings.TrimRight(string(b), "\x00")}
	have := map[string]bool{filepath.Base(found[0]): true}
	for want := []*elf.File{f}; len(want) > 0; want = want[1:] {
		names, err := want[0].ImportedLibraries()
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if have[name] {
				continue
			}
			have[name] = true
			path, lib, err := findLibrary(name, f.Class, f.Machine)
			if err != nil {
				return nil, err
			}
			defer lib.Close()
			found = append(found, path)
			want = append(want, lib)
		}
	}
	return found, nil
}

// findLibrary looks where a dynamic linker does.
func findLibrary(name string, class elf.Class, machine elf.Machine) (string, *elf.File, error) {
	for _, pattern := range []string{"/lib/*-linux-gnu", "/usr/lib/*-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"} {
		paths, _ := filepath.Glob(filepath.Join(pattern, name)) // the patterns are good ones
		for _, path := range paths {
			f, err := elf.Open(path)
			if err != nil {
				continue
			}
			if f.Class == class && f.Machine == machine {
				return path, f, nil
			}
			_ = f.Close()
		}
	}
	return "", nil, fmt.Errorf("library %s: %w", name, fs.ErrNotExist)
}

// applets gives busybox its names.
func (w *world) applets() error {
	list, err := exec.Command(w.busy, "--list").Output()
	if err != nil {
		return fmt.Errorf("%s --list: %w", w.busy, err)
	}
	for _, name := range strings.Fields(string(list)) {
		if name != busybox && filepath.Base(name) == name {
			if err := os.Symlink(insideBusybox, w.at("bin/"+name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// restart is a start of the coprocessor: what was in its memory is gone.
func (w *world) restart(all bool) {
	folders := []string{"tmp"}
	if all {
		folders = append(folders, "root")
	}
	for _, d := range folders {
		entries, _ := os.ReadDir(w.at(d)) // what cannot be removed stays, as a mistake that is seen
		for _, e := range entries {
			_ = os.RemoveAll(filepath.Join(w.at(d), e.Name()))
		}
	}
}

func (w *world) close() error {
	var errs []error
	if w.mdio != nil {
		errs = append(errs, w.mdio.Close())
		<-w.served
	}
	errs = append(errs, os.RemoveAll(w.path))
	if w.dir != nil {
		errs = append(errs, w.dir.Close())
	}
	return errors.Join(errs...)
}
