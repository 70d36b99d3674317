// Command cmd runs every mutant of testdata/mutants and fails unless each is killed by
// the test that it names. `make mutants` runs it in the module's folder.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"text/tabwriter"
	"time"

	"oxpd/internal/mutants"
)

func main() {
	var (
		only     = flag.String("only", "", "mutants whose name matches this regular expression")
		parallel = flag.Int("parallel", 2, "runs at a time")
		limit    = flag.Duration("limit", 2*time.Minute, "hang guard of one test binary")
		program  = flag.String("go", "go", "the go tool")
	)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *only, *program, *parallel, *limit); err != nil {
		fmt.Fprintf(os.Stderr, "mutants: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, only, program string, parallel int, limit time.Duration) error {
	match, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("read -only: %w", err)
	}
	root, err := filepath.Abs(".")
	if err != nil {
		return err
	}
	all, err := mutants.Load(filepath.Join(root, "testdata", "mutants"))
	if err != nil {
		return err
	}
	var list []mutants.Mutant
	for _, m := range all {
		if match.MatchString(m.Name) {
			list = append(list, m)
		}
	}
	if len(list) == 0 {
		return fmt.Errorf("no mutant of %d has a name that matches %q", len(all), only)
	}
	start := time.Now()
	r := mutants.Runner{Root: root, Go: mutants.Tool(root, program), Parallel: parallel, Limit: limit, Now: time.Now}
	n := 0
	results, err := r.Run(ctx, list, func(res mutants.Result) {
		n++
		fmt.Fprintf(os.Stderr, "%d/%d %s: %s\n", n, len(list), res.Verdict, res.Mutant.Name)
	})
	if err != nil {
		return err
	}
	return show(results, time.Since(start))
}

// show prints the table, then what is wrong with each mutant that was not killed.
func show(results []mutants.Result, took time.Duration) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "verdict\tmutant\tfile\tkiller\tseconds")
	for _, r := range results {
		m := &r.Mutant
		fmt.Fprintf(w, "%s\t%s\t%s\t%s %s\t%.1f\n", r.Verdict, m.Name, m.File, m.Package, m.Test, r.Took.Seconds())
	}
	if err := w.Flush(); err != nil {
		return err
	}
	bad := 0
	for _, r := range results {
		if r.Verdict == mutants.Killed {
			continue
		}
		bad++
		fmt.Printf("\n%s (%s): %s\n%s\n%s\n", r.Mutant.Name, r.Mutant.From, r.Verdict, r.Detail, r.Advice())
	}
	fmt.Printf("\n%d mutants, %d killed, %v\n", len(results), len(results)-bad, took.Round(time.Second))
	if bad > 0 {
		return fmt.Errorf("%d of %d mutants were not killed by their test", bad, len(results))
	}
	return nil
}
