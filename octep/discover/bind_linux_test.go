package discover

import (
	"io/fs"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const base = "bus/pci/devices/" + addr

// vfio makes vfio-pci a driver that may have the card.
func (m *machine) vfio() {
	m.file("sys/bus/pci/drivers/vfio-pci/unbind", "")
	m.file("sys/module/vfio_pci/parameters/disable_idle_d3", "Y\n")
	m.file(dev+"/reset_method", "\n")
}

func TestBind(t *testing.T) {
	m := newMachine(t)
	m.card()
	m.vfio()
	h := m.host()
	c, changed, err := h.Bind("", VFIO, false)
	require.NoError(t, err)
	assert.True(t, changed)
	assert.Equal(t, []string{VFIO, VFIO}, []string{c.Driver, c.Override})
	assert.Equal(t, []string{base + "/driver_override=vfio-pci\n", "bus/pci/drivers_probe=" + addr}, m.wrote)

	m.wrote = nil
	_, changed, err = h.Bind(addr, VFIO, false)
	require.NoError(t, err, "again")
	assert.False(t, changed)
	assert.Empty(t, m.wrote)

	m.file("sys/bus/pci/drivers/uio_pci_generic/unbind", "")
	c, changed, err = h.Bind(addr, "uio_pci_generic", false)
	require.NoError(t, err, "from one to another")
	assert.True(t, changed)
	assert.Equal(t, "uio_pci_generic", c.Driver)
	assert.Equal(t, []string{base + "/driver_override=uio_pci_generic\n", base + "/driver/unbind=" + addr, "bus/pci/drivers_probe=" + addr}, m.wrote)

	m.wrote = nil
	c, changed, err = h.Unbind("")
	require.NoError(t, err)
	assert.True(t, changed)
	assert.Empty(t, c.Driver+c.Override)
	assert.Equal(t, []string{base + "/driver_override=\n", base + "/driver/unbind=" + addr}, m.wrote)

	m.wrote = nil
	_, changed, err = h.Unbind("")
	require.NoError(t, err, "again")
	assert.False(t, changed)
	assert.Empty(t, m.wrote)
}

func TestBindRefuses(t *testing.T) {
	for _, tt := range []struct {
		name   string
		make   func(m *machine)
		device string
		driver string
		is     error
		says   string
		hint   string
	}{
		{"another function", func(m *machine) { m.function("0000:00:1f.2", "8086", "2922", space(nil)) }, "0000:00:1f.2", VFIO, nil, "not the card", "oxpd devices"},
		{"a virtual function", func(m *machine) { m.function("0000:01:00.1", "177d", "a303", space(nil)) }, "0000:01:00.1", VFIO, nil, "a virtual function", "oxpd devices"},
		{"no card", func(m *machine) { require.NoError(m.t, os.RemoveAll(m.at(dev))) }, "", VFIO, ErrNone, "no card", ""},
		{"a driver that is not loaded", func(m *machine) { require.NoError(m.t, os.RemoveAll(m.at("sys/bus/pci/drivers/vfio-pci"))) }, "", VFIO, fs.ErrNotExist,
			"bind " + addr + " to vfio-pci: ", "modprobe vfio-pci disable_idle_d3=1"},
		{"a path for a driver", nil, "", "../devices", nil, "no name of a driver", ""},
		{"no driver", nil, "", "", nil, "no name of a driver", ""},
		{"a driver that sends it to sleep", func(m *machine) { m.file("sys/module/vfio_pci/parameters/disable_idle_d3", "N\n") }, "", VFIO, ErrReset, "on no record", "disable_idle_d3=1; or --i-accept-reset"},
		{"a card that can be reset", func(m *machine) { m.file(dev+"/reset_method", "flr bus\n") }, "", VFIO, ErrReset, "on no record", "/reset_method; or --i-accept-reset"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t)
			m.card()
			m.vfio()
			if tt.make != nil {
				tt.make(m)
			}
			_, changed, err := m.host().Bind(tt.device, tt.driver, false)
			assert.False(t, changed)
			require.ErrorContains(t, err, tt.says)
			if tt.is != nil {
				require.ErrorIs(t, err, tt.is)
			}
			if tt.hint != "" {
				var h interface{ Hint() string }
				require.ErrorAs(t, err, &h)
				assert.Contains(t, h.Hint(), tt.hint)
			}
			assert.Empty(t, m.wrote, "nothing is written")
		})
	}
}

func TestBindThatMayReset(t *testing.T) {
	m := newMachine(t)
	m.card()
	m.vfio()
	m.file(dev+"/reset_method", "flr bus\n")
	c, _, err := m.host().Bind("", VFIO, true)
	require.NoError(t, err)
	assert.Equal(t, VFIO, c.Driver)
}

// A kernel that says yes and does nothing: what is read back is believed.
func TestBindReadsBack(t *testing.T) {
	m := newMachine(t)
	m.card()
	m.vfio()
	m.stuck = true
	_, _, err := m.host().Bind("", VFIO, false)
	require.ErrorContains(t, err, "bind "+addr+" to vfio-pci: no driver is bound afterwards")
	b, err := os.ReadFile(m.at(dev + "/driver_override"))
	require.NoError(t, err)
	assert.Equal(t, "(null)\n", string(b), "as it was found")

	m.driver("octeon_ep")
	_, _, err = m.host().Unbind("")
	require.ErrorContains(t, err, "unbind "+addr+": octeon_ep is bound afterwards")
}

// While oxpd drives the card, its driver does not change.
func TestBindWhileTheCardIsDriven(t *testing.T) {
	m := newMachine(t)
	m.card()
	m.vfio()
	f, err := os.Open(m.at(dev + "/config"))
	require.NoError(t, err)
	require.NoError(t, Lock(f))
	_, _, err = m.host().Bind("", VFIO, false)
	require.ErrorIs(t, err, ErrBusy)
	m.driver("octeon_ep")
	_, _, err = m.host().Unbind("")
	require.ErrorIs(t, err, ErrBusy)
	assert.Empty(t, m.wrote)
	require.NoError(t, f.Close())
	_, changed, err := m.host().Unbind("")
	require.NoError(t, err)
	assert.True(t, changed)
}

// Files that are no kernel's: each is written once, none is made.
func TestPut(t *testing.T) {
	m := newMachine(t)
	m.file("f", "before, and longer")
	require.NoError(t, Host{}.put(m.at("f"), "x\n"))
	b, err := os.ReadFile(m.at("f"))
	require.NoError(t, err)
	assert.Equal(t, "x\n", string(b))
	require.ErrorIs(t, Host{}.put(m.at("none"), "x"), fs.ErrNotExist)
	assert.NoFileExists(t, m.at("none"))
}
