package mutants

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// errFailed is the exit of a go tool that was not content.
var errFailed = errors.New("exit status 1")

func TestJudge(t *testing.T) {
	for name, tc := range map[string]struct {
		out  string
		err  error
		want Verdict
	}{
		"the named test fails":          {"=== RUN   TestA\n--- FAIL: TestA (0.01s)\nFAIL\n", errFailed, Killed},
		"it panics":                     {"--- FAIL: TestA (0.00s)\npanic: index out of range [recovered]\n", errFailed, Killed},
		"one of its parts fails":        {"--- FAIL: TestA (0.01s)\n    --- FAIL: TestA/x (0.00s)\n", errFailed, Killed},
		"it passes":                     {"--- PASS: TestA (0.01s)\nPASS\n", nil, Survived},
		"another test fails":            {"--- FAIL: TestAB (0.01s)\nFAIL\n", errFailed, Crashed},
		"a part of another one fails":   {"    --- FAIL: TestA (0.01s)\n", errFailed, Crashed},
		"it is skipped":                 {"--- SKIP: TestA (0.01s)\nPASS\n", nil, Crashed},
		"nothing runs":                  {"testing: warning: no tests to run\nPASS\n", nil, Crashed},
		"another goroutine panics":      {"=== RUN   TestA\npanic: boom\ngoroutine 7\n", errFailed, Crashed},
		"it does not build":             {"# x\nx.go:1: undefined: y\nFAIL\tx [build failed]\n", errFailed, NoBuild},
		"a package is not found":        {"FAIL\tx [setup failed]\n", errFailed, NoBuild},
		"it hangs":                      {"panic: test timed out after 2m0s\n--- FAIL: TestA (120.00s)\n", errFailed, Hung},
		"a test's output says it fails": {"    x_test.go:1: --- FAIL: TestA (0s)\n--- PASS: TestA (0.01s)\n", nil, Survived},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, judge(tc.out, tc.err, "TestA")) })
	}
}

func TestEachVerdictHasItsAdvice(t *testing.T) {
	for _, v := range []Verdict{Survived, NoBuild, Hung, Crashed, NotGreen, Moved} {
		assert.NotEmpty(t, (&Result{Verdict: v}).Advice(), v)
	}
	assert.Empty(t, (&Result{Verdict: Killed}).Advice())
}

// fakeGo answers for the go tool: red names tests that fail without a mutant, and what
// the file says decides about the others.
func fakeGo(red string, running *atomic.Int32) GoTest {
	return func(_ context.Context, args ...string) (string, error) {
		if n := running.Add(1); n > 2 {
			return "", errors.New("more at a time than allowed")
		}
		defer running.Add(-1)
		time.Sleep(time.Millisecond)
		var tests []string
		broken := false
		for _, a := range args {
			if list, ok := strings.CutPrefix(a, "-run=^("); ok {
				tests = strings.Split(strings.TrimSuffix(list, ")$"), "|")
			}
			if file, ok := strings.CutPrefix(a, "-overlay="); ok {
				var o struct{ Replace map[string]string }
				b, err := os.ReadFile(file)
				if err == nil {
					err = json.Unmarshal(b, &o)
				}
				if err != nil {
					return "", err
				}
				for _, with := range o.Replace {
					b, _ := os.ReadFile(with)
					broken = strings.Contains(string(b), "broken")
				}
			}
		}
		var out strings.Builder
		var err error
		for _, test := range tests {
			if test == red || broken {
				out.WriteString("--- FAIL: " + test + " (0.00s)\n")
				err = errFailed
			} else {
				out.WriteString("--- PASS: " + test + " (0.00s)\n")
			}
		}
		return out.String(), err
	}
}

func TestRun(t *testing.T) {
	root := t.TempDir()
	write(t, root, "a/a.go", "line\ntwice\ntwice\n")
	m := func(name, test, old, replace string) Mutant {
		return Mutant{Name: name, File: "a/a.go", Package: "./a", Test: test, Why: "w", Old: []string{old}, New: []string{replace}, From: "m.txt:1"}
	}
	list := []Mutant{
		m("kills", "TestA", "line", "broken"),
		m("lives", "TestA", "line", "as well"),
		m("gone", "TestB", "other", "broken"),
		m("twice", "TestB", "twice", "broken"),
		m("red", "TestRed", "line", "broken"),
	}
	nowhere := m("no file", "TestA", "line", "broken")
	nowhere.File = "a/b.go"
	list = append(list, nowhere)

	var running atomic.Int32
	r := Runner{Root: root, Go: fakeGo("TestRed", &running), Parallel: 2, Limit: time.Minute, Now: time.Now}
	told := 0
	results, err := r.Run(context.Background(), list, func(Result) { told++ })
	require.NoError(t, err)
	got := map[string]Verdict{}
	for i, res := range results {
		assert.Equal(t, list[i].Name, res.Mutant.Name, "in order")
		got[res.Mutant.Name] = res.Verdict
		assert.Equal(t, res.Verdict == Killed, res.Detail == "", res.Mutant.Name)
	}
	assert.Equal(t, map[string]Verdict{"kills": Killed, "lives": Survived, "gone": Moved, "twice": Moved, "red": NotGreen, "no file": Moved}, got)
	assert.Equal(t, len(list), told)
	b, err := os.ReadFile(filepath.Join(root, "a", "a.go"))
	require.NoError(t, err)
	assert.Equal(t, "line\ntwice\ntwice\n", string(b), "the tree is not touched")
}

func TestRunEndsWithItsContext(t *testing.T) {
	root := t.TempDir()
	write(t, root, "a.go", "line\n")
	ctx, cancel := context.WithCancel(context.Background())
	calls := 0
	r := Runner{Root: root, Parallel: 1, Now: time.Now, Go: func(context.Context, ...string) (string, error) {
		if calls++; calls == 2 {
			cancel()
		}
		return "--- PASS: TestA (0.00s)\n", nil
	}}
	one := Mutant{Name: "one", File: "a.go", Package: "./.", Test: "TestA", Old: []string{"line"}, New: []string{"x"}}
	_, err := r.Run(ctx, []Mutant{one, one, one}, nil)
	require.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, 2, calls)
}

// The whole with the real go tool, on a module of three lines.
func TestRunWithTheGoTool(t *testing.T) {
	root := t.TempDir()
	write(t, root, "go.mod", "module m\n\ngo 1.23.0\n")
	write(t, root, "a/a.go", "package a\n\nfunc Sum(a, b int) int {\n\treturn a + b\n}\n\nfunc Unused() int { return 1 }\n")
	write(t, root, "a/a_test.go", "package a\n\nimport \"testing\"\n\nfunc TestSum(t *testing.T) {\n\tif Sum(1, 2) != 3 {\n\t\tt.Fatal(\"no\")\n\t}\n}\n\nfunc TestOther(t *testing.T) {}\n")
	m := func(name, test, old, replace string) Mutant {
		return Mutant{Name: name, File: "a/a.go", Package: "./a", Test: test, Why: "w", Old: []string{old}, New: []string{replace}}
	}
	r := Runner{Root: root, Go: Tool(root, "go"), Parallel: 2, Limit: time.Minute, Now: time.Now}
	results, err := r.Run(context.Background(), []Mutant{
		m("minus", "TestSum", "return a + b", "return a - b"),
		m("unused", "TestSum", "func Unused() int { return 1 }", "func Unused() int { return 2 }"),
		m("no build", "TestSum", "return a + b", "return a +"),
		m("no such test", "TestNone", "return a + b", "return a - b"),
	}, nil)
	require.NoError(t, err)
	want := []Verdict{Killed, Survived, NoBuild, NotGreen}
	for i, res := range results {
		assert.Equal(t, want[i], res.Verdict, "%s: %s", res.Mutant.Name, res.Detail)
	}
}
