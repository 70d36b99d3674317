// Package systemd has tests that run in the guest of internal/guest whose first process
// is systemd: the shipped unit as docs/guides/systemd.md says it is installed, with the
// card as a PCI function. Anywhere else they are skipped.
package systemd
