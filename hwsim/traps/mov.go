package traps

import "encoding/binary"

// mov is a load or store of 4 or 8 bytes.
type mov struct {
	store     bool
	width     int
	reg       int    // number of the register, when the value is not an immediate
	immediate bool   // a store of value
	value     uint64 // sign-extended
	size      int    // of the instruction in bytes
}

// Parts of an instruction (Intel SDM volume 2, chapter 2).
const (
	longestMov = 12 // REX, opcode, ModRM, SIB, displacement of 4, immediate of 4

	rexMask, rex = 0xf0, 0x40
	rexR         = 1 << 2 // upper bit of ModRM.reg
	rexW         = 1 << 3 // 8 bytes

	opLoad      = 0x8b // MOV r, r/m
	opStore     = 0x89 // MOV r/m, r
	opImmediate = 0xc7 // MOV r/m, imm32, with 0 in ModRM.reg

	modRegister = 3 // ModRM.mod: not memory
	rmSIB       = 4 // ModRM.rm: a SIB byte follows
	rmRelative  = 5 // ModRM.rm with mod 0: displacement of 4 from RIP
	baseNone    = 5 // SIB.base with mod 0: displacement of 4 and no base
)

// decode takes a MOV apart. Where memory is, is not asked: the fault says it.
// Four forms need no disassembler, which would be a module more.
func decode(b []byte) (m mov, ok bool) {
	at := 0
	next := func() (v byte) {
		if at < len(b) {
			v = b[at]
		}
		at++
		return v
	}
	op, prefix := next(), byte(0)
	if op&rexMask == rex {
		op, prefix = next(), op
	}
	m.width = 4
	if prefix&rexW != 0 {
		m.width = 8
	}
	modRM := next()
	mod, rm := modRM>>6, modRM&7
	m.reg = int(modRM >> 3 & 7)
	switch {
	case mod == modRegister:
		return m, false
	case op == opLoad:
	case op == opStore:
		m.store = true
	case op == opImmediate && m.reg == 0:
		m.store, m.immediate = true, true
	default:
		return m, false
	}
	if prefix&rexR != 0 {
		m.reg += 8
	}
	at += addressBytes(mod, rm, next)
	if m.immediate {
		if at+4 > len(b) {
			return m, false
		}
		m.value = uint64(int64(int32(binary.LittleEndian.Uint32(b[at:]))))
		at += 4
	}
	m.size = at
	return m, at <= len(b)
}

// addressBytes is how many bytes of displacement follow ModRM and the SIB byte, which it
// takes.
func addressBytes(mod, rm byte, next func() byte) int {
	base := rm
	if rm == rmSIB {
		base = next() & 7
	}
	switch {
	case mod == 1:
		return 1
	case mod == 2:
		return 4
	case rm == rmRelative, rm == rmSIB && base == baseNone: // mod 0
		return 4
	}
	return 0
}
