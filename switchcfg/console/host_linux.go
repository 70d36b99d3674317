package console

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// host is where this machine's kernel tells of its terminals and processes.
type host struct{ proc, sys string }

// device is a character device. Two nodes of one device are equal; pseudo terminals
// of one number in two file systems are not.
type device struct {
	number     uint64 // of the device
	filesystem uint64 // of a pseudo terminal
}

// Device numbers (Linux, Documentation/admin-guide/devices.txt).
const (
	majorTTY     = 4 // 0 to 63 are virtual terminals
	firstSerial  = 64
	majorAlias   = 5 // tty, console, ptmx: names of other terminals
	majorPTY     = 136
	majorPTYLast = 143
)

func (d device) major() uint32 { return unix.Major(d.number) }
func (d device) minor() uint32 { return unix.Minor(d.number) }
func (d device) pty() bool     { return d.major() >= majorPTY && d.major() <= majorPTYLast }

func makeDevice(mode uint32, number, filesystem uint64) (device, bool) {
	d := device{number: number}
	if d.pty() {
		d.filesystem = filesystem
	}
	return d, mode&unix.S_IFMT == unix.S_IFCHR
}

// device looks at a path without opening what it names: that alone may change the line.
func (h host) device(path string) (device, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return device{}, &refusal{NotTerminal, "", err}
	}
	d, character := makeDevice(st.Mode, st.Rdev, st.Dev)
	switch {
	case !character:
		return d, &refusal{NotTerminal, "not a character device", nil}
	case d.major() == majorAlias, d.major() == majorTTY && d.minor() < firstSerial:
		return d, &refusal{NotTerminal, "this machine's own screen and keyboard, or another name of some terminal", nil}
	}
	// What sysfs does not know, a pseudo terminal, is seen when it is opened.
	class, err := os.Readlink(filepath.Join(h.sys, "dev/char", fmt.Sprintf("%d:%d", d.major(), d.minor()), "subsystem"))
	if err == nil && filepath.Base(class) != "tty" {
		return d, &refusal{NotTerminal, "a device of the class " + filepath.Base(class), nil}
	}
	return d, nil
}

func deviceOf(fd int) (device, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return device{}, err
	}
	d, _ := makeDevice(st.Mode, st.Rdev, st.Dev)
	return d, nil
}

// mayUse refuses what the kernel or another process uses.
func (h host) mayUse(d device) error {
	name, known := h.kernelConsole(d)
	if name != "" {
		return &refusal{KernelConsole, name, nil}
	}
	if !known && !d.pty() { // a pseudo terminal is never one
		return &refusal{KernelConsole, fmt.Sprintf("neither %s/consoles nor %s/class/tty/console/active can be read", h.proc, h.sys), nil}
	}
	if who := h.others(d); who != "" {
		return &refusal{InUse, who, nil}
	}
	return nil
}

// kernelConsole names the place where a device is listed as a console of the kernel,
// "" when it is not. known is false when there is no list.
func (h host) kernelConsole(d device) (where string, known bool) {
	list := filepath.Join(h.proc, "consoles")
	text, err := os.ReadFile(list)
	known = err == nil
	number := fmt.Sprintf("%d:%d", d.major(), d.minor())
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); { // ttyS0  -W- (EC p a)  4:64
		if f := strings.Fields(s.Text()); len(f) > 1 && f[len(f)-1] == number {
			return fmt.Sprintf("%s in %s", f[0], list), true
		}
	}
	list = filepath.Join(h.sys, "class/tty/console/active")
	text, err = os.ReadFile(list)
	known = known || err == nil
	for _, name := range strings.Fields(string(text)) {
		dev, err := os.ReadFile(filepath.Join(h.sys, "class/tty", name, "dev"))
		if err == nil && strings.TrimSpace(string(dev)) == number {
			return fmt.Sprintf("%s in %s", name, list), true
		}
	}
	return "", known
}

// others names a process other than this one that has a device open, "" for none. What
// may not be looked at, of other users' processes, is passed over: oxpd is root.
func (h host) others(d device) string {
	entries, err := os.ReadDir(h.proc)
	if err != nil {
		return ""
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() || h.copyOf(os.Getpid(), pid) {
			continue
		}
		if h.holds(filepath.Join(h.proc, e.Name(), "fd"), d) {
			comm, err := os.ReadFile(filepath.Join(h.proc, e.Name(), "comm"))
			if err != nil {
				return fmt.Sprintf("process %d", pid)
			}
			return fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(comm)))
		}
	}
	return ""
}

// copyOf tells whether a process is a child of ours that is about to become another
// program: until then it has a copy of every descriptor, and uses none.
func (h host) copyOf(us, pid int) bool {
	of := func(pid int, name string) string {
		b, _ := os.ReadFile(filepath.Join(h.proc, strconv.Itoa(pid), name))
		return string(b)
	}
	stat := of(pid, "stat") // pid (name) state parent ...
	f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(f) < 2 || f[1] != strconv.Itoa(us) {
		return false
	}
	ours := of(us, "cmdline")
	return ours != "" && of(pid, "cmdline") == ours
}

// holds looks for a device among open files.
func (h host) holds(folder string, d device) bool {
	files, err := os.ReadDir(folder)
	if err != nil {
		return false // ended meanwhile, or not ours to look at
	}
	for _, f := range files {
		path := filepath.Join(folder, f.Name())
		target, err := os.Readlink(path)
		if err != nil || !strings.HasPrefix(target, "/") {
			continue // a socket, a pipe
		}
		// Without asking a file system on another machine, which may not answer.
		var st unix.Statx_t
		if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st); err != nil {
			continue
		}
		open, character := makeDevice(uint32(st.Mode), unix.Mkdev(st.Rdev_major, st.Rdev_minor), unix.Mkdev(st.Dev_major, st.Dev_minor))
		if character && open == d {
			return true
		}
	}
	return false
}
