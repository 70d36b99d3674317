package loadtest

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// sideBySide is how many tests run at a time where the command line does not say. Each
// has its own card, daemon and namespaces; those that measure the process or the speed
// of something run before them, alone.
const sideBySide = "3"

// programEnv names the program that TestMain has built.
const programEnv = "OXPD_LOADTEST_EXE"

func program() string { return os.Getenv(programEnv) }

// TestMain builds the program once for all tests.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "oxpd-loadtest-")
	if err == nil {
		err = build(filepath.Join(dir, "oxpd"))
	}
	if err == nil {
		err = flag.Set("test.parallel", sideBySide)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// build makes the program, with the race detector where this one has it.
func build(exe string) error {
	args := []string{"build", "-o", exe, "oxpd/cmd/oxpd"}
	if raceEnabled {
		args = append([]string{"build", "-race"}, args[1:]...)
	}
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("build oxpd: %w\n%s", err, out)
	}
	return os.Setenv(programEnv, exe)
}
