package octep

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/mmio"
	"oxpd/octep/csr"
)

// onceUp is a card as its host has set it up.
func onceUp() *fakeDevice {
	d := newFakeDevice()
	for off, v := range map[int]uint32{
		csr.CfgCommand: csr.CfgCommandMemory, csr.CfgPCIe: csr.CfgPCIeID, csr.CfgDevCtl: 0x2830,
		0x10: 0xf0000004, 0x14: 0, 0x18: 0xec000004, 0x1c: 0, 0x20: 0xf4800004, 0x24: 0,
	} {
		d.cfg[off] = v
	}
	return d
}

func TestRestore(t *testing.T) {
	boom := errors.New("lockdown")
	for _, tc := range []struct {
		name    string
		reset   func(d *fakeDevice) // after Save
		changed bool
		writes  []int
		check   func(t *testing.T, err error)
	}{
		{"nothing was lost", func(*fakeDevice) {}, false, nil, nil},
		{"a reset", func(d *fakeDevice) {
			d.cfg[csr.CfgCommand], d.cfg[0x10], d.cfg[0x18], d.cfg[0x20], d.cfg[csr.CfgDevCtl] = 0, 4, 4, 4, 0x2810
		}, true, []int{0x10, 0x18, 0x20, csr.CfgDevCtl}, nil},
		{"somebody else has set it up", func(d *fakeDevice) { d.cfg[csr.CfgDevCtl] = 0x2810 }, true, []int{csr.CfgDevCtl}, nil},
		{"somebody else has moved it", func(d *fakeDevice) { d.cfg[0x18] = 0xe0000004 }, false, nil, func(t *testing.T, err error) {
			var c *ChangedError
			require.ErrorAs(t, err, &c)
			assert.Equal(t, &ChangedError{"fake", 0x18, 0xec000004, 0xe0000004}, c)
			assert.Contains(t, c.Hint(), "start oxpd again")
		}},
		{"gone again", (*fakeDevice).gone, false, nil, func(t *testing.T, err error) { assert.ErrorIs(t, err, mmio.ErrGone) }},
		{"it does not take an address", func(d *fakeDevice) {
			d.cfg[csr.CfgCommand], d.cfg[0x10], d.stuck = 0, 4, ^uint32(0)
		}, true, []int{0x10}, func(t *testing.T, err error) { assert.ErrorContains(t, err, "wrote 0xf0000004, reads 0x00000004") }},
		{"config space cannot be read", func(d *fakeDevice) { d.cfgErr = boom }, false, nil, func(t *testing.T, err error) { assert.ErrorIs(t, err, boom) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := onceUp()
			s, err := Save(d)
			require.NoError(t, err)
			tc.reset(d)
			var writes []int
			d.onCfgWrite = func(off int, _ uint32) { writes = append(writes, off) }
			changed, err := s.Restore(d)
			assert.Equal(t, tc.changed, changed)
			assert.Equal(t, tc.writes, writes)
			if tc.check != nil {
				tc.check(t, err)
				return
			}
			require.NoError(t, err)
			d.cfg[csr.CfgCommand] = csr.CfgCommandMemory
			assert.Equal(t, onceUp().cfg, d.cfg)
		})
	}
	t.Run("a card without the capability there", func(t *testing.T) {
		d := onceUp()
		d.cfg[csr.CfgPCIe] = 5
		s, err := Save(d)
		require.NoError(t, err)
		d.cfg[csr.CfgCommand], d.cfg[csr.CfgDevCtl] = 0, 1
		changed, err := s.Restore(d)
		require.NoError(t, err)
		assert.False(t, changed)
	})
	t.Run("a card that has gone is not saved", func(t *testing.T) {
		d := onceUp()
		d.gone()
		_, err := Save(d)
		require.ErrorIs(t, err, mmio.ErrGone)
	})
}
