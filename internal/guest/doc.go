// Package guest boots a Linux guest in QEMU with a PCI device that another process
// is, and runs programs in it. Tests only.
//
//	host                                         guest (QEMU, software emulation)
//	hwsim ── hwsim/vfiouser ── socket ────────── vfio-user-pci: 177d:a300
//	Boot: initrd of init, modules, programs ───▶ init (internal/guest/init), process 1
//	Result ◀── second serial port ────────────── output and exit status of each program
//
// With Options.Systemd process 1 is the systemd of Debian 13 (init loads the modules and
// hands over), and a service of it, init again, runs the programs.
//
// Fetch gets what the machine does not have: a QEMU with vfio-user-pci (10.1 or
// later), a guest kernel and systemd, as Debian packages, by apt with a root of its own and
// unpacked below the user's cache directory. Nothing is installed; QEMU runs through
// its own dynamic loader. That takes some seconds once, and the network. FetchIOMMUFD gets
// a second kernel, from Ubuntu's archive: none of Debian's has iommufd.
//
// Programs for the guest are built without cgo: a test binary (go test -c) is one,
// oxpd itself another. internal/guest/inside and internal/guest/systemd have the tests that
// run there.
//
// Everything is bounded: a guest that hangs is killed and its console is in the
// error. No figure taken in the guest says anything about time.
package guest
