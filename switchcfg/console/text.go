package console

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"regexp"
	"strconv"
	"strings"
)

// marker delimits the output of one command. It stands in what is sent only in two
// parts.
type marker struct{ head, tail string }

// fresh returns a marker that no other command has had.
func fresh() marker {
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails on a kernel that runs oxpd; at worst a marker is used twice
	s := hex.EncodeToString(b[:])
	return marker{"OXP" + s[:6], s[6:]}
}

// wrap is what is sent for a command, without the end of the line. The command and
// its markers stand there twice, and are run when the shell finds both the same: a byte
// that the line lost or changed could make another command of it, another register,
// another value. What is lost across the end of one of the two leaves a quote open,
// and what is lost of the rest runs nothing.
func (m marker) wrap(line string) string {
	say := "echo " + m.head + `""` + m.tail
	text := "'" + strings.ReplaceAll(say+"_B; "+line+"; "+say+"_E$?_", "'", `'\''`) + "'"
	return "a=" + text + " b=" + text + `; if [ "$a" = "$b" ]; then eval "$a"; else ` + say + "_X; fi"
}

func (m marker) begin() string   { return m.head + m.tail + "_B" }
func (m marker) end() string     { return m.head + m.tail + "_E" }
func (m marker) refused() string { return m.head + m.tail + "_X" }

// reply is what has come back of a command.
type reply struct {
	refused bool // the shell found that it had arrived damaged, and did not run it
	begun   bool
	done    bool
	lines   []string
	status  int
}

// scan looks for a command's output in what was received. The markers may stand
// behind or before something that the kernel wrote; what is between them is split
// into lines, without line ends, escape sequences and empty ones.
func scan(received []byte, m marker) reply {
	_, rest, begun := bytes.Cut(received, []byte(m.begin()))
	if !begun {
		return reply{refused: bytes.Contains(received, []byte(m.refused()))}
	}
	// A digit of the status that is lost must not make another status of it: an underscore
	// follows.
	at := regexp.MustCompile(m.end() + `([0-9]{1,3})_`).FindSubmatchIndex(rest)
	if at == nil {
		return reply{begun: true}
	}
	status, err := strconv.Atoi(string(rest[at[2]:at[3]]))
	if err != nil || status > 255 {
		return reply{begun: true}
	}
	var lines []string
	for _, l := range strings.Split(plain(rest[:at[0]]), "\n") {
		if l = strings.Trim(l, "\r"); l != "" {
			lines = append(lines, l)
		}
	}
	return reply{begun: true, done: true, lines: lines, status: status}
}

// plain takes out the escape sequences with which a shell asks for the cursor or
// paints its prompt.
func plain(b []byte) string {
	return regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]`).ReplaceAllString(string(b), "")
}

// prompt is what the end of the received text seems to ask for.
type prompt int

const (
	promptNone prompt = iota
	promptShell
	promptLogin
	promptPassword
)

// asks matches loosely: what the coprocessor says is on no record.
func asks(received []byte) prompt {
	last := received[bytes.LastIndexByte(received, '\n')+1:]
	s := strings.ToLower(strings.TrimSpace(plain(last)))
	switch {
	case strings.HasSuffix(s, "login:"):
		return promptLogin
	case strings.HasSuffix(s, "assword:"):
		return promptPassword
	case strings.HasSuffix(s, "#"), strings.HasSuffix(s, "$"):
		return promptShell
	}
	return promptNone
}
