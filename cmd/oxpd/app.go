package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"oxpd/internal/board"
	"oxpd/internal/capture"
	"oxpd/internal/daemon"
	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/octep/discover"
	"oxpd/octep/vfio"
	"oxpd/octep/vfiouser"
)

// Exit statuses.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
	exitFinal  = 3 // of oxpd run: starting it again does not help, and may do harm
)

// Bounds of a command that asks the daemon. What the daemon answers from memory
// comes at once or not at all; for the rest they are longer than the daemon's own
// bounds, so that its answer says what took so long.
const (
	readLimit = 5 * time.Second
	cardLimit = 20 * time.Second // asks the card
	stopLimit = 30 * time.Second
)

// app is one invocation.
type app struct {
	out, err io.Writer

	args   []string   // the command line, without the program
	log    *logWriter // err of the daemon
	socket string
	json   bool
}

// usageError is a command line that can never work.
type usageError struct {
	error
	usage string // of the command, for the hint
}

func (e *usageError) Unwrap() error { return e.error }

// hinted is an error with what its reader can do.
type hinted struct {
	error
	hint string
}

func (e *hinted) Unwrap() error { return e.error }

// interrupted is a command that somebody has ended by a signal.
type interrupted struct{ error }

// Error says so in the place of the context's own words.
func (e *interrupted) Error() string {
	return strings.ReplaceAll(e.error.Error(), context.Canceled.Error(), "interrupted")
}

func (e *interrupted) Unwrap() error { return e.error }

// exitCode is the end of a command that has said everything itself.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit status %d", int(c)) }

// main runs the command line and returns the exit status.
func (a *app) main(asked context.Context, args []string) int {
	ctx, cancel := context.WithCancel(asked)
	defer cancel()
	out := &output{w: a.out, failed: cancel}
	a.out, a.args = out, args
	root := a.root()
	root.SetArgs(negatives(args))
	root.SetOut(a.out)
	root.SetErr(a.err)
	err := root.ExecuteContext(ctx)
	if errors.Is(err, context.Canceled) && asked.Err() != nil {
		err = &interrupted{err}
	} else if errors.Is(err, context.Canceled) && out.err != nil {
		err = nil // by the output, which is reported
	}
	code := a.report(err)
	if out.err != nil {
		code = a.report(fmt.Errorf("write standard output: %w", out.err))
	}
	if a.log != nil {
		a.log.close(logGoodbye)
	}
	return code
}

// output is standard output: the first error ends it, and is the command's.
type output struct {
	w      io.Writer
	failed func() // called with the first error: nobody reads what the command goes on to say
	err    error
}

// Write implements io.Writer. It never fails: who writes has nothing to do about
// an error, and main reports it.
func (o *output) Write(b []byte) (int, error) {
	if o.err != nil {
		return len(b), nil
	}
	if _, o.err = o.w.Write(b); o.err != nil {
		var pe *fs.PathError
		if errors.As(o.err, &pe) {
			o.err = pe.Err // the file has no name of its own
		}
		o.failed()
	}
	return len(b), nil
}

// report prints an error (what, where, why, and what to do) and returns its exit
// status.
func (a *app) report(err error) int {
	if err == nil {
		return exitDone
	}
	var code exitCode
	if errors.As(err, &code) {
		return int(code)
	}
	var rules ruleErrors
	if errors.As(err, &rules) {
		rules.print(a.err)
		return exitUsage
	}
	fmt.Fprintf(a.err, "oxpd: %v\n", err)
	if h := hintOf(err, a.socket); h != "" {
		fmt.Fprintf(a.err, "hint: %s\n", h)
	}
	var (
		socket *vfiouser.AdoptError
		kernel *vfio.AdoptError
	)
	switch {
	case isUsage(err):
		return exitUsage
	case daemon.Final(err), errors.As(err, &socket), errors.As(err, &kernel):
		return exitFinal
	}
	return exitFailed
}

func isUsage(err error) bool {
	var (
		usage   *usageError
		unknown *board.UnknownPortError
		outside *board.MTURangeError
		file    *config.Error
		format  *capture.FormatError
		address *discover.AddressError
		refused *client.Error
	)
	return errors.As(err, &usage) || errors.As(err, &unknown) || errors.As(err, &outside) || errors.As(err, &file) || errors.As(err, &format) || errors.As(err, &address) ||
		errors.As(err, &refused) && refused.Usage()
}

// hintOf finds what the reader of an error can do, "" when nobody knows.
func hintOf(err error, socket string) string {
	var (
		h       *hinted
		held    *client.HeldError
		refused *client.Error
		usage   *usageError
		hinter  interface{ Hint() string }
	)
	switch {
	case errors.As(err, &h):
		return h.hint
	case errors.As(err, &held):
		return held.Hint()
	case errors.Is(err, client.ErrNoDaemon):
		return "start it with: oxpd run --sim" + socketFlag(socket)
	case errors.As(err, &refused):
		return refused.Hint
	case errors.As(err, &usage):
		return "usage: " + usage.usage
	case errors.As(err, &hinter):
		return hinter.Hint()
	case errors.Is(err, fs.ErrPermission):
		return permissionHint(err)
	}
	return ""
}

// permissionHint is what can be done about something that was not permitted.
func permissionHint(err error) string {
	var file *fs.PathError
	if errors.As(err, &file) && ofTheUser(file.Path) {
		return "its owner and mode, or those of a folder above it, say who may: ls -ld " + file.Path
	}
	return "run it as root (sudo): interfaces and the control socket are root's"
}

// ofTheUser tells whether a path is that of a file, or of none, where users keep theirs.
func ofTheUser(path string) bool {
	for _, system := range []string{"/dev/", "/proc/", "/run/", "/sys/"} {
		if strings.HasPrefix(path, system) {
			return false
		}
	}
	info, err := os.Stat(path)
	return err != nil || info.Mode().IsRegular() || info.IsDir()
}

func socketFlag(socket string) string {
	if socket == "" || socket == client.DefaultSocket {
		return ""
	}
	return " --socket " + socket
}

// negative is an argument that pflag would take for a flag and that is a number.
var negative = regexp.MustCompile(`^-[0-9]`)

// negatives moves negative numbers of `oxpd mtu` behind "--", so that -1 is a
// value that gets a value's answer and not an unknown flag.
func negatives(args []string) []string {
	command, skip := "", false
	var head, tail []string
	for i, arg := range args {
		switch {
		case arg == "--":
			return append(head, append(append([]string{"--"}, tail...), args[i+1:]...)...)
		case skip:
			skip = false
		case arg == "--socket":
			skip = true
		case command == "" && !strings.HasPrefix(arg, "-"):
			command = arg
		case command == "mtu" && negative.MatchString(arg):
			tail = append(tail, arg)
			continue
		}
		head = append(head, arg)
	}
	if tail == nil {
		return head
	}
	return append(append(head, "--"), tail...)
}

// root builds the command tree.
func (a *app) root() *cobra.Command {
	version := false
	root := &cobra.Command{
		Use:           "oxpd",
		Short:         "userspace driver for the datapath coprocessor of the Sophos XGS 3300",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return &usageError{fmt.Errorf("unknown command %q", args[0]), "oxpd --help lists the commands"}
			}
			return nil
		},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("socket") {
				if err := client.CheckSocket(a.socket); err != nil {
					return &usageError{fmt.Errorf("--socket %q: %w", a.socket, err), cmd.UseLine()}
				}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if version {
				v := buildVersion()
				printVersion(a.out, &v)
				return nil
			}
			return cmd.Help()
		},
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpCommand(helpCommand(root))
	root.Flags().BoolVar(&version, "version", false, "print the version of this program")
	root.PersistentFlags().StringVar(&a.socket, "socket", "", "control socket (default "+client.DefaultSocket+")")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return &usageError{err, cmd.UseLine()} })
	root.AddCommand(
		a.runCommand(), a.devicesCommand(), a.bindCommand(), a.unbindCommand(), a.probeCommand(), a.statusCommand(), a.portsCommand(), a.portCommand(), a.mtuCommand(), a.switchCommand(), a.filterCommand(), a.divertCommand(), a.inspectCommand(), a.tcpStatsCommand(), a.statsCommand(), a.countersCommand(),
		a.stopCommand(), a.demoCommand(), a.versionCommand(), a.configCommand(), a.simCommand(),
	)
	return root
}

// helpCommand is cobra's own, but for a command that there is not.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "help about any command",
		RunE: func(_ *cobra.Command, args []string) error {
			c, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return &usageError{fmt.Errorf("unknown command %q", strings.Join(args, " ")), "oxpd --help lists the commands"}
			}
			c.InitDefaultHelpFlag()
			return c.Help()
		},
	}
}

// args checks the number of arguments. Those that must be there are the first
// words of the command's usage.
func args(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		name := strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
		switch {
		case len(args) < least:
			missing := strings.Fields(cmd.Use)[1+len(args)]
			return &usageError{fmt.Errorf("%s: %s is missing", name, missing), cmd.UseLine()}
		case len(args) > most && most == 0:
			return &usageError{fmt.Errorf("%s takes no arguments, and there is %q", name, args[0]), cmd.UseLine()}
		case len(args) > most:
			return &usageError{fmt.Errorf("%s: %q is one argument too many", name, args[most]), cmd.UseLine()}
		}
		return nil
	}
}

// jsonFlag gives a reading command its --json.
func (a *app) jsonFlag(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVar(&a.json, "json", false, "print the document as JSON")
	return cmd
}

// client is the daemon's.
func (a *app) client() *client.Client {
	c := client.New(a.socket)
	a.socket = c.Socket()
	return c
}

// show prints a document: as JSON, or by text.
func show[T any](a *app, doc *T, text func(w io.Writer, doc *T)) error {
	if !a.json {
		text(a.out, doc)
		return nil
	}
	b, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return fmt.Errorf("print document: %w", err)
	}
	_, err = fmt.Fprintf(a.out, "%s\n", b)
	return err
}

// ask bounds a question to the daemon.
func ask(cmd *cobra.Command, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(cmd.Context(), limit)
}
