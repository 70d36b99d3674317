package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"oxpd/internal/trace/scene"
)

// sceneList is `oxpd sim trace --list --json`.
type sceneList struct {
	Schema    int         `json:"schema"`
	Scenarios []sceneItem `json:"scenarios"`
}

type sceneItem struct {
	Name  string `json:"name"`
	About string `json:"about"`
}

func listScenes() *sceneList {
	d := &sceneList{Schema: 1}
	for _, s := range scene.All() {
		d.Scenarios = append(d.Scenarios, sceneItem{s.Name, s.About})
	}
	return d
}

func printScenes(w io.Writer, d *sceneList) {
	table(w, func(row func(...any)) {
		row("SCENARIO", "SHOWS")
		for _, s := range d.Scenarios {
			row(s.Name, s.About)
		}
	})
}

func (a *app) traceCommand() *cobra.Command {
	var (
		out  string
		seed int64
		list bool
	)
	cmd := a.jsonFlag(&cobra.Command{
		Use: "trace SCENARIO --out FILE", Short: "a trace of what each unit of the card does, cycle by cycle", Args: cobra.ArbitraryArgs,
		Long: "Plays SCENARIO on a simulated card in stepped time, with the driver's own code, and writes what each unit did to FILE: the JSON trace\n" +
			"event format, which https://ui.perfetto.dev and chrome://tracing open. A unit is a process there, each of its rings or ports a track.\n" +
			"The same scenario and seed give the same bytes. FILE is whole or not there; - is standard output. Needs no root; --list says which scenarios there are.",
		RunE: func(cmd *cobra.Command, names []string) error {
			if list {
				if len(names) > 0 {
					return &usageError{fmt.Errorf("--list is about all scenarios, and there is %q", names[0]), cmd.UseLine()}
				}
				return show(a, listScenes(), printScenes)
			}
			if len(names) == 0 {
				return &usageError{fmt.Errorf("sim trace: SCENARIO is missing: want %s", strings.Join(scene.Names(), ", ")), cmd.UseLine()}
			}
			if err := args(1, 1)(cmd, names); err != nil {
				return err
			}
			s, err := scene.Find(names[0])
			switch {
			case err != nil:
				return &usageError{err, cmd.UseLine()}
			case out == "":
				return &usageError{errors.New("where to? --out is missing"), cmd.UseLine()}
			case a.json:
				return &usageError{errors.New("--json goes with --list: a trace is JSON anyway"), cmd.UseLine()}
			}
			return a.writeTrace(cmd.Context(), &s, seed, out)
		},
	})
	f := cmd.Flags()
	f.StringVar(&out, "out", "", "file that the trace is written to, - for standard output")
	f.Int64Var(&seed, "seed", 1, "seed of everything that varies")
	f.BoolVar(&list, "list", false, "list the scenarios")
	return cmd
}

// writeTrace writes a scene's trace to a path.
func (a *app) writeTrace(ctx context.Context, s *scene.Scene, seed int64, path string) error {
	said := func(r scene.Result) {
		fmt.Fprintf(a.err, "%s, seed %d: %d steps in %v of the card, in %s; open it at https://ui.perfetto.dev\n", s.Name, seed, r.Steps, r.Elapsed, path)
	}
	if path == "-" {
		path = "standard output"
		r, err := s.Trace(ctx, a.out, seed)
		if err == nil {
			said(r)
		}
		return err
	}
	f, done, err := wholeFile(path)
	if err != nil {
		return fmt.Errorf("write trace: %w", err)
	}
	r, err := s.Trace(ctx, f, seed)
	if err := done(err == nil); err != nil {
		return fmt.Errorf("write trace: %w", err)
	}
	if err != nil {
		return err
	}
	said(r)
	return nil
}

// wholeFile opens a file that appears under its name only when it is whole: until
// done(true) it has another name in the same folder, and after done(false) it is
// gone. What is no regular file (a pipe, a terminal) is written as it comes.
func wholeFile(path string) (f *os.File, done func(ok bool) error, err error) {
	mode := os.FileMode(0o666) // less what the umask says
	info, err := os.Stat(path)
	switch {
	case err != nil:
		// It is made, or making it says why not.
	case info.IsDir():
		return nil, nil, fmt.Errorf("%s is a folder", path)
	case !info.Mode().IsRegular():
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return nil, nil, err
		}
		return f, func(bool) error { return f.Close() }, nil
	default:
		old, err := os.OpenFile(path, os.O_WRONLY, 0) // what may not be written is not replaced either
		if err != nil {
			return nil, nil, err
		}
		_ = old.Close()
		mode = info.Mode().Perm()
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return nil, nil, err
		}
	}
	part := filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.%d", filepath.Base(path), os.Getpid()))
	f, err = os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	var pe *os.PathError
	if errors.As(err, &pe) && !errors.Is(err, os.ErrExist) {
		pe.Path = path // nobody asked for the other name
	}
	if err != nil {
		return nil, nil, err
	}
	return f, func(ok bool) error {
		err := f.Close()
		if ok && err == nil {
			err = os.Rename(part, path)
		}
		if !ok || err != nil {
			err = errors.Join(err, os.Remove(part))
		}
		return err
	}, nil
}
