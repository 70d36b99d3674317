// Package cbpf runs classic BPF programs as `tcpdump -ddd` prints them.
//
//	text --Parse--> instructions, checked as Linux checks them --Run--> uint32
//
// A program sees a packet as bpf(4) hands it over: the bytes at hand, and the
// length that the frame has on the wire, which may be larger. `len` is the latter;
// a load that is not wholly inside of the bytes ends the program with 0, which
// means no match.
//
// Of Linux's ancillary loads (linux/filter.h, SKF_AD_OFF) those are taken that mean
// something for a frame in a ring: protocol is the EtherType at offset 12, and there
// is no VLAN tag beside the frame, because tags are in it. The others are refused,
// and so are loads relative to the network header.
package cbpf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/net/bpf"
)

// MaxInstructions is Linux's BPF_MAXINSNS.
const MaxInstructions = 4096

const (
	words   = 16 // of scratch memory
	maxLine = 256
)

// Instruction is one instruction as struct sock_filter has it.
type Instruction struct {
	Code   uint16
	JT, JF uint8
	K      uint32
}

// Parts of Instruction.Code (linux/bpf_common.h).
const (
	classMask = 0x07
	ld        = 0x00
	ldx       = 0x01
	st        = 0x02
	stx       = 0x03
	alu       = 0x04
	jmp       = 0x05
	ret       = 0x06
	misc      = 0x07

	sizeW = 0x00
	sizeH = 0x08
	sizeB = 0x10

	modeImm = 0x00
	modeAbs = 0x20
	modeInd = 0x40
	modeMem = 0x60
	modeLen = 0x80
	modeMsh = 0xa0

	srcK = 0x00
	srcX = 0x08
	retA = 0x10

	jmpJA, jmpEQ, jmpGT, jmpGE, jmpSet = 0x00, 0x10, 0x20, 0x30, 0x40

	aluAdd, aluSub, aluMul, aluDiv, aluOr, aluAnd = 0x00, 0x10, 0x20, 0x30, 0x40, 0x50
	aluLsh, aluRsh, aluNeg, aluMod, aluXor        = 0x60, 0x70, 0x80, 0x90, 0xa0

	miscTAX, miscTXA = 0x00, 0x80
)

// Ancillary loads (linux/filter.h).
const (
	adOff            = 0xfffff000
	adProtocol       = adOff + 0
	adXorX           = adOff + 40
	adVLANTag        = adOff + 44
	adVLANTagPresent = adOff + 48
	adVLANTPID       = adOff + 60
	firstNegative    = 1 << 31
)

// op is a decoded instruction's work.
type op uint8

const (
	opLoadW op = iota
	opLoadH
	opLoadB
	opLoadWX
	opLoadHX
	opLoadBX
	opLen
	opImm
	opMem
	opXLen
	opXMsh
	opXImm
	opXMem
	opStA
	opStX
	opProtocol
	opXorX
	opAddK
	opSubK
	opMulK
	opDivK
	opModK
	opOrK
	opAndK
	opXorK
	opLshK
	opRshK
	opAddX
	opSubX
	opMulX
	opDivX
	opModX
	opOrX
	opAndX
	opLshX
	opRshX
	opNeg
	opJA
	opEqK
	opGtK
	opGeK
	opSetK
	opEqX
	opGtX
	opGeX
	opSetX
	opRetK
	opRetA
	opTAX
	opTXA
)

// ops are the codes that Linux takes (net/core/filter.c, chk_code_allowed), as what
// they do here.
func ops() map[uint16]op {
	return map[uint16]op{
		ld | sizeW | modeAbs: opLoadW, ld | sizeH | modeAbs: opLoadH, ld | sizeB | modeAbs: opLoadB,
		ld | sizeW | modeInd: opLoadWX, ld | sizeH | modeInd: opLoadHX, ld | sizeB | modeInd: opLoadBX,
		ld | sizeW | modeLen: opLen, ld | modeImm: opImm, ld | modeMem: opMem,
		ldx | sizeW | modeLen: opXLen, ldx | sizeB | modeMsh: opXMsh, ldx | modeImm: opXImm, ldx | modeMem: opXMem,
		st: opStA, stx: opStX,
		alu | aluAdd | srcK: opAddK, alu | aluSub | srcK: opSubK, alu | aluMul | srcK: opMulK, alu | aluDiv | srcK: opDivK,
		alu | aluMod | srcK: opModK, alu | aluOr | srcK: opOrK, alu | aluAnd | srcK: opAndK, alu | aluXor | srcK: opXorK,
		alu | aluLsh | srcK: opLshK, alu | aluRsh | srcK: opRshK,
		alu | aluAdd | srcX: opAddX, alu | aluSub | srcX: opSubX, alu | aluMul | srcX: opMulX, alu | aluDiv | srcX: opDivX,
		alu | aluMod | srcX: opModX, alu | aluOr | srcX: opOrX, alu | aluAnd | srcX: opAndX, alu | aluXor | srcX: opXorX,
		alu | aluLsh | srcX: opLshX, alu | aluRsh | srcX: opRshX, alu | aluNeg: opNeg,
		jmp | jmpJA: opJA, jmp | jmpEQ | srcK: opEqK, jmp | jmpGT | srcK: opGtK, jmp | jmpGE | srcK: opGeK, jmp | jmpSet | srcK: opSetK,
		jmp | jmpEQ | srcX: opEqX, jmp | jmpGT | srcX: opGtX, jmp | jmpGE | srcX: opGeX, jmp | jmpSet | srcX: opSetX,
		ret | srcK: opRetK, ret | retA: opRetA, misc | miscTAX: opTAX, misc | miscTXA: opTXA,
	}
}

type step struct {
	k      uint32
	op     op
	jt, jf uint8
}

// Program is a checked program. It is never changed and may be run by any number of
// callers at once.
type Program struct {
	steps []step
	raw   []Instruction
}

// Error is a refusal of a program's text: where, what is there, and what would do.
type Error struct {
	Line, Col int // from 1; Col in bytes
	Found     string
	Expected  string
	Text      string // the line
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("%d:%d: found %s, expected %s", e.Line, e.Col, e.Found, e.Expected)
}

// InstructionError is a refusal of an instruction.
type InstructionError struct {
	Index    int // from 0
	Found    string
	Expected string
}

// Error implements error.
func (e *InstructionError) Error() string {
	return fmt.Sprintf("cbpf: instruction %d: found %s, expected %s", e.Index, e.Found, e.Expected)
}

// Parse reads a program's text: a line with the number of instructions, and one line
// "code jt jf k" for each, all of it decimal. Errors: *Error.
func Parse(text []byte) (*Program, error) {
	p := textParser{rest: text}
	count, err := p.fields(1, "a number of instructions")
	if err != nil {
		return nil, err
	}
	n := count[0].value
	if n == 0 || n > MaxInstructions {
		return nil, p.refuse(count[0], "a number of instructions from 1 to %d, as `tcpdump -ddd` prints it", MaxInstructions)
	}
	insns, lines := make([]Instruction, n), make([]int, n)
	for i := range insns {
		f, err := p.fields(4, "code jt jf k")
		if err != nil {
			return nil, err
		}
		for j, most := range []uint64{1<<16 - 1, 1<<8 - 1, 1<<8 - 1, 1<<32 - 1} {
			if f[j].value > most {
				return nil, p.refuse(f[j], "a number up to %d", most)
			}
		}
		insns[i] = Instruction{uint16(f[0].value), uint8(f[1].value), uint8(f[2].value), uint32(f[3].value)}
		lines[i] = p.line
	}
	for p.more() {
		if strings.TrimSpace(p.text) != "" {
			return nil, &Error{Line: p.line, Col: 1, Found: quote(p.text), Expected: fmt.Sprintf("nothing behind %d instructions", n), Text: p.text}
		}
	}
	program, err := New(insns)
	if e, ok := err.(*InstructionError); ok {
		i := insns[e.Index]
		return nil, &Error{Line: lines[e.Index], Col: 1, Found: e.Found, Expected: e.Expected, Text: fmt.Sprintf("%d %d %d %d", i.Code, i.JT, i.JF, i.K)}
	}
	return program, err
}

// textParser goes through lines of numbers.
type textParser struct {
	rest []byte
	line int
	text string
}

type field struct {
	value uint64
	text  string
	col   int
}

func (p *textParser) more() bool {
	if len(p.rest) == 0 {
		return false
	}
	var b []byte
	b, p.rest, _ = bytes.Cut(p.rest, []byte("\n"))
	p.line++
	p.text = string(bytes.TrimSuffix(b, []byte("\r")))
	return true
}

// fields reads the numbers of the next line, of which there must be n.
func (p *textParser) fields(n int, what string) ([]field, error) {
	if !p.more() {
		return nil, &Error{Line: p.line + 1, Col: 1, Found: "the end of the text", Expected: what}
	}
	if len(p.text) > maxLine {
		return nil, &Error{Line: p.line, Col: 1, Found: quote(p.text), Expected: what}
	}
	var out []field
	for at := 0; ; {
		for at < len(p.text) && (p.text[at] == ' ' || p.text[at] == '\t') {
			at++
		}
		if at == len(p.text) {
			break
		}
		f := field{col: at + 1}
		for at < len(p.text) && p.text[at] != ' ' && p.text[at] != '\t' {
			at++
		}
		f.text = p.text[f.col-1 : at]
		v, err := strconv.ParseUint(f.text, 10, 64)
		if err != nil || len(out) == n {
			return nil, p.refuse(f, "%s, in decimal, as `tcpdump -ddd` prints it", what)
		}
		f.value = v
		out = append(out, f)
	}
	if len(out) < n {
		return nil, &Error{Line: p.line, Col: len(p.text) + 1, Found: "the end of the line", Expected: what, Text: p.text}
	}
	return out, nil
}

func (p *textParser) refuse(f field, expected string, args ...any) error {
	return &Error{Line: p.line, Col: f.col, Found: quote(f.text), Expected: fmt.Sprintf(expected, args...), Text: p.text}
}

func quote(s string) string {
	const most = 40
	if len(s) > most {
		s = s[:most] + "..."
	}
	return strconv.Quote(s)
}

// New checks instructions as Linux does (net/core/filter.c, bpf_check_classic) and
// makes a program of them. Errors: *InstructionError.
func New(insns []Instruction) (*Program, error) {
	n := len(insns)
	if n == 0 || n > MaxInstructions {
		return nil, &InstructionError{0, fmt.Sprintf("%d instructions", n), fmt.Sprintf("1 to %d", MaxInstructions)}
	}
	known := ops()
	p := &Program{steps: make([]step, n), raw: append([]Instruction(nil), insns...)}
	for i, in := range insns {
		o, ok := known[in.Code]
		if !ok {
			return nil, &InstructionError{i, fmt.Sprintf("code %d", in.Code), "a code of classic BPF"}
		}
		s := step{k: in.K, op: o, jt: in.JT, jf: in.JF}
		if want := s.check(n - i - 1); want != "" {
			return nil, &InstructionError{i, fmt.Sprintf("jt %d, jf %d, k %d", in.JT, in.JF, in.K), want}
		}
		if want := s.ancillary(); want != "" {
			return nil, &InstructionError{i, fmt.Sprintf("a load from offset %d", int32(in.K)), want}
		}
		p.steps[i] = s
	}
	if last := p.steps[n-1].op; last != opRetK && last != opRetA {
		return nil, &InstructionError{n - 1, "the end of the program", "a return as its last instruction"}
	}
	if i, word := p.unstored(); i >= 0 {
		return nil, &InstructionError{i, fmt.Sprintf("a load of M[%d]", word), "a store to it before, on every way here"}
	}
	return p, nil
}

// check says what is wrong with the operands of an instruction that has behind
// instructions after it.
func (s *step) check(behind int) (want string) {
	switch s.op {
	case opDivK, opModK:
		if s.k == 0 {
			return "a divisor that is not 0"
		}
	case opLshK, opRshK:
		if s.k >= 32 {
			return "a shift by less than 32"
		}
	case opMem, opXMem, opStA, opStX:
		if s.k >= words {
			return fmt.Sprintf("a word of scratch memory from 0 to %d", words-1)
		}
	case opJA:
		if uint64(s.k) >= uint64(behind) {
			return fmt.Sprintf("a jump over less than %d instructions", behind)
		}
	case opEqK, opGtK, opGeK, opSetK, opEqX, opGtX, opGeX, opSetX:
		if int(s.jt) >= behind || int(s.jf) >= behind {
			return fmt.Sprintf("jumps over less than %d instructions", behind)
		}
	}
	return ""
}

const recompile = "an offset in the frame: make the program of a capture file, `tcpdump -r FILE -ddd EXPRESSION`, not of an interface"

// ancillary turns those loads that mean something here into what they are, and says
// what would do instead of the others.
func (s *step) ancillary() (want string) {
	switch s.op {
	case opLoadW, opLoadH, opLoadB:
	case opXMsh:
		if s.k >= firstNegative {
			return recompile
		}
		return ""
	default:
		return ""
	}
	switch {
	case s.k < firstNegative:
	case s.k == adProtocol:
		s.op = opProtocol
	case s.k == adXorX:
		s.op = opXorX
	case s.k == adVLANTag, s.k == adVLANTagPresent, s.k == adVLANTPID:
		s.op, s.k = opImm, 0
	default:
		return recompile
	}
	return ""
}

// unstored finds a load of scratch memory that some way reaches without a store to
// the word (net/core/filter.c, check_load_and_stores); -1: there is none.
func (p *Program) unstored() (at int, word uint32) {
	have := make([]uint16, len(p.steps)) // words stored on every way to the instruction
	for i := range have {
		have[i] = 1<<words - 1
	}
	now := uint16(0)
	for i := range p.steps {
		s := &p.steps[i]
		now &= have[i]
		switch s.op {
		case opStA, opStX:
			now |= 1 << s.k
		case opMem, opXMem:
			if now>>s.k&1 == 0 {
				return i, s.k
			}
		case opJA:
			have[i+1+int(s.k)] &= now
			now = 1<<words - 1
		case opEqK, opGtK, opGeK, opSetK, opEqX, opGtX, opGeX, opSetX:
			have[i+1+int(s.jt)] &= now
			have[i+1+int(s.jf)] &= now
			now = 1<<words - 1
		}
	}
	return -1, 0
}

// Len is how many instructions the program has.
func (p *Program) Len() int { return len(p.raw) }

// Instructions are the program's own: not to be changed.
func (p *Program) Instructions() []Instruction { return p.raw }

// Run runs the program over the bytes at hand of a frame that has wireBytes on the
// wire, and returns what it returns: 0 is no match. It allocates nothing. Jumps go
// forward only, so it ends.
func (p *Program) Run(packet []byte, wireBytes int) uint32 {
	var (
		a, x uint32
		m    [words]uint32
	)
	steps := p.steps
	for i := 0; i < len(steps); i++ {
		s := &steps[i]
		k := s.k
		switch s.op {
		case opLoadW:
			if uint64(k)+4 > uint64(len(packet)) {
				return 0
			}
			a = binary.BigEndian.Uint32(packet[k:])
		case opLoadH:
			if uint64(k)+2 > uint64(len(packet)) {
				return 0
			}
			a = uint32(binary.BigEndian.Uint16(packet[k:]))
		case opLoadB:
			if uint64(k) >= uint64(len(packet)) {
				return 0
			}
			a = uint32(packet[k])
		case opLoadWX:
			at := x + k
			if at >= firstNegative || uint64(at)+4 > uint64(len(packet)) {
				return 0
			}
			a = binary.BigEndian.Uint32(packet[at:])
		case opLoadHX:
			at := x + k
			if at >= firstNegative || uint64(at)+2 > uint64(len(packet)) {
				return 0
			}
			a = uint32(binary.BigEndian.Uint16(packet[at:]))
		case opLoadBX:
			at := x + k
			if uint64(at) >= uint64(len(packet)) {
				return 0
			}
			a = uint32(packet[at])
		case opLen:
			a = uint32(wireBytes)
		case opImm:
			a = k
		case opMem:
			a = m[k%words]
		case opXLen:
			x = uint32(wireBytes)
		case opXMsh:
			if uint64(k) >= uint64(len(packet)) {
				return 0
			}
			x = uint32(packet[k]&15) * 4
		case opXImm:
			x = k
		case opXMem:
			x = m[k%words]
		case opStA:
			m[k%words] = a
		case opStX:
			m[k%words] = x
		case opProtocol:
			if len(packet) < 14 {
				return 0
			}
			a = protocol(packet)
		case opXorX:
			a ^= x
		case opAddK:
			a += k
		case opSubK:
			a -= k
		case opMulK:
			a *= k
		case opDivK:
			a /= k
		case opModK:
			a %= k
		case opOrK:
			a |= k
		case opAndK:
			a &= k
		case opXorK:
			a ^= k
		case opLshK:
			a <<= k & 31
		case opRshK:
			a >>= k & 31
		case opAddX:
			a += x
		case opSubX:
			a -= x
		case opMulX:
			a *= x
		case opDivX:
			if x == 0 {
				return 0
			}
			a /= x
		case opModX:
			if x == 0 {
				return 0
			}
			a %= x
		case opOrX:
			a |= x
		case opAndX:
			a &= x
		case opLshX:
			a <<= x & 31 // as Linux: a shift by a register is one by its low five bits
		case opRshX:
			a >>= x & 31
		case opNeg:
			a = -a
		case opJA:
			i += int(k)
		case opEqK:
			i += jump(a == k, s)
		case opGtK:
			i += jump(a > k, s)
		case opGeK:
			i += jump(a >= k, s)
		case opSetK:
			i += jump(a&k != 0, s)
		case opEqX:
			i += jump(a == x, s)
		case opGtX:
			i += jump(a > x, s)
		case opGeX:
			i += jump(a >= x, s)
		case opSetX:
			i += jump(a&x != 0, s)
		case opRetK:
			return k
		case opRetA:
			return a
		case opTAX:
			x = a
		case opTXA:
			a = x
		}
	}
	return 0
}

// protocol is what Linux (eth_type_trans) takes an Ethernet frame's to be: of a frame
// with a length instead of an EtherType it is ETH_P_802_2, or ETH_P_802_3 before the
// checksum of raw IPX. packet has an Ethernet header.
func protocol(packet []byte) uint32 {
	const leastEtherType, protocol8023, protocol8022 = 0x0600, 1, 4
	switch e := binary.BigEndian.Uint16(packet[12:]); {
	case e >= leastEtherType:
		return uint32(e)
	case len(packet) >= 16 && packet[14] == 0xff && packet[15] == 0xff:
		return protocol8023
	}
	return protocol8022
}

func jump(yes bool, s *step) int {
	if yes {
		return int(s.jt)
	}
	return int(s.jf)
}

// String is the program's disassembly, an instruction a line.
func (p *Program) String() string {
	var b strings.Builder
	for i, in := range p.raw {
		fmt.Fprintf(&b, "(%03d) %v\n", i, bpf.RawInstruction{Op: in.Code, Jt: in.JT, Jf: in.JF, K: in.K}.Disassemble())
	}
	return b.String()
}
