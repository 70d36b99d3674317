package console

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"oxpd/internal/sys"
)

const (
	loginPause = time.Second     // after a login that could not be offered
	inputLimit = 2 * time.Second // for the coprocessor's terminal to take what is typed
)

// session is one login: a terminal of the coprocessor with the login and then the shell.
type session struct {
	c     *Console
	pty   *sys.Pty
	heard atomic.Int64 // when something was typed last, Unix ns
}

// login offers a login on a terminal of its own, and returns when the shell has ended,
// or ctx.
func (c *Console) login(ctx context.Context) (err error) {
	pty, err := sys.OpenPty()
	if err != nil {
		return err
	}
	s := &session{c: c, pty: pty}
	tty, err := pty.Open(true)
	if err != nil {
		return errors.Join(err, pty.Close())
	}
	if c.o.NoEcho {
		err = s.echo(false)
	}
	s.heard.Store(time.Now().UnixNano())
	c.hear(s)
	read := make(chan struct{})
	go func() {
		defer close(read)
		s.show(ctx)
	}()
	if err == nil {
		err = s.serve(ctx, tty)
	}
	c.hear(nil)
	if ctx.Err() != nil {
		err = errors.Join(err, pty.Close()) // nobody will hear the rest
		<-read
		return err
	}
	<-read // the last of it is shown when nobody has the terminal open any more
	return errors.Join(err, pty.Close())
}

// serve is the login and then the shell on a terminal, which it closes.
func (s *session) serve(ctx context.Context, tty *os.File) error {
	stop := context.AfterFunc(ctx, func() { _ = tty.SetDeadline(time.Unix(1, 0)) })
	err := s.ask(tty)
	stop()
	if err != nil {
		return errors.Join(err, tty.Close())
	}
	w, err := s.c.shellWorld()
	if err != nil {
		_, werr := fmt.Fprintf(tty, "%v\n", err)
		pause(ctx, loginPause)
		return errors.Join(werr, tty.Close())
	}
	child, err := s.pty.Open(false)
	if err := errors.Join(err, tty.Close()); err != nil {
		return err
	}
	p, err := w.shell(child)
	if err := errors.Join(err, child.Close()); err != nil {
		return err
	}
	s.watch(ctx, p)
	return nil
}

// watch waits for the end of a shell, and brings it about.
func (s *session) watch(ctx context.Context, p *process) {
	look := time.NewTicker(absentPause)
	defer look.Stop()
	for {
		select {
		case <-p.done:
			return
		case <-ctx.Done():
			p.kill()
			<-p.done
			return
		case <-look.C:
			limit := s.c.card.ConsoleFaults().ConsoleLogout
			if limit > 0 && time.Since(time.Unix(0, s.heard.Load())) > limit {
				p.kill()
			}
		}
	}
}

// ask asks who is there until it is root.
func (s *session) ask(tty *os.File) error {
	in := bufio.NewReader(tty)
	if _, err := io.WriteString(tty, strings.ReplaceAll(issueText, "\r\n", "\n")); err != nil {
		return err
	}
	for {
		if _, err := io.WriteString(tty, loginText); err != nil {
			return err
		}
		name, err := in.ReadString('\n')
		if err != nil {
			return err
		}
		name = strings.TrimSpace(name)
		if name == "" {
			continue
		}
		ok := name == user
		if !ok || s.c.o.AskPassword {
			word, err := s.askPassword(tty, in)
			if err != nil {
				return err
			}
			ok = ok && word == ""
		}
		if ok {
			return nil
		}
		if _, err := io.WriteString(tty, strings.ReplaceAll(refusedText, "\r\n", "\n")); err != nil {
			return err
		}
	}
}

// askPassword reads a line that is not shown.
func (s *session) askPassword(tty *os.File, in *bufio.Reader) (string, error) {
	if _, err := io.WriteString(tty, passwordText); err != nil {
		return "", err
	}
	if err := s.echo(false); err != nil {
		return "", err
	}
	word, err := in.ReadString('\n')
	if err != nil {
		return "", err
	}
	if err := s.echo(!s.c.o.NoEcho); err != nil {
		return "", err
	}
	_, err = io.WriteString(tty, "\n")
	return strings.TrimRight(word, "\r\n"), err
}

// echo says whether the coprocessor's terminal echoes.
func (s *session) echo(on bool) error {
	t, err := s.pty.Termios()
	if err != nil {
		return err
	}
	t.Lflag &^= unix.ECHO
	if on {
		t.Lflag |= unix.ECHO
	}
	return s.pty.SetTermios(t)
}

// show brings to the line what appears on the terminal, until it is closed on either end.
func (s *session) show(ctx context.Context) {
	var buf [chunk]byte
	for {
		n, err := s.pty.File().Read(buf[:])
		if err != nil || s.c.line.write(ctx, buf[:n]) != nil {
			return
		}
	}
}

// typed hands bytes to the terminal. What it does not take is lost.
func (s *session) typed(b []byte) {
	s.heard.Store(time.Now().UnixNano())
	f := s.pty.File()
	_ = f.SetWriteDeadline(time.Now().Add(inputLimit)) // it has one: the file waits in the runtime
	_, _ = f.Write(b)                                  // as on any line without flow control
}
