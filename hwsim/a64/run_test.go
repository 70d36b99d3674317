package a64

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSystemCalls(t *testing.T) {
	data := []byte("hello, /dev/x\x00........")
	code := slices.Concat(
		systemCall(sysWrite, 1, dataAt, 7),
		systemCall(sysOpenat, 0, dataAt+7, 2),
		systemCall(sysRead, 5, dataAt+14, 8),
		systemCall(sysWrite, 1, dataAt+14, 8),
		systemCall(sysClose, 5),
		systemCall(sysExitGroup, 0x1_07), // only its low byte is the status
	)
	status, k := exited(t, code, data)
	assert.Equal(t, 7, status)
	assert.Equal(t, "hello, answer..", string(k.out))
	assert.Equal(t, "........", string(k.in), "a read carries what was in the buffer")
	assert.Equal(t, []string{"/dev/x"}, k.opened)
	assert.Equal(t, []int{5}, k.closed)
}

// What a call is refused with becomes the exit status.
func TestRefusedCalls(t *testing.T) {
	for _, tc := range []struct {
		name string
		call []uint32
		want int
	}{
		{"no such call", systemCall(999), -enosys},
		{"memory of nobody", systemCall(sysWrite, 1, 0x1000, 8), -efault},
		{"across the end", systemCall(sysWrite, 1, dataAt+4, 8), -efault},
		{"longer than everything", systemCall(sysWrite, 1, dataAt, 1<<40), -efault},
		{"into the program", systemCall(sysRead, 1, codeAt, 8), -efault},
		{"a path without an end", systemCall(sysOpenat, 0, dataAt, 0), -efault},
		{"a bad descriptor", systemCall(sysRead, 0xffffffff, dataAt, 8), -ebadf},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code := append(slices.Concat(tc.call, load64(8, sysExit)), trap)
			status, _ := exited(t, code, []byte("12345678"))
			assert.Equal(t, tc.want&0xff, status)
		})
	}
}

func TestArguments(t *testing.T) {
	// write(1, argv[1], 4); exit(argc)
	code := slices.Concat([]uint32{
		0xf9400be1, // LDR x1, [sp, #16]
		0xd2800020, // MOV x0, #1
		0xd2800082, // MOV x2, #4
	}, load64(8, sysWrite), []uint32{trap,
		0xf94003e0, // LDR x0, [sp]
	}, load64(8, sysExit), []uint32{trap})
	status, k := exited(t, code, nil, "prog", "read", "8")
	assert.Equal(t, 3, status)
	assert.Equal(t, "read", string(k.out))
	_, err := Run(image(code, nil), []string{string(make([]byte, stackSize))}, k)
	assert.ErrorContains(t, err, "arguments")
}

// Calls, returns and loops: the sum of 1 to 10, by a function.
func TestControlFlow(t *testing.T) {
	code := slices.Concat([]uint32{
		0xd2800140, // MOV x0, #10
		0x94000004, // BL  sum
		0xd2800ba8, // MOV x8, #93
		trap,
		0xd503201f, // NOP
		0xd2800001, // sum: MOV x1, #0
		0x8b000021, // again: ADD x1, x1, x0
		0xd1000400, // SUB x0, x0, #1
		0xb5ffffc0, // CBNZ x0, again
		0xaa0103e0, // MOV x0, x1
		0xd65f03c0, // RET
	})
	status, _ := exited(t, code, nil)
	assert.Equal(t, 55, status)
}

func TestFaults(t *testing.T) {
	nothing := []uint32{0xd503201f}
	for _, tc := range []struct {
		name string
		code []uint32
		want error
		pc   uint64
	}{
		{"no instruction", []uint32{0}, ErrUnsupported, codeAt},
		{"a vector instruction", []uint32{0x4e228420}, ErrUnsupported, codeAt},
		{"an exclusive load", []uint32{0xc85f7c20}, ErrUnsupported, codeAt},
		{"it runs off its end", nothing, ErrMemory, codeAt + 4},
		{"it jumps into its data", append(load64(1, dataAt), 0xd61f0020), ErrMemory, dataAt},
		{"it jumps between two instructions", append(load64(1, codeAt+2), 0xd61f0020), ErrMemory, codeAt + 2},
		{"it loads from nowhere", []uint32{0xf9400000}, ErrMemory, codeAt},
		{"it writes to its program", append(load64(1, codeAt), 0xf9000020), ErrMemory, codeAt + 16},
		{"it does not end", []uint32{0x14000000}, ErrSteps, codeAt},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := run(image(tc.code, make([]byte, 16)), nil, &kernel{}, 1000)
			require.ErrorIs(t, err, tc.want)
			var f *Fault
			require.ErrorAs(t, err, &f)
			assert.Equal(t, tc.pc, f.PC)
		})
	}
}

func TestBadImages(t *testing.T) {
	good := image([]uint32{trap}, nil)
	le := binary.LittleEndian
	for _, tc := range []struct {
		name   string
		change func(b []byte) []byte
	}{
		{"empty", func([]byte) []byte { return nil }},
		{"a script", func([]byte) []byte { return []byte("#!/bin/sh\n") }},
		{"cut", func(b []byte) []byte { return b[:0x1002] }},
		{"another machine", func(b []byte) []byte { b[18] = 62; return b }},
		{"a shared object", func(b []byte) []byte { b[16] = 3; return b }},
		{"an interpreter", func(b []byte) []byte { b[64] = 3; return b }},
		{"more in the file than in memory", func(b []byte) []byte { le.PutUint64(b[64+40:], 1); return b }},
		{"huge", func(b []byte) []byte { le.PutUint64(b[64+40:], 1<<40); return b }},
		{"on the stack", func(b []byte) []byte { le.PutUint64(b[64+16:], stackTop-4); return b }},
		{"round the end", func(b []byte) []byte { le.PutUint64(b[64+16:], ^uint64(1)); return b }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Run(tc.change(slices.Clone(good)), nil, &kernel{})
			assert.ErrorIs(t, err, ErrImage)
		})
	}
}

// No file makes it do anything but end, fail or run out of steps.
func FuzzRun(f *testing.F) {
	f.Add(image(slices.Concat(systemCall(sysWrite, 1, dataAt, 4), systemCall(sysExit, 0)), []byte("text")))
	f.Add(image([]uint32{0xf9400be1, 0xb5ffffc0, 0xd65f03c0}, []byte{1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = run(b, []string{"prog", "arg"}, &kernel{}, 2000) // a panic is what fails
	})
}
