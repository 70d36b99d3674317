package daemon

import (
	"sync"
	"time"

	"oxpd/internal/daemon/client"
)

// cpuTick is the interval that the status tells the CPU time of, and how busy workers were.
const cpuTick = 5 * time.Second

// cpuMeter measures how much CPU time the process takes: by the wall clock, whatever
// clock the card has. Safe for concurrent use.
type cpuMeter struct {
	used func() (time.Duration, bool) // CPU time of the process since its start; false: not known here

	mu   sync.Mutex
	at   time.Time
	then time.Duration
	last client.CPU
}

func newCPUMeter(now time.Time) *cpuMeter {
	m := &cpuMeter{used: cpuTime, at: now}
	m.then, _ = m.used()
	return m
}

// sample ends an interval and begins the next one.
func (m *cpuMeter) sample(now time.Time) {
	used, ok := m.used()
	m.mu.Lock()
	defer m.mu.Unlock()
	if took := now.Sub(m.at); ok && took > 0 {
		percent := 100 * float64(used-m.then) / float64(took)
		m.last = client.CPU{Percent: tenths(percent), Seconds: tenths(took.Seconds())}
		m.at, m.then = now, used
	}
}

// show is the last whole interval; nil before there was one.
func (m *cpuMeter) show() *client.CPU {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last.Seconds == 0 {
		return nil
	}
	c := m.last
	return &c
}
