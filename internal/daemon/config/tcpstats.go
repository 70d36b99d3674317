package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"oxpd/internal/daemon/client"
	"oxpd/internal/tcpstats"
	"oxpd/internal/tcpstats/flows"
	"oxpd/internal/tcpstats/serve"
)

// Limits of TCP statistics.
const (
	statsSocket = "tcpstats.sock" // beside the control socket, named as that of inspection is
	minFlowIdle = 10 * time.Second
	maxFlowIdle = 24 * time.Hour
)

// TCPStats are the settings of `oxpd tcpstats`: who may ask, and how much of the host that may cost.
type TCPStats struct {
	// Socket is where clients ask. Without it, it is tcpstats.sock beside the control socket, oxpd.sock; a control socket of another
	// name, as x.sock, has x-tcpstats.sock.
	Socket string `yaml:"socket,omitempty"`
	// Group is the group, by name or number, that may connect besides root; empty: nobody. One that there is not is warned of, and the
	// socket is root's alone.
	Group string `yaml:"group,omitempty"`
	// MaxOpenFDs is how many clients may be connected.
	MaxOpenFDs int `yaml:"max-open-fds"`
	// MaxConcurrentReaders is how many reads may be under way.
	MaxConcurrentReaders int `yaml:"max-concurrent-readers"`
	// MaxReadDurationMS is after how many milliseconds a read ends with what it has; 0: never.
	MaxReadDurationMS int64 `yaml:"max-read-duration-ms"`
	// MinReadIntervalMS is the time, in milliseconds, between the beginnings of two reads of one client; 0: none.
	MinReadIntervalMS int64 `yaml:"min-read-interval-ms"`
	// Flow is whether the TCP flows that cross the ports are followed (source=flow): each segment then costs its look-up.
	Flow bool `yaml:"flow"`
	// FlowMax is how many flows are kept, 1024 to 1048576, a kilobyte and a half each.
	FlowMax int `yaml:"flow-max"`
	// FlowIdle is after how long without a segment a flow is forgotten, 10s to 24h.
	FlowIdle Duration `yaml:"flow-idle"`
	// Profiles are filters by name, for clients that ask by it.
	Profiles map[string]string `yaml:"profiles,omitempty"`
}

// defaultTCPStats is what holds without a file.
func defaultTCPStats() TCPStats {
	l := serve.DefaultLimits()
	return TCPStats{
		MaxOpenFDs: l.MaxOpen, MaxConcurrentReaders: l.MaxReaders, MaxReadDurationMS: l.MaxDuration.Milliseconds(), MinReadIntervalMS: l.MinInterval.Milliseconds(),
		FlowMax: flows.DefaultFlows, FlowIdle: Duration(flows.DefaultIdle),
	}
}

// StatsSetting is one setting that can be changed while the daemon runs.
type StatsSetting struct{ Key, Value string }

// Keys of settings, as `oxpd tcpstats set` has them.
const (
	keyMaxOpen     = "max_open_fds"
	keyMaxReaders  = "max_concurrent_readers"
	keyMaxDuration = "max_read_duration_ms"
	keyMinInterval = "min_read_interval_ms"
	keyFlow        = "flow"
	keyFlowMax     = "flow_max"
	keyFlowIdle    = "flow_idle"
)

// Words of the setting flow.
const (
	wordOn  = "on"
	wordOff = "off"
)

// List are the settings that can be changed while the daemon runs.
func (t *TCPStats) List() []StatsSetting {
	flow := wordOff
	if t.Flow {
		flow = wordOn
	}
	return []StatsSetting{
		{keyMaxOpen, strconv.Itoa(t.MaxOpenFDs)}, {keyMaxReaders, strconv.Itoa(t.MaxConcurrentReaders)},
		{keyMaxDuration, strconv.FormatInt(t.MaxReadDurationMS, 10)}, {keyMinInterval, strconv.FormatInt(t.MinReadIntervalMS, 10)},
		{keyFlow, flow}, {keyFlowMax, strconv.Itoa(t.FlowMax)}, {keyFlowIdle, t.FlowIdle.String()},
	}
}

// With is the settings with one of them changed. What is wrong with its value is an error,
// and t is as it was.
func (t TCPStats) With(set StatsSetting) (TCPStats, error) {
	number := func(bits int) (int64, error) {
		n, err := strconv.ParseInt(set.Value, 10, bits)
		if err != nil {
			return 0, fmt.Errorf("%s is %q: want a whole number", set.Key, set.Value)
		}
		return n, nil
	}
	out := t
	var (
		n   int64
		err error
	)
	switch set.Key {
	case keyMaxOpen:
		n, err = number(strconv.IntSize)
		out.MaxOpenFDs = int(n)
	case keyMaxReaders:
		n, err = number(strconv.IntSize)
		out.MaxConcurrentReaders = int(n)
	case keyMaxDuration:
		out.MaxReadDurationMS, err = number(64)
	case keyMinInterval:
		out.MinReadIntervalMS, err = number(64)
	case keyFlow:
		if set.Value != wordOn && set.Value != wordOff {
			return t, fmt.Errorf("%s is %q: want on or off", set.Key, set.Value)
		}
		out.Flow = set.Value == wordOn
	case keyFlowMax:
		n, err = number(strconv.IntSize)
		out.FlowMax = int(n)
	case keyFlowIdle:
		d, derr := time.ParseDuration(set.Value)
		if derr != nil {
			return t, fmt.Errorf("%s is %q: want a duration, such as 300s", set.Key, set.Value)
		}
		out.FlowIdle = Duration(d)
	default:
		var keys []string
		for _, s := range t.List() {
			keys = append(keys, s.Key)
		}
		return t, fmt.Errorf("no setting %q: want %s", set.Key, strings.Join(keys, ", "))
	}
	if err == nil {
		_, err = out.check()
	}
	if err != nil {
		return t, err
	}
	return out, nil
}

// check finds the first setting that cannot be, and its key of the file.
func (t *TCPStats) check() (key string, err error) {
	if err := t.Limits().Check(); err != nil {
		name, _, _ := strings.Cut(err.Error(), " ")
		return strings.ReplaceAll(name, "_", "-"), err
	}
	if t.FlowMax < flows.LeastFlows || t.FlowMax > flows.MostFlows {
		return "flow-max", fmt.Errorf("flow_max is %d: want %d to %d", t.FlowMax, flows.LeastFlows, flows.MostFlows)
	}
	if d := time.Duration(t.FlowIdle); d < minFlowIdle || d > maxFlowIdle {
		return "flow-idle", fmt.Errorf("flow_idle is %v: want %v to %v", d, minFlowIdle, maxFlowIdle)
	}
	return "", nil
}

// Limits are those of the service. A number that is too large for a duration is the
// largest.
func (t *TCPStats) Limits() serve.Limits {
	ms := func(n int64) time.Duration {
		return time.Duration(max(min(n, int64(serve.MostDuration/time.Millisecond)+1), -int64(serve.MostDuration/time.Millisecond))) * time.Millisecond
	}
	return serve.Limits{MaxOpen: t.MaxOpenFDs, MaxReaders: t.MaxConcurrentReaders, MaxDuration: ms(t.MaxReadDurationMS), MinInterval: ms(t.MinReadIntervalMS)}
}

// StatsSocket is the path of the socket that clients of TCP statistics connect to.
func (c Config) StatsSocket() string {
	if c.TCPStats.Socket != "" {
		return c.TCPStats.Socket
	}
	return StatsSocketOf(c.Socket)
}

// StatsSocketOf is where the socket is when nothing names it, by the control socket.
func StatsSocketOf(control string) string {
	name := strings.TrimSuffix(filepath.Base(control), socketSuffix)
	if name == defaultName {
		return filepath.Join(filepath.Dir(control), statsSocket)
	}
	return filepath.Join(filepath.Dir(control), name+"-"+statsSocket)
}

func (c Config) checkTCPStats(bad func(path []string, format string, args ...any)) {
	t := &c.TCPStats
	if key, err := t.check(); err != nil {
		_, why, _ := strings.Cut(err.Error(), " ")
		bad([]string{"tcpstats", key}, "%s", why)
	}
	if t.Socket != "" {
		at := []string{"tcpstats", "socket"}
		control := filepath.Clean(c.Socket)
		switch err := client.CheckSocket(t.Socket); {
		case err != nil:
			bad(at, "%v", err)
		case filepath.Clean(t.Socket) == control:
			bad(at, "%s is the control socket already", t.Socket)
		case filepath.Clean(t.Socket) == control+client.LockSuffix:
			bad(at, "%s is the lock of the control socket already", t.Socket)
		}
	}
	for i, l := range c.Divert.Listeners {
		if filepath.Clean(l) == filepath.Clean(c.StatsSocket()) {
			bad([]string{"divert", "listeners", strconv.Itoa(i)}, "%s is the socket of TCP statistics already", l)
		}
	}
	if len(c.Divert.Listeners) == 0 && t.Socket != "" && filepath.Clean(t.Socket) == filepath.Clean(c.Listeners()[0]) {
		bad([]string{"tcpstats", "socket"}, "%s is the listener of divert already", t.Socket)
	}
	names := keys(t.Profiles)
	if len(names) > serve.MaxProfiles {
		bad([]string{"tcpstats", "profiles"}, "%d are too many: want %d at most", len(names), serve.MaxProfiles)
		return
	}
	for _, name := range names {
		at := []string{"tcpstats", "profiles", name}
		if err := CheckProfileName(name); err != nil {
			bad(at, "%v", err)
		} else if _, err := tcpstats.Parse(t.Profiles[name]); err != nil {
			bad(at, "%v", err)
		}
	}
}

// CheckProfileName tells what is wrong with the name of a profile.
func CheckProfileName(name string) error {
	var r *serve.Refusal
	if errors.As(serve.CheckProfileName(name), &r) {
		return errors.New(r.Reason) // whose code is for programs
	}
	return nil
}
