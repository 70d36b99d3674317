// Command init is the first process of a test guest: it mounts what programs expect,
// loads kernel modules, runs the commands in /commands one after the other, and ends
// the guest. Beside them it is a service manager (internal/guest/service). What it has
// to say goes to the second serial port, line by line, as internal/guest reads it.
//
// Where there is a systemd, it loads the modules and hands over; a service of systemd's
// is this program again, and runs the commands.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"oxpd/internal/guest/service"
)

// systemd is where Debian has it.
const systemd = "/usr/lib/systemd/systemd"

// path is where programs are.
const path = "/:/usr/sbin:/usr/bin"

// become has this program become another one, as a service.
const become = "become"

func main() {
	if len(os.Args) > 2 && os.Args[1] == become {
		panic(service.Become(os.Args[2:])) // which returns when there is no such program
	}
	first := os.Getpid() == 1 // not under systemd, which has started this one
	if _, err := os.Stat(systemd); err == nil && first {
		loadAll(os.Stderr)
		err := unix.Exec(systemd, []string{systemd}, []string{"PATH=" + path})
		fmt.Fprintf(os.Stderr, "init: run %s: %v\n", systemd, err)
		end()
	}
	if first {
		mountAll()
	}
	port, err := serial("/dev/ttyS1")
	if err != nil {
		fmt.Fprintf(os.Stderr, "init: %v\n", err)
		end()
	}
	if first {
		loadAll(port)
		go func() { fmt.Fprintf(port, "init: %v\n", service.Serve("/init", become)) }()
	}
	for _, c := range lines("/commands") {
		run(port, c)
	}
	fmt.Fprintln(port, "=== end")
	_ = unix.IoctlSetInt(int(port.Fd()), unix.TCSBRK, 1) // until it is written; an error loses the last line, and that is seen
	end()
}

// mountAll mounts what programs expect.
func mountAll() {
	for _, m := range []struct{ kind, at string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}, {"hugetlbfs", "/dev/hugepages"},
	} {
		_ = os.MkdirAll(m.at, 0o755) // mount says when it is not there
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil {
			fmt.Fprintf(os.Stderr, "init: mount %s at %s: %v\n", m.kind, m.at, err)
		}
	}
}

// loadAll loads the kernel modules, and tells of those that do not load.
func loadAll(tell io.Writer) {
	for _, line := range lines("/modules/order") {
		path, parameters, _ := strings.Cut(line, " ")
		if err := load(path, parameters); err != nil {
			fmt.Fprintf(tell, "init: load %s: %v\n", path, err)
		}
	}
}

// end restarts the machine, which ends QEMU.
func end() {
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART) // nobody is left to be told
	select {}
}

// serial opens a port that adds nothing to what is written.
func serial(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ICANON
	return f, unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t)
}

func lines(path string) (all []string) {
	b, _ := os.ReadFile(path) // what is not there has no lines
	for _, l := range strings.Split(string(b), "\n") {
		if l != "" {
			all = append(all, l)
		}
	}
	return all
}

func load(path, parameters string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	flags := 0
	if !strings.HasSuffix(path, ".ko") {
		flags = unix.MODULE_INIT_COMPRESSED_FILE // the kernel unpacks it
	}
	return unix.FinitModule(int(f.Fd()), parameters, flags)
}

// run runs one command with its output on the port.
func run(port io.Writer, line string) {
	fmt.Fprintf(port, "=== run %s\n", line)
	args := strings.Fields(line)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = port, port
	cmd.Env = []string{"PATH=" + path, "HOME=/tmp", "TMPDIR=/tmp", "OXPD_IN_GUEST=1"}
	err := cmd.Run()
	status := -1
	if cmd.ProcessState != nil {
		status = cmd.ProcessState.ExitCode()
	}
	if err != nil && status == -1 {
		fmt.Fprintf(port, "init: %v\n", err)
	}
	fmt.Fprintf(port, "=== exit %d\n", status)
}
