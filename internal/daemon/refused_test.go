package daemon

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/daemon/config"
	"oxpd/internal/daemon/simcard"
	"oxpd/internal/dma"
	"oxpd/internal/simdev/simtest"
	"oxpd/octep"
	"oxpd/octep/csr"
)

// otherID is a function with another device id.
type otherID struct{ octep.Device }

func (d otherID) ConfigRead(off, width int) (uint32, error) {
	if off == csr.CfgDevice && width == 2 {
		return board.DeviceVF, nil
	}
	return d.Device.ConfigRead(off, width)
}

// CTL-10: a device is refused a hundred times, and each time there is a clear
// error and nothing left: no descriptor, no mapping, no region, no bus mastering.
// Those that overlap have namespaces of their own, and no other test runs beside them:
// descriptors and mappings are the process's.
func TestRefusedDeviceLeavesNothing(t *testing.T) {
	const starts, atOnce = 100, 10
	for _, tc := range []struct {
		name  string
		fault func(f *hwsim.Faults)
		wrap  func(octep.Device) octep.Device
		want  string
	}{
		{name: "another device id", wrap: func(d octep.Device) octep.Device { return otherID{d} },
			want: "stage device: octep: sim is 177d:a3"},
		{name: "no rings", fault: func(f *hwsim.Faults) { f.RInfoNoRings = true }, want: "the card has no rings"},
		{name: "barmap of another version", fault: func(f *hwsim.Faults) { f.BarmapVersion = 3 }, want: "stage ready: octep: read barmap: version 0.3"},
		{name: "another board", fault: func(f *hwsim.Faults) { f.Assembly = "AMDA0999-0001" },
			want: `assembly is "AMDA0999-0001", want "AMDA0202-0004"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			var spaces [atOnce]string
			for i := range spaces {
				spaces[i] = newNetNS(t).Path()
			}
			refuse := func(name, ns string) {
				cfg := config.Default()
				cfg.Socket = filepath.Join(dir, name)
				var card *hwsim.Card
				var memory *ledger
				d := New(Options{Config: cfg, NetNS: ns, Open: func(context.Context) (octep.Device, error) {
					dev, err := simcard.Open(cfg.Sim, nil)
					if err != nil {
						return nil, err
					}
					card = dev.Card
					if tc.fault != nil {
						card.Faults(tc.fault)
					}
					memory = &ledger{Provider: dev.DMA(), open: map[*dma.Region]bool{}, free: func() {
						assert.Zero(t, card.ConfigRead(csr.CfgCommand, 2)&csr.CfgCommandBusMaster, "a region is freed")
					}}
					var d octep.Device = watched{Device: dev, ledger: memory, accesses: new(atomic.Uint64)}
					if tc.wrap != nil {
						d = tc.wrap(d)
					}
					return d, nil
				}})
				var err error
				owned(t.Name(), func() { err = d.Run(context.Background()) })
				assert.ErrorContains(t, err, tc.want)
				assert.Zero(t, card.ConfigRead(csr.CfgCommand, 2)&csr.CfgCommandBusMaster, "bus mastering")
				assert.Empty(t, memory.names(), "regions")
				simtest.Clean(t, card)
				assert.NoFileExists(t, cfg.Socket)
			}
			refuse("first", spaces[0]) // what the runtime opens once
			noGoroutines(t, t.Name())
			files, memory := descriptors(t), resident(t)
			var wg sync.WaitGroup
			for i := range atOnce {
				wg.Add(1)
				go func() {
					defer wg.Done()
					for range starts / atOnce {
						refuse(string(rune('a'+i)), spaces[i])
					}
				}()
			}
			wg.Wait()
			noGoroutines(t, t.Name())
			assert.Eventually(t, func() bool { return descriptors(t) <= files }, hang, time.Millisecond,
				"descriptors: those of tests before may have gone meanwhile, and a hundred starts that leave one are more")
			assert.Less(t, resident(t), memory+256<<20, "mappings: the rings of a hundred starts are 1.4 GB, the rest is the runtime's")
		})
	}
}

// resident is the memory that this process has, once the runtime has given back
// what it does not use. Regions are resident from the start.
func resident(t *testing.T) int {
	t.Helper()
	debug.FreeOSMemory()
	b, err := os.ReadFile("/proc/self/statm")
	require.NoError(t, err)
	var size, pages int
	_, err = fmt.Sscan(string(b), &size, &pages)
	require.NoError(t, err)
	return pages * os.Getpagesize()
}
