package guest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"oxpd/internal/debian"
)

// Options are a guest.
type Options struct {
	Socket   string            // of the PCI device
	Systemd  bool              // is the first process; the commands are run by a service of its own
	IOMMU    bool              // an emulated Intel IOMMU between the device and memory
	Files    map[string][]byte // in the guest's file system, by path without a leading slash
	Modules  map[string]string // parameters of kernel modules, by name
	Kernel   *Kernel           // nil: that of the parts
	Append   []string          // arguments of the kernel beside those that it always has
	Commands []string          // run one after the other: a path and arguments without spaces in them
	Limit    time.Duration     // from the start of QEMU to its end; 0: two minutes
}

// Command is a program that has run in the guest.
type Command struct {
	Line   string
	Output string
	Exit   int // -1: it could not be started
}

// Memory of the guest, and its part in huge pages of 2 MiB.
const (
	memoryMiB = 512
	hugePages = 32
)

// Marks of the init on the second serial port, each at the start of a line.
const (
	markRun  = "=== run "
	markExit = "=== exit "
	markEnd  = "=== end"
)

// Boot starts a guest, runs the commands in it and returns what became of each. The
// init is a program built without cgo of internal/guest/init. Everything of the
// guest is below dir, which is the caller's.
//
// An error is a guest that did not come to its end; what it said is in it.
func Boot(ctx context.Context, p *Parts, dir string, init []byte, o Options) ([]Command, error) {
	initrd := filepath.Join(dir, "initrd")
	if err := o.pack(p, initrd, init); err != nil {
		return nil, err
	}
	if o.Limit == 0 {
		o.Limit = 2 * time.Minute
	}
	console, results := filepath.Join(dir, "console.log"), filepath.Join(dir, "results.log")
	ctx, cancel := context.WithTimeout(ctx, o.Limit)
	defer cancel()
	// timeout ends QEMU also when this process is killed.
	args := append([]string{"timeout", "-k", "5", strconv.Itoa(int(o.Limit.Seconds()) + 1)}, p.qemu(o.arguments(p, initrd, console, results)...)...)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.WaitDelay = 10 * time.Second
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // which timeout hands on
	said, err := cmd.CombinedOutput()
	text, _ := os.ReadFile(results) // what is not there has no end in it
	commands, ended := parse(string(text))
	if err == nil && !ended {
		err = errors.New("the guest ended before its commands did")
	}
	if err != nil {
		boot, _ := os.ReadFile(console)
		return commands, fmt.Errorf("guest: %w\nQEMU: %s\nconsole: %s\nresults: %s", err, debian.Tail(string(said)), debian.Tail(string(boot)), debian.Tail(string(text)))
	}
	return commands, nil
}

// arguments are QEMU's.
func (o *Options) arguments(p *Parts, initrd, console, results string) []string {
	machine, kernel := "q35,accel=tcg,memory-backend=ram", fmt.Sprintf("console=ttyS0 quiet panic=-1 no_timer_check hugepages=%d", hugePages)
	var iommu []string
	if o.IOMMU {
		machine += ",kernel-irqchip=split"
		kernel += " intel_iommu=on"
		iommu = []string{"-device", "intel-iommu,intremap=on,caching-mode=on"} // before the device behind it
	}
	if o.Systemd {
		kernel += " " + systemdArguments()
	}
	kernel = strings.Join(append([]string{kernel}, o.Append...), " ")
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none", "-no-reboot",
		"-machine", machine, "-cpu", "max", "-smp", "2", "-m", strconv.Itoa(memoryMiB),
		"-object", fmt.Sprintf("memory-backend-memfd,id=ram,size=%dM,share=on", memoryMiB), // shared: the device reaches it
	}
	args = append(args, iommu...)
	args = append(args,
		"-device", fmt.Sprintf(`{"driver":%q,"socket":{"path":%q,"type":"unix"}}`, device, o.Socket),
		"-chardev", "file,id=con,path="+console, "-serial", "chardev:con",
		"-chardev", "file,id=res,path="+results, "-serial", "chardev:res",
		"-kernel", o.kernel(p).image(), "-initrd", initrd, "-append", kernel)
	if o.Systemd {
		args = append(args, "-serial", "null") // a line where nobody answers
	}
	return args
}

// kernel is the one that is booted.
func (o *Options) kernel(p *Parts) *Kernel {
	if o.Kernel != nil {
		return o.Kernel
	}
	return p.Kernel()
}

// pack writes the initrd.
func (o *Options) pack(p *Parts, path string, init []byte) error {
	files := map[string][]byte{"init": init, "commands": []byte(strings.Join(o.Commands, "\n") + "\n")}
	var order []string
	kernel := o.kernel(p)
	for _, m := range kernel.modules {
		at := "modules/" + m
		b, err := os.ReadFile(filepath.Join(kernel.dir, at))
		if err != nil {
			return fmt.Errorf("guest: %w", err)
		}
		files[at] = b
		order = append(order, strings.TrimSpace("/"+at+" "+o.Modules[moduleName(m)]))
	}
	files["modules/order"] = []byte(strings.Join(order, "\n") + "\n")
	for _, d := range []string{"proc", "sys", "dev", "tmp"} {
		files[d+"/.keep"] = nil
	}
	for name, b := range o.Files {
		files[name] = b
	}
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("guest: %w", err)
	}
	w := bufio.NewWriter(f)
	if o.Systemd {
		maps.Copy(files, systemdFiles())
		err = p.appendSystemd(w) // the kernel unpacks one after the other
	}
	return errors.Join(err, writeInitrd(w, files), w.Flush(), f.Close())
}

// parse reads what the init wrote; ended tells that it came to its end.
func parse(text string) (commands []Command, ended bool) {
	for _, line := range strings.SplitAfter(text, "\n") {
		bare := strings.TrimRight(line, "\r\n")
		n := len(commands)
		switch {
		case strings.HasPrefix(bare, markRun):
			commands = append(commands, Command{Line: strings.TrimPrefix(bare, markRun), Exit: -1})
		case bare == markEnd:
			return commands, true
		case n == 0:
		case strings.HasPrefix(bare, markExit):
			if v, err := strconv.Atoi(strings.TrimPrefix(bare, markExit)); err == nil {
				commands[n-1].Exit = v
			}
		default:
			commands[n-1].Output += bare + "\n"
		}
	}
	return commands, false
}

// Test is a line of go test -v about one test.
type Test struct {
	Name   string
	Result string // PASS, FAIL, SKIP
}

// Tests finds the tests in the output of a test binary that ran with -test.v.
func (c *Command) Tests() (all []Test) {
	for _, m := range regexp.MustCompile(`(?m)^ *--- (PASS|FAIL|SKIP): (\S+)`).FindAllStringSubmatch(c.Output, -1) {
		all = append(all, Test{m[2], m[1]})
	}
	return all
}
