package guest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"oxpd/internal/debian"
)

// systemdPackages are the programs of a guest under systemd, as far as the tests use
// them: apt adds what they need.
func systemdPackages() []string {
	return []string{"systemd", "iproute2", "procps"}
}

// needless are folders of those packages that nothing in the guest reads: half of all
// bytes.
func needless() []string {
	return []string{"usr/share", "usr/lib/x86_64-linux-gnu/gconv", "usr/include", "var"}
}

// merged are the folders of the root that are links into /usr, whether a package has
// them or not.
func merged() []string { return []string{"bin", "sbin", "lib", "lib64"} }

// commandsUnit is a service that runs the commands of a guest whose first process is
// systemd: the guest ends with it.
const (
	commandsUnit    = "etc/systemd/system/commands.service"
	commandsService = `[Unit]
Description=What the test runs
After=basic.target
FailureAction=reboot-immediate

[Service]
Type=oneshot
ExecStart=/init
StandardOutput=journal+console
TimeoutStartSec=infinity
`
)

// masked are units of Debian's that find nothing to work with in the guest, and take
// their time for it.
func masked() []string {
	return []string{
		"getty.target", "systemd-logind.service", "systemd-hwdb-update.service", "systemd-journal-catalog-update.service",
		"systemd-firstboot.service", "ldconfig.service", "systemd-update-done.service", "systemd-binfmt.service", "systemd-random-seed.service",
		"systemd-pcrphase.service", "systemd-pcrphase-sysinit.service", "systemd-tpm2-setup.service", "systemd-sysusers.service",
		"systemd-machine-id-commit.service", "systemd-journal-flush.service", "systemd-userdbd.socket", "systemd-boot-random-seed.service",
		"systemd-modules-load.service",
	}
}

// generators are programs that systemd runs at its start and at each reload, for what the
// guest does not have. One that reads the kernel's arguments is needed.
func generators() []string {
	return []string{
		"systemd-fstab-generator", "systemd-getty-generator", "systemd-gpt-auto-generator",
		"systemd-hibernate-resume-generator", "systemd-rc-local-generator", "systemd-run-generator", "systemd-ssh-generator",
		"systemd-system-update-generator", "systemd-sysv-generator", "systemd-tpm2-generator",
	}
}

// systemdFiles are those of a guest under systemd beside the packages': the service, and
// an empty file in the place of each generator.
func systemdFiles() map[string][]byte {
	files := map[string][]byte{commandsUnit: []byte(commandsService)}
	for _, g := range generators() {
		files["etc/systemd/system-generators/"+g] = nil
	}
	return files
}

// systemdArguments are those of the kernel that systemd reads.
func systemdArguments() string {
	args := "lsm=capability systemd.unit=multi-user.target systemd.wants=commands.service systemd.show_status=0 systemd.log_target=console systemd.log_level=notice"
	for _, u := range masked() {
		args += " systemd.mask=" + u
	}
	return args
}

func (p *Parts) systemd() string { return filepath.Join(p.dir, "systemd.cpio") }

// appendSystemd copies the file system of a guest under systemd into an initrd.
func (p *Parts) appendSystemd(w io.Writer) error {
	f, err := os.Open(p.systemd())
	if err != nil {
		return fmt.Errorf("guest: %w", err)
	}
	defer f.Close()
	if _, err := io.Copy(w, f); err != nil {
		return fmt.Errorf("guest: write initrd: %w", err)
	}
	return nil
}

// fetchSystemd makes the file system of a guest under systemd.
func fetchSystemd(from *debian.Root, work, suite string, parts *Parts) error {
	root := filepath.Join(work, "systemd")
	if err := from.Download(suite, root, systemdPackages()...); err != nil {
		return err
	}
	for _, d := range needless() {
		if err := os.RemoveAll(filepath.Join(root, d)); err != nil {
			return err
		}
	}
	for _, d := range merged() {
		if err := os.Symlink("usr/"+d, filepath.Join(root, d)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	for name, text := range map[string]string{
		"passwd":     "root:x:0:0::/:/bin/sh\n",
		"group":      "root:x:0:\n",
		"os-release": "ID=oxpd-guest\n",
		"machine-id": strings.Repeat("0123456789abcdef", 2) + "\n",
	} {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	f, err := os.Create(parts.systemd())
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	return errors.Join(writeTree(w, root), w.Flush(), f.Close())
}

// writeTree writes a folder as an archive that the kernel unpacks.
func writeTree(w io.Writer, root string) error {
	inode := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		inode++
		mode, body := uint32(info.Mode().Perm()), []byte(nil)
		switch d.Type() {
		case fs.ModeDir:
			mode |= cpioDir &^ cpioPerm
		case fs.ModeSymlink:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			mode, body = cpioLink, []byte(to)
		case 0:
			mode |= cpioFile &^ cpioPerm
			if body, err = os.ReadFile(path); err != nil {
				return err
			}
		default:
			return fmt.Errorf("guest: write initrd: %s is neither a file, a folder nor a link", name)
		}
		return writeEntry(w, inode, name, mode, body)
	})
	if err != nil {
		return err
	}
	return writeEntry(w, 0, "TRAILER!!!", 0, nil)
}
