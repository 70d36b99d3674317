package console

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// errEndless ends a wait that has no end of its own.
var errEndless = errors.New("two simulated hours have passed")

// simClock is simulated time that passes in Sleep alone.
type simClock struct {
	now   time.Duration
	pause func(d time.Duration) time.Duration // how long a sleep takes; nil: as asked
}

func (c *simClock) Now() time.Duration { return c.now }

func (c *simClock) Sleep(ctx context.Context, d time.Duration) error {
	if c.pause != nil {
		d = c.pause(d)
	}
	if c.now += d; c.now > 3*time.Hour {
		return errEndless
	}
	return ctx.Err()
}

// far is the other end of the line, in simulated time.
type far struct {
	clock *simClock
	sent  []chunk // on its way to us, by time
	typed []byte  // all that was ever written
	lines []string

	at       string // what runs there: "shell", "login", "password", "program", "quote", "nothing"
	user     string
	asks     bool // for a password
	refuses  bool // root without one
	echoes   bool
	silent   bool // and never will
	prompt   string
	latency  time.Duration // of an answer
	perByte  time.Duration // of what it sends
	run      func(command string) (out string, status int)
	damage   func(answer string) string // to what a command answers
	hungUp   bool
	full     bool   // takes no bytes
	others   string // who else has the line open
	room     int    // bytes that a write takes; 0: all
	finished int    // commands that were run
}

type chunk struct {
	at   time.Duration
	text string
}

func newFar() *far {
	return &far{clock: &simClock{now: time.Hour}, at: "shell", echoes: true, prompt: "# ",
		run: func(string) (string, int) { return "", 0 }}
}

// say sends a text after a while.
func (f *far) say(after time.Duration, text string) {
	at := f.clock.now + after
	if n := len(f.sent); n > 0 && f.sent[n-1].at > at {
		at = f.sent[n-1].at
	}
	if f.perByte == 0 {
		f.sent = append(f.sent, chunk{at, text})
		return
	}
	for i := range len(text) {
		at += f.perByte
		f.sent = append(f.sent, chunk{at, text[i : i+1]})
	}
}

func (f *far) Read(p []byte) (int, error) {
	if f.hungUp {
		return 0, errors.New("input/output error")
	}
	if len(f.sent) == 0 || f.sent[0].at > f.clock.now {
		return 0, nil
	}
	n := copy(p, f.sent[0].text)
	if f.sent[0].text = f.sent[0].text[n:]; f.sent[0].text == "" {
		f.sent = f.sent[1:]
	}
	return n, nil
}

func (f *far) Write(p []byte) (int, error) {
	if f.hungUp {
		return 0, errors.New("input/output error")
	}
	if f.full {
		return 0, nil
	}
	if f.room > 0 && len(p) > f.room {
		p = p[:f.room]
	}
	f.typed = append(f.typed, p...)
	for _, b := range p {
		f.key(b)
	}
	return len(p), nil
}

func (f *far) Others() string { return f.others }
func (f *far) Close() error   { return nil }

// buffered is the line as it is typed.
func (f *far) buffered() *string {
	if len(f.lines) == 0 {
		f.lines = []string{""}
	}
	return &f.lines[len(f.lines)-1]
}

func (f *far) key(b byte) {
	line := f.buffered()
	switch {
	case f.at == "nothing":
	case b == 0x15:
		*line = ""
	case b == 0x03:
		*line = ""
		if f.at == "program" || f.at == "quote" {
			f.at = "shell"
		}
		f.say(f.latency, "^C\r\n"+f.promptText())
	case b == '\n':
		entered := *line
		f.lines = append(f.lines, "")
		if f.echoes {
			f.say(0, "\r\n")
		}
		f.enter(entered)
	default:
		*line += string(b)
		if f.echoes && f.at != "password" {
			f.say(0, string(b))
		}
	}
}

func (f *far) promptText() string {
	switch f.at {
	case "login":
		return "octeon login: "
	case "password":
		return "Password: "
	case "shell":
		return f.prompt
	case "quote":
		return "> "
	}
	return ""
}

func (f *far) enter(line string) {
	switch f.at {
	case "login":
		switch {
		case line == "":
		case line == "root" && !f.asks && !f.refuses:
			f.at = "shell"
		default:
			f.user, f.at = line, "password"
		}
		f.say(f.latency, f.promptText())
	case "password":
		if f.user == "root" && !f.refuses && line == "" {
			f.at = "shell"
			f.say(f.latency, "Welcome\r\n"+f.promptText())
			return
		}
		f.at = "login"
		f.say(3*time.Second, "Login incorrect\r\n"+f.promptText())
	case "quote":
		f.say(f.latency, "> ")
	case "shell":
		f.execute(line)
	}
}

// wrapped is a command between its markers.
func wrapped() *regexp.Regexp {
	const say = `echo (OXP[0-9a-f]{6})""([0-9a-f]{6})`
	const text = `'(` + say + `_B; ([^']*); ` + say + `_E\$\?_)'`
	return regexp.MustCompile(`^a=` + text + ` b=` + text + `; if \[ "\$a" = "\$b" \]; then eval "\$a"; else ` + say + `_X; fi$`)
}

func (f *far) execute(line string) {
	if line == "" {
		f.say(f.latency, f.prompt)
		return
	}
	m := wrapped().FindStringSubmatch(line)
	if m == nil {
		f.say(f.latency, "sh: "+line+": not found\r\n"+f.prompt)
		return
	}
	command := m[4]
	if m[1] != m[7] {
		f.say(f.latency, m[13]+m[14]+"_X\r\n"+f.prompt)
		return
	}
	out, status := "", 0
	ours := false
	switch command {
	case echoOff, echoOn:
		ours, f.echoes = true, command == echoOn && !f.silent
	default:
		out, status = f.run(command)
		f.finished++
	}
	out = strings.ReplaceAll(out, "\n", "\r\n")
	answer := fmt.Sprintf("%s%s_B\r\n%s%s%s_E%d_\r\n", m[2], m[3], out, m[5], m[6], status)
	if f.damage != nil && !ours {
		answer = f.damage(answer)
	}
	f.say(f.latency, answer+f.promptText())
}
