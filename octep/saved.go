package octep

import (
	"fmt"

	"oxpd/internal/mmio"
	"oxpd/octep/csr"
)

// Saved is what the host had written to the card's config space and a reset of the card
// takes away: the base addresses, without which nothing finds its BARs, and device
// control, without which the largest packets of the link are too long for it. A kernel
// puts them back after a reset that it has asked for itself, and after no other.
type Saved struct {
	values [savedCount]uint32
	pcie   bool // device control is where it is expected
}

const (
	savedBARs  = 6
	savedCount = savedBARs + 1
)

// savedAt is where value i is, how wide, and which of its bits are put back.
func savedAt(i int) (off, width int, bits uint32) {
	if i < savedBARs {
		return csr.CfgBAR0 + 4*i, 4, ^uint32(0)
	}
	return csr.CfgDevCtl, 2, 0xffff &^ csr.CfgDevCtlReset
}

// ChangedError is a base address that somebody else has changed.
type ChangedError struct {
	Name     string
	Off      int // in config space
	Was, Now uint32
}

func (e *ChangedError) Error() string {
	return fmt.Sprintf("octep: base address at 0x%02x of %s was 0x%08x and is 0x%08x", e.Off, e.Name, e.Was, e.Now)
}

// Hint is what an operator can do.
func (e *ChangedError) Hint() string {
	return "the host has given the card other addresses: start oxpd again, which finds it there"
}

// Save reads what Restore puts back. The card answers and decodes memory.
//
// Errors: mmio.ErrGone, the device's.
func Save(d Device) (*Saved, error) {
	s := &Saved{}
	id, err := d.ConfigRead(csr.CfgPCIe, 1)
	if err != nil {
		return nil, fmt.Errorf("octep: read capability of %s: %w", d.Name(), err)
	}
	s.pcie = id == csr.CfgPCIeID
	for i := range s.values {
		off, width, _ := savedAt(i)
		if s.values[i], err = d.ConfigRead(off, width); err != nil {
			return nil, fmt.Errorf("octep: read config space of %s at 0x%02x: %w", d.Name(), off, err)
		}
	}
	if !Alive(d) { // what was read may be all ones
		return nil, fmt.Errorf("octep: read config space of %s: %w", d.Name(), mmio.ErrGone)
	}
	return s, nil
}

// Restore puts back what differs, and tells whether anything did. A card that decodes
// memory has been set up by somebody else, whose base addresses stay.
//
// Errors: *ChangedError, mmio.ErrGone, the device's.
func (s *Saved) Restore(d Device) (changed bool, err error) {
	command, err := d.ConfigRead(csr.CfgCommand, 2)
	if err != nil {
		return false, fmt.Errorf("octep: read command register of %s: %w", d.Name(), err)
	}
	for i, was := range s.values {
		off, width, bits := savedAt(i)
		if i == savedBARs && !s.pcie {
			continue
		}
		now, err := d.ConfigRead(off, width)
		switch {
		case err != nil:
			return changed, fmt.Errorf("octep: read config space of %s at 0x%02x: %w", d.Name(), off, err)
		case !Alive(d):
			return changed, fmt.Errorf("octep: read config space of %s at 0x%02x: %w", d.Name(), off, mmio.ErrGone)
		case now&bits == was&bits:
			continue
		case i < savedBARs && command&csr.CfgCommandMemory != 0:
			return changed, &ChangedError{d.Name(), off, was, now}
		}
		if err := d.ConfigWrite(off, width, was&bits); err != nil {
			return changed, fmt.Errorf("octep: write config space of %s at 0x%02x: %w", d.Name(), off, err)
		}
		changed = true
		if now, err = d.ConfigRead(off, width); err != nil || now&bits != was&bits {
			return changed, fmt.Errorf("octep: write config space of %s at 0x%02x: wrote 0x%08x, reads 0x%08x (%v)", d.Name(), off, was&bits, now, err)
		}
	}
	return changed, nil
}
