package traps

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"oxpd/hwsim"
)

// driver is whose device the program takes the function for: one that maps it by
// resource0 and whose DMA goes by physical addresses.
const driver = "igb_uio"

// uio is the device file of that driver.
const uio = "uio0"

// configBytes is how much of configuration space a file has.
const configBytes = 256

// Offsets in configuration space (PCI Local Bus 3.0, 6.1).
const (
	cfgVendor    = 0x00
	cfgDevice    = 0x02
	cfgCommand   = 0x04
	cfgClass     = 0x08 // revision in the low byte
	cfgSubVendor = 0x2c
	cfgSubDevice = 0x2e

	cmdMemory    = 1 << 1
	cmdBusMaster = 1 << 2
)

// ioMem is IORESOURCE_MEM, the flag of a BAR in memory.
const ioMem = 0x200

// tree writes the device as sysfs shows one.
func tree(dir string, card *hwsim.Card) error {
	dev := filepath.Join(dir, treeDir, Address)
	if err := os.MkdirAll(filepath.Join(dev, "uio", uio), 0o755); err != nil {
		return err
	}
	config := make([]byte, configBytes)
	for i := range config {
		config[i] = byte(card.ConfigRead(i, 1))
	}
	base := uint64(card.ConfigRead(0x10, 4))&^0xf | uint64(card.ConfigRead(0x14, 4))<<32
	resource := fmt.Sprintf("%#016x %#016x %#016x\n", base, base+card.BARSize(0)-1, ioMem)
	for range 6 {
		resource += fmt.Sprintf("%#016x %#016x %#016x\n", 0, 0, 0)
	}
	word := func(at, width int) string { return fmt.Sprintf("%#0*x\n", 2*width, card.ConfigRead(at, width)) }
	for name, text := range map[string]string{
		"vendor": word(cfgVendor, 2), "device": word(cfgDevice, 2), "subsystem_vendor": word(cfgSubVendor, 2), "subsystem_device": word(cfgSubDevice, 2),
		"class":     fmt.Sprintf("%#06x\n", card.ConfigRead(cfgClass, 4)>>8),
		"numa_node": "-1\n", "max_vfs": "0\n", "resource": resource, "config": string(config),
		"resource0": "", // every access is past its end
	} {
		if err := os.WriteFile(filepath.Join(dev, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return os.Symlink(filepath.Join("../drivers", driver), filepath.Join(dev, "driver"))
}

// devices are what the program has in /dev.
func devices() []string { return []string{"null", "zero", "full", "random", "urandom"} }

// enter gives the calling thread a mount namespace of its own, with the device in it.
// The thread must be locked, and not be given back.
func enter(dir string) error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	dev, class := filepath.Join(dir, "dev"), filepath.Join(dir, "class")
	device := filepath.Join(class, "uio", uio)
	for _, d := range []string{dev, device, filepath.Join(dir, HugeDir), filepath.Join(dir, RuntimeDir)} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if err := os.Symlink(filepath.Join(dir, treeDir, Address), filepath.Join(device, "device")); err != nil {
		return err
	}
	if err := unix.Mkfifo(filepath.Join(dev, uio), 0o600); err != nil {
		return fmt.Errorf("make %s: %w", uio, err)
	}
	mount := func(from, to, kind string, flags uintptr, data string) error {
		if err := unix.Mount(from, to, kind, flags, data); err != nil {
			return fmt.Errorf("mount %s: %w", to, err)
		}
		return nil
	}
	if err := mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	for _, d := range devices() {
		if err := os.WriteFile(filepath.Join(dev, d), nil, 0o644); err != nil {
			return err
		}
		if err := mount(filepath.Join("/dev", d), filepath.Join(dev, d), "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	if err := mount(dev, "/dev", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if err := mount(class, "/sys/class", "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return mount("hugetlbfs", filepath.Join(dir, HugeDir), "hugetlbfs", 0, "pagesize=2M")
}
