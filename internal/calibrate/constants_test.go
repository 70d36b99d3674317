package calibrate

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
)

func TestConstants(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Constants() {
		assert.False(t, seen[c.Name], "two constants are called %s", c.Name)
		seen[c.Name] = true
		assert.NotEmpty(t, c.Unit, c.Name)
		assert.NotEmpty(t, c.Source, c.Name)
		assert.Contains(t, []hwsim.Tag{hwsim.Fit, hwsim.Derived, hwsim.Estimate}, c.Tag, c.Name)
	}
}

// What a card can be told about its timing has a constant that says where its default
// is from.
func TestEveryOptionOfTimingHasAConstant(t *testing.T) {
	constants := map[string]hwsim.Constant{}
	for _, c := range hwsim.Constants() {
		constants[c.Name] = c
	}
	for _, options := range []struct {
		prefix string
		of     any
	}{{"", hwsim.Latencies{}}, {"", hwsim.Rates{}}, {"", hwsim.Queues{}}, {"Timeline.", hwsim.Real()}} {
		v := reflect.ValueOf(options.of)
		for i := range v.NumField() {
			name := options.prefix + v.Type().Field(i).Name
			c, ok := constants[name]
			require.True(t, ok, "no constant is called %s", name)
			if d, isTime := v.Field(i).Interface().(time.Duration); isTime && d > 0 {
				unit := map[string]time.Duration{"s": time.Second, "ms": time.Millisecond, "us": time.Microsecond}[c.Unit]
				assert.InDelta(t, d.Seconds(), c.Value*unit.Seconds(), 1e-9, name)
			}
		}
	}
}
