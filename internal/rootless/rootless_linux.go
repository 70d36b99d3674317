package rootless

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	tunDevice = "/dev/net/tun"
	sysctls   = "/proc/sys/"

	// marker is in the environment of the program that Run runs: one that is still
	// not privileged does not try again.
	marker = "OXPD_USER_NAMESPACE"
)

// needed are the capabilities that the namespaces, their interfaces and raw
// sockets take.
var needed = [...]uint{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_NET_RAW}

func privileged() bool {
	var caps [2]unix.CapUserData // version 3 has two words of each set
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0]); err != nil {
		return os.Geteuid() == 0
	}
	for _, c := range needed {
		if caps[c/32].Effective&(1<<(c%32)) == 0 {
			return false
		}
	}
	return true
}

func run(ctx context.Context, o Options) (int, error) {
	if err := openTUN(tunDevice); err != nil {
		return 0, err
	}
	if os.Getenv(marker) != "" {
		return 0, whyNot(unix.EPERM, sysctl)
	}
	cmd := command(ctx, o)
	// The kernel's signal to a child comes when the thread ends that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return 0, whyNot(err, sysctl)
	}
	_ = cmd.Wait() // by its status
	if status := cmd.ProcessState.ExitCode(); status >= 0 {
		return status, nil
	}
	return 0, fmt.Errorf("run %s in a user namespace: %v", o.Exe, cmd.ProcessState)
}

// command is the program as user 0 of a user namespace, with mounts of its own and
// a network namespace that its threads can come home to from others: the one of
// this process belongs to root.
func command(ctx context.Context, o Options) *exec.Cmd {
	cmd := exec.CommandContext(ctx, o.Exe, o.Args...)
	cmd.Stdout, cmd.Stderr = o.Out, o.Err
	cmd.Env = append(os.Environ(), marker+"=1")
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = endLimit
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		Pdeathsig:   unix.SIGKILL,
	}
	return cmd
}

// openTUN tries whether TAP interfaces can be made: user 0 of a namespace opens a
// device as the user that it is outside.
func openTUN(device string) error {
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	switch {
	case err == nil:
		return f.Close()
	case errors.Is(err, fs.ErrPermission):
		return &Error{device + " is for root alone", "run it with sudo, or give that device the mode it has elsewhere: sudo chmod 0666 " + device}
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return &Error{"there is no " + device, "load its driver: sudo modprobe tun"}
	}
	return fmt.Errorf("try whether interfaces can be made: %w", err)
}

// sysctl reads a setting of the kernel, "" when there is none.
func sysctl(name string) string {
	b, err := os.ReadFile(sysctls + strings.ReplaceAll(name, ".", "/"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// Settings that keep user namespaces from users.
const (
	appArmor   = "kernel.apparmor_restrict_unprivileged_userns" // Ubuntu
	debian     = "kernel.unprivileged_userns_clone"             // Debian, Arch
	mostUsers  = "user.max_user_namespaces"
	mostMounts = "user.max_mnt_namespaces"
	mostNets   = "user.max_net_namespaces"
)

// whyNot finds the reason why the kernel makes no user namespace.
func whyNot(err error, sysctl func(name string) string) error {
	set := func(name, value string) string {
		return "run it with sudo, or allow them: sudo sysctl -w " + name + "=" + value
	}
	refused := errors.Is(err, fs.ErrPermission)
	switch {
	case refused && sysctl(debian) == "0":
		return &Error{"user namespaces are root's alone (" + debian + "=0)", set(debian, "1")}
	case refused && sysctl(appArmor) == "1":
		return &Error{"AppArmor takes all rights from user namespaces (" + appArmor + "=1)", set(appArmor, "0")}
	case refused:
		return &Error{"the kernel refuses a user namespace", "run it with sudo, outside of a container or sandbox that forbids them"}
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EUSERS):
		for _, name := range [...]string{mostUsers, mostMounts, mostNets} {
			if sysctl(name) == "0" {
				return &Error{"user namespaces are switched off (" + name + "=0)", set(name, "1000")}
			}
		}
		return &Error{"there are as many user namespaces as there may be (" + mostUsers + "=" + sysctl(mostUsers) + ")", "run it with sudo, or raise that number with sysctl"}
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		return &Error{"this kernel was built without user namespaces", "run it with sudo"}
	}
	return fmt.Errorf("make a user namespace: %w", err)
}
