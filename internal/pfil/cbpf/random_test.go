package cbpf

import (
	"math/rand/v2"

	"golang.org/x/net/bpf"
)

// raw is a program as others take it.
func raw(insns []Instruction) []bpf.RawInstruction {
	out := make([]bpf.RawInstruction, len(insns))
	for i, in := range insns {
		out[i] = bpf.RawInstruction{Op: in.Code, Jt: in.JT, Jf: in.JF, K: in.K}
	}
	return out
}

// codes are the codes that Linux takes, in order.
func codes() []uint16 {
	var out []uint16
	known := ops()
	for c := range uint16(256) {
		if _, ok := known[c]; ok {
			out = append(out, c)
		}
	}
	return out
}

// randomProgram is a valid program of about n instructions that computes with what it
// loads, mostly from the first 80 bytes, and returns a result of it.
func randomProgram(r *rand.Rand, all []uint16, n int) []Instruction {
	var out []Instruction
	for w := range uint32(words) { // so that every load of a word has its store
		if w%4 == 0 {
			out = append(out, Instruction{Code: ld | modeAbs | sizeB, K: w})
		}
		out = append(out, Instruction{Code: st, K: w})
	}
	for range n {
		out = append(out, randomInstruction(r, all))
	}
	out = append(out, Instruction{Code: ret | retA})
	for i := range out {
		behind := uint32(len(out) - i - 1)
		switch in := &out[i]; {
		case in.Code == jmp|jmpJA:
			in.K = r.Uint32N(min(behind, 4))
		case in.Code&classMask == jmp:
			in.JT, in.JF = uint8(r.Uint32N(min(behind, 6))), uint8(r.Uint32N(min(behind, 6)))
		}
	}
	return out
}

func randomInstruction(r *rand.Rand, all []uint16) Instruction {
	for {
		in := Instruction{Code: all[r.IntN(len(all))], K: r.Uint32N(256)}
		if r.IntN(8) == 0 {
			in.K = r.Uint32()
		}
		switch c := in.Code; {
		case c&classMask == ret:
			if r.IntN(20) > 0 {
				continue // most programs shall go on
			}
		case c&classMask == ld && c&0xe0 == modeAbs, c == ldx|modeMsh|sizeB:
			in.K = r.Uint32N(80)
			if c == ld|modeAbs && r.IntN(8) == 0 {
				in.K = adXorX
			}
		case c&classMask == ld && c&0xe0 == modeInd:
			in.K = r.Uint32N(40)
			if r.IntN(4) == 0 {
				in.K = -in.K
			}
		case c == ld|modeMem, c == ldx|modeMem, c == st, c == stx:
			in.K %= words
		case c == alu|aluLsh|srcK, c == alu|aluRsh|srcK:
			in.K %= 32
		case c == alu|aluDiv|srcK, c == alu|aluMod|srcK:
			in.K = max(in.K, 1)
		}
		return in
	}
}
