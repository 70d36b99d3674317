package mvsw

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// lineMax is how long a line may be, as Runner says.
const lineMax = 400

// coprocessor is a Runner: a shell of this machine in whose place the program
// runs in an emulator, with the model behind its device.
type coprocessor struct {
	t      *testing.T
	chip   *chip
	folder string // with the program in it
	path   string // PATH
	ran    []string
	before func(line string) (handled bool, lines []string, status int, err error)
}

func newCoprocessor(t *testing.T) *coprocessor {
	t.Helper()
	need(t, emulator)
	folder, err := os.MkdirTemp("", "oxpd-mvsw-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	return &coprocessor{t: t, chip: newChip(), folder: folder, path: os.Getenv("PATH")}
}

func (c *coprocessor) program() string { return filepath.Join(c.folder, "mvsw") }

func (c *coprocessor) helper() *Helper {
	h, err := New(c, Options{Path: c.program()})
	require.NoError(c.t, err)
	return h
}

func (c *coprocessor) Run(ctx context.Context, line string) ([]string, int, error) {
	require.LessOrEqual(c.t, len(line), lineMax)
	c.ran = append(c.ran, line)
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	if c.before != nil {
		if handled, lines, status, err := c.before(line); handled {
			return lines, status, err
		}
	}
	if words := strings.Fields(line); words[0] == c.program() {
		if fi, err := os.Stat(words[0]); err != nil {
			return []string{"sh: " + words[0] + ": not found"}, 127, nil
		} else if fi.Mode()&0o100 == 0 {
			return []string{"sh: " + words[0] + ": Permission denied"}, 126, nil
		}
		out, status := traced(c.t, c.chip, append([]string{emulator}, words...)...)
		return split(out), status, nil
	}
	cmd := exec.Command("/bin/sh", "-c", line)
	cmd.Env = []string{"PATH=" + c.path}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return nil, 0, err
	}
	return split(string(out)), cmd.ProcessState.ExitCode(), nil
}

func split(out string) []string {
	return slices.DeleteFunc(strings.Split(out, "\n"), func(l string) bool { return l == "" })
}

// uploads counts the pieces that were sent.
func (c *coprocessor) uploads() int {
	n := 0
	for _, l := range c.ran {
		if strings.Contains(l, "base64 -d") {
			n++
		}
	}
	return n
}

// withoutSums is a PATH with what an upload needs, and no sha256sum.
func withoutSums(t *testing.T) string {
	t.Helper()
	bin := t.TempDir()
	for _, name := range []string{"base64", "cat", "chmod", "mkdir", "mv", "rm", "rmdir", "wc"} {
		path, err := exec.LookPath(name)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(path, filepath.Join(bin, name)))
	}
	return bin
}

const pieces = 30

func TestPrepareFindsOrPutsTheProgram(t *testing.T) {
	other := slices.Clone(program)
	other[1000] ^= 1
	for _, c := range []struct {
		name string
		file []byte
		mode os.FileMode
		want State
		sent int
	}{
		{"missing", nil, 0, Missing, pieces},
		{"the program", program, 0o755, Present, 0},
		{"one bit of it differs", other, 0o755, Different, pieces},
		{"half of it", program[:len(program)/2], 0o755, Different, pieces},
		{"empty", []byte{}, 0o755, Different, pieces},
		{"not executable", program, 0o644, Different, pieces},
	} {
		for _, sums := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/sha256sum=%t", c.name, sums), func(t *testing.T) {
				cop := newCoprocessor(t)
				if !sums {
					cop.path = withoutSums(t)
				}
				if c.file != nil {
					require.NoError(t, os.WriteFile(cop.program(), c.file, c.mode))
				}
				h := cop.helper()
				state, err := h.Check(context.Background())
				require.NoError(t, err)
				assert.Equal(t, c.want, state)

				require.NoError(t, h.Prepare(context.Background()))
				assert.Equal(t, c.sent, cop.uploads())
				left, err := os.ReadDir(cop.folder)
				require.NoError(t, err)
				assert.Len(t, left, 1, "nothing of the upload is left")
				there, err := os.ReadFile(cop.program())
				require.NoError(t, err)
				assert.Equal(t, sum(program), sum(there))

				v, err := h.Read(context.Background(), 1, 8)
				require.NoError(t, err)
				assert.Equal(t, uint16(0x1081), v)
			})
		}
	}
}

func TestReadAndWrite(t *testing.T) {
	cop := newCoprocessor(t)
	require.NoError(t, os.WriteFile(cop.program(), program, 0o755))
	h := cop.helper()
	ctx := context.Background()
	id, err := h.ID(ctx)
	require.NoError(t, err)
	assert.Equal(t, ID{0x1930, 0x193, 0}, id)
	require.NoError(t, h.Write(ctx, 10, 8, 0x208a))
	v, err := h.Read(ctx, 10, 8)
	require.NoError(t, err)
	assert.Equal(t, uint16(0x208a), v)
	assert.Len(t, cop.ran, 4, "the program is looked at once")

	for _, at := range [][2]int{{-1, 8}, {32, 8}, {1, -1}, {1, 32}} {
		_, err = h.Read(ctx, at[0], at[1])
		assert.ErrorIs(t, err, ErrRefused)
		assert.ErrorIs(t, h.Write(ctx, at[0], at[1], 0), ErrRefused)
	}
	assert.Len(t, cop.ran, 4, "a number that cannot be is not sent")

	cop.chip.absent = true
	_, err = h.Read(ctx, 1, 8)
	assert.ErrorIs(t, err, ErrNothingAnswers)
	cop.chip.absent, cop.chip.stuck = false, true
	assert.ErrorIs(t, h.Write(ctx, 1, 8, 0), ErrBusy)
	cop.chip.denied = true
	_, err = h.ID(ctx)
	assert.ErrorIs(t, err, ErrDevice)
	assert.Equal(t, []string{"port 10 register 8 = 0x208a"}, cop.chip.trace)
}

// script puts a mvsw into the PATH.
func script(t *testing.T, c *coprocessor, text string) {
	t.Helper()
	bin := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(bin, "mvsw"), []byte("#!/bin/sh\n"+text), 0o755))
	c.path = bin + ":" + c.path
}

func TestInstalledProgramServesWhenItAnswers(t *testing.T) {
	cop := newCoprocessor(t)
	script(t, cop, `case "$*" in "0 2 id") echo "switch id 0x1930 - device 0x0193 revision 0";; "0 2 read 1 8") echo 0x4711;; esac`)
	v, err := cop.helper().Read(context.Background(), 1, 8)
	require.NoError(t, err)
	assert.Equal(t, uint16(0x4711), v)
	assert.Zero(t, cop.uploads())

	cop = newCoprocessor(t)
	script(t, cop, `echo "cannot open /dev/mvmdio-uio"; exit 1`)
	v, err = cop.helper().Read(context.Background(), 1, 8)
	require.NoError(t, err)
	assert.Equal(t, uint16(0x1081), v)
	assert.Equal(t, pieces, cop.uploads())
}

//oxpd:fault S24 behaviour
func TestProgramLostWithARestartIsPutThereAgain(t *testing.T) {
	cop := newCoprocessor(t)
	h := cop.helper()
	require.NoError(t, h.Prepare(context.Background()))
	require.NoError(t, os.Remove(cop.program()))
	v, err := h.Read(context.Background(), 1, 8)
	require.NoError(t, err)
	assert.Equal(t, uint16(0x1081), v)
	assert.Equal(t, 2*pieces, cop.uploads())
}

func TestProgramThatCannotBeStarted(t *testing.T) {
	cop := newCoprocessor(t)
	cop.before = func(line string) (bool, []string, int, error) {
		return strings.HasPrefix(line, cop.program()+" "), []string{"Permission denied"}, 126, nil
	}
	_, err := cop.helper().Read(context.Background(), 1, 8)
	assert.ErrorIs(t, err, ErrMissing)
	assert.ErrorContains(t, err, "Permission denied")
	assert.Equal(t, pieces, cop.uploads(), "what is there and right is not sent again")
}

// errLost is one that another try may help against, errGone is not.
var (
	errLost = errors.New("the answer was lost")
	errGone = &fault{text: "the line is gone", final: true}
)

func TestUploadOverABadLine(t *testing.T) {
	old := []byte("what was there")
	answers := func(err error) func(*coprocessor) func(string) (bool, []string, int, error) {
		return func(*coprocessor) func(string) (bool, []string, int, error) {
			return func(line string) (bool, []string, int, error) { return true, nil, 0, err }
		}
	}
	// late runs the line, and loses the answer to the first try.
	late := func(c *coprocessor) func(string) (bool, []string, int, error) {
		seen := map[string]bool{}
		return func(line string) (bool, []string, int, error) {
			if seen[line] || strings.HasPrefix(line, c.program()+" ") {
				return false, nil, 0, nil
			}
			seen[line] = true
			_ = exec.Command("/bin/sh", "-c", line).Run()
			return true, nil, 0, errLost
		}
	}
	silent := func(*coprocessor) func(string) (bool, []string, int, error) {
		return func(line string) (bool, []string, int, error) {
			return strings.Contains(line, "base64 -d"), nil, 0, errLost
		}
	}
	full := func(c *coprocessor) func(string) (bool, []string, int, error) {
		return func(line string) (bool, []string, int, error) {
			return strings.Contains(line, "cat $n"), []string{"cat: write error: No space left on device"}, 1, nil
		}
	}
	// instead runs another command in the place of one.
	instead := func(part, command string) func(*coprocessor) func(string) (bool, []string, int, error) {
		return func(c *coprocessor) func(string) (bool, []string, int, error) {
			return func(line string) (bool, []string, int, error) {
				if !strings.Contains(line, part) {
					return false, nil, 0, nil
				}
				cmd := exec.Command("/bin/sh", "-c", command)
				cmd.Dir = c.folder
				_ = cmd.Run()
				return true, nil, cmd.ProcessState.ExitCode(), nil
			}
		}
	}
	for _, c := range []struct {
		name   string
		before func(*coprocessor) func(string) (bool, []string, int, error)
		err    error
		says   string
	}{
		{"every answer is lost once", late, nil, ""},
		{"every answer is lost", answers(errLost), errLost, ""},
		{"the line goes", answers(errGone), errGone, ""},
		{"the line goes silent in the upload", silent, errLost, "put the program on the coprocessor"},
		{"the pieces do not make the whole", instead("cat $n", "head -c 5000 mvsw.new/p00 >mvsw.new/mvsw"), ErrUpload, "mvsw.new/mvsw is different"},
		{"it is not moved", instead("mv -f", "true"), ErrUpload, "mvsw is different"},
		{"no base64", instead("base64 -d", "exit 127"), ErrUpload, "piece 1 of 30"},
		{"no space", full, ErrUpload, "No space left on device"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cop := newCoprocessor(t)
			require.NoError(t, os.WriteFile(cop.program(), old, 0o755))
			h := cop.helper()
			script(t, cop, "exit 127")
			cop.before = c.before(cop)
			err := h.Prepare(context.Background())
			there, rerr := os.ReadFile(cop.program())
			require.NoError(t, rerr)
			if c.err == nil {
				require.NoError(t, err)
				assert.Equal(t, sum(program), sum(there))
				return
			}
			assert.ErrorIs(t, err, c.err)
			assert.Equal(t, c.err == ErrUpload, errors.Is(err, ErrUpload), "a line that is lost says nothing of the coprocessor's folder")
			assert.Equal(t, c.name != "every answer is lost", final(err), "once an upload has begun nobody tries all of it again")
			assert.Less(t, len(err.Error()), 300, "no piece of the program is in it")
			assert.ErrorContains(t, err, c.says)
			assert.Equal(t, old, there, "the old file stays until the new one is whole")
		})
	}
}

func TestUploadThatIsCutStartsAgain(t *testing.T) {
	cop := newCoprocessor(t)
	h := cop.helper()
	ctx, cancel := context.WithCancel(context.Background())
	cop.before = func(string) (bool, []string, int, error) {
		if cop.uploads() == 7 {
			cancel()
			return true, nil, 0, ctx.Err()
		}
		return false, nil, 0, nil
	}
	require.ErrorIs(t, h.Prepare(ctx), context.Canceled)
	_, err := os.Stat(cop.program())
	require.ErrorIs(t, err, os.ErrNotExist)

	cop.before = nil
	cop.ran = nil
	require.NoError(t, h.Prepare(context.Background()))
	assert.Equal(t, pieces, cop.uploads())
	there, err := os.ReadFile(cop.program())
	require.NoError(t, err)
	assert.Equal(t, sum(program), sum(there))
}

func TestPathsThatAreRefused(t *testing.T) {
	for _, p := range []string{"mvsw", "/tmp/a b", "/tmp/$(reboot)", "/tmp/../mvsw", "/tmp/", "/", "/tmp/a;b", "/" + strings.Repeat("x", 100)} {
		_, err := New(nil, Options{Path: p})
		assert.ErrorIs(t, err, ErrPath, p)
	}
	_, err := New(nil, Options{})
	assert.NoError(t, err)
}

func TestRecordedSumIsThatOfTheBytes(t *testing.T) {
	s := sha256.Sum256(program)
	assert.Equal(t, hex.EncodeToString(s[:])+"  mvsw.aarch64\n", recordedSum)
	assert.Equal(t, Program{len(program), hex.EncodeToString(s[:]), compilerVersion}, Embedded())
}
