package inside

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/board"
	"oxpd/internal/mmio"
	"oxpd/octep/csr"
)

// card is the folder of the one function of this vendor.
func card(t *testing.T) string {
	t.Helper()
	if os.Getenv("OXPD_IN_GUEST") == "" {
		t.Skip("runs in the guest of internal/guest")
	}
	all, err := filepath.Glob("/sys/bus/pci/devices/*")
	require.NoError(t, err)
	var found []string
	for _, d := range all {
		if read(t, d, "vendor") == fmt.Sprintf("0x%04x", board.Vendor) {
			found = append(found, d)
		}
	}
	require.Len(t, found, 1, "%v", all)
	return found[0]
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	require.NoError(t, err)
	return strings.TrimSpace(string(b))
}

func TestFunction(t *testing.T) {
	dir := card(t)
	assert.Equal(t, fmt.Sprintf("0x%04x", board.DevicePF), read(t, dir, "device"))
	assert.Equal(t, fmt.Sprintf("0x%06x", csr.PCIClass), read(t, dir, "class"))
	assert.Equal(t, "0x01", read(t, dir, "revision"))

	// Lines of the resource file are the BARs: first byte, last byte, flags.
	lines := strings.Split(read(t, dir, "resource"), "\n")
	for bar, size := range map[int]uint64{0: csr.BAR0Size, 2: csr.BAR2Size, 4: csr.BAR4Size} {
		var first, last, flags uint64
		_, err := fmt.Sscanf(lines[bar], "0x%x 0x%x 0x%x", &first, &last, &flags)
		require.NoError(t, err)
		assert.NotZero(t, first, "the kernel has given BAR%d a place", bar)
		assert.Equal(t, size, last-first+1, "BAR%d", bar)
	}
}

func TestCapabilities(t *testing.T) {
	config, err := os.ReadFile(filepath.Join(card(t), "config"))
	require.NoError(t, err)
	require.Len(t, config, 4096, "a PCI Express function")
	caps := map[byte]int{}
	for at := int(config[0x34]); at != 0; at = int(config[at+1]) {
		caps[config[at]] = at
	}
	assert.Contains(t, caps, byte(0x10), "PCI Express")
	require.Contains(t, caps, byte(0x11), "MSI-X")
	assert.EqualValues(t, csr.MSIXVectors-1, binary.LittleEndian.Uint16(config[caps[0x11]+2:])&0x7ff)
}

// decode switches memory decoding on or off.
func decode(t *testing.T, dir string, on bool) {
	t.Helper()
	config, err := os.OpenFile(filepath.Join(dir, "config"), os.O_RDWR, 0)
	require.NoError(t, err)
	defer config.Close()
	command := []byte{0, 0}
	if on {
		command[0] = csr.CfgCommandMemory
	}
	_, err = config.WriteAt(command, csr.CfgCommand)
	require.NoError(t, err)
}

// bars maps BAR0 and BAR2 through resourceN.
func bars(t *testing.T, dir string) (bar0, bar2 *mmio.Mapped) {
	t.Helper()
	bar := func(n, size int) *mmio.Mapped {
		f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("resource%d", n)), os.O_RDWR|os.O_SYNC, 0)
		require.NoError(t, err)
		defer f.Close() // the mapping stays
		mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, unix.Munmap(mem)) })
		m, err := mmio.NewMapped(mem)
		require.NoError(t, err)
		return m
	}
	return bar(0, csr.BAR0Size), bar(2, csr.BAR2Size)
}

// TestBARs: the registers and the windows by single loads and stores.
func TestBARs(t *testing.T) {
	dir := card(t)
	decode(t, dir, true)
	bar0, bar2 := bars(t, dir)
	assert.EqualValues(t, csr.RInfoReset, mmio.Load64(bar0, csr.RInfo))
	assert.EqualValues(t, csr.BAR2Facilities<<32|csr.ScratchMagic, mmio.Load64(bar0, csr.SDPScratch), "the target is up")
	mmio.Store64(bar0, csr.InIntLevels.Queue(63), 0x55)
	assert.EqualValues(t, 0x55, mmio.Load64(bar0, csr.InIntLevels.Queue(63)))
	assert.EqualValues(t, csr.BarmapVersion02, bar2.Load32(csr.BAR2Facilities))
	assert.Equal(t, ^uint32(0), bar2.Load32(0), "an entry that the target never maps")
	bar2.Store32(0x03c00040, 153)
}

// TestDecodingOff: memory decoding goes away under somebody who has the BARs mapped
// and uses them: no signal, and all is there again when it comes back (VF-9).
func TestDecodingOff(t *testing.T) {
	dir := card(t)
	decode(t, dir, true)
	bar0, bar2 := bars(t, dir)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				mmio.Store64(bar0, csr.InIntLevels.Queue(1), 1)
				_ = bar2.Load32(csr.BAR2Facilities)
			}
		}
	}()
	for range 20 {
		require.EqualValues(t, csr.RInfoReset, mmio.Load64(bar0, csr.RInfo))
		decode(t, dir, false)
		// What then answers is the machine's: all-ones on hardware, 0 in QEMU.
		assert.NotEqualValues(t, csr.RInfoReset, mmio.Load64(bar0, csr.RInfo))
		assert.NotEqualValues(t, csr.BarmapVersion02, bar2.Load32(csr.BAR2Facilities))
		decode(t, dir, true)
	}
	close(stop)
	<-done
	assert.EqualValues(t, csr.BarmapVersion02, bar2.Load32(csr.BAR2Facilities))
}
