package config

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/divert"
)

// Limits of listeners.
const (
	defaultListener = "inspect.sock" // beside the control socket
	defaultName     = "oxpd"         // of the control socket, without socketSuffix: another one has its name in front
	socketSuffix    = ".sock"
	maxListeners    = 64
)

// Divert are the settings of inspection: the queue in which frames wait for the verdict of an engine, and what becomes of those that
// get none.
type Divert struct {
	// QueueLen is how many frames a queue holds that no engine has decided about yet, 1 to 1048576. Each listener and each tap-pair has a
	// queue of its own.
	QueueLen int `yaml:"queue-len"`
	// QueueBytes is how many bytes they may have together, each frame with 64 bytes more: 16kb to 4gb, in bytes or with kb, mb or gb.
	QueueBytes Size `yaml:"queue-bytes"`
	// BufferSize is the kernel's buffer of an engine's socket: 64kb to 64mb; 0 leaves it as the kernel makes it. What is in it counts in
	// the queue too. A value that cannot be is warned of, and the default is taken.
	BufferSize BufferSize `yaml:"buffer-size"`
	// OnFull is what becomes of a frame that the queue has no room for: drop, or pass, which lets it go on uninspected.
	OnFull string `yaml:"on-full"`
	// OnAbsent is what becomes of frames while there is no engine: drop or pass.
	OnAbsent string `yaml:"on-absent"`
	// OnStall is what becomes of frames while the engine gives no verdicts: drop or pass.
	OnStall string `yaml:"on-stall"`
	// StallMS is how long, in milliseconds, an engine may take for a verdict, 10 to 60000.
	StallMS int `yaml:"stall-ms"`
	// Order is any, or keep, by which a frame passes uninspected only when none of its flow is queued, and is dropped otherwise.
	Order string `yaml:"order"`
	// Listeners are the sockets that engines connect to, one engine at each; the frames are shared by the addresses of their hosts.
	// Without any it is inspect.sock beside the control socket, oxpd.sock; a control socket of another name, as x.sock, has x-inspect.sock.
	Listeners []string `yaml:"listeners,flow,omitempty"`
	// Ports says which frames of a port are inspected, and by what, by interface name or label.
	Ports map[string]DivertPort `yaml:"ports,omitempty"`
}

// DivertPort is which frames of a port are inspected, and by what.
type DivertPort struct {
	// Frames is filter, the frames that a rule says divert of, which is the default, or all, every frame in both directions.
	Frames string `yaml:"frames,omitempty"`
	// Engine is socket, the engines at the listeners, which is the default, or tap-pair, a program that copies between the interfaces
	// oxpNw and oxpNh, which the port then has.
	Engine string `yaml:"engine,omitempty"`
}

// Size is a number of bytes, written as 4mb, 64kb or 5000.
type Size int64

// UnmarshalYAML implements yaml.Unmarshaler.
func (s *Size) UnmarshalYAML(n *yaml.Node) error {
	v, err := divert.ParseSize(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil {
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: %q is not a size: want 4mb, 64kb or a number of bytes", n.Line, n.Value)}}
	}
	*s = Size(v)
	return nil
}

// MarshalYAML implements yaml.Marshaler.
func (s Size) MarshalYAML() (any, error) { return scalar(divert.FormatSize(int64(s))), nil }

// BufferSize is a size as it was written, whatever that was. Sizes that cannot be are
// not refused: the datapath starts without them.
type BufferSize string

// UnmarshalYAML implements yaml.Unmarshaler.
func (s *BufferSize) UnmarshalYAML(n *yaml.Node) error {
	switch n.Kind {
	case yaml.ScalarNode:
		*s = BufferSize(n.Value)
	case yaml.SequenceNode:
		*s = "a list"
	default:
		*s = "keys with values"
	}
	return nil
}

// MarshalYAML implements yaml.Marshaler.
func (s BufferSize) MarshalYAML() (any, error) { return scalar(string(s)), nil }

// scalar is text that YAML need not quote where it is a number.
func scalar(text string) any {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n
	}
	return text
}

// defaultDivert is what holds without a file.
func defaultDivert() Divert {
	d := divert.Defaults()
	return Divert{
		QueueLen: d.QueueLen, QueueBytes: Size(d.QueueBytes), BufferSize: BufferSize(divert.FormatSize(d.BufferSize)),
		OnFull: d.OnFull.String(), OnAbsent: d.OnAbsent.String(), OnStall: d.OnStall.String(),
		StallMS: int(d.Stall.Milliseconds()), Order: d.Order.String(),
	}
}

// keyBufferSize is the one setting whose value is never refused.
const keyBufferSize = "buffer-size"

// list is the settings as written, under the names that divert has for them.
func (d *Divert) list() []divert.Setting {
	return []divert.Setting{
		{Key: "queue-len", Value: strconv.Itoa(d.QueueLen)},
		{Key: "queue-bytes", Value: divert.FormatSize(int64(d.QueueBytes))},
		{Key: keyBufferSize, Value: string(d.BufferSize)},
		{Key: "on-full", Value: d.OnFull},
		{Key: "on-absent", Value: d.OnAbsent},
		{Key: "on-stall", Value: d.OnStall},
		{Key: "stall-ms", Value: strconv.Itoa(d.StallMS)},
		{Key: "order", Value: d.Order},
	}
}

// Settings are those of the file. What Check refuses, and a buffer-size that cannot be,
// keep their defaults.
func (d *Divert) Settings() divert.Settings {
	s := divert.Defaults()
	for _, v := range d.list() {
		s, _ = s.With(v) // as it was with an error
	}
	return s
}

// Changed are the settings whose values another file has changed, with the new ones.
func (d *Divert) Changed(file *Divert) []divert.Setting {
	var out []divert.Setting
	was, now := d.Settings().List(), file.Settings().List()
	for i := range now {
		if now[i] != was[i] {
			out = append(out, now[i])
		}
	}
	return out
}

// Mode is which frames of a port are inspected, and by what.
func (d *Divert) Mode(p board.Port) (all bool, kind divert.Kind) {
	for k, v := range d.Ports {
		if q, err := board.Parse(k); err == nil && q.Index == p.Index {
			kind, _ = v.kind() // refused by Check
			return v.Frames == client.FramesAll, kind
		}
	}
	return false, divert.Socket
}

// mode is Mode as the file has it.
func (d *Divert) mode(p board.Port) string {
	all, kind := d.Mode(p)
	frames := client.FramesFilter
	if all {
		frames = client.FramesAll
	}
	return frames + " by " + kind.String()
}

func (p DivertPort) kind() (divert.Kind, error) {
	if p.Engine == "" {
		return divert.Socket, nil
	}
	return divert.ParseKind(p.Engine)
}

// Listeners are the paths of the sockets that engines connect to.
func (c Config) Listeners() []string {
	if len(c.Divert.Listeners) > 0 {
		return c.Divert.Listeners
	}
	name := strings.TrimSuffix(filepath.Base(c.Socket), socketSuffix)
	if name == defaultName {
		return []string{filepath.Join(filepath.Dir(c.Socket), defaultListener)}
	}
	return []string{filepath.Join(filepath.Dir(c.Socket), name+"-"+defaultListener)}
}

// Risk is the warning of a buffer-size that cannot be, "" when it can.
func (d *Divert) Risk() string {
	if _, err := divert.Defaults().With(divert.Setting{Key: keyBufferSize, Value: string(d.BufferSize)}); err != nil {
		return fmt.Sprintf("divert.%v; the kernel's default is taken", err)
	}
	return ""
}

func (c Config) checkDivert(bad func(path []string, format string, args ...any)) {
	for _, v := range c.Divert.list() {
		if v.Key == keyBufferSize {
			continue
		}
		if _, err := divert.Defaults().With(v); err != nil {
			bad([]string{"divert", v.Key}, "%s", strings.TrimLeft(strings.TrimPrefix(err.Error(), v.Key), ": "))
		}
	}
	c.checkListeners(bad)
	seen := map[string]string{}
	for _, k := range keys(c.Divert.Ports) {
		path := []string{"divert", "ports", k}
		p, err := board.Parse(k)
		if err != nil {
			bad(path, "%v", err)
			continue
		}
		if first, ok := seen[p.Name]; ok {
			bad(path, "is %s, which is set as %q already", p, first)
		}
		seen[p.Name] = k
		v := c.Divert.Ports[k]
		if v.Frames != "" && v.Frames != client.FramesAll && v.Frames != client.FramesFilter {
			bad(append(path, "frames"), "%q: want %s or %s", v.Frames, client.FramesFilter, client.FramesAll)
		}
		if _, err := v.kind(); err != nil {
			bad(append(path, "engine"), "%v", err)
		}
	}
}

func (c Config) checkListeners(bad func(path []string, format string, args ...any)) {
	at := []string{"divert", "listeners"}
	if n := len(c.Divert.Listeners); n > maxListeners {
		bad(at, "%d are too many: want %d at most", n, maxListeners)
		return
	}
	taken := map[string]string{filepath.Clean(c.Socket): "the control socket", filepath.Clean(c.Socket) + client.LockSuffix: "the lock of the control socket"}
	for i, l := range c.Divert.Listeners {
		path := append(at[:2:2], strconv.Itoa(i))
		if err := client.CheckSocket(l); err != nil {
			bad(path, "%v", err)
			continue
		}
		if what, ok := taken[filepath.Clean(l)]; ok {
			bad(path, "%s is %s already", l, what)
		}
		taken[filepath.Clean(l)] = "divert.listeners." + strconv.Itoa(i)
	}
}
