package daemon

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"oxpd/internal/daemon/client"
)

func TestCPUMeter(t *testing.T) {
	now := time.Unix(1000, 0)
	used, known := 3*time.Second, true
	m := &cpuMeter{used: func() (time.Duration, bool) { return used, known }, at: now, then: used}
	assert.Nil(t, m.show(), "no interval yet")
	for _, tc := range []struct {
		name    string
		wall    time.Duration
		cpu     time.Duration
		unknown bool
		want    client.CPU
	}{
		{"idle", 5 * time.Second, 20 * time.Millisecond, false, client.CPU{Percent: 0.4, Seconds: 5}},
		{"two cores busy", 5 * time.Second, 10 * time.Second, false, client.CPU{Percent: 200, Seconds: 5}},
		{"a tick that came late", 7500 * time.Millisecond, 750 * time.Millisecond, false, client.CPU{Percent: 10, Seconds: 7.5}},
		{"no time between", 0, time.Second, false, client.CPU{Percent: 10, Seconds: 7.5}},
		{"not known", 5 * time.Second, time.Second, true, client.CPU{Percent: 10, Seconds: 7.5}},
		{"known again, of both intervals", 5 * time.Second, 0, false, client.CPU{Percent: 20, Seconds: 10}},
	} {
		now, used, known = now.Add(tc.wall), used+tc.cpu, !tc.unknown
		m.sample(now)
		assert.Equal(t, &tc.want, m.show(), tc.name)
	}
}

// The process's own time goes up with what it does.
func TestCPUTimeGoesUp(t *testing.T) {
	before, ok := cpuTime()
	if !ok {
		t.Skip("not known on this system")
	}
	for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); {
	}
	after, _ := cpuTime()
	assert.Greater(t, after, before)
}
