package cbpf

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/bpf"
)

func TestParseRefuses(t *testing.T) {
	for _, tc := range []struct {
		name, text, want string
	}{
		{"nothing", "", "1:1: found the end of the text, expected a number of instructions"},
		{"no number", "(000) ldh [12]", `1:1: found "(000)", expected a number of instructions, in decimal`},
		{"no instruction", "0\n", `1:1: found "0", expected a number of instructions from 1 to 4096`},
		{"too many", "4097\n", `1:1: found "4097", expected a number of instructions from 1 to 4096`},
		{"one missing", "2\n6 0 0 1\n", "3:1: found the end of the text, expected code jt jf k"},
		{"one more", "1\n6 0 0 1\n6 0 0 1\n", `3:1: found "6 0 0 1", expected nothing behind 1 instructions`},
		{"three fields", "1\n6 0 0\n", "2:6: found the end of the line, expected code jt jf k"},
		{"five fields", "1\n6 0 0 1 1\n", `2:9: found "1", expected code jt jf k`},
		{"wide code", "1\n65536 0 0 1\n", `2:1: found "65536", expected a number up to 65535`},
		{"wide jump", "1\n6 256 0 1\n", `2:3: found "256", expected a number up to 255`},
		{"wide k", "1\n6 0 0 4294967296\n", `2:7: found "4294967296", expected a number up to 4294967295`},
		{"unknown code", "1\n7 0 0 1\n6 0 0 1\n", `3:1: found "6 0 0 1"`},
		{"negative", "1\n6 0 0 -1\n", `2:7: found "-1"`},
		{"bad instruction", "2\n255 0 0 1\n6 0 0 1\n", "2:1: found code 255, expected a code of classic BPF"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Parse([]byte(tc.text))
			require.Error(t, err)
			assert.True(t, strings.HasPrefix(err.Error(), tc.want), err)
		})
	}
}

func TestNewRefuses(t *testing.T) {
	end := Instruction{Code: ret | srcK, K: 1}
	for _, tc := range []struct {
		name  string
		insns []Instruction
		want  string
	}{
		{"none", nil, "found 0 instructions"},
		{"too many", make([]Instruction, MaxInstructions+1), "found 4097 instructions"},
		{"no return at the end", []Instruction{{Code: misc | miscTAX}}, "a return as its last instruction"},
		{"divided by 0", []Instruction{{Code: alu | aluDiv}, end}, "a divisor that is not 0"},
		{"rest of a division by 0", []Instruction{{Code: alu | aluMod}, end}, "a divisor that is not 0"},
		{"shift by 32", []Instruction{{Code: alu | aluLsh, K: 32}, end}, "a shift by less than 32"},
		{"load of M[16]", []Instruction{{Code: ld | modeMem, K: 16}, end}, "a word of scratch memory from 0 to 15"},
		{"store to M[16]", []Instruction{{Code: stx, K: 16}, end}, "a word of scratch memory from 0 to 15"},
		{"jump behind the end", []Instruction{{Code: jmp | jmpJA, K: 1}, end}, "a jump over less than 1 instructions"},
		{"jump far behind the end", []Instruction{{Code: jmp | jmpJA, K: 1<<32 - 1}, end}, "a jump over less than 1"},
		{"branch behind the end", []Instruction{{Code: jmp | jmpEQ, JF: 1}, end}, "jumps over less than 1 instructions"},
		{"load before a store", []Instruction{{Code: ld | modeMem}, end}, "a load of M[0]"},
		{"load after a store on one way only", []Instruction{{Code: jmp | jmpEQ, JT: 1}, {Code: st}, {Code: ld | modeMem}, end}, "instruction 2: found a load of M[0]"},
		{"network header", []Instruction{{Code: ld | modeAbs | sizeB, K: 0xfff00000}, end}, "an offset in the frame"},
		{"link header", []Instruction{{Code: ld | modeAbs | sizeB, K: 0xffe00000}, end}, "an offset in the frame"},
		{"ancillary without a meaning here", []Instruction{{Code: ld | modeAbs, K: 0xfffff008}, end}, "an offset in the frame"},
		{"header length from behind", []Instruction{{Code: ldx | modeMsh | sizeB, K: 1 << 31}, end}, "an offset in the frame"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := New(tc.insns)
			require.ErrorContains(t, err, tc.want)
		})
	}
	_, err := New([]Instruction{{Code: jmp | jmpEQ, JT: 1}, {Code: st}, {Code: st}, {Code: ld | modeMem}, end})
	require.NoError(t, err, "stored on both ways")
}

func TestRun(t *testing.T) {
	frame := []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0x08, 0x06, 14, 15}
	retA := Instruction{Code: ret | retA}
	for _, tc := range []struct {
		name  string
		insns []Instruction
		want  uint32
	}{
		{"word", []Instruction{{Code: ld | modeAbs, K: 12}, retA}, 0x08060e0f},
		{"word past the bytes at hand", []Instruction{{Code: ld | modeAbs, K: 13}, {Code: ret, K: 7}}, 0},
		{"half past the bytes at hand", []Instruction{{Code: ld | modeAbs | sizeH, K: 15}, {Code: ret, K: 7}}, 0},
		{"byte past the bytes at hand", []Instruction{{Code: ld | modeAbs | sizeB, K: 16}, {Code: ret, K: 7}}, 0},
		{"last byte", []Instruction{{Code: ld | modeAbs | sizeB, K: 15}, retA}, 15},
		{"far offset", []Instruction{{Code: ld | modeAbs, K: 1<<31 - 1}, {Code: ret, K: 7}}, 0},
		{"indirect", []Instruction{{Code: ldx | modeImm, K: 2}, {Code: ld | modeInd | sizeH, K: 10}, retA}, 0x0806},
		{"indirect back over 0", []Instruction{{Code: ldx | modeImm, K: 14}, {Code: ld | modeInd | sizeB, K: 1<<32 - 2}, retA}, 8},
		{"indirect before the frame", []Instruction{{Code: ldx | modeImm, K: 0}, {Code: ld | modeInd | sizeB, K: 1<<32 - 2}, {Code: ret, K: 7}}, 0},
		{"length is that on the wire", []Instruction{{Code: ld | modeLen}, retA}, 9014},
		{"length in x", []Instruction{{Code: ldx | modeLen}, {Code: misc | miscTXA}, retA}, 9014},
		{"header length", []Instruction{{Code: ldx | modeMsh | sizeB, K: 14}, {Code: misc | miscTXA}, retA}, 56},
		{"protocol", []Instruction{{Code: ld | modeAbs | sizeH, K: adProtocol}, retA}, 0x0806},
		{"no tag beside the frame", []Instruction{{Code: ld | modeImm, K: 5}, {Code: ld | modeAbs | sizeB, K: adVLANTagPresent}, retA}, 0},
		{"xor of x", []Instruction{{Code: ld | modeImm, K: 6}, {Code: ldx | modeImm, K: 3}, {Code: ld | modeAbs, K: adXorX}, retA}, 5},
		{"division by x of 0", []Instruction{{Code: alu | aluDiv | srcX}, {Code: ret, K: 7}}, 0},
		{"rest by x of 0", []Instruction{{Code: alu | aluMod | srcX}, {Code: ret, K: 7}}, 0},
		{"shift by x of 33", []Instruction{{Code: ld | modeImm, K: 1}, {Code: ldx | modeImm, K: 33}, {Code: alu | aluLsh | srcX}, retA}, 2},
		{"negative", []Instruction{{Code: ld | modeImm, K: 1}, {Code: alu | aluNeg}, retA}, 1<<32 - 1},
		{"memory", []Instruction{{Code: ld | modeImm, K: 9}, {Code: st, K: 15}, {Code: ldx | modeMem, K: 15}, {Code: misc | miscTXA}, retA}, 9},
		{"jump", []Instruction{{Code: jmp | jmpJA, K: 1}, {Code: ret, K: 7}, {Code: ret, K: 8}}, 8},
		{"branch taken", []Instruction{{Code: jmp | jmpGE, K: 0, JT: 1}, {Code: ret, K: 7}, {Code: ret, K: 8}}, 8},
		{"branch not taken", []Instruction{{Code: jmp | jmpGT, K: 0, JT: 1}, {Code: ret, K: 7}, {Code: ret, K: 8}}, 7},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := New(tc.insns)
			require.NoError(t, err)
			assert.Equal(t, tc.want, p.Run(frame, 9014))
		})
	}
}

func TestRunAllocatesNothing(t *testing.T) {
	p, err := New(comparisons(16))
	require.NoError(t, err)
	b := make([]byte, 60)
	assert.Zero(t, testing.AllocsPerRun(100, func() { p.Run(b, 60) }))
}

func TestString(t *testing.T) {
	p, err := Parse([]byte("4\n40 0 0 12\n21 0 1 2048\n6 0 0 262144\n6 0 0 0\n"))
	require.NoError(t, err)
	assert.Equal(t, "(000) ldh [12]\n(001) jneq #2048,1\n(002) ret #262144\n(003) ret #0\n", p.String())
}

// comparisons is a program that compares one byte with n values, none of them its own.
func comparisons(n int) []Instruction {
	out := []Instruction{{Code: ld | modeAbs | sizeB, K: 1}}
	for i := range n {
		out = append(out, Instruction{Code: jmp | jmpEQ, K: uint32(i + 1000), JT: 0, JF: 0})
	}
	return append(out, Instruction{Code: ret})
}

// BenchmarkRun is beside x/net/bpf's machine, over the same program.
func BenchmarkRun(b *testing.B) {
	packet := make([]byte, 60)
	for _, n := range []int{1, 16, 100} {
		insns := comparisons(n)
		name := map[int]string{1: "comparisons=1", 16: "comparisons=16", 100: "comparisons=100"}[n]
		b.Run("x-net/"+name, func(b *testing.B) {
			var raw []bpf.RawInstruction
			for _, i := range insns {
				raw = append(raw, bpf.RawInstruction{Op: i.Code, Jt: i.JT, Jf: i.JF, K: i.K})
			}
			prog, ok := bpf.Disassemble(raw)
			require.True(b, ok)
			vm, err := bpf.NewVM(prog)
			require.NoError(b, err)
			b.ReportAllocs()
			for range b.N {
				_, _ = vm.Run(packet)
			}
		})
		b.Run("cbpf/"+name, func(b *testing.B) {
			p, err := New(insns)
			require.NoError(b, err)
			b.ReportAllocs()
			for range b.N {
				p.Run(packet, 60)
			}
		})
	}
}

// FuzzParse: a text that is taken gives a program that ends on any packet, and whose
// instructions written down again are the same program.
func FuzzParse(f *testing.F) {
	f.Add([]byte("4\n40 0 0 12\n21 0 1 2048\n6 0 0 262144\n6 0 0 0\n"), []byte("0123456789abcdef"), 60)
	f.Add([]byte("1\n6 0 0 1"), []byte{}, 0)
	f.Fuzz(func(t *testing.T, text, packet []byte, wire int) {
		p, err := Parse(text)
		if err != nil {
			var e *Error
			require.ErrorAs(t, err, &e)
			return
		}
		again, err := New(p.Instructions())
		require.NoError(t, err)
		require.Equal(t, p, again)
		p.Run(packet, wire)
		_ = p.String()
	})
}
