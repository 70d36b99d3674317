package console_test

import (
	"encoding/binary"

	"oxpd/switchcfg/reg"
)

// Where a test program is, and its data.
const (
	codeAt = 0x400000
	dataAt = 0x410000
)

// image is a static aarch64 program: one segment that may be read, written and run.
func image(code []uint32, data []byte) []byte {
	le := binary.LittleEndian
	const head, prog = 64, 56
	b := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9)...)
	b = le.AppendUint16(b, 2) // ET_EXEC
	b = le.AppendUint16(b, 183)
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, codeAt+head+2*prog)
	b = le.AppendUint64(b, head)
	b = le.AppendUint64(b, 0)
	b = le.AppendUint32(b, 0)
	for _, v := range []uint16{head, prog, 2, 0, 0, 0} {
		b = le.AppendUint16(b, v)
	}
	text := uint64(head + 2*prog + 4*len(code))
	for _, p := range []struct{ flags, off, addr, size uint64 }{{5, 0, codeAt, text}, {6, text, dataAt + text%0x1000, uint64(len(data))}} {
		b = le.AppendUint32(b, 1) // PT_LOAD
		b = le.AppendUint32(b, uint32(p.flags))
		for _, v := range []uint64{p.off, p.addr, p.addr, p.size, p.size, 0x1000} {
			b = le.AppendUint64(b, v)
		}
	}
	for _, w := range code {
		b = le.AppendUint32(b, w)
	}
	return append(b, data...)
}

// sayArguments is a program that writes each of its arguments on a line of its own and
// ends with status 7.
func sayArguments() []byte {
	return image([]uint32{
		0xf94003f3, // ldr x19, [sp]
		0x910023f4, // add x20, sp, #8
		0xb4000213, // 1: cbz x19, 4f
		0xf8408681, // ldr x1, [x20], #8
		0xd2800002, // mov x2, #0
		0x38626823, // 2: ldrb w3, [x1, x2]
		0x34000063, // cbz w3, 3f
		0x91000442, // add x2, x2, #1
		0x17fffffd, // b 2b
		0xd2800020, // 3: mov x0, #1
		0xd2800808, // mov x8, #64: write
		0xd4000001, // svc #0
		0x10000121, // adr x1, 5f
		0xd2800022, // mov x2, #1
		0xd2800020, // mov x0, #1
		0xd4000001, // svc #0
		0xd1000673, // sub x19, x19, #1
		0x17fffff1, // b 1b
		0xd28000e0, // 4: mov x0, #7
		0xd2800ba8, // mov x8, #93: exit
		0xd4000001, // svc #0
		0x0000000a, // 5: a line's end
	}, nil)
}

// useBus is a program that makes one read or write of the MDIO device, writes the struct
// as it is then to its output, and ends with what the call returned.
func useBus(write bool, r reg.Request) []byte {
	const openat, readNr, writeNr, exit = 56, 63, 64, 93
	nr := uint64(readNr)
	if write {
		nr = writeNr
	}
	build := func(data uint64) (ws []uint32) {
		call := func(number uint64) { ws = append(append(ws, load(8, number)...), 0xd4000001) }
		set := func(r int, v uint64) { ws = append(ws, load(r, v)...) }
		set(0, ^uint64(99)) // AT_FDCWD
		set(1, data+reg.RequestSize)
		set(2, 2) // O_RDWR
		call(openat)
		set(1, data)
		set(2, reg.RequestSize)
		call(nr)
		ws = append(ws, 0xaa0003f3) // mov x19, x0
		set(0, 1)
		set(1, data)
		set(2, reg.RequestSize)
		call(writeNr)
		ws = append(ws, 0xaa1303e0) // mov x0, x19
		call(exit)
		return ws
	}
	text := uint64(64 + 2*56 + 4*len(build(0)))
	return image(build(dataAt+text%0x1000), append(r.Append(nil), reg.Device+"\x00"...))
}

// load is the instructions that put v into register r.
func load(r int, v uint64) []uint32 {
	ws := []uint32{0xd2800000 | uint32(v&0xffff)<<5 | uint32(r)} // MOVZ
	for i := uint32(1); i < 4; i++ {
		ws = append(ws, 0xf2800000|i<<21|uint32(v>>(16*i)&0xffff)<<5|uint32(r)) // MOVK
	}
	return ws
}
