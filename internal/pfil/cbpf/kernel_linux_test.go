package cbpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/pfil/pfiltest"
)

func newKernel(t testing.TB) *pfiltest.Kernel {
	t.Helper()
	k, err := pfiltest.NewKernel()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, k.Close()) })
	return k
}

// same has a program run by this machine and by the kernel over frames.
func same(t *testing.T, k *pfiltest.Kernel, insns []Instruction, frames []pfiltest.Frame) (matches int) {
	t.Helper()
	p, err := New(insns)
	require.NoError(t, err)
	kept, err := k.Judge(raw(insns), frames)
	require.NoError(t, err)
	for i, f := range frames {
		got := p.Run(f.Bytes, f.Wire)
		if want := kept[i]; int(min(got, uint32(len(f.Bytes)))) != want {
			t.Fatalf("returns %d, of which the kernel keeps %d bytes, over %v\n%v", got, want, f, p)
		}
		if got != 0 {
			matches++
		}
	}
	return matches
}

// TestKernelAgreesOnExpressions runs what tcpdump makes of expressions.
func TestKernelAgreesOnExpressions(t *testing.T) {
	needTCPDump(t)
	frames, err := pfiltest.Frames(1)
	require.NoError(t, err)
	k := newKernel(t)
	for _, expression := range expressions() {
		text, err := pfiltest.Compile(expression)
		require.NoError(t, err)
		p, err := Parse(text)
		require.NoError(t, err)
		n := same(t, k, p.Instructions(), frames)
		assert.Positive(t, n, "no frame is taken by %q: it proves little", expression)
		assert.Less(t, n, len(frames), "every frame is taken by %q: it proves little", expression)
	}
}

// TestKernelAgreesOnRandomPrograms compares the number of bytes that come through, and
// for one frame of each program the whole of the 32 bits.
func TestKernelAgreesOnRandomPrograms(t *testing.T) {
	frames, err := pfiltest.Frames(2)
	require.NoError(t, err)
	k, r, all := newKernel(t), rand.New(rand.NewPCG(7, 7)), codes()
	matches, results, used := 0, map[uint32]bool{}, map[uint16]bool{}
	for range 1500 {
		insns := randomProgram(r, all, 1+r.IntN(40))
		at := r.IntN(len(frames) - 4)
		matches += same(t, k, insns, frames[at:at+4])
		results[wholeResult(t, k, insns, frames[at])] = true
		for _, in := range insns {
			used[in.Code] = true
		}
	}
	assert.Greater(t, matches, 500)
	assert.Greater(t, len(results), 100, "different results")
	assert.Len(t, used, len(all), "codes in the programs")
}

// wholeResult has the kernel compare the result of a program with this machine's: a
// return goes to an epilogue that returns everything when it is the same. A result of
// 0, which is also how a program ends that loads too far, is compared by same.
func wholeResult(t *testing.T, k *pfiltest.Kernel, insns []Instruction, f pfiltest.Frame) uint32 {
	t.Helper()
	p, err := New(insns)
	require.NoError(t, err)
	want := p.Run(f.Bytes, f.Wire)
	if want == 0 || len(f.Bytes) == 0 {
		return want
	}
	out := append([]Instruction(nil), insns...)
	for i, in := range insns {
		if in.Code&classMask != ret {
			continue
		}
		out[i] = Instruction{Code: jmp | jmpJA, K: uint32(len(out) - i - 1)}
		if in.Code == ret|srcK {
			out = append(out, Instruction{Code: ld | modeImm, K: in.K})
		}
		out = append(out, Instruction{Code: jmp | jmpEQ, K: want, JF: 1}, Instruction{Code: ret, K: 1<<32 - 1}, Instruction{Code: ret})
	}
	kept, err := k.Judge(raw(out), []pfiltest.Frame{f})
	require.NoError(t, err)
	require.Equal(t, len(f.Bytes), kept[0], "the kernel's result is not %d over %v\n%v", want, f, p)
	return want
}

// TestKernelTakesTheSamePrograms compares what is refused, over programs with random
// changes.
func TestKernelTakesTheSamePrograms(t *testing.T) {
	k, r, all := newKernel(t), rand.New(rand.NewPCG(3, 3)), codes()
	taken, refused, relative := 0, 0, 0
	for range 6000 {
		insns := mutate(r, all, randomProgram(r, all, 1+r.IntN(24)))
		_, err := New(insns)
		kernel := k.Attach(raw(insns))
		if kernel != nil {
			require.ErrorIs(t, kernel, unix.EINVAL)
		}
		var refusal *InstructionError
		switch {
		case errors.As(err, &refusal) && refusal.Expected == recompile && kernel == nil:
			relative++ // valid for a socket, without a meaning for a frame in a ring
		case (err == nil) != (kernel == nil):
			t.Fatalf("here: %v; by the kernel: %v\n%v", err, kernel, listing(insns))
		case err == nil:
			taken++
		default:
			refused++
		}
	}
	assert.Greater(t, taken, 1000)
	assert.Greater(t, refused, 1000)
	assert.Positive(t, relative)
}

// TestKernelTakesTheSameCodes goes through every code with operands that are good for
// each.
func TestKernelTakesTheSameCodes(t *testing.T) {
	k := newKernel(t)
	for code := range 1 << 10 {
		insns := []Instruction{{Code: st, K: 1}, {Code: uint16(code), K: 1}, {Code: ret}, {Code: ret}}
		_, err := New(insns)
		assert.Equal(t, k.Attach(raw(insns)) == nil, err == nil, "code %#x: %v", code, err)
	}
}

// TestKernelTakesTheSameLimits are programs at the limits.
func TestKernelTakesTheSameLimits(t *testing.T) {
	k := newKernel(t)
	long := func(n int) []Instruction {
		out := make([]Instruction, n) // ld #0
		out[n-1] = Instruction{Code: ret}
		return out
	}
	for _, n := range []int{1, 2, 1024, MaxInstructions, MaxInstructions + 1} {
		_, err := New(long(n))
		kernel := k.Attach(raw(long(n)))
		if errors.Is(kernel, unix.ENOMEM) {
			kernel = nil // valid, but more than sockets may have (net.core.optmem_max)
		}
		assert.Equal(t, kernel == nil, err == nil, "%d instructions: %v, by the kernel %v", n, err, kernel)
	}
}

// mutate changes up to two fields of a program.
func mutate(r *rand.Rand, all []uint16, insns []Instruction) []Instruction {
	for range r.IntN(3) {
		i := words + 3 + r.IntN(len(insns)-words-3)
		if r.IntN(4) == 0 {
			i = r.IntN(len(insns))
		}
		in := &insns[i]
		switch r.IntN(6) {
		case 0:
			in.Code = uint16(r.Uint32N(256))
		case 1:
			in.Code = all[r.IntN(len(all))]
		case 2:
			in.JT = uint8(r.IntN(len(insns) - i + 1))
		case 3:
			in.JF = uint8(r.IntN(len(insns) - i + 1))
		case 4:
			k := []uint32{0, 1, 15, 16, 31, 32, uint32(len(insns)-i) - 1, uint32(len(insns) - i), 1<<31 - 1, 1 << 31, 1<<32 - 1, 0xffe00000, 0xfff00000}
			in.K = k[r.IntN(len(k))]
		case 5:
			in.K = adOff - 4 + 4*r.Uint32N(20) // ancillary loads and their neighbours
		}
	}
	return insns
}

func listing(insns []Instruction) (s string) {
	for i, in := range insns {
		s += fmt.Sprintf("%d: %#x %d %d %#x\n", i, in.Code, in.JT, in.JF, in.K)
	}
	return s
}

// FuzzRun has the kernel run any valid program over any packet. Left out are loads
// from a computed offset, which Linux takes to be relative to a header when it is
// negative (TestKernelTakesNegativeOffsets), and the protocol, which a Unix socket's
// packets do not have.
func FuzzRun(f *testing.F) {
	f.Add([]byte{0, 40, 0, 0, 0, 0, 0, 12, 0, 21, 0, 1, 0, 0, 8, 0, 0, 6, 0, 0, 0, 4, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0}, []byte("0123456789ab\x08\x00Eefgh"), uint16(9014))
	f.Add([]byte{0, 0x80, 0, 0, 0, 0, 0, 0, 0, 22, 0, 0, 0, 0, 0, 0}, []byte("0123"), uint16(3))
	k, err := pfiltest.NewKernel()
	require.NoError(f, err)
	f.Cleanup(func() { assert.NoError(f, k.Close()) })
	f.Fuzz(func(t *testing.T, program, packet []byte, wire uint16) {
		var insns []Instruction
		for ; len(program) >= 8 && len(insns) < 256; program = program[8:] {
			in := Instruction{binary.BigEndian.Uint16(program), program[2], program[3], binary.BigEndian.Uint32(program[4:])}
			if in.Code&0xe7 == ld|modeInd || in.K == adProtocol {
				return
			}
			insns = append(insns, in)
		}
		if _, err := New(insns); err != nil || len(packet) > 9216 {
			return
		}
		same(t, k, insns, []pfiltest.Frame{{From: "fuzz", Bytes: packet, Wire: int(wire)}})
	})
}
