package lif

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
)

func TestSwitchLimit(t *testing.T) {
	const unknown, dropped = "is unknown", "is more than the switch before it passes"
	for _, tc := range []struct {
		name    string
		limit   int
		uplink  int
		port    string
		mtu     int
		refused bool
		warning string // part of it; "" none
	}{
		{"as found, longest that passes", 2048, 0, "Port1", 2030, false, ""},
		{"as found, one above", 2048, 0, "Port1", 2031, true, dropped},
		{"as found, jumbo", 2048, 0, "Port8", 9000, true, dropped},
		{"as found, cage behind the switch", 2048, 0, "F3", 2031, true, dropped},
		{"as found, the other one", 2048, 0, "F4", 9000, true, dropped},
		{"as found, PortF1 is not behind it", 2048, 0, "F1", 9000, false, ""},
		{"as found, nor is PortF2", 2048, 0, "F2", 9000, false, ""},
		{"smallest mode, longest that passes", 1522, 0, "Port1", 1504, false, ""},
		{"smallest mode, one above", 1522, 0, "Port1", 1505, true, dropped},
		{"jumbo mode", 10240, 0, "Port1", 9000, false, ""},
		{"uplink alone at 2048, longest that passes", 10240, 2048, "Port1", 2026, false, ""},
		{"uplink alone at 2048, one above", 10240, 2048, "Port1", 2027, true, "for frames of 2048 bytes with FCS at its uplink"},
		{"both at 2048, longest that passes", 2048, 2048, "Port1", 2026, false, ""},
		{"both at 2048, one above", 2048, 2048, "Port1", 2027, true, dropped},
		{"uplink as found", 2048, 10240, "Port1", 2030, false, ""},
		{"uplink as found, one above", 2048, 10240, "Port1", 2031, true, "for frames of 2048 bytes with FCS:"},
		{"both at 1522", 1522, 1522, "Port1", 1500, false, ""},
		{"both at 1522, one above", 1522, 1522, "Port1", 1501, true, dropped},
		{"both at 10240", 10240, 10240, "Port1", 9000, false, ""},
		{"uplink at 1522, PortF1 is not behind it", 10240, 1522, "F1", 9000, false, ""},
		{"unknown, what every mode passes", 0, 0, "Port1", 1504, false, ""},
		{"unknown, what the smallest mode drops", 0, 0, "Port1", 1505, false, unknown},
		{"unknown, jumbo", 0, 0, "Port1", 9000, false, unknown},
		{"unknown, PortF1 is not behind it", 0, 0, "F1", 9000, false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := board.Parse(tc.port)
			require.NoError(t, err)
			limit := SwitchLimit{Panel: tc.limit, Uplink: tc.uplink}
			err = limit.Check(p, tc.mtu)
			var e *SwitchError
			assert.Equal(t, tc.refused, err != nil, "%v", err)
			if tc.refused {
				require.ErrorAs(t, err, &e)
				assert.Contains(t, e.Hint(), "--force")
				assert.Contains(t, e.Hint(), "oxpd mtu "+p.Name)
			}
			if w := limit.Warning(p, tc.mtu); tc.warning == "" {
				assert.Empty(t, w)
			} else {
				assert.Contains(t, w, tc.warning)
			}
		})
	}
}

func TestSwitchLimitMTU(t *testing.T) {
	port1, f1 := board.ByIndex(0), board.ByIndex(8)
	for frame, want := range map[int]int{1522: 1504, 2048: 2030, 10240: 10222} {
		limit := SwitchLimit{Panel: frame}
		mtu, known := limit.MTU(port1)
		assert.True(t, known)
		assert.Equal(t, want, mtu)
		_, known = limit.MTU(f1)
		assert.False(t, known)
	}
	_, known := SwitchLimit{}.MTU(port1)
	assert.False(t, known)
	err := SwitchLimit{Panel: 2048}.Check(port1, 9000)
	assert.EqualError(t, err, "mtu 9000 of oxp1 (Port1) is more than the switch before it passes: 2030, for frames of 2048 bytes with FCS")
}
