// Package config is the configuration of the daemon: one YAML file, strict.
//
// `oxpd run`, `oxpd config check` and `oxpd config show` use the same code, so
// what check accepts is what run accepts. An unknown key, a value of the wrong
// type or out of range is refused with its line. Command line flags are laid
// over the file by the caller.
//
// Reload compares what is in force with a file that was read again.
//
// Left out: includes; environment variables.
package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"runtime"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"

	"oxpd/internal/daemon/client"
	"oxpd/internal/dma"
	"oxpd/lif"
	"oxpd/octep/discover"
	"oxpd/octep/vfiouser"
	"oxpd/ring/wire"
	"oxpd/switchcfg/reg"
)

// Limits of settings.
const (
	maxBytes     = 64 << 10 // of a file: a larger one is not a configuration of oxpd
	maxWorkers   = wire.OQs
	minPoll      = 10 * time.Millisecond
	maxPoll      = time.Minute
	maxWatch     = 24 * time.Hour
	minWatermark = wire.FetchBatch
	maxWatermark = 0x1000
	minDMABits   = 32
	maxDMABits   = 64
)

// switchSizes are the frame sizes of the switch's modes.
var switchSizes = [...]int{reg.Jumbo1522.FrameBytes(), reg.Jumbo2048.FrameBytes(), reg.Jumbo10240.FrameBytes()}

// Config is the whole file. The zero value is not valid; Default is.
type Config struct {
	// Socket is the path of the control socket.
	Socket string `yaml:"socket"`
	// Access is the way to a PCI device: sysfs, or vfio.
	Access string `yaml:"access"`
	// Device is the card: a PCI address, or vfio-user:PATH; empty: the only one of this machine.
	Device string `yaml:"device"`
	// Workers is how many goroutines service the output queues; 0 is as many as cores, at most one a ring.
	Workers int `yaml:"workers"`
	// Watermark is the credit level, in buffers, under which the card stops fetching (hardware/datapath.md 3.7).
	Watermark int `yaml:"watermark"`
	// DMABits is the widest bus address, in bits, that the card is told; memory above is refused (hardware/rpc-lif.md 12).
	DMABits int `yaml:"dma-bits"`
	// LinkPoll is the time between two links read, one port at a time.
	LinkPoll Duration `yaml:"link-poll"`
	// Reconcile is the time between two LIFs read back, one port at a time.
	Reconcile Duration `yaml:"reconcile"`
	// Switch is the switch behind ten of the twelve ports.
	Switch Switch `yaml:"switch"`
	// Ports holds settings of single ports, by interface name or label.
	Ports map[string]Port `yaml:"ports,omitempty"`
	// Filters are rules that judge frames before anything is spent on them, in force before the first frame comes. Where several are
	// linked to one port and direction the first of the list is asked first.
	Filters []Filter `yaml:"filters,omitempty"`
	// Divert is the inspection of frames by an engine behind the ports.
	Divert Divert `yaml:"divert"`
	// TCPStats is what `oxpd tcpstats` may ask, and how much of the host that may cost.
	TCPStats TCPStats `yaml:"tcpstats"`
	// Sim is the simulated card. It is used only with --sim.
	Sim Sim `yaml:"sim"`
}

// Switch is the switch that ten of the twelve ports pass, and the way to it.
type Switch struct {
	// Console is the terminal that the coprocessor's serial console is at, such as /dev/ttyS2: the only way to the switch; empty: there
	// is none. It is never looked for. With --sim it is not used, for the simulated card has a console of its own.
	Console string `yaml:"console"`
	// Jumbo is all, to have the switch at Size at all ten ports after every start of the coprocessor, and kept so; empty: as it is.
	Jumbo string `yaml:"jumbo"`
	// Size is the longest frame, in bytes with FCS, that the switch passes at its front ports: 1522, 2048 (as the board was found) or
	// 10240 (jumbo mode); 0: not known. An MTU above it less 18 is refused, unless it is forced (hardware/switch.md 5). What was read
	// of the switch itself goes before it. With Jumbo it is what the switch is set to, and 0 is 10240.
	Size int `yaml:"size"`
	// Watch is the time between two looks at the switch when there is a Console, or that of a simulated card, or Jumbo.
	Watch Duration `yaml:"watch"`
}

// JumboAll is the one value of Switch.Jumbo.
const JumboAll = "all"

// Watched tells whether the switch is read, or set, before the ports come up, and again
// and again. That of a simulated card is read without, by its own console.
func (s Switch) Watched() bool { return s.Console != "" || s.Jumbo != "" }

// JumboSize is the frame size that all ports of the switch shall have, 0 when it is left
// as it is.
func (s Switch) JumboSize() int {
	if s.Jumbo == "" {
		return 0
	}
	return cmp.Or(s.Size, reg.Jumbo10240.FrameBytes())
}

// Ways to a PCI device.
const (
	// AccessSysfs reaches the card through the files that the kernel shows of a PCI function.
	AccessSysfs = "sysfs"
	// AccessVFIO reaches it through vfio-pci, behind an IOMMU.
	AccessVFIO = "vfio"
)

// Timelines of the simulated card's boot.
const (
	TimelineCompressed = "compressed"
	TimelineReal       = "real"
)

// Sim are the settings of the simulated card.
type Sim struct {
	// Timeline is compressed (a boot in well under a second) or real.
	Timeline string `yaml:"timeline"`
	// Seed of what the model draws at random.
	Seed uint64 `yaml:"seed"`
	// Wires says what hangs at a front port: tap:NAME[@PATH], pcap:IN[,OUT][@OPTIONS], unix:PATH or loop:PORT; docs/simulator/wires.md
	// has each of them. A port without an entry has a wire that nothing hangs at; its link is up all the same.
	Wires map[string]string `yaml:"wires,omitempty"`
	// Console is the coprocessor's serial console: LINK[@OPTIONS], a symbolic link that is made to its terminal; docs/simulator/console.md
	// has the options. Without an entry it has no other name than /dev/pts/N, which is logged.
	Console string `yaml:"console,omitempty"`
}

// Duration is a time.Duration written as "1s", "250ms".
type Duration time.Duration

// UnmarshalYAML implements yaml.Unmarshaler.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil {
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: %q is not a duration: want 1s, 250ms", n.Line, n.Value)}}
	}
	*d = Duration(v)
	return nil
}

// MarshalYAML implements yaml.Marshaler.
func (d Duration) MarshalYAML() (any, error) { return d.String(), nil }

func (d Duration) String() string { return time.Duration(d).String() }

// Default is what runs without a file.
func Default() Config {
	return Config{
		Socket:    client.DefaultSocket,
		Access:    AccessSysfs,
		Watermark: wire.Watermark,
		DMABits:   dma.DefaultBits,
		LinkPoll:  Duration(time.Second),
		Reconcile: Duration(time.Second),
		Switch:    Switch{Watch: Duration(5 * time.Minute)},
		Divert:    defaultDivert(),
		TCPStats:  defaultTCPStats(),
		Sim:       Sim{Timeline: TimelineCompressed, Seed: 1},
	}
}

// Error is a refusal of a file: where and why.
type Error struct {
	File string
	Line int // 0 when it belongs to no line
	Why  string

	untaken bool // the decoder has not taken the line's value
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.Why)
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Why)
}

// Load reads a file over the defaults, and the filters' files, which must compile. A file
// that is there and wrong gives one or more *Error, joined; one that cannot be read gives
// the system's error.
func Load(path string) (Config, error) {
	// Not blocking: a pipe that nobody writes to would be waited for, silently and
	// for ever, already by open.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	if !fi.Mode().IsRegular() {
		return Config{}, &Error{File: path, Why: "not a regular file"}
	}
	b, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	c, at, err := parse(path, b)
	if err != nil {
		return c, err
	}
	var errs []error
	c.readFilters(path, refusals(path, at, &errs))
	return c, errors.Join(errs...)
}

// Parse is Load for bytes at hand, without the filters' files; name is what errors call
// them.
func Parse(name string, b []byte) (Config, error) {
	c, _, err := parse(name, b)
	return c, err
}

// parse also returns the nodes of the file, for their lines.
func parse(name string, b []byte) (c Config, at *yaml.Node, err error) {
	c, at = Default(), new(yaml.Node)
	if len(b) > maxBytes {
		return c, at, &Error{File: name, Why: fmt.Sprintf("longer than %d bytes", maxBytes)}
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	err = dec.Decode(&c)
	switch {
	case errors.Is(err, io.EOF): // an empty file: the defaults
	case err != nil:
		if yaml.Unmarshal(b, at) != nil {
			return c, at, errors.Join(decodeErrors(name, err)...) // no YAML: nothing else can be said of it
		}
		return c, at, tell(append(decodeErrors(name, err), fractions(name, at)...), c.checks(name, at))
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return c, at, &Error{File: name, Why: "more than one document"}
	}
	_ = yaml.Unmarshal(b, at) // decoded above without error
	return c, at, tell(fractions(name, at), c.checks(name, at))
}

// fractions refuses numbers that the decoder would make whole. No key takes any; the one
// whose values are never refused is left out.
func fractions(name string, n *yaml.Node) (errs []error) {
	if n.ShortTag() == "!!float" {
		errs = append(errs, &Error{File: name, Line: n.Line, Why: fmt.Sprintf("%q has the wrong type: want a whole number", n.Value), untaken: true})
	}
	for i, c := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 1 && n.Content[i-1].Value == keyBufferSize {
			continue
		}
		errs = append(errs, fractions(name, c)...)
	}
	return errs
}

// Check refuses values that Default does not have and that no file gave.
func (c Config) Check() error { return errors.Join(c.checks("configuration", nil)...) }

// refusals makes a function that adds an *Error about a key to errs.
func refusals(name string, at *yaml.Node, errs *[]error) func(path []string, format string, args ...any) {
	return func(path []string, format string, args ...any) {
		*errs = append(*errs, &Error{File: name, Line: line(at, path), Why: strings.Join(path, ".") + ": " + fmt.Sprintf(format, args...)})
	}
}

func (c Config) checks(name string, at *yaml.Node) (errs []error) {
	bad := refusals(name, at, &errs)
	if err := client.CheckSocket(c.Socket); err != nil {
		bad([]string{"socket"}, "%v", err)
	}
	if c.Access != AccessSysfs && c.Access != AccessVFIO {
		bad([]string{"access"}, "%q: want %s or %s", c.Access, AccessSysfs, AccessVFIO)
	}
	if err := checkDevice(c.Device); err != nil {
		bad([]string{"device"}, "%v", err)
	}
	if c.Workers < 0 || c.Workers > maxWorkers {
		bad([]string{"workers"}, "%d is out of range: want 0 to %d", c.Workers, maxWorkers)
	}
	if c.Watermark < minWatermark || c.Watermark > maxWatermark {
		bad([]string{"watermark"}, "%d is out of range: want %d to %d", c.Watermark, minWatermark, maxWatermark)
	} else if c.Watermark%wire.FetchBatch != 0 {
		bad([]string{"watermark"}, "%d is not a multiple of %d", c.Watermark, wire.FetchBatch)
	}
	if c.DMABits < minDMABits || c.DMABits > maxDMABits {
		bad([]string{dma.WidthKey}, "%d is out of range: want %d to %d", c.DMABits, minDMABits, maxDMABits)
	}
	for _, d := range []struct {
		key string
		v   Duration
	}{{"link-poll", c.LinkPoll}, {"reconcile", c.Reconcile}} {
		if v := time.Duration(d.v); v < minPoll || v > maxPoll {
			bad([]string{d.key}, "%v is out of range: want %v to %v", v, minPoll, maxPoll)
		}
	}
	c.checkSwitch(bad)
	c.checkPorts(bad)
	c.checkFilters(bad)
	c.checkDivert(bad)
	c.checkTCPStats(bad)
	if t := c.Sim.Timeline; t != TimelineCompressed && t != TimelineReal {
		bad([]string{"sim", "timeline"}, "%q: want %s or %s", t, TimelineCompressed, TimelineReal)
	}
	if _, err := ParseConsole(c.Sim.Console); err != nil {
		bad([]string{"sim", "console"}, "%v", err)
	}
	c.checkWires(bad)
	return errs
}

// checkDevice refuses what no card can be called.
func checkDevice(name string) error {
	if name == "" {
		return nil
	}
	if path, ok := strings.CutPrefix(name, vfiouser.Scheme); ok {
		return client.CheckSocket(path)
	}
	if _, err := discover.ParseAddress(name); err != nil {
		return fmt.Errorf("%q: want a PCI address such as 0000:01:00.0, or %sPATH", name, vfiouser.Scheme)
	}
	return nil
}

// SwitchLimit is what the file says of the switch: what it passes, or what it is to be
// set to. The zero value when it says nothing that can be.
func (c Config) SwitchLimit() lif.SwitchLimit {
	size := cmp.Or(c.Switch.JumboSize(), c.Switch.Size)
	if !slices.Contains(switchSizes[:], size) {
		return lif.SwitchLimit{}
	}
	return lif.SwitchLimit{Panel: size}
}

func (c Config) checkSwitch(bad func(path []string, format string, args ...any)) {
	s := c.Switch
	if s.Console != "" && (!path.IsAbs(s.Console) || path.Clean(s.Console) != s.Console) {
		bad([]string{"switch", "console"}, "%q: want the absolute path of a terminal, such as /dev/ttyS2", s.Console)
	}
	if s.Jumbo != "" && s.Jumbo != JumboAll {
		bad([]string{"switch", "jumbo"}, "%q: want %s, or nothing", s.Jumbo, JumboAll)
	}
	if s.Size != 0 && !slices.Contains(switchSizes[:], s.Size) {
		bad([]string{"switch", "size"}, "the switch has no mode of %d bytes: want %d, %d or %d, or 0 when it is not known",
			s.Size, switchSizes[0], switchSizes[1], switchSizes[2])
	}
	if v := time.Duration(s.Watch); v < minPoll || v > maxWatch {
		bad([]string{"switch", "watch"}, "%v is out of range: want %v to %v", v, minPoll, maxWatch)
	}
}

// WorkerCount is Workers with 0 resolved.
func (c Config) WorkerCount() int {
	if c.Workers > 0 {
		return c.Workers
	}
	return min(runtime.GOMAXPROCS(0), maxWorkers)
}

// YAML prints the whole configuration, defaults included.
func (c Config) YAML() ([]byte, error) {
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(c); err != nil {
		return nil, fmt.Errorf("print configuration: %w", err)
	}
	return b.Bytes(), nil
}

func keys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}

// line finds the line of a key, or of an entry of a list by its number; 0 when the file
// does not have it.
func line(n *yaml.Node, path []string) int {
	if n == nil || len(path) == 0 {
		return 0
	}
	if n.Kind == yaml.DocumentNode && len(n.Content) > 0 {
		n = n.Content[0]
	}
	if i, err := strconv.Atoi(path[0]); err == nil && n.Kind == yaml.SequenceNode && i < len(n.Content) {
		return cmp.Or(line(n.Content[i], path[1:]), n.Content[i].Line)
	}
	if n.Kind != yaml.MappingNode {
		return 0
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == path[0] {
			if l := line(n.Content[i+1], path[1:]); l != 0 {
				return l
			}
			return n.Content[i].Line
		}
	}
	return 0
}

var (
	withLine   = regexp.MustCompile(`^(?:yaml: )?line (\d+): (.*)$`)
	unknownKey = regexp.MustCompile(`^field (\S+) not found in type \S+$`)
	wrongType  = regexp.MustCompile("^cannot unmarshal !!(\\S+)(?: `(.*)`)? into (\\S+)$")
)

// tell joins what the decoder refused with what is wrong with the rest, for it goes on
// behind each refusal. Of a line whose value was not taken nothing more is said.
func tell(refused, wrong []error) error {
	untaken := map[int]bool{}
	for _, err := range refused {
		var e *Error
		if errors.As(err, &e) && e.untaken {
			untaken[e.Line] = true
		}
	}
	for _, err := range wrong {
		var e *Error
		if !errors.As(err, &e) || !untaken[e.Line] {
			refused = append(refused, err)
		}
	}
	return errors.Join(refused...)
}

// decodeErrors says what the YAML decoder found in words without Go types.
func decodeErrors(name string, err error) (errs []error) {
	lines := []string{err.Error()}
	var te *yaml.TypeError
	if errors.As(err, &te) {
		lines = te.Errors
	}
	for _, s := range lines {
		e := &Error{File: name, Why: strings.TrimPrefix(s, "yaml: ")}
		if m := withLine.FindStringSubmatch(s); m != nil {
			_, _ = fmt.Sscan(m[1], &e.Line) // digits, by the expression
			e.Why = m[2]
		}
		if m := unknownKey.FindStringSubmatch(e.Why); m != nil {
			e.Why = fmt.Sprintf("unknown key %q", m[1])
		} else {
			e.Why, e.untaken = whatType(e.Why), true
		}
		errs = append(errs, e)
	}
	return errs
}

// whatType is the decoder's word on a value of the wrong type, or what it said.
func whatType(why string) string {
	m := wrongType.FindStringSubmatch(why)
	if m == nil {
		return why
	}
	got := m[2]
	switch {
	case got != "":
		got = strconv.Quote(got)
	case m[1] == "seq":
		got = "a list"
	default:
		got = "keys with values" // map: it has no text of its own
	}
	return fmt.Sprintf("%s has the wrong type: want %s", got, typeWord(m[3]))
}

// typeWord is a Go type as somebody who writes the file would call it.
func typeWord(goType string) string {
	switch {
	case goType == "int", goType == "uint64":
		return "a number"
	case goType == "string":
		return "text"
	case goType == "bool":
		return "true or false"
	case strings.HasPrefix(goType, "[]"):
		return "a list"
	default:
		return "keys with values"
	}
}
