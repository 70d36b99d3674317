package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/pfil"
)

// filterLimit bounds a request about a filter: a million prefixes are sent and compiled.
const filterLimit = 90 * time.Second

const filterPorts = "PORT is an interface (oxp9), a label (PortF1), a short label (F1), or all. in is from the wire to the host, out the other way;\n" +
	"without either it is both.\n"

func (a *app) filterCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "filter", Short: "rules that drop, count and sample frames before anything is spent on them",
		Long: "A filter is a list of rules under a name. It is loaded, and judges the frames of the ports and directions that it is linked to; the\n" +
			"first rule that matches decides. docs/guides/filter.md has the language and a walk through a flood.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return &usageError{fmt.Errorf("unknown command %q of oxpd filter", args[0]), "oxpd filter load, unload, link, unlink, list, show, test, compile or samples"}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		a.filterLoadCommand(), a.filterUnloadCommand(),
		a.filterLinkCommand("link", "have a filter judge the frames of a port",
			"Where filters are linked already, this one comes behind them. A link that is there already stays as it is.\n"+filterPorts, (*client.Client).LinkFilter),
		a.filterLinkCommand("unlink", "take a filter away from a port",
			"When the command returns, the filter drops nothing there any more. "+filterPorts, (*client.Client).UnlinkFilter),
		a.filterListCommand(), a.filterShowCommand(), a.filterTestCommand(), a.filterCompileCommand(), a.filterSamplesCommand(),
	)
	return cmd
}

func (a *app) filterLoadCommand() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "load NAME FILE", Short: "load the rules of a file under a name, or replace those that have it", Args: args(2, 2),
		Long: "Reads the rule file, and the files that it names, here, and sends them to the daemon. Rules that do not compile change nothing.\n" +
			"A filter of that name is replaced at once, between two frames: its links stay, and a rule that it has already keeps its counters.\n" +
			"It is gone after a restart of the daemon; the configuration (filters) is for what shall stay.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := filterName(cmd, args[0]); err != nil {
				return err
			}
			src, err := readRules(cmd.Context(), args[1])
			if err != nil {
				return err
			}
			ctx, cancel := ask(cmd, filterLimit)
			defer cancel()
			l, err := a.client().LoadFilter(ctx, &client.FilterSource{Schema: client.Schema, Name: args[0], File: src.Name, Rules: src.Rules, Files: src.Files})
			if err != nil {
				return rulesOf(err)
			}
			for _, w := range l.Warnings {
				fmt.Fprintf(a.err, "warning: %s\n", w)
			}
			return show(a, l, printFilterLoaded)
		},
	})
}

func (a *app) filterUnloadCommand() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "unload NAME", Short: "take a filter out", Args: args(1, 1),
		Long: "Takes a filter out, with its counters. One that is linked is refused: unlink it first (oxpd filter unlink NAME all).",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := filterName(cmd, args[0]); err != nil {
				return err
			}
			ctx, cancel := ask(cmd, filterLimit)
			defer cancel()
			l, err := a.client().UnloadFilter(ctx, args[0])
			if err != nil {
				return err
			}
			return show(a, l, printFilters)
		},
	})
}

// filterLinkCommand is link or unlink.
func (a *app) filterLinkCommand(word, short, long string,
	do func(c *client.Client, ctx context.Context, name, port, direction string) (*client.FilterView, error),
) *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: word + " NAME PORT|all [in|out]", Short: short, Args: args(2, 3), Long: long,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := filterName(cmd, args[0]); err != nil {
				return err
			}
			port, direction := args[1], client.DirectionBoth
			if port != client.AllPorts {
				p, err := board.Parse(port)
				if err != nil {
					return err
				}
				port = p.Name
			}
			if len(args) == 3 {
				if direction = args[2]; direction != client.DirectionIn && direction != client.DirectionOut {
					return &usageError{fmt.Errorf("direction %q: want in or out, or nothing for both", direction), cmd.UseLine()}
				}
			}
			ctx, cancel := ask(cmd, filterLimit)
			defer cancel()
			v, err := do(a.client(), ctx, args[0], port, direction)
			if err != nil {
				return err
			}
			return show(a, v, printFilterLinks)
		},
	})
}

func (a *app) filterListCommand() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "list", Short: "the loaded filters", Args: args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := ask(cmd, readLimit)
			defer cancel()
			l, err := a.client().Filters(ctx)
			if err != nil {
				return err
			}
			return show(a, l, printFilters)
		},
	})
}

func (a *app) filterShowCommand() *cobra.Command {
	source := false
	cmd := a.jsonFlag(&cobra.Command{
		Use: "show NAME", Short: "the rules of a filter, and what each has matched", Args: args(1, 1),
		Long: "Shows hits, bytes and the last hit of each rule, the frames that no rule matched, and where the filter is linked. Hits of all rules\n" +
			"and unmatched frames are together the frames that it judged. With --source it prints the rule file that was loaded.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := filterName(cmd, args[0]); err != nil {
				return err
			}
			if source {
				ctx, cancel := ask(cmd, filterLimit)
				defer cancel()
				s, err := a.client().FilterSource(ctx, args[0])
				if err != nil {
					return err
				}
				return show(a, s, func(w io.Writer, s *client.FilterSource) { _, _ = w.Write(s.Rules) })
			}
			ctx, cancel := ask(cmd, readLimit)
			defer cancel()
			v, err := a.client().Filter(ctx, args[0])
			if err != nil {
				return err
			}
			return show(a, v, printFilter)
		},
	})
	cmd.Flags().BoolVar(&source, "source", false, "print the rule file that was loaded; with --json also the files that it names")
	return cmd
}

func (a *app) filterSamplesCommand() *cobra.Command {
	out := ""
	cmd := &cobra.Command{
		Use: "samples [NAME] --out FILE|-", Short: "write the frames that sample rules have copied, as pcapng", Args: args(0, 1),
		Long: "Writes what the sample rules of a filter, or of all filters, have copied and what no later frame has overwritten: the beginning of each\n" +
			"frame, with its time and its length. They stay where they are and may be read again. - is standard output: | tcpdump -nr -",
		RunE: func(cmd *cobra.Command, args []string) error {
			name := ""
			if len(args) == 1 {
				if name = args[0]; filterName(cmd, name) != nil {
					return filterName(cmd, name)
				}
			}
			if out == "" {
				return &usageError{errors.New("where to? --out is missing"), cmd.UseLine()}
			}
			ctx, cancel := ask(cmd, filterLimit)
			defer cancel()
			if out == "-" {
				return a.client().Samples(ctx, name, a.out)
			}
			f, done, err := wholeFile(out)
			if err != nil {
				return fmt.Errorf("write samples: %w", err)
			}
			err = a.client().Samples(ctx, name, f)
			if e := done(err == nil); err == nil && e != nil {
				err = fmt.Errorf("write samples: %w", e)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "file that the capture is written to; - is standard output")
	return cmd
}

// filterName refuses an argument that no filter can be called.
func filterName(cmd *cobra.Command, name string) error {
	if err := client.CheckFilterName(name); err != nil {
		return &usageError{err, cmd.UseLine()}
	}
	return nil
}

// readRules reads a rule file and what it names. A file system that does not answer
// holds up nobody who interrupts.
func readRules(ctx context.Context, path string) (pfil.Source, error) {
	type result struct {
		src pfil.Source
		err error
	}
	if path == "" {
		return pfil.Source{}, &usageError{errors.New("the name of the rule file is empty"), "oxpd filter --help"}
	}
	done := make(chan result, 1)
	go func() {
		src, err := pfil.ReadSource(path)
		done <- result{src, err}
	}()
	select {
	case r := <-done:
		return r.src, rulesOf(r.err)
	case <-ctx.Done():
		return pfil.Source{}, fmt.Errorf("read rules %s: interrupted", path)
	}
}

// compileRules reads and compiles a rule file here.
func compileRules(src pfil.Source) (*pfil.Rules, *pfil.Program, error) {
	rules, err := pfil.Parse(src)
	if err != nil {
		return nil, nil, rulesOf(err)
	}
	p, err := pfil.Compile(rules)
	if err != nil {
		return nil, nil, rulesOf(err)
	}
	return rules, p, nil
}

// ruleErrors are what is wrong with rules, in the order of the lines.
type ruleErrors []client.Place

func (e ruleErrors) Error() string {
	var lines []string
	for _, p := range e {
		lines = append(lines, fmt.Sprintf("%s:%d:%d: %s", p.File, p.Line, p.Column, p.Why))
	}
	return strings.Join(lines, "\n")
}

// print writes each with its line and a caret beneath.
func (e ruleErrors) print(w io.Writer) {
	for _, p := range e {
		fmt.Fprintf(w, "%s:%d:%d: %s\n", p.File, p.Line, p.Column, p.Why)
		if p.Text == "" {
			continue
		}
		at := min(max(p.Column-1, 0), len(p.Text))
		// Tabs stay, so that the caret stands where the reader sees the word.
		fmt.Fprintf(w, "  %s\n  %s^\n", strings.Map(visible, p.Text), strings.Map(blank, p.Text[:at]))
	}
}

func visible(r rune) rune {
	if r != '\t' && !unicode.IsPrint(r) {
		return '?'
	}
	return r
}

func blank(r rune) rune {
	if r != '\t' {
		return ' '
	}
	return r
}

// rulesOf is err as ruleErrors when it is about rules: those of the parser here, or of the
// daemon's.
func rulesOf(err error) error {
	var (
		one     *pfil.Error
		refused *client.Error
		out     ruleErrors
	)
	switch {
	case errors.As(err, &refused) && len(refused.At) > 0:
		return ruleErrors(refused.At)
	case !errors.As(err, &one):
		return err
	}
	for _, e := range parts(err) {
		if errors.As(e, &one) {
			out = append(out, client.Place{File: one.File, Line: one.Line, Column: one.Col, Why: fmt.Sprintf("found %s, expected %s", one.Found, one.Expected), Text: one.Text})
		}
	}
	return out
}

// linkWords are links for people: those of all ports in one word.
func linkWords(links []client.FilterLink) []string {
	count := map[string]int{}
	for _, l := range links {
		count[l.Direction]++
	}
	var out []string
	all := func(d string) bool { return count[d] == board.Ports }
	if all(client.DirectionIn) && all(client.DirectionOut) {
		return []string{"all"}
	}
	for _, d := range []string{client.DirectionIn, client.DirectionOut} {
		if all(d) {
			out = append(out, "all "+d)
		}
	}
	for _, l := range links {
		if !all(l.Direction) {
			out = append(out, l.IfName+" "+l.Direction)
		}
	}
	return out
}

func linked(links []client.FilterLink) string {
	return or(strings.Join(linkWords(links), ", "), "nowhere")
}

func printFilterLoaded(w io.Writer, l *client.FilterLoaded) {
	fmt.Fprintf(w, "%s: %s", l.Name, several(l.Rules, "rule"))
	if l.Replaced {
		fmt.Fprintf(w, ": %d as before, with their counters, %d new, %d gone", l.Kept, l.Added, l.Removed)
	}
	fmt.Fprintf(w, "; linked %s\n", linked(l.Links))
}

// several is a number of things.
func several(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

func printFilterLinks(w io.Writer, v *client.FilterView) {
	fmt.Fprintf(w, "%s: linked %s\n", v.Name, linked(v.Links))
}

func printFilters(w io.Writer, l *client.Filters) {
	if len(l.Filters) == 0 {
		fmt.Fprintln(w, "no filter is loaded")
		return
	}
	table(w, func(row func(...any)) {
		row("NAME", "RULES", "FROM", "JUDGED", "UNMATCHED", "LINKED")
		for i := range l.Filters {
			f := &l.Filters[i]
			row(f.Name, f.Rules, f.Origin, f.Judged.Frames, f.Unmatched.Frames, linked(f.Links))
		}
	})
	for _, o := range l.Order {
		fmt.Fprintf(w, "%s %s: %s\n", o.IfName, o.Direction, strings.Join(o.Filters, ", then "))
	}
}

func printFilter(w io.Writer, v *client.FilterView) {
	fmt.Fprintf(w, "%s, %s, by %s, %v ago\nlinked %s\njudged %d frames, %d bytes\n\n", v.Name, v.File, v.Origin, ago(v.Now, v.Loaded), linked(v.Links), v.Judged.Frames, v.Judged.Bytes)
	table(w, func(row func(...any)) {
		row("LINE", "HITS", "BYTES", "LAST HIT", "RULE")
		for i := range v.List {
			r := &v.List[i]
			last := "-"
			if r.LastHit != nil {
				last = ago(v.Now, *r.LastHit).String() + " ago"
			}
			row(r.Line, r.Hits, r.Bytes, last, r.Rule)
		}
		if v.Gone.Frames > 0 {
			row("-", v.Gone.Frames, v.Gone.Bytes, "-", "(rules that are gone)")
		}
		row("-", v.Unmatched.Frames, v.Unmatched.Bytes, "-", "(no rule: the frame passes)")
	})
	for _, x := range v.Warnings {
		fmt.Fprintf(w, "warning: %s\n", x)
	}
}

// ago is a time before now, to what people want to know of it.
func ago(now, t time.Time) time.Duration {
	d := max(now.Sub(t), 0)
	if d < time.Minute {
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Second)
}
