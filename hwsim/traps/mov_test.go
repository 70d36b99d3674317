package traps

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Instructions as the GNU assembler writes them (2.40), with what may follow behind them.
func TestDecode(t *testing.T) {
	load := func(width, reg, size int) mov { return mov{width: width, reg: reg, size: size} }
	store := func(width, reg, size int) mov { return mov{store: true, width: width, reg: reg, size: size} }
	put := func(width int, v uint64, size int) mov {
		return mov{store: true, width: width, immediate: true, value: v, size: size}
	}
	for _, tt := range []struct {
		code, text string
		want       mov
	}{
		{"8b 07", "mov (%rdi),%eax", load(4, 0, 2)},
		{"48 8b 00", "mov (%rax),%rax", load(8, 0, 3)},
		{"4c 8b 22", "mov (%rdx),%r12", load(8, 12, 3)},
		{"44 8b 3e", "mov (%rsi),%r15d", load(4, 15, 3)},
		{"49 8b 45 10", "mov 0x10(%r13),%rax", load(8, 0, 4)},
		{"8b 4b 08", "mov 0x8(%rbx),%ecx", load(4, 1, 3)},
		{"48 8b 80 50 00 01 00", "mov 0x10050(%rax),%rax", load(8, 0, 7)},
		{"41 8b 94 24 00 00 01 00", "mov 0x10000(%r12),%edx", load(4, 2, 8)},
		{"8b 04 24", "mov (%rsp),%eax", load(4, 0, 3)},
		{"48 8b 34 c5 00 00 01 00", "mov 0x10000(,%rax,8),%rsi", load(8, 6, 8)},
		{"48 8b 44 08 40", "mov 0x40(%rax,%rcx,1),%rax", load(8, 0, 5)},
		{"48 8b 05 00 00 00 00", "mov 0x0(%rip),%rax", load(8, 0, 7)},
		{"89 02", "mov %eax,(%rdx)", store(4, 0, 2)},
		{"48 89 3a", "mov %rdi,(%rdx)", store(8, 7, 3)},
		{"4d 89 0b", "mov %r9,(%r11)", store(8, 9, 3)},
		{"45 89 41 04", "mov %r8d,0x4(%r9)", store(4, 8, 4)},
		{"48 c7 00 00 00 00 00", "movq $0x0,(%rax)", put(8, 0, 7)},
		{"48 c7 00 ff ff ff ff", "movq $-1,(%rax)", put(8, 0xffffffffffffffff, 7)},
		{"c7 00 ff ff ff ff", "movl $-1,(%rax)", put(4, 0xffffffffffffffff, 6)},
		{"c7 40 40 20 00 00 00", "movl $32,0x40(%rax)", put(4, 32, 7)},
		{"49 c7 84 24 60 00 01 00 ff ff ff 7f", "movq $0x7fffffff,0x10060(%r12)", put(8, 0x7fffffff, 12)},
	} {
		t.Run(tt.text, func(t *testing.T) {
			b, err := hex.DecodeString(strings.ReplaceAll(tt.code, " ", ""))
			require.NoError(t, err)
			got, ok := decode(append(b, 0x90, 0x90))
			assert.True(t, ok)
			assert.Equal(t, tt.want, got)
			_, ok = decode(b[:len(b)-1])
			assert.False(t, ok, "cut short")
		})
	}
	for _, tt := range []struct{ code, text string }{
		{"8a 07", "mov (%rdi),%al"}, {"0f b6 07", "movzbl (%rdi),%eax"}, {"66 8b 07", "mov (%rdi),%ax"}, {"66 89 02", "mov %ax,(%rdx)"},
		{"87 02", "xchg %eax,(%rdx)"}, {"48 87 02", "xchg %rax,(%rdx)"}, {"09 02", "or %eax,(%rdx)"}, {"f0 48 0f c1 02", "lock xadd %rax,(%rdx)"},
		{"c5 fa 6f 07", "vmovdqu (%rdi),%xmm0"}, {"8b c1", "mov %ecx,%eax"}, {"c7 08 00 00 00 00", "no instruction: C7 with 1 in its ModRM"}, {"", "nothing"},
	} {
		t.Run(tt.text, func(t *testing.T) {
			b, err := hex.DecodeString(strings.ReplaceAll(tt.code, " ", ""))
			require.NoError(t, err)
			_, ok := decode(append(b, make([]byte, longestMov)...)[:max(len(b), 0)])
			assert.False(t, ok)
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte{0x48, 0x8b, 0x80, 0x50, 0x00, 0x01, 0x00})
	f.Add([]byte{0x49, 0xc7, 0x84, 0x24, 0x60, 0, 1, 0, 0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, ok := decode(b)
		if !ok {
			return
		}
		if m.size < 2 || m.size > min(len(b), longestMov) || m.width != 4 && m.width != 8 || m.reg < 0 || m.reg > 15 {
			t.Fatalf("% x: %+v", b, m)
		}
		if again, ok := decode(b[:m.size]); !ok || again != m {
			t.Fatalf("% x: depends on what is behind it", b)
		}
	})
}
