package trace_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/trace"
	"oxpd/internal/trace/scene"
)

// Every scene makes a file that Perfetto reads: JSON, names before use, spans of a
// track that do not overlap. Together they show every unit.
func TestScenesAreReadable(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range scene.All() {
		t.Run(s.Name, func(t *testing.T) {
			var b bytes.Buffer
			r, err := s.Trace(context.Background(), &b, 1)
			require.NoError(t, err)
			d := trace.CheckFormat(t, b.Bytes())
			assert.Equal(t, s.Name, d.OtherData["scenario"])
			steps := uint64(0)
			for _, e := range d.TraceEvents {
				if e.Ph != "M" && e.Ph != "e" {
					steps++
				}
				if e.Name == "process_name" {
					seen[e.Args["name"].(string)] = true
				}
			}
			assert.Equal(t, r.Steps, steps, "one event a step")
		})
	}
	for u := range hwsim.Units {
		assert.True(t, seen[u.String()], "%s is in no scene", u)
	}
}
