package a64

import (
	"encoding/binary"

	"github.com/stretchr/testify/require"
)

// Where a test program is, and its data.
const (
	codeAt = 0x400000
	dataAt = 0x800000
)

// image is an ELF file with a segment of code and one of data.
func image(code []uint32, data []byte) []byte {
	text := make([]byte, 0, 4*len(code))
	for _, w := range code {
		text = binary.LittleEndian.AppendUint32(text, w)
	}
	le := binary.LittleEndian
	const head, prog, page = 64, 56, 0x1000
	b := []byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	b = le.AppendUint16(b, 2) // ET_EXEC
	b = le.AppendUint16(b, 183)
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, codeAt)
	b = le.AppendUint64(b, head)
	b = le.AppendUint64(b, 0)
	b = le.AppendUint32(b, 0)
	for _, v := range []uint16{head, prog, 2, 0, 0, 0} {
		b = le.AppendUint16(b, v)
	}
	textAt := uint64(page)
	dataOff := (textAt + uint64(len(text)) + page - 1) &^ (page - 1)
	for _, p := range []struct {
		flags     uint32
		off, addr uint64
		size      int
	}{{5, textAt, codeAt, len(text)}, {6, dataOff, dataAt, len(data)}} {
		b = le.AppendUint32(b, 1) // PT_LOAD
		b = le.AppendUint32(b, p.flags)
		for _, v := range []uint64{p.off, p.addr, p.addr, uint64(p.size), uint64(p.size), page} {
			b = le.AppendUint64(b, v)
		}
	}
	b = append(b, make([]byte, int(textAt)-len(b))...)
	b = append(b, text...)
	b = append(b, make([]byte, int(dataOff)-len(b))...)
	return append(b, data...)
}

// load64 is the instructions that put v into register r.
func load64(r int, v uint64) []uint32 {
	ws := []uint32{0xd2800000 | uint32(v&0xffff)<<5 | uint32(r)} // MOVZ
	for i := uint32(1); i < 4; i++ {
		ws = append(ws, 0xf2800000|i<<21|uint32(v>>(16*i)&0xffff)<<5|uint32(r)) // MOVK
	}
	return ws
}

// trap is SVC #0.
const trap = 0xd4000001

// systemCall is a system call of constant arguments.
func systemCall(number uint64, args ...uint64) (ws []uint32) {
	for i, a := range args {
		ws = append(ws, load64(i, a)...)
	}
	return append(append(ws, load64(8, number)...), trap)
}

// kernel is a System that has no files but its output.
type kernel struct {
	out    []byte
	in     []byte
	opened []string
	closed []int
}

func (k *kernel) Open(path string, flags int) int64 {
	k.opened = append(k.opened, path)
	return int64(3 + flags)
}

func (k *kernel) Close(fd int) int64 {
	k.closed = append(k.closed, fd)
	return 0
}

func (k *kernel) Read(_ int, p []byte) int64 {
	k.in = append([]byte(nil), p...)
	return int64(copy(p, "answer"))
}

func (k *kernel) Write(_ int, p []byte) int64 {
	k.out = append(k.out, p...)
	return int64(len(p))
}

func exited(t require.TestingT, code []uint32, data []byte, argv ...string) (int, *kernel) {
	k := &kernel{}
	status, err := Run(image(code, data), argv, k)
	require.NoError(t, err)
	return status, k
}
