// Package inside has tests that run in the guest of internal/guest, where the card
// is a PCI function in sysfs. Anywhere else they are skipped.
package inside
