package archtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// module is the module path and the prefix of its packages.
const module = "oxpd"

// Packages of other modules.
const (
	sysUnix   = "golang.org/x/sys/unix"
	rtnetlink = "github.com/jsimonetti/rtnetlink/v2"
	netlink   = "github.com/mdlayher/netlink"
	cobra     = "github.com/spf13/cobra"
	yaml      = "go.yaml.in/yaml/v3"
	pci       = "github.com/u-root/u-root/pkg/pci"
	sdListen  = "github.com/coreos/go-systemd/v22/activation"
	bart      = "github.com/gaissmai/bart"
	xbpf      = "golang.org/x/net/bpf"
	sdNotify  = "github.com/coreos/go-systemd/v22/daemon"
)

// layouts are constants and codecs: what driver and simulator share.
var layouts = []string{"octep/csr", "ring/wire", "rpc/msg", "switchcfg/reg", "internal/board", "internal/frame", "internal/vfu"}

// below is what each driver package may stand on.
var below = append([]string{"internal/mmio", "internal/dma", "internal/clock"}, layouts...)

// rules says what a package may import besides the standard library. Packages
// of this module are named without its prefix.
var rules = map[string][]string{
	"octep/csr": {}, "ring/wire": {}, "rpc/msg": {}, "switchcfg/reg": {}, "internal/board": {}, "internal/frame": {}, "internal/vfu": {},

	"internal/clock":   {},
	"internal/cputime": {sysUnix},
	"internal/mmio":    {sysUnix},
	"internal/dma":     {sysUnix},
	"internal/sys":     {sysUnix},

	"internal/fdstore":        {sysUnix, sdListen, sdNotify},
	"internal/fdstore/fdtest": {sysUnix},

	"octep":                      below,
	"octep/discover":             append([]string{sysUnix, pci}, below...),
	"octep/sysfs":                append([]string{"octep", "octep/discover", sysUnix}, below...),
	"octep/vfio":                 append([]string{"octep/discover", "internal/sys", sysUnix}, below...),
	"octep/vfiouser":             append([]string{"internal/sys", sysUnix}, below...),
	"ring":                       below,
	"rpc":                        below,
	"internal/nwa":               below,
	"lif":                        append([]string{"internal/clock"}, layouts...),
	"switchcfg":                  append([]string{"internal/clock"}, layouts...),
	"switchcfg/mvsw":             layouts,
	"switchcfg/console":          append([]string{"internal/clock", "internal/sys", sysUnix}, layouts...),
	"internal/pfil":              append([]string{"internal/pfil/cbpf", bart}, layouts...),
	"internal/pfil/cbpf":         {xbpf},
	"internal/pfil/pfiltest":     append([]string{"internal/capture", "internal/netlab", "internal/sys", "testdata/captures", sysUnix, xbpf}, layouts...),
	"internal/tcpstats":          layouts,
	"internal/tcpstats/inetdiag": append([]string{"internal/tcpstats", "internal/sys", sysUnix}, layouts...),
	"internal/tcpstats/flows":    append([]string{"internal/tcpstats"}, layouts...),
	"internal/tcpstats/tcpload":  {"internal/netlab", sysUnix},
	"internal/tcpstats/serve":    {"internal/tcpstats", "internal/sys"},
	"internal/tcpstats/client":   {"internal/tcpstats"},
	"divert/proto":               {},
	"divert/client":              {"divert/proto"},
	"internal/inspect":           append([]string{"divert/client", "divert/proto", "internal/pfil"}, layouts...),
	"internal/divert":            append([]string{"internal/sys", "internal/clock", "divert/proto", sysUnix}, layouts...),
	"internal/port":              append([]string{"internal/sys", "internal/clock", sysUnix, rtnetlink, netlink}, layouts...),

	"hwsim":                   append([]string{sysUnix}, layouts...), // x/sys for a timer that is finer than the runtime's
	"hwsim/a64":               {},
	"hwsim/console":           append([]string{"hwsim", "hwsim/a64", "internal/sys", sysUnix}, layouts...),
	"hwsim/vfiouser":          append([]string{"hwsim", sysUnix}, layouts...),
	"hwsim/traps":             {"hwsim", "internal/sys", sysUnix},
	"internal/simdev/simtest": append([]string{"hwsim"}, layouts...),
	"internal/simdev":         append([]string{"hwsim", "octep"}, below...),

	"internal/daemon/client": layouts,
	"internal/daemon/config": append([]string{"internal/daemon/client", "internal/dma", "internal/pfil", "internal/divert", "internal/tcpstats", "internal/tcpstats/flows", "internal/tcpstats/serve", "lif", "octep/discover", "octep/vfiouser", yaml}, layouts...),
	"internal/daemon/simcard": append([]string{"hwsim", "internal/simdev", "octep", "internal/port", "internal/daemon/client",
		"internal/daemon/config", "internal/capture", "internal/sys", "hwsim/console", sysUnix}, layouts...),
	"internal/daemon": append([]string{"internal/fdstore", "octep", "ring", "rpc", "lif", "internal/nwa", "internal/pfil", "internal/divert", "internal/tcpstats", "internal/tcpstats/inetdiag", "internal/tcpstats/flows", "internal/tcpstats/serve",
		"internal/port", "internal/sys", "internal/daemon/client",
		"internal/capture", "internal/daemon/config", "switchcfg", "switchcfg/console", "switchcfg/mvsw", sysUnix}, below...),

	"internal/probe":        append([]string{"octep"}, below...),
	"internal/probe/staged": append([]string{"hwsim", "internal/simdev", "octep", "ring"}, below...),

	"internal/calibrate":   append([]string{"hwsim", "internal/simdev", "internal/nwa", "octep", "ring", "rpc"}, below...),
	"internal/trace":       append([]string{"hwsim"}, layouts...),
	"internal/trace/scene": append([]string{"hwsim", "internal/simdev", "internal/trace", "octep", "ring"}, below...),

	"internal/capture": {},
	"internal/netlab":  append([]string{sysUnix, rtnetlink}, layouts...),
	"internal/replay": append([]string{"hwsim", "internal/capture", "internal/netlab", "internal/daemon", "internal/daemon/client",
		"internal/daemon/config", "internal/daemon/simcard", "octep"}, layouts...),
	"internal/demo":     append([]string{"internal/netlab", "internal/replay", "internal/daemon/client", "testdata/captures", sysUnix}, layouts...),
	"internal/rootless": {sysUnix},
	"internal/loadtest": {},
	"internal/worlds":   {},

	"internal/divert/daqtest": {"internal/netlab", sysUnix},

	"internal/debian":  {sysUnix},
	"internal/witness": {"hwsim", "hwsim/traps", "internal/debian", "internal/sys", sysUnix},

	"internal/guest": {"internal/debian", sysUnix}, "internal/guest/init": {"internal/guest/service", sysUnix}, "internal/guest/inside": {}, "internal/guest/systemd": {},
	"internal/guest/service": {"internal/fdstore/fdtest", "internal/sys", sysUnix},

	"internal/archtest": {},
	"internal/mutants":  {}, "internal/mutants/cmd": {"internal/mutants"},
	"cmd/oxpd": append([]string{"internal/fdstore", "internal/daemon", "internal/daemon/client", "internal/daemon/config", "internal/daemon/simcard", "internal/demo",
		"internal/calibrate", "internal/capture", "internal/pfil", "internal/divert", "internal/tcpstats", "internal/tcpstats/client", "internal/inspect", "divert/client", "divert/proto", "internal/replay", "internal/probe", "internal/probe/staged", "internal/rootless", "internal/trace/scene", "hwsim", "hwsim/vfiouser", "hwsim/console", "octep", "octep/discover", "octep/sysfs",
		"octep/vfio", "octep/vfiouser", "internal/sys", "switchcfg", cobra, sysUnix}, layouts...),
	"docs/gen": append([]string{"hwsim", "internal/mutants", "internal/trace/scene", "ring", "rpc", "internal/divert", "internal/tcpstats", "internal/port", "internal/calibrate"}, layouts...),
	"docs":     {},
}

// Exceptions by place.
var (
	mayUseUnsafe = []string{"internal/mmio", "internal/dma", "internal/sys"}
	mayExit      = []string{"cmd/oxpd", "docs/gen", "internal/mutants/cmd"}
	// The model is tested against the pages, not against the driver.
	modelTests = append([]string{"hwsim"}, layouts...)
)

// testOnly may be imported by tests alone.
var testOnly = []string{"github.com/stretchr/testify", "github.com/google/gopacket", "testing"}

// file is a parsed Go file of the module.
type file struct {
	pkg  string // without the module's prefix
	name string // for messages
	test bool
	tree *ast.File
}

func (f file) imports() []string {
	var paths []string
	for _, i := range f.tree.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			panic(err) // it has been parsed
		}
		paths = append(paths, p)
	}
	return paths
}

func standard(p string) bool {
	first, _, _ := strings.Cut(p, "/")
	return !strings.Contains(first, ".") && first != module
}

func isTestOnly(p string) bool {
	return slices.ContainsFunc(testOnly, func(t string) bool { return p == t || strings.HasPrefix(p, t+"/") })
}

// judge returns what is wrong with a file.
func judge(f file) []string {
	var found []string
	bad := func(format string, args ...any) {
		found = append(found, f.name+": "+fmt.Sprintf(format, args...))
	}
	may, known := rules[f.pkg]
	if !known {
		bad("package %s has no row in the table of internal/archtest", f.pkg)
		return found
	}
	for _, p := range f.imports() {
		own, inModule := strings.CutPrefix(p, module+"/")
		switch {
		case p == "C":
			bad("imports C")
		case p == "unsafe":
			if !slices.Contains(mayUseUnsafe, f.pkg) {
				bad("imports unsafe")
			}
		case f.test:
			if f.pkg == "hwsim" && inModule && !slices.Contains(modelTests, own) {
				bad("a test of hwsim imports %s", own)
			}
		case isTestOnly(p):
			bad("imports %s outside a test", p)
		case standard(p):
		case inModule && !slices.Contains(may, own), !inModule && !slices.Contains(may, p):
			bad("imports %s", strings.TrimPrefix(p, module+"/"))
		}
	}
	if f.test {
		return found
	}
	for _, d := range f.tree.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Name.Name == "init" && fn.Recv == nil {
			bad("has an init function")
		}
	}
	ast.Inspect(f.tree, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		x, ok := s.X.(*ast.Ident)
		if !ok {
			return true
		}
		switch name := x.Name + "." + s.Sel.Name; {
		case (name == "os.Exit" || strings.HasPrefix(name, "log.Fatal")) && !slices.Contains(mayExit, f.pkg):
			bad("calls %s", name)
		case name == "slog.Default" || name == "slog.SetDefault" || name == "http.DefaultServeMux":
			bad("uses the global %s", name)
		}
		return true
	})
	return found
}

// root is the module's folder.
func root(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
}

// source reads every Go file of the module, whatever platform it is for.
func source(t *testing.T) []file {
	t.Helper()
	top := root(t)
	fset := token.NewFileSet()
	var files []file
	require.NoError(t, filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, other := os.Stat(filepath.Join(p, "go.mod"))
			if p != top && (other == nil || strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		tree, err := parser.ParseFile(fset, p, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(top, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		files = append(files, file{pkg: path.Dir(rel), name: rel, test: strings.HasSuffix(rel, "_test.go"), tree: tree})
		return nil
	}))
	return files
}

func TestEveryFileKeepsTheRules(t *testing.T) {
	files := source(t)
	require.Greater(t, len(files), 50, "the walk must see the module")
	for _, f := range files {
		for _, what := range judge(f) {
			t.Error(what)
		}
	}
}

func TestEveryRuleHasAPackage(t *testing.T) {
	there := map[string]bool{}
	for _, f := range source(t) {
		there[f.pkg] = true
	}
	for pkg := range rules {
		assert.True(t, there[pkg], "the table has a row for %s, which does not exist", pkg)
	}
}

// listed is a package as `go list -json` describes it.
type listed struct {
	ImportPath string
	Standard   bool
	Deps       []string
}

// TestDependencyGraph looks at what is reached in the end, by way of other
// packages too, on each platform.
func TestDependencyGraph(t *testing.T) {
	for _, goos := range []string{"linux", "freebsd"} {
		t.Run(goos, func(t *testing.T) {
			cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Standard,Deps", module+"/...")
			cmd.Env = append(os.Environ(), "GOOS="+goos, "CGO_ENABLED=0")
			cmd.Stderr = os.Stderr
			out, err := cmd.Output()
			require.NoError(t, err)
			packages := 0
			for dec := json.NewDecoder(bytes.NewReader(out)); ; {
				var p listed
				err := dec.Decode(&p)
				if err == io.EOF {
					break
				}
				require.NoError(t, err)
				own, inModule := strings.CutPrefix(p.ImportPath, module+"/")
				if !inModule {
					continue
				}
				packages++
				for _, what := range reached(own, p.Deps) {
					t.Error(what)
				}
			}
			assert.Greater(t, packages, 20)
		})
	}
}

// drivers are the packages that drive a card and must not know that it may be
// a simulated one.
var drivers = []string{"octep", "octep/discover", "octep/sysfs", "octep/vfio", "octep/vfiouser", "ring", "rpc", "lif", "internal/nwa", "internal/port", "internal/daemon", "internal/probe", "internal/mmio", "internal/dma", "internal/sys"}

// reached returns what is wrong with all that a package depends on.
func reached(pkg string, deps []string) []string {
	var found []string
	for _, d := range deps {
		own, inModule := strings.CutPrefix(d, module+"/")
		switch {
		case isTestOnly(d):
			found = append(found, fmt.Sprintf("%s reaches %s", pkg, d))
		case own == "hwsim" && slices.Contains(drivers, pkg):
			found = append(found, fmt.Sprintf("%s reaches hwsim", pkg))
		case pkg == "hwsim" && inModule && !slices.Contains(layouts, own),
			pkg == "hwsim" && !inModule && !standard(d) && !strings.HasPrefix(d, "golang.org/x/sys/"),
			slices.Contains(layouts, pkg) && (inModule || !standard(d)) && !strings.HasPrefix(d, "vendor/"):
			found = append(found, fmt.Sprintf("%s reaches %s", pkg, d))
		}
	}
	return found
}

// TestRequirements keeps the list of other modules short and the module usable
// with the Go that it names.
func TestRequirements(t *testing.T) {
	var mod struct {
		Go        string
		Toolchain string
		Require   []struct {
			Path     string
			Indirect bool
		}
	}
	cmd := exec.Command("go", "mod", "edit", "-json")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(out, &mod))
	assert.Equal(t, "1.23.0", mod.Go)
	assert.Empty(t, mod.Toolchain)
	allowed := []string{
		"golang.org/x/sys", "github.com/stretchr/testify", cobra, rtnetlink, netlink, yaml, "github.com/google/gopacket", "github.com/coreos/go-systemd/v22", "github.com/u-root/u-root",
		"golang.org/x/net", // bpf: the disassembly of classic BPF programs, and the machine that ours is measured beside
		bart,               // longest prefix matches in some 15 ns at 100,000 prefixes; the standard library has no such table
	}
	for _, r := range mod.Require {
		if !r.Indirect {
			assert.Contains(t, allowed, r.Path, "a new dependency comes with a sentence on why the standard library does not do, and a row here")
		}
	}
}

// TestJudge shows each rule broken once.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name, file, source string
		want               string // "" when nothing is wrong
	}{
		{"a layout imports the standard library", "ring/wire/a.go", `package wire; import "encoding/binary"`, ""},
		{"a layout imports a sibling", "ring/wire/a.go", `package wire; import "oxpd/octep/csr"`, "ring/wire/a.go: imports octep/csr"},
		{"a driver package imports its layout", "ring/a.go", `package ring; import "oxpd/ring/wire"`, ""},
		{"one level imports itself", "ring/a.go", `package ring; import "oxpd/octep"`, "ring/a.go: imports octep"},
		{"a driver package imports the model", "octep/a.go", `package octep; import "oxpd/hwsim"`, "octep/a.go: imports hwsim"},
		{"its test does", "octep/a_test.go", `package octep; import "oxpd/hwsim"`, ""},
		{"the model imports a layout", "hwsim/a.go", `package hwsim; import "oxpd/rpc/msg"`, ""},
		{"the model imports the driver", "hwsim/a.go", `package hwsim; import "oxpd/ring"`, "hwsim/a.go: imports ring"},
		{"the model's test imports the driver", "hwsim/a_test.go", `package hwsim; import "oxpd/ring"`, "hwsim/a_test.go: a test of hwsim imports ring"},
		{"unsafe where addresses are made", "internal/dma/a.go", `package dma; import "unsafe"`, ""},
		{"unsafe elsewhere", "ring/a.go", `package ring; import "unsafe"`, "ring/a.go: imports unsafe"},
		{"unsafe in a test elsewhere", "ring/a_test.go", `package ring; import "unsafe"`, "ring/a_test.go: imports unsafe"},
		{"cgo", "ring/a.go", `package ring; import "C"`, "ring/a.go: imports C"},
		{"a capture library outside a test", "hwsim/a.go", `package hwsim; import "github.com/google/gopacket"`, "hwsim/a.go: imports github.com/google/gopacket outside a test"},
		{"a part of it", "cmd/oxpd/a.go", `package main; import "github.com/google/gopacket/pcapgo"`, "cmd/oxpd/a.go: imports github.com/google/gopacket/pcapgo outside a test"},
		{"testing outside a test", "ring/a.go", `package ring; import "testing"`, "ring/a.go: imports testing outside a test"},
		{"an unknown module", "ring/a.go", `package ring; import "example.com/x"`, "ring/a.go: imports example.com/x"},
		{"cobra at the command line", "cmd/oxpd/a.go", `package main; import "github.com/spf13/cobra"`, ""},
		{"cobra in the daemon", "internal/daemon/a.go", `package daemon; import "github.com/spf13/cobra"`, "internal/daemon/a.go: imports github.com/spf13/cobra"},
		{"init", "ring/a.go", `package ring; func init() {}`, "ring/a.go: has an init function"},
		{"a method called init", "ring/a.go", `package ring; type t int; func (t) init() {}`, ""},
		{"exit at the command line", "cmd/oxpd/a.go", `package main; import "os"; func f() { os.Exit(1) }`, ""},
		{"exit elsewhere", "ring/a.go", `package ring; import "os"; func f() { os.Exit(1) }`, "ring/a.go: calls os.Exit"},
		{"the other exit", "ring/a.go", `package ring; import "log"; func f() { log.Fatalf("") }`, "ring/a.go: calls log.Fatalf"},
		{"the global logger", "ring/a.go", `package ring; import "log/slog"; var l = slog.Default()`, "ring/a.go: uses the global slog.Default"},
		{"a package without a row", "internal/fresh/a.go", `package fresh`, "internal/fresh/a.go: package internal/fresh has no row in the table of internal/archtest"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tree, err := parser.ParseFile(token.NewFileSet(), c.file, c.source, parser.SkipObjectResolution)
			require.NoError(t, err)
			got := judge(file{pkg: path.Dir(c.file), name: c.file, test: strings.HasSuffix(c.file, "_test.go"), tree: tree})
			if c.want == "" {
				assert.Empty(t, got)
			} else {
				assert.Equal(t, []string{c.want}, got)
			}
		})
	}
}

// TestReached shows each rule about what is reached broken once.
func TestReached(t *testing.T) {
	for _, c := range []struct {
		name, pkg string
		deps      []string
		want      []string
	}{
		{"a driver on its layouts", "ring", []string{"fmt", "oxpd/ring/wire", "golang.org/x/sys/unix"}, nil},
		{"a driver that reaches the model", "internal/daemon", []string{"oxpd/hwsim"}, []string{"internal/daemon reaches hwsim"}},
		{"the adapter may", "internal/simdev", []string{"oxpd/hwsim"}, nil},
		{"the model that reaches the driver", "hwsim", []string{"oxpd/ring/wire", "oxpd/internal/dma"}, []string{"hwsim reaches oxpd/internal/dma"}},
		{"a layout that reaches a module", "rpc/msg", []string{"golang.org/x/sys/unix"}, []string{"rpc/msg reaches golang.org/x/sys/unix"}},
		{"tests' tools in the program", "cmd/oxpd", []string{"github.com/stretchr/testify/assert"}, []string{"cmd/oxpd reaches github.com/stretchr/testify/assert"}},
	} {
		t.Run(c.name, func(t *testing.T) { assert.Equal(t, c.want, reached(c.pkg, c.deps)) })
	}
}
