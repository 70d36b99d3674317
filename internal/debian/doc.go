// Package debian gets programs of Debian's archive that this machine does not have. Tests
// only.
//
//	Cached   a folder of the user's cache, made once, whole or not at all
//	Root     an apt that knows nothing of this machine's packages
//	         Download  packages with what they depend on, unpacked into a folder
//	         Unpack    packages without that
//
// Nothing is installed. What is unpacked runs through the dynamic loader that came with
// it, so that the machine's own C library does not matter. Packages are verified by the
// keyring that Debian installs; the mirror is that of the machine, where it has one.
//
// It needs Linux on amd64, apt and dpkg-deb. Ubuntu has all of them, and the keyring as a
// package.
package debian
