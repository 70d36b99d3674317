package mmio

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// code is the instructions of each function of this package, as the compiler and
// the assembler made them: "MOVL BX, 0(AX)".
type code map[string][]string

// goTool runs the go command for an architecture in the package's directory.
func goTool(t *testing.T, arch string, args ...string) []byte {
	t.Helper()
	name := filepath.Join(runtime.GOROOT(), "bin", "go")
	if _, err := os.Stat(name); err != nil {
		name = "go"
	}
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "GOARCH="+arch, "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return out
}

// disassemble builds the package for an architecture and reads it back.
func disassemble(t *testing.T, arch string) code {
	t.Helper()
	dir := t.TempDir()
	compiled, assembled := filepath.Join(dir, "mmio.a"), filepath.Join(dir, "barrier.o")
	goTool(t, arch, "build", "-o", compiled, ".")
	include := filepath.Join(strings.TrimSpace(string(goTool(t, arch, "env", "GOROOT"))), "pkg", "include")
	goTool(t, arch, "tool", "asm", "-I", include, "-p", "oxpd/internal/mmio", "-o", assembled, "barrier_"+arch+".s")
	funcs := read(goTool(t, arch, "tool", "objdump", compiled))
	funcs["Barrier"] = read(goTool(t, arch, "tool", "objdump", assembled))["Barrier"]
	return funcs
}

// read splits the output of objdump, whose lines are
// "  mapped.go:53<tabs>0x8bc9<tabs>8918<tabs>MOVL BX, 0(AX)<tabs>relocation".
func read(text []byte) code {
	line := regexp.MustCompile(`^\s+\S+:\d+\s+0x[0-9a-f]+\s+[0-9a-f]+\s+(\S.*)$`)
	funcs, name := code{}, ""
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		if f, ok := strings.CutPrefix(s.Text(), "TEXT "); ok {
			name, _, _ = strings.Cut(f, "(SB)")
			name = strings.TrimPrefix(name, "oxpd/internal/mmio.")
			continue
		}
		if m := line.FindStringSubmatch(s.Text()); m != nil && !strings.HasPrefix(m[1], "?") {
			funcs[name] = append(funcs[name], strings.Join(strings.Fields(m[1]), " "))
		}
	}
	return funcs
}

// A store to a register is one plain move: not an exchange, which reads the
// register as well, and not inlined, or two of them could be merged.
func TestStoresAreOnePlainMove(t *testing.T) {
	tests := []struct {
		arch    string
		move    map[string]string
		barrier string
	}{
		{"amd64", map[string]string{"store32": "MOVL BX, 0(AX)", "store64": "MOVQ BX, 0(AX)"}, "LOCK ADDL $0x0, 0(SP)"},
		{"arm64", map[string]string{"store32": "MOVW R1, (R0)", "store64": "MOVD R1, (R0)"}, "DMB $3"},
	}
	for _, tt := range tests {
		t.Run(tt.arch, func(t *testing.T) {
			funcs := disassemble(t, tt.arch)
			for f, move := range tt.move {
				assert.Equal(t, []string{move, "RET"}, funcs[f], f)
			}
			for method, callee := range map[string]string{"(*Mapped).Store32": "mmio.store32", "(*Mapped).Store64": "mmio.store64"} {
				body := strings.Join(funcs[method], "\n")
				require.NotEmpty(t, body, method)
				assert.Contains(t, body, callee, "%s calls it", method)
				assert.NotRegexp(t, `LOCK|XCHG|CMPXCHG|STLR|SWP|LDADD`, body, method)
			}
			assert.Contains(t, funcs["Barrier"], tt.barrier)
		})
	}
}
