package mvsw

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseValue(t *testing.T) {
	for _, c := range []struct {
		name   string
		lines  []string
		status int
		want   uint16
		err    error
	}{
		{"a value", []string{"0x1080"}, 0, 0x1080, nil},
		{"between kernel messages", []string{"[  101.2] eth0: link up", "0x2080", "random: crng init done"}, 0, 0x2080, nil},
		{"none", nil, 0, 0, ErrOutput},
		{"two", []string{"0x1080", "0x2080"}, 0, 0, ErrOutput},
		{"the same twice", []string{"0x1080", "0x1080"}, 0, 0, ErrOutput},
		{"a digit lost", []string{"0x108"}, 0, 0, ErrOutput},
		{"a digit more", []string{"0x10800"}, 0, 0, ErrOutput},
		{"upper case", []string{"0x108F"}, 0, 0, ErrOutput},
		{"cut by a kernel message", []string{"0x10[  101.2] eth0: link up", "80"}, 0, 0, ErrOutput},
		{"something before it", []string{" 0x1080"}, 0, 0, ErrOutput},
		{"something behind it", []string{"0x1080 "}, 0, 0, ErrOutput},
		{"a value and a status", []string{"0x1080"}, 1, 0, ErrOutput},
		{"a signal", nil, 139, 0, ErrOutput},
		{"read failed", []string{"mdio read failed"}, 1, 0, ErrRead},
		{"read failed, and why", []string{"mdio read failed: two reads in a row differ"}, 1, 0, ErrRead},
		{"read failed, status lost", []string{"mdio read failed"}, 0, 0, ErrRead},
		{"an error and a value", []string{"0x1080", "mdio read failed"}, 0, 0, ErrRead},
		{"write failed", []string{"mdio write failed"}, 1, 0, ErrWrite},
		{"busy", []string{"switch command register stayed busy"}, 1, 0, ErrBusy},
		{"nothing answers", []string{"switch command register stayed busy: nothing answers at bus 0 address 2"}, 1, 0, ErrNothingAnswers},
		{"PHY busy", []string{"SMI PHY command register stayed busy"}, 1, 0, ErrPHYBusy},
		{"no device", []string{"cannot open /dev/mvmdio-uio"}, 1, 0, ErrDevice},
		{"usage", []string{"usage: mvsw BUS SMI COMMAND; numbers decimal, or hexadecimal with 0x", "  id"}, 2, 0, ErrRefused},
		{"not found", []string{"sh: mvsw: not found"}, 127, 0, ErrMissing},
		{"not executable", []string{"sh: mvsw: Permission denied"}, 126, 0, ErrMissing},
		{"an error line that goes on differently", []string{"mdio read failedx", "0x1080"}, 0, 0x1080, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, err := parseValue(c.lines, c.status)
			assert.ErrorIs(t, err, c.err)
			assert.Equal(t, c.want, v)
		})
	}
	assert.ErrorIs(t, ErrNothingAnswers, ErrBusy)
}

// Who tries again asks Final; the command line prints Hint.
func TestErrorsSayWhatToDo(t *testing.T) {
	for err, never := range map[error]bool{
		ErrRead: false, ErrWrite: false, ErrOutput: false,
		ErrBusy: true, ErrPHYBusy: true, ErrNothingAnswers: true, ErrDevice: true, ErrRefused: true, ErrMissing: true, ErrUpload: true,
	} {
		err = fmt.Errorf("above: %w", &CommandError{Command: "id", Err: err})
		assert.Equal(t, never, final(err), err.Error())
		var h interface{ Hint() string }
		require.ErrorAs(t, err, &h)
		assert.NotEmpty(t, h.Hint(), err.Error())
	}
	assert.False(t, final(errors.New("of another kind")))
}

func TestParseSilence(t *testing.T) {
	assert.NoError(t, parseSilence(nil, 0))
	assert.NoError(t, parseSilence([]string{"[  101.2] eth0: link up"}, 0))
	assert.ErrorIs(t, parseSilence([]string{"0x1080"}, 0), ErrOutput)
	assert.ErrorIs(t, parseSilence([]string{"mdio write failed"}, 1), ErrWrite)
	assert.ErrorIs(t, parseSilence([]string{"mdio write failed"}, 0), ErrWrite)
	assert.ErrorIs(t, parseSilence(nil, 1), ErrOutput)
}

func TestParseID(t *testing.T) {
	id, err := parseID([]string{"switch id 0x1930 - device 0x0193 revision 0"}, 0)
	require.NoError(t, err)
	assert.Equal(t, ID{0x1930, 0x193, 0}, id)
	id, err = parseID([]string{"noise", "switch id 0x0a1b - device 0x00a1 revision 11"}, 0)
	require.NoError(t, err)
	assert.Equal(t, ID{0x0a1b, 0xa1, 11}, id)
	for name, lines := range map[string][]string{
		"none":           nil,
		"two":            {"switch id 0x1930 - device 0x0193 revision 0", "switch id 0x1930 - device 0x0193 revision 0"},
		"another device": {"switch id 0x1930 - device 0x0191 revision 0"},
		"other revision": {"switch id 0x1930 - device 0x0193 revision 1"},
		"a digit lost":   {"switch id 0x193 - device 0x0193 revision 0"},
	} {
		_, err = parseID(lines, 0)
		assert.ErrorIs(t, err, ErrOutput, name)
	}
}

func TestCommandErrorSaysWhatWasAnswered(t *testing.T) {
	err := &CommandError{"read 1 8", 0, []string{"0x108", "noise"}, ErrOutput}
	assert.EqualError(t, err, `mvsw: read 1 8: output that is not understood (exit status 0, output ["0x108" "noise"])`)
	err = &CommandError{"read 1 8", 1, []string{"mdio read failed"}, ErrRead}
	assert.EqualError(t, err, `mvsw: read 1 8: mdio read failed (exit status 1)`)
}

// FuzzParse: no panic, and a value is one that stands there alone, once.
func FuzzParse(f *testing.F) {
	f.Add("0x1080", 0)
	f.Add("[ 1.0] noise\n0x1080\n", 0)
	f.Add("0x1080\n0x2080", 0)
	f.Add("switch id 0x1930 - device 0x0193 revision 0", 0)
	f.Add("switch command register stayed busy: nothing answers at bus 0 address 2", 1)
	f.Add("usage: mvsw", 2)
	f.Fuzz(func(t *testing.T, text string, status int) {
		lines := strings.Split(text, "\n")
		if v, err := parseValue(lines, status); err == nil {
			found := 0
			for _, l := range lines {
				if len(l) == 6 && strings.HasPrefix(l, "0x") && strings.Trim(l[2:], "0123456789abcdef") == "" {
					found++
				}
			}
			assert.Equal(t, 1, found)
			assert.Zero(t, status)
			assert.Contains(t, lines, fmt.Sprintf("%#04x", v))
		}
		if id, err := parseID(lines, status); err == nil {
			assert.Equal(t, id.Register, id.Product<<4|uint16(id.Revision))
		}
		if err := parseSilence(lines, status); err == nil {
			assert.Zero(t, status)
			assert.NotContains(t, text, "\nmdio write failed\n")
		} else if errors.Is(err, ErrMissing) {
			assert.Contains(t, []int{126, 127}, status)
		}
	})
}
