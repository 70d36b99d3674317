package hwsim

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/octep/csr"
)

// The table that driver and model share says what the transcription says.
func TestWitnessAgreesWithTheSharedTable(t *testing.T) {
	modes := map[access]csr.Access{
		rw: csr.RW, ro: csr.RO, w1c: csr.W1C, w1s: csr.W1S, enaW1C: csr.EnaW1C, enaW1S: csr.EnaW1S,
		adds: csr.WriteAdds, subs: csr.WriteSubs, zeroes: csr.ClearOnZero, rwIdle: csr.RWIdle, rwSizes: csr.RW,
	}
	same := func(r register, at uint64, ring int) {
		info, q, ok := csr.Lookup(uint32(at))
		require.True(t, ok, r.name)
		assert.Equal(t, ring, q, r.name)
		assert.Equal(t, r.reset, info.Reset, "%s: reset value", r.name)
		if r.mode != unsaid {
			assert.Equal(t, modes[r.mode], info.Access, "%s: access", r.name)
		}
	}
	require.Len(t, csr.RingTable, len(ringRegisters))
	for _, r := range ringRegisters {
		for q := range 64 {
			same(r, r.at(q), q)
		}
	}
	all := globals()
	require.Len(t, csr.GlobalTable, len(all))
	for _, r := range all {
		same(r, r.off, -1)
	}
}
