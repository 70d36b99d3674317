package a64

import (
	"encoding/binary"
	"math/bits"
)

// flags is the condition flags.
type flags struct{ n, z, c, v bool }

// Names of the fields that most encodings share, as the manual has them.
func rd(w uint32) int { return int(w & 31) }
func rn(w uint32) int { return int(w >> 5 & 31) }
func rm(w uint32) int { return int(w >> 16 & 31) }
func ra(w uint32) int { return int(w >> 10 & 31) }

// wide tells whether an instruction is of 64 bits (sf).
func wide(w uint32) bool { return w>>31 == 1 }

func width(w uint32) uint {
	if wide(w) {
		return 64
	}
	return 32
}

// field is bits hi to lo.
func field(w uint32, hi, lo uint) uint32 { return w >> lo & (1<<(hi-lo+1) - 1) }

// signed extends the sign of the low n bits.
func signed(v uint64, n uint) uint64 { return uint64(int64(v<<(64-n)) >> (64 - n)) }

// mask is the low n bits, 1 to 64.
func mask(n uint) uint64 { return ^uint64(0) >> (64 - n) }

// reg is a register; 31 is zero.
func (m *machine) reg(r int) uint64 {
	if r == 31 {
		return 0
	}
	return m.x[r]
}

// regSP is a register; 31 is the stack pointer.
func (m *machine) regSP(r int) uint64 { return m.x[r] }

// set writes a result of n bits; 31 is nowhere.
func (m *machine) set(r int, n uint, v uint64) {
	if r != 31 {
		m.x[r] = v & mask(n)
	}
}

// setSP writes a result of n bits; 31 is the stack pointer.
func (m *machine) setSP(r int, n uint, v uint64) { m.x[r] = v & mask(n) }

// execute runs one instruction; the program counter is behind it already.
func (m *machine) execute(at uint64, w uint32) error {
	switch field(w, 28, 25) {
	case 0b1000, 0b1001:
		return m.immediate(at, w)
	case 0b1010, 0b1011:
		return m.branch(at, w)
	case 0b0100, 0b0110, 0b1100, 0b1110:
		return m.loadStore(at, w)
	case 0b0101, 0b1101:
		return m.register(w)
	}
	return ErrUnsupported
}

// add is a + b + carry of n bits, with the flags that it leaves.
func add(n uint, a, b uint64, carry bool) (uint64, flags) {
	a, b = a&mask(n), b&mask(n)
	c := uint64(0)
	if carry {
		c = 1
	}
	sum, over := bits.Add64(a, b, c)
	carryOut := over == 1
	if n == 32 {
		carryOut = sum>>32 != 0
	}
	r := sum & mask(n)
	sign := uint64(1) << (n - 1)
	return r, flags{r&sign != 0, r == 0, carryOut, (a^r)&(b^r)&sign != 0}
}

func logicFlags(n uint, r uint64) flags {
	r &= mask(n)
	return flags{n: r>>(n-1) == 1, z: r == 0}
}

// holds tells whether a condition does.
func (m *machine) holds(cond uint32) bool {
	f := m.f
	var is bool
	switch cond >> 1 {
	case 0:
		is = f.z
	case 1:
		is = f.c
	case 2:
		is = f.n
	case 3:
		is = f.v
	case 4:
		is = f.c && !f.z
	case 5:
		is = f.n == f.v
	case 6:
		is = f.n == f.v && !f.z
	case 7:
		return true
	}
	return is != (cond&1 == 1)
}

// immediate: C4.1, data processing with an immediate.
func (m *machine) immediate(at uint64, w uint32) error {
	n := width(w)
	switch field(w, 25, 23) {
	case 0b000, 0b001: // ADR, ADRP
		imm := signed(uint64(field(w, 23, 5)<<2|field(w, 30, 29)), 21)
		if wide(w) {
			at, imm = at&^0xfff, imm<<12
		}
		m.set(rd(w), 64, at+imm)
	case 0b010: // ADD, SUB
		b := uint64(field(w, 21, 10))
		if field(w, 22, 22) == 1 {
			b <<= 12
		}
		m.addSub(w, n, m.regSP(rn(w)), b, false)
	case 0b100: // AND, ORR, EOR, ANDS
		b, ok := bitmask(field(w, 22, 22), field(w, 15, 10), field(w, 21, 16), n)
		if !ok {
			return ErrUnsupported
		}
		op := field(w, 30, 29)
		r := logic(op, m.reg(rn(w)), b)
		if op == 3 {
			m.f = logicFlags(n, r)
			m.set(rd(w), n, r)
		} else {
			m.setSP(rd(w), n, r)
		}
	case 0b101:
		return m.moveWide(w, n)
	case 0b110:
		return m.bitfield(w, n)
	case 0b111: // EXTR
		lsb := uint(field(w, 15, 10))
		if field(w, 30, 29) != 0 || field(w, 21, 21) != 0 || wide(w) != (field(w, 22, 22) == 1) || lsb >= n {
			return ErrUnsupported
		}
		hi, lo := m.reg(rn(w))&mask(n), m.reg(rm(w))&mask(n)
		m.set(rd(w), n, lo>>lsb|hi<<(n-lsb))
	default: // ADDG, SUBG
		return ErrUnsupported
	}
	return nil
}

// addSub does what bits 30 (subtract) and 29 (set flags) say; without flags, and only
// for the forms that are not of shifted registers, register 31 is the stack pointer.
func (m *machine) addSub(w uint32, n uint, a, b uint64, shifted bool) {
	sub := field(w, 30, 30) == 1
	if sub {
		b = ^b
	}
	r, f := add(n, a, b, sub)
	if field(w, 29, 29) == 1 {
		m.f = f
		m.set(rd(w), n, r)
	} else if shifted {
		m.set(rd(w), n, r)
	} else {
		m.setSP(rd(w), n, r)
	}
}

func logic(op uint32, a, b uint64) uint64 {
	switch op {
	case 1:
		return a | b
	case 2:
		return a ^ b
	}
	return a & b
}

// bitmask decodes the immediate of a logical instruction (DecodeBitMasks): a run of
// ones, rotated, repeated over n bits.
func bitmask(immN, imms, immr uint32, n uint) (uint64, bool) {
	length := bits.Len32(immN<<6|^imms&0x3f) - 1
	if length < 1 || n == 32 && immN == 1 {
		return 0, false
	}
	size := uint(1) << length
	levels := uint32(size - 1)
	s, r := uint(imms&levels), uint(immr&levels)
	if s == size-1 {
		return 0, false
	}
	e := mask(s + 1)
	if r > 0 {
		e = (e>>r | e<<(size-r)) & mask(size)
	}
	v := uint64(0)
	for at := uint(0); at < 64; at += size {
		v |= e << at
	}
	return v & mask(n), true
}

// moveWide: MOVN, MOVZ, MOVK.
func (m *machine) moveWide(w uint32, n uint) error {
	shift := uint(field(w, 22, 21)) * 16
	if shift >= n {
		return ErrUnsupported
	}
	v := uint64(field(w, 20, 5)) << shift
	switch field(w, 30, 29) {
	case 0:
		v = ^v
	case 2:
	case 3:
		v |= m.reg(rd(w)) &^ (0xffff << shift)
	default:
		return ErrUnsupported
	}
	m.set(rd(w), n, v)
	return nil
}

// bitfield: SBFM, BFM, UBFM, which most shifts and extensions are.
func (m *machine) bitfield(w uint32, n uint) error {
	r, s := uint(field(w, 21, 16)), uint(field(w, 15, 10))
	if wide(w) != (field(w, 22, 22) == 1) || r >= n || s >= n {
		return ErrUnsupported
	}
	src := m.reg(rn(w)) & mask(n)
	var v, at uint64 // the field, and the bits that it covers
	var top uint
	if s >= r { // bits s to r, to the bottom
		top = s - r + 1
		v, at = src>>r&mask(top), mask(top)
	} else { // the low s+1 bits, to n-r
		v, at = src&mask(s+1)<<(n-r), mask(s+1)<<(n-r)
		top = s + 1 + n - r
	}
	switch field(w, 30, 29) {
	case 0:
		v = signed(v, top)
	case 1:
		v |= m.reg(rd(w)) &^ at
	case 2:
	default:
		return ErrUnsupported
	}
	m.set(rd(w), n, v)
	return nil
}

// branch: C4.1, branches, exceptions and system instructions.
func (m *machine) branch(at uint64, w uint32) error {
	to := func(offset uint32, bits uint) { m.pc = at + signed(uint64(offset), bits)<<2 }
	switch {
	case field(w, 30, 26) == 0b00101: // B, BL
		if wide(w) {
			m.x[30] = at + 4
		}
		to(field(w, 25, 0), 26)
	case field(w, 30, 25) == 0b011010: // CBZ, CBNZ
		if (m.reg(rd(w))&mask(width(w)) == 0) != (field(w, 24, 24) == 1) {
			to(field(w, 23, 5), 19)
		}
	case field(w, 30, 25) == 0b011011: // TBZ, TBNZ
		bit := field(w, 31, 31)<<5 | field(w, 23, 19)
		if uint32(m.reg(rd(w))>>bit&1) == field(w, 24, 24) {
			to(field(w, 18, 5), 14)
		}
	case field(w, 31, 24) == 0b01010100 && field(w, 4, 4) == 0: // B.cond
		if m.holds(field(w, 3, 0)) {
			to(field(w, 23, 5), 19)
		}
	case w == 0xd4000001: // SVC #0
		m.call()
	case w&0xfffff01f == 0xd503201f, w&0xfffff01f == 0xd503301f: // hints and barriers: one thread
	case w&^31 == 0xd53b4200: // MRS Xt, NZCV
		v := uint64(0)
		for _, f := range []bool{m.f.n, m.f.z, m.f.c, m.f.v} {
			v <<= 1
			if f {
				v |= 1
			}
		}
		m.set(rd(w), 64, v<<28)
	case w&^31 == 0xd51b4200: // MSR NZCV, Xt
		v := m.reg(rd(w))
		m.f = flags{v>>31&1 == 1, v>>30&1 == 1, v>>29&1 == 1, v>>28&1 == 1}
	case w&0xff9ffc1f == 0xd61f0000 && field(w, 22, 21) != 3: // BR, BLR, RET
		target := m.reg(rn(w))
		if field(w, 22, 21) == 1 {
			m.x[30] = at + 4
		}
		m.pc = target
	default:
		return ErrUnsupported
	}
	return nil
}

// loadStore: C4.1, loads and stores of general registers.
func (m *machine) loadStore(at uint64, w uint32) error {
	switch {
	case field(w, 26, 26) == 1:
		return ErrUnsupported // of vectors
	case field(w, 29, 27) == 0b011 && field(w, 25, 24) == 0:
		return m.literal(at, w)
	case field(w, 29, 27) == 0b101:
		return m.pair(w)
	case field(w, 29, 27) == 0b111:
		return m.single(w)
	}
	return ErrUnsupported
}

// literal: LDR, LDRSW from an address near the instruction.
func (m *machine) literal(at uint64, w uint32) error {
	addr := at + signed(uint64(field(w, 23, 5)), 19)<<2
	switch field(w, 31, 30) {
	case 0:
		return m.loadTo(rd(w), addr, 4, 32, false)
	case 1:
		return m.loadTo(rd(w), addr, 8, 64, false)
	case 2:
		return m.loadTo(rd(w), addr, 4, 64, true)
	}
	return nil // PRFM
}

// loadTo loads size bytes into a register of n bits.
func (m *machine) loadTo(r int, addr uint64, size int, n uint, sign bool) error {
	p, err := m.memory(addr, size, false)
	if err != nil {
		return err
	}
	var b [8]byte
	copy(b[:], p)
	v := binary.LittleEndian.Uint64(b[:])
	if sign {
		v = signed(v, uint(8*size))
	}
	m.set(r, n, v)
	return nil
}

func (m *machine) store(r int, addr uint64, size int) error {
	p, err := m.memory(addr, size, true)
	if err != nil {
		return err
	}
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], m.reg(r))
	copy(p, b[:])
	return nil
}

// pair: LDP, STP, LDPSW and the non-temporal ones.
func (m *machine) pair(w uint32) error {
	size, n, sign := 4, uint(32), false
	load := field(w, 22, 22) == 1
	mode := field(w, 24, 23) // 0 non-temporal, 1 behind, 2 offset, 3 before
	switch opc := field(w, 31, 30); {
	case opc == 2:
		size, n = 8, 64
	case opc == 1 && load && mode != 0:
		n, sign = 64, true
	case opc != 0:
		return ErrUnsupported
	}
	base := m.regSP(rn(w))
	moved := base + signed(uint64(field(w, 21, 15)), 7)*uint64(size)
	addr := moved
	if mode == 1 {
		addr = base
	}
	for i, r := range []int{rd(w), ra(w)} {
		var err error
		if to := addr + uint64(i*size); load {
			err = m.loadTo(r, to, size, n, sign)
		} else {
			err = m.store(r, to, size)
		}
		if err != nil {
			return err
		}
	}
	if mode == 1 || mode == 3 {
		m.x[rn(w)] = moved
	}
	return nil
}

// single: one register, in all its ways of addressing.
func (m *machine) single(w uint32) error {
	size := 1 << field(w, 31, 30)
	base := m.regSP(rn(w))
	addr, moved := base, base
	switch kind := field(w, 11, 10); {
	case field(w, 25, 24) == 1: // an offset without a sign, in units
		addr += uint64(field(w, 21, 10)) * uint64(size)
	case field(w, 25, 24) != 0:
		return ErrUnsupported
	case field(w, 21, 21) == 1 && kind == 2: // a register
		if field(w, 14, 14) == 0 {
			return ErrUnsupported
		}
		shift := uint(0)
		if field(w, 12, 12) == 1 {
			shift = uint(field(w, 31, 30))
		}
		addr += extend(m.reg(rm(w)), field(w, 15, 13)) << shift
	case field(w, 21, 21) == 1 || kind == 2: // atomic; unprivileged
		return ErrUnsupported
	case kind != 0 && size == 8 && field(w, 23, 22) == 2: // a PRFM that moves its base
		return ErrUnsupported
	default:
		off := signed(uint64(field(w, 20, 12)), 9)
		if kind != 1 { // not behind
			addr += off
		}
		if kind != 0 {
			moved += off
		}
	}
	var err error
	switch opc := field(w, 23, 22); {
	case opc == 0:
		err = m.store(rd(w), addr, size)
	case opc == 1 && size == 8:
		err = m.loadTo(rd(w), addr, size, 64, false)
	case opc == 1:
		err = m.loadTo(rd(w), addr, size, 32, false)
	case size == 8 && opc == 2: // PRFM
	case opc == 2:
		err = m.loadTo(rd(w), addr, size, 64, true)
	case size < 4:
		err = m.loadTo(rd(w), addr, size, 32, true)
	default:
		return ErrUnsupported
	}
	if err == nil && moved != base {
		m.x[rn(w)] = moved
	}
	return err
}

// extend is a register as an offset or operand: UXTB to SXTX.
func extend(v uint64, option uint32) uint64 {
	n := uint(8) << (option & 3)
	if option&4 != 0 {
		return signed(v, n)
	}
	return v & mask(n)
}

// register: C4.1, data processing of registers.
func (m *machine) register(w uint32) error {
	n := width(w)
	switch {
	case field(w, 28, 24) == 0b01010: // AND, BIC, ORR, ORN, EOR, EON, ANDS, BICS
		b, ok := shifted(m.reg(rm(w)), n, field(w, 23, 22), uint(field(w, 15, 10)))
		if !ok {
			return ErrUnsupported
		}
		if field(w, 21, 21) == 1 {
			b = ^b
		}
		r := logic(field(w, 30, 29), m.reg(rn(w)), b)
		if field(w, 30, 29) == 3 {
			m.f = logicFlags(n, r)
		}
		m.set(rd(w), n, r)
	case field(w, 28, 24) == 0b01011 && field(w, 21, 21) == 0: // ADD, SUB, shifted
		b, ok := shifted(m.reg(rm(w)), n, field(w, 23, 22), uint(field(w, 15, 10)))
		if !ok || field(w, 23, 22) == 3 {
			return ErrUnsupported
		}
		m.addSub(w, n, m.reg(rn(w)), b, true)
	case field(w, 28, 24) == 0b01011: // extended
		shift := field(w, 12, 10)
		if field(w, 23, 22) != 0 || shift > 4 {
			return ErrUnsupported
		}
		m.addSub(w, n, m.regSP(rn(w)), extend(m.reg(rm(w)), field(w, 15, 13))<<shift, false)
	case field(w, 28, 24) == 0b11011:
		return m.threeSources(w, n)
	case field(w, 28, 21) == 0b11010000 && field(w, 15, 10) == 0: // ADC, SBC
		b := m.reg(rm(w))
		if field(w, 30, 30) == 1 {
			b = ^b
		}
		r, f := add(n, m.reg(rn(w)), b, m.f.c)
		if field(w, 29, 29) == 1 {
			m.f = f
		}
		m.set(rd(w), n, r)
	case field(w, 29, 21) == 0b111010010 && field(w, 10, 10) == 0 && field(w, 4, 4) == 0:
		m.compareIf(w, n)
	case field(w, 29, 21) == 0b011010100 && field(w, 11, 11) == 0:
		m.choose(w, n)
	case field(w, 30, 21) == 0b0011010110:
		return m.twoSources(w, n)
	case field(w, 30, 21) == 0b1011010110 && field(w, 20, 16) == 0:
		return m.oneSource(w, n)
	default:
		return ErrUnsupported
	}
	return nil
}

// shifted is an operand of n bits: LSL, LSR, ASR, ROR.
func shifted(v uint64, n uint, kind uint32, by uint) (uint64, bool) {
	if by >= n {
		return 0, false
	}
	v &= mask(n)
	switch kind {
	case 0:
		v <<= by
	case 1:
		v >>= by
	case 2:
		v = uint64(int64(signed(v, n)) >> by)
	case 3:
		v = v>>by | v<<(n-by)
	}
	return v & mask(n), true
}

// compareIf: CCMN, CCMP.
func (m *machine) compareIf(w uint32, n uint) {
	if !m.holds(field(w, 15, 12)) {
		m.f = flags{w>>3&1 == 1, w>>2&1 == 1, w>>1&1 == 1, w&1 == 1}
		return
	}
	b := uint64(rm(w))
	if field(w, 11, 11) == 0 {
		b = m.reg(rm(w))
	}
	sub := field(w, 30, 30) == 1
	if sub {
		b = ^b
	}
	_, m.f = add(n, m.reg(rn(w)), b, sub)
}

// choose: CSEL, CSINC, CSINV, CSNEG.
func (m *machine) choose(w uint32, n uint) {
	v := m.reg(rn(w))
	if !m.holds(field(w, 15, 12)) {
		v = m.reg(rm(w))
		if field(w, 30, 30) == 1 {
			v = ^v
		}
		if field(w, 10, 10) == 1 {
			v++
		}
	}
	m.set(rd(w), n, v)
}

// twoSources: UDIV, SDIV, LSLV, LSRV, ASRV, RORV. Division by zero is zero.
func (m *machine) twoSources(w uint32, n uint) error {
	if field(w, 29, 29) != 0 {
		return ErrUnsupported
	}
	a, b := m.reg(rn(w))&mask(n), m.reg(rm(w))&mask(n)
	switch op := field(w, 15, 10); op {
	case 2, 3:
		switch sa, sb := int64(signed(a, n)), int64(signed(b, n)); {
		case b == 0:
			a = 0
		case op == 2:
			a /= b
		case sb == -1: // the least number has no opposite
			a = -a
		default:
			a = uint64(sa / sb)
		}
	case 8, 9, 10, 11:
		a, _ = shifted(a, n, op&3, uint(b)%n)
	default:
		return ErrUnsupported
	}
	m.set(rd(w), n, a)
	return nil
}

// oneSource: RBIT, REV16, REV32, REV, CLZ, CLS.
func (m *machine) oneSource(w uint32, n uint) error {
	if field(w, 29, 29) != 0 {
		return ErrUnsupported
	}
	v := m.reg(rn(w)) & mask(n)
	switch op := field(w, 15, 10); {
	case op == 0:
		v = bits.Reverse64(v) >> (64 - n)
	case op == 1:
		v = v&0x00ff00ff00ff00ff<<8 | v>>8&0x00ff00ff00ff00ff
	case op == 2:
		v = uint64(bits.ReverseBytes32(uint32(v>>32)))<<32 | uint64(bits.ReverseBytes32(uint32(v)))
	case op == 3 && n == 64:
		v = bits.ReverseBytes64(v)
	case op == 4:
		v = uint64(bits.LeadingZeros64(v)) - uint64(64-n)
	case op == 5: // how many bits below the sign are like it
		v = uint64(bits.LeadingZeros64((v^v<<1)&mask(n)>>1<<1|1)) - uint64(64-n)
	default:
		return ErrUnsupported
	}
	m.set(rd(w), n, v)
	return nil
}

// threeSources: MADD, MSUB, the widening ones and the high halves.
func (m *machine) threeSources(w uint32, n uint) error {
	a, b, c := m.reg(rn(w)), m.reg(rm(w)), m.reg(ra(w))
	op := field(w, 30, 29)<<4 | field(w, 23, 21)<<1 | field(w, 15, 15)
	if op > 1 && n == 32 {
		return ErrUnsupported
	}
	switch op {
	case 0b0_0000, 0b0_0001:
	case 0b0_0010, 0b0_0011:
		a, b = signed(a, 32), signed(b, 32)
	case 0b0_1010, 0b0_1011:
		a, b = a&mask(32), b&mask(32)
	case 0b0_0100: // SMULH
		hi, _ := bits.Mul64(a, b)
		if int64(a) < 0 {
			hi -= b
		}
		if int64(b) < 0 {
			hi -= a
		}
		m.set(rd(w), 64, hi)
		return nil
	case 0b0_1100: // UMULH
		hi, _ := bits.Mul64(a, b)
		m.set(rd(w), 64, hi)
		return nil
	default:
		return ErrUnsupported
	}
	if op&1 == 1 {
		m.set(rd(w), n, c-a*b)
	} else {
		m.set(rd(w), n, c+a*b)
	}
	return nil
}
