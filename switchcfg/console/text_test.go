package console

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

//oxpd:fault R58 behaviour
func TestMarkerIsNotInWhatIsSent(t *testing.T) {
	m := fresh()
	sent := m.wrap("mvsw 0 2 read 1 8")
	assert.NotContains(t, sent, m.begin())
	assert.NotContains(t, sent, m.end())
	assert.NotContains(t, sent, m.refused())
	assert.Equal(t, reply{}, scan([]byte(sent+"\r\n"+sent), m))
	assert.NotEqual(t, m, fresh())
}

func done(lines []string, status int) reply {
	return reply{begun: true, done: true, lines: lines, status: status}
}

func TestScan(t *testing.T) {
	m := marker{"OXPaaaaaa", "bbbbbb"}
	sent := m.wrap("mvsw 0 2 read 1 8")
	const begin, end = "OXPaaaaaabbbbbb_B", "OXPaaaaaabbbbbb_E"
	for _, c := range []struct {
		name, received string
		want           reply
	}{
		{"nothing", "", reply{}},
		{"without an echo", begin + "\r\n0x1080\r\n" + end + "0_\r\n# ", done([]string{"0x1080"}, 0)},
		{"with an echo", sent + "\r\n" + begin + "\r\n0x1080\r\n" + end + "0_\r\n# ", done([]string{"0x1080"}, 0)},
		{"with an echo that the shell breaks", sent[:40] + "\r\n" + sent[40:] + "\r\n" + begin + "\r\n0x1080\r\n" + end + "0_\r\n", done([]string{"0x1080"}, 0)},
		{"line feeds alone", begin + "\n0x1080\n" + end + "0_\n", done([]string{"0x1080"}, 0)},
		{"silence", begin + "\r\n" + end + "0_\r\n", done(nil, 0)},
		{"status 127", begin + "\r\nsh: not found\r\n" + end + "127_\r\n", done([]string{"sh: not found"}, 127)},
		{"kernel messages", "[ 1.0] a\r\n" + begin + "\r\n[ 1.1] b\r\n0x1080\r\n[ 1.2] c\r\n" + end + "0_\r\n[ 1.3] d\r\n", done([]string{"[ 1.1] b", "0x1080", "[ 1.2] c"}, 0)},
		{"one before each marker", "[ 1.0] a" + begin + "\r\n0x1080\r\n[ 1.2] c" + end + "0_\r\n", done([]string{"0x1080", "[ 1.2] c"}, 0)},
		{"one in the value", begin + "\r\n0x10[ 1.1] b\r\n80\r\n" + end + "0_\r\n", done([]string{"0x10[ 1.1] b", "80"}, 0)},
		{"escape sequences", begin + "\r\n\x1b[0m0x1080\x1b[K\r\n" + end + "0_\r\n\x1b[6n", done([]string{"0x1080"}, 0)},
		{"damaged on the way", sent + "\r\nOXPaaaaaabbbbbb_X\r\n# ", reply{refused: true}},
		{"begun", sent + "\r\n" + begin + "\r\n0x10", reply{begun: true}},
		{"the end before the beginning", end + "0_\r\n" + begin + "\r\n", reply{begun: true}},
		{"no beginning", "0x1080\r\n" + end + "0_\r\n", reply{}},
		{"status cut", begin + "\r\n" + end + "1", reply{begun: true}},
		{"status without its end", begin + "\r\n" + end + "1\r\n# ", reply{begun: true}},
		{"no status", begin + "\r\n" + end + "_\r\n", reply{begun: true}},
		{"status that cannot be", begin + "\r\n" + end + "256_\r\n", reply{begun: true}},
		{"status not expanded", begin + "\r\n" + end + "$?_\r\n", reply{begun: true}},
		{"a byte of the end lost", begin + "\r\n" + strings.Replace(end, "bb", "b", 1) + "0_\r\n", reply{begun: true}},
		{"another command's end", begin + "\r\nOXPaaaaaabbbbbc_E0_\r\n", reply{begun: true}},
	} {
		t.Run(c.name, func(t *testing.T) { assert.Equal(t, c.want, scan([]byte(c.received), m)) })
	}
}

func TestAsks(t *testing.T) {
	for text, want := range map[string]prompt{
		"": promptNone, "\r\n": promptNone, "starting kernel": promptNone, "octeon login: ": promptLogin, "Welcome\r\nlogin:": promptLogin,
		"Password: ": promptPassword, "password:": promptPassword, "Last login: Thu Jan 1\r\n": promptNone, "login: root\r\n": promptNone,
		"# ": promptShell, "root@octeon:~# \x1b[6n": promptShell, "~ $ ": promptShell, "login: [ 1.0] eth0: up\r\n": promptNone, "> ": promptNone,
	} {
		assert.Equal(t, want, asks([]byte(text)), "%q", text)
	}
}

// FuzzScan: no panic; what is done was begun, its lines are parts of what was
// received, and what comes later changes nothing of it.
func FuzzScan(f *testing.F) {
	m := marker{"OXPaaaaaa", "bbbbbb"}
	f.Add([]byte(m.wrap("true") + "\r\n" + m.begin() + "\r\n0x1080\r\n" + m.end() + "0_\r\n# "))
	f.Add([]byte(m.begin() + "\n[ 1.0] noise\n\x1b[6n" + m.end() + "255_"))
	f.Add([]byte(m.begin() + m.end() + "999_"))
	f.Add([]byte("octeon login: "))
	f.Fuzz(func(t *testing.T, received []byte) {
		asks(received)
		r := scan(received, m)
		if !r.done {
			assert.Empty(t, r.lines)
			return
		}
		assert.True(t, r.begun)
		assert.True(t, r.status >= 0 && r.status <= 255)
		for _, l := range r.lines {
			assert.NotContains(t, l, "\n")
			assert.NotEmpty(t, l)
		}
		assert.Equal(t, r, scan(append(bytes.Clone(received), "\r\n"+m.begin()+"\r\n"+m.end()+"9_"...), m))
	})
}
