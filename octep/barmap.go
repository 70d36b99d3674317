package octep

import (
	"encoding/binary"
	"errors"
	"fmt"

	"oxpd/octep/csr"
)

// ErrFacilityAbsent says that the barmap does not advertise the facility (yet).
var ErrFacilityAbsent = errors.New("facility is not advertised")

// errTableBlank says that the barmap reads all ones: not written, or not mapped.
var errTableBlank = errors.New("barmap reads all ones")

// VersionError is a barmap of a version whose layout is not known.
type VersionError struct{ Version uint32 }

func (e *VersionError) Error() string {
	return fmt.Sprintf("octep: read barmap: version %d.%d; only %d.%d is known",
		e.Version>>16, e.Version&0xffff, csr.BarmapVersion02>>16, csr.BarmapVersion02&0xffff)
}

// BarmapError is a value in the barmap, or the pointer to it, that cannot be true.
type BarmapError struct {
	Facility string // name of the record; "" for the pointer
	Field    string
	Value    uint64
	Reason   string
}

func (e *BarmapError) reason() string {
	what := e.Field
	if e.Facility != "" {
		what = e.Facility + " " + e.Field
	}
	return fmt.Sprintf("%s %#x %s", what, e.Value, e.Reason)
}

func (e *BarmapError) Error() string { return "octep: read barmap: " + e.reason() }

// checkPointer refuses a barmap offset before anything is read there. Entries 0
// to 7 may be read (all ones); from the end of entry 8 on everything is forbidden
// (endpoint.md 1, BAR2 address map).
func checkPointer(at uint32) error {
	bad := func(reason string) error {
		return &BarmapError{Field: "pointer", Value: uint64(at), Reason: reason}
	}
	if at%4 != 0 {
		return bad("is not aligned to 4")
	}
	if uint64(at)+csr.BarmapSize > csr.BAR2FacEnd {
		return bad(fmt.Sprintf("is not below the forbidden part of BAR2 at %#x", csr.BAR2FacEnd))
	}
	return nil
}

// checkBarmap judges a decoded table that lies at offset at of BAR2
// (endpoint.md 3.1). A record of size 0 is absent and not looked at.
//
// Errors: *VersionError, *BarmapError, and errTableBlank for a version of all ones.
func checkBarmap(m *csr.Barmap, at uint32) error {
	switch m.Version {
	case csr.BarmapVersion02:
	case ^uint32(0):
		return errTableBlank
	default:
		return &VersionError{Version: m.Version}
	}
	if err := checkPointer(at); err != nil {
		return err
	}
	limit := readLimit(m.GICD)
	bad := func(reason string) error {
		return &BarmapError{Facility: "table", Field: "gicd_offset", Value: uint64(m.GICD), Reason: reason}
	}
	switch {
	case m.GICD%4 != 0:
		return bad("is not aligned to 4")
	case uint64(m.GICD)+4 > csr.BAR2Size:
		return bad("is outside BAR2")
	case limit < csr.BAR2FacEnd:
		return bad("is among the facility windows")
	}
	for i := range m.Facility {
		if err := checkFacility(m, i, at, limit); err != nil {
			return err
		}
	}
	return nil
}

// readLimit is the first offset of BAR2 that must never be read: the index entry
// that the interrupt word lies in, and entry 15 in any case.
func readLimit(gicd uint32) uint32 { return min(csr.BAR2Interrupt, gicd&^(csr.BAR2Entry-1)) }

// Interrupt numbers that a doorbell can raise: the shared peripheral ones of the
// coprocessor's interrupt controller (Arm GICv3, INTIDs 32 to 1019).
const (
	firstSPI = 32
	lastSPI  = 1019
)

func checkFacility(m *csr.Barmap, i int, at, limit uint32) error {
	f := m.Facility[i]
	if f.Size == 0 {
		return nil
	}
	bad := func(field string, v uint32, reason string, args ...any) error {
		return &BarmapError{Facility: csr.FacilityNames[i], Field: field, Value: uint64(v), Reason: fmt.Sprintf(reason, args...)}
	}
	win, bells := window(f), doorbells(f)
	switch {
	case f.Offset%8 != 0:
		return bad("offset", f.Offset, "is not aligned to 8")
	case win.end > uint64(limit):
		return bad("size", f.Size, "from offset %#x reaches past %#x", f.Offset, limit)
	case f.Doorbells != 0 && (bells.start < firstSPI || bells.end > lastSPI+1):
		return bad("doorbell", f.Doorbell, "with count %#x is outside interrupts %d..%d", f.Doorbells, firstSPI, lastSPI)
	case i != csr.FacControl && win.overlaps(span{uint64(at), uint64(at) + csr.BarmapSize}):
		return bad("offset", f.Offset, "overlaps the barmap at %#x", at)
	}
	for j, g := range m.Facility[:i] {
		if g.Size == 0 {
			continue
		}
		if win.overlaps(window(g)) {
			return bad("offset", f.Offset, "overlaps %s", csr.FacilityNames[j])
		}
		if bells.overlaps(doorbells(g)) {
			return bad("doorbell", f.Doorbell, "belongs to %s", csr.FacilityNames[j])
		}
	}
	return nil
}

// span is a half-open range in 64 bits, so that no sum of two 32-bit words wraps.
type span struct{ start, end uint64 }

func (s span) overlaps(t span) bool { return s.start < t.end && t.start < s.end }

func (s span) holds(t span) bool { return s.start <= t.start && t.end <= s.end }

func window(f csr.Facility) span {
	return span{uint64(f.Offset), uint64(f.Offset) + uint64(f.Size)}
}

func doorbells(f csr.Facility) span {
	return span{uint64(f.Doorbell), uint64(f.Doorbell) + uint64(f.Doorbells)}
}

// readTable reads the barmap at a checked pointer, judges it and, when it is
// sound, makes it the allow-list. The caller holds e.mu.
func (e *Endpoint) readTable(at uint32) error {
	e.guard.allowTable(at)
	var m, again csr.Barmap
	for _, t := range []*csr.Barmap{&m, &again} {
		if err := e.loadTable(at, t); err != nil {
			return err
		}
	}
	if m != again {
		return &BarmapError{Facility: "table", Field: "version", Value: uint64(m.Version), Reason: "was being written while it was read"}
	}
	if err := checkBarmap(&m, at); err != nil {
		return err
	}
	e.table = m
	e.guard.allow(at, &m)
	return nil
}

// loadTable copies the barmap out of the window once (rule 14).
func (e *Endpoint) loadTable(at uint32, m *csr.Barmap) error {
	b := make([]byte, 0, csr.BarmapSize)
	for off := uint32(0); off < csr.BarmapSize; off += 4 {
		b = binary.LittleEndian.AppendUint32(b, e.guard.Load32(at+off))
	}
	return m.Decode(b)
}
