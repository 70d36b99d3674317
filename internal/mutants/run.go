package mutants

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"sync"
	"time"
)

// Verdict is what became of a mutant.
type Verdict string

// Verdicts. Killed alone is what it should be.
const (
	Killed   Verdict = "killed"
	Survived Verdict = "survived"  // the named test stays green
	NoBuild  Verdict = "no build"  // the mutant does not compile: it proves nothing
	Hung     Verdict = "hung"      // the test did not end: it proves nothing
	Crashed  Verdict = "crashed"   // the test binary ended without a verdict of the named test
	NotGreen Verdict = "not green" // the named test fails, or does not exist, without the mutant
	Moved    Verdict = "moved"     // the lines are not in the file exactly once
)

// whatToDo is the advice beside each verdict that fails a run.
var whatToDo = map[Verdict]string{
	Survived: "the test does not see this bug: write one that does, and name it in testdata/mutants",
	NoBuild:  "write the mutant so that it compiles",
	Hung:     "name a test that fails at once, or that bounds its waits in simulated time",
	Crashed:  "name a test in whose own goroutine the bug shows",
	NotGreen: "mend the test first, or name one that exists",
	Moved:    "see above",
}

// Result is a mutant with its verdict.
type Result struct {
	Mutant  Mutant
	Verdict Verdict
	Took    time.Duration
	Detail  string // what the test or the compiler said, for verdicts other than Killed
}

// Advice is what to do about the verdict, "" for Killed.
func (r *Result) Advice() string { return whatToDo[r.Verdict] }

// GoTest runs the go tool with arguments in the module's folder and returns all that it
// printed. err is that of its exit.
type GoTest func(ctx context.Context, args ...string) (output string, err error)

// Tool is GoTest by the program of that name.
func Tool(root, program string) GoTest {
	return func(ctx context.Context, args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Dir = root
		cmd.WaitDelay = 10 * time.Second
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
}

// Runner applies mutants to a module.
type Runner struct {
	Root     string        // folder of the module, absolute
	Go       GoTest        //
	Parallel int           // runs at a time, at least 1
	Limit    time.Duration // of one test binary
	Now      func() time.Time
}

// Run gives each mutant its verdict, in the order of the list. done is called as each
// becomes known, from one goroutine at a time; it may be nil. The tree is not touched.
//
// The error is the context's, or one of writing temporary files.
func (r *Runner) Run(ctx context.Context, list []Mutant, done func(Result)) ([]Result, error) {
	tmp, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return nil, fmt.Errorf("mutants: make a temporary folder: %w", err)
	}
	defer os.RemoveAll(tmp)
	green, err := r.baseline(ctx, list)
	if err != nil {
		return nil, err
	}
	var (
		mu      sync.Mutex
		results = make([]Result, len(list))
	)
	err = r.each(len(list), func(i int) error {
		start := r.Now()
		res, err := r.one(ctx, filepath.Join(tmp, fmt.Sprint(i)), &list[i], green)
		if err != nil {
			return err
		}
		res.Took = r.Now().Sub(start)
		mu.Lock()
		defer mu.Unlock()
		results[i] = res
		if done != nil {
			done(res)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return results, nil
}

// each runs fn for 0 to n-1, Parallel at a time, and returns the first error.
func (r *Runner) each(n int, fn func(int) error) error {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		next  int
		first error
	)
	take := func() int {
		mu.Lock()
		defer mu.Unlock()
		if first != nil || next == n {
			return -1
		}
		next++
		return next - 1
	}
	for range max(1, r.Parallel) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := take(); i >= 0; i = take() {
				if err := fn(i); err != nil {
					mu.Lock()
					first = errors.Join(first, err)
					mu.Unlock()
				}
			}
		}()
	}
	wg.Wait()
	return first
}

// named is a test of a package.
type named struct{ pkg, test string }

// baseline runs the named tests without a mutant, once each, those of one package
// together. What is not green is given with what the test said.
func (r *Runner) baseline(ctx context.Context, list []Mutant) (map[named]string, error) {
	byPkg := map[string][]string{}
	seen := map[named]bool{}
	for _, m := range list {
		if n := (named{m.Package, m.Test}); !seen[n] {
			seen[n] = true
			byPkg[m.Package] = append(byPkg[m.Package], m.Test)
		}
	}
	pkgs := make([]string, 0, len(byPkg))
	for p := range byPkg {
		pkgs = append(pkgs, p)
	}
	sort.Strings(pkgs)
	var mu sync.Mutex
	red := map[named]string{}
	err := r.each(len(pkgs), func(i int) error {
		out, _ := r.Go(ctx, r.args("", pkgs[i], byPkg[pkgs[i]])...)
		if err := ctx.Err(); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for _, test := range byPkg[pkgs[i]] {
			if !says(out, "PASS", test) {
				red[named{pkgs[i], test}] = out
			}
		}
		return nil
	})
	return red, err
}

// args are those of the go tool for tests of one package.
func (r *Runner) args(overlay, pkg string, tests []string) []string {
	args := []string{"test", "-vet=off", "-v", "-p=1", "-timeout=" + r.Limit.String(), "-run=^(" + strings.Join(tests, "|") + ")$"}
	if overlay != "" {
		args = append(args, "-overlay="+overlay)
	}
	return append(args, pkg)
}

// one applies a mutant and judges what its test says.
func (r *Runner) one(ctx context.Context, base string, m *Mutant, red map[named]string) (Result, error) {
	res := Result{Mutant: *m}
	if out, ok := red[named{m.Package, m.Test}]; ok {
		res.Verdict, res.Detail = NotGreen, tail(out)
		return res, nil
	}
	path := filepath.Join(r.Root, filepath.FromSlash(m.File))
	src, err := os.ReadFile(path)
	if err != nil {
		res.Verdict, res.Detail = Moved, err.Error()
		return res, nil
	}
	broken, err := m.Apply(src)
	if err != nil {
		res.Verdict, res.Detail = Moved, err.Error()
		return res, nil
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {path: base + ".go"}})
	if err == nil {
		err = os.WriteFile(base+".go", broken, 0o600)
	}
	if err == nil {
		err = os.WriteFile(base+".json", overlay, 0o600)
	}
	if err != nil {
		return res, fmt.Errorf("mutants: write %s: %w", m.Name, err)
	}
	out, err := r.Go(ctx, r.args(base+".json", m.Package, []string{m.Test})...)
	if ctx.Err() != nil {
		return res, ctx.Err()
	}
	if res.Verdict = judge(out, err, m.Test); res.Verdict != Killed {
		res.Detail = tail(out)
	}
	return res, nil
}

// judge reads a verdict out of what go test -v printed.
func judge(out string, err error, test string) Verdict {
	switch {
	case strings.Contains(out, "panic: test timed out after"):
		return Hung
	case err == nil && says(out, "PASS", test):
		return Survived
	case says(out, "FAIL", test):
		return Killed
	case strings.Contains(out, "[build failed]") || strings.Contains(out, "[setup failed]"):
		return NoBuild
	}
	return Crashed
}

// says tells whether a top-level test has a result in the output of go test -v.
func says(out, result, test string) bool {
	return regexp.MustCompile(`(?m)^--- ` + result + `: ` + regexp.QuoteMeta(test) + ` \(`).MatchString(out)
}

// tailLines is how much of an output is shown.
const tailLines = 30

func tail(out string) string {
	lines := strings.Split(strings.TrimRight(out, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}
