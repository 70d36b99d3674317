package a64

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Registers that the comparison needs for itself.
const (
	offsetReg = 26 // a small number
	baseReg   = 27 // the middle of the scratch memory
	outReg    = 28 // where the next results go
	flagsReg  = 29
)

// Data of the comparison: scratch, then a record of 16 bytes for each instruction.
const (
	scratch   = 8192
	perRecord = 16
)

// class is one encoding group: a word whose other bits are random.
type class struct {
	name       string
	fixed, mod uint32 // bits that are, and those of them that are given
	memory     bool   // it loads or stores at baseReg
}

var classes = []class{
	{"ADR ADRP", 0x10000000, 0x1f000000, false},
	{"ADD SUB imm", 0x11000000, 0x1f800000, false},
	{"logical imm", 0x12000000, 0x1f800000, false},
	{"move wide", 0x12800000, 0x1f800000, false},
	{"bitfield", 0x13000000, 0x1f800000, false},
	{"EXTR", 0x13800000, 0x7fa00000, false},
	{"logical reg", 0x0a000000, 0x1f000000, false},
	{"ADD SUB reg", 0x0b000000, 0x1f200000, false},
	{"ADD SUB ext", 0x0b200000, 0x1fe00000, false},
	{"ADC SBC", 0x1a000000, 0x1fe0fc00, false},
	{"CCMP CCMN", 0x3a400000, 0x3fe00410, false},
	{"CSEL", 0x1a800000, 0x3fe00800, false},
	{"two sources", 0x1ac00000, 0x7fe0c000, false},
	{"one source", 0x5ac00000, 0x7fffe000, false},
	{"three sources", 0x1b000000, 0x7f000000, false},
	{"LDR STR unit", 0x39000000, 0x3f000000, true},
	{"LDR STR near", 0x38000000, 0x3f200000, true},
	{"LDR STR reg", 0x38200800, 0x3f200c00, true},
	{"LDP STP", 0x28000000, 0x3e000000, true},
	{"LDR literal", 0x18000000, 0x3f000000, false},
}

// word makes an instruction of a class that leaves the reserved registers alone, and
// keeps to the scratch memory.
func (c class) word(r *rand.Rand) uint32 {
	w := c.fixed | r.Uint32()&^c.mod
	if to := rd(w); to >= offsetReg && to <= flagsReg || to == 30 {
		w = w&^31 | uint32(r.Intn(offsetReg))
	}
	if c.name == "LDR literal" { // of the program
		w = w&^((1<<19-1)<<5) | (uint32(-r.Intn(16))&(1<<19-1))<<5
	}
	if !c.memory {
		return w
	}
	w = w&^(31<<5) | baseReg<<5
	switch c.name {
	case "LDR STR unit":
		w &^= 0xe00 << 10 // up to 511 units
	case "LDR STR reg":
		w = w&^(31<<16) | offsetReg<<16
	case "LDP STP":
		w = w&^(31<<10) | uint32(r.Intn(offsetReg))<<10
		if rd(w) == ra(w) {
			w ^= 1
		}
	}
	return w
}

// usable tells whether this package has the instruction.
func usable(w uint32) bool {
	m := &machine{segments: []segment{{base: 0, data: make([]byte, scratch), read: true, write: true}}}
	m.x[baseReg], m.x[offsetReg] = scratch/2, 8
	return m.execute(scratch/2, w) == nil
}

// The processor emulator of another project is asked about thirty thousand random
// instructions on random registers: results, flags and memory are the same.
func TestLikeAnotherEmulator(t *testing.T) {
	qemu, err := exec.LookPath("qemu-aarch64")
	if err != nil {
		t.Skip("needs qemu-aarch64 (Debian: qemu-user): compares with it")
	}
	const n = 30_000
	r := rand.New(rand.NewSource(1))
	count := map[string]int{}
	var code, words []uint32
	emit := func(ws ...uint32) { code = append(code, ws...) }
	emit(load64(outReg, dataAt+scratch)...)
	emit(0x9100001f|outReg<<5, 0xd51b421f) // MOV sp, x28; MSR NZCV, xzr
	for i := range offsetReg {
		emit(load64(i, r.Uint64())...)
	}
	emit(load64(30, r.Uint64())...)
	for range n {
		c := classes[r.Intn(len(classes))]
		w := c.word(r)
		if !usable(w) {
			continue
		}
		count[c.name]++
		words = append(words, w)
		if r.Intn(4) == 0 { // fresh numbers, the telling ones among them
			odd := []uint64{0, 1, 0x80000000, 0x7fffffff, 0xffffffff, 1 << 63, 1<<63 - 1, ^uint64(0), r.Uint64(), uint64(r.Uint32())}
			emit(load64(r.Intn(offsetReg), odd[r.Intn(len(odd))])...)
		}
		if c.memory {
			emit(load64(baseReg, dataAt+scratch/2)...)
			emit(0xd2800000 | uint32(r.Intn(256))<<5 | offsetReg)
		}
		if r.Intn(8) == 0 { // taken or not, over one instruction
			branch := []uint32{0x54000040 | uint32(r.Intn(16)), 0x34000040 | uint32(r.Intn(4))<<30>>6<<6&0x80000000 | uint32(r.Intn(offsetReg)), 0x35000040 | uint32(r.Intn(offsetReg)),
				0xb4000040 | uint32(r.Intn(offsetReg)), 0x36000040 | uint32(r.Intn(32))<<19 | uint32(r.Intn(offsetReg)), 0xb7000040 | uint32(r.Intn(32))<<19 | uint32(r.Intn(offsetReg))}
			emit(branch[r.Intn(len(branch))], 0x91000400|uint32(rd(w)&15)*33) // ADD x, x, #1
		}
		emit(w)
		result := uint32(rd(w))
		if c.memory && w>>23&7 != 0 && r.Intn(2) == 0 {
			result = baseReg // where it was moved to
		}
		emit(0xf8008400 | outReg<<5 | result) // STR x, [x28], #8
		emit(0xd53b4200 | flagsReg)           // MRS x29, NZCV
		emit(0xf8008400 | outReg<<5 | flagsReg)
	}
	size := scratch + perRecord*len(words)
	emit(systemCall(sysWrite, 1, dataAt, uint64(size))...)
	emit(systemCall(sysExit, 9)...)
	for _, c := range classes {
		assert.Greater(t, count[c.name], n/len(classes)/8, c.name)
	}

	data := make([]byte, size)
	r.Read(data[:scratch])
	file := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(file, image(code, data), 0o755))
	var theirs, said bytes.Buffer
	cmd := exec.Command(qemu, file)
	cmd.Stdout, cmd.Stderr = &theirs, &said
	err = cmd.Run()
	require.Equal(t, 9, cmd.ProcessState.ExitCode(), "%v %s", err, &said)

	ours := &kernel{}
	status, err := Run(image(code, data), []string{file}, ours)
	require.NoError(t, err)
	assert.Equal(t, 9, status)
	require.Equal(t, theirs.Len(), len(ours.out))
	for i, w := range words {
		at := scratch + perRecord*i
		their, our := theirs.Bytes()[at:at+perRecord], ours.out[at:at+perRecord]
		require.Equal(t, describe(their), describe(our), "instruction %d, %08x", i, w)
	}
	assert.True(t, bytes.Equal(theirs.Bytes()[:scratch], ours.out[:scratch]), "memory")
}

func describe(record []byte) string {
	le := binary.LittleEndian
	return fmt.Sprintf("result %016x flags %x", le.Uint64(record), le.Uint64(record[8:])>>28)
}
