package discover

import (
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCards(t *testing.T) {
	m := newMachine(t)
	m.card()
	m.function("0000:00:00.0", "8086", "1234", nil) // of others; its config space cannot be read
	m.function("0000:01:00.1", "177d", "a303", space(func(b []byte) { b[2] = 0x03 }))
	m.function("0000:02:00.0", "177d", "a034", nil) // another device of the same vendor
	require.NoError(t, os.Remove(m.at("sys/bus/pci/devices/0000:00:00.0/irq")))
	m.file("sys/bus/pci/devices/0000:03:00.0/vendor", "") // on its way out
	cards, err := m.host().Cards()
	require.NoError(t, err)
	require.Len(t, cards, 2)
	c := cards[0]
	assert.Equal(t, addr, c.Address)
	assert.Equal(t, []string{"177d", "a300", "0b8000", "0x0006", "D0"}, []string{c.Vendor, c.Device, c.Class, c.Command, c.Power})
	assert.Equal(t, []BAR{{0, "0xf0000000", 8 << 20}, {2, "0xec000000", 64 << 20}, {4, "0xf4800000", 1 << 20}}, c.BARs)
	assert.True(t, c.Memory)
	assert.True(t, c.Master)
	assert.Nil(t, c.IOMMU)
	assert.Empty(t, c.Driver+c.Override)
	assert.Empty(t, c.Obstacles, "nothing stands in the way")
	assert.True(t, cards[1].Virtual)
	assert.Len(t, cards[1].Obstacles, 1)

	cards, err = Host{Sys: m.at("none")}.Cards()
	require.NoError(t, err, "a machine without a PCI bus")
	assert.Empty(t, cards)
}

// What a tree need not show, and what it must.
func TestCardOfATreeThatShowsLess(t *testing.T) {
	m := newMachine(t)
	m.card()
	want, err := m.host().Card(addr)
	require.NoError(t, err)
	for _, name := range []string{"irq", "driver_override", "power_state"} {
		require.NoError(t, os.Remove(m.at(dev+"/"+name)))
		got, err := m.host().Card(addr)
		require.NoError(t, err, name)
		assert.Equal(t, want, got, name)
	}
	for _, tt := range []struct{ name, text, says string }{
		{"class", "x\n", "strconv"}, {"resource", "0x1 0x2\n", "resource: "}, {"config", "short", "not the config space"},
	} {
		before := must(os.ReadFile(m.at(dev + "/" + tt.name)))
		m.file(dev+"/"+tt.name, tt.text)
		_, err = m.host().Card(addr)
		require.ErrorContains(t, err, "look at "+addr+": "+tt.says)
		require.NoError(t, os.Remove(m.at(dev+"/"+tt.name)))
		_, err = m.host().Cards()
		require.ErrorIs(t, err, fs.ErrNotExist, "%s: a card that cannot be looked at is no card less", tt.name)
		m.file(dev+"/"+tt.name, string(before))
	}
}

func TestFind(t *testing.T) {
	m := newMachine(t)
	_, err := m.host().Find("")
	require.ErrorIs(t, err, ErrNone)
	m.card()
	m.function("0000:01:00.1", "177d", "a303", space(nil))
	m.function("0000:00:00.0", "8086", "1234", space(nil))
	c, err := m.host().Find("")
	require.NoError(t, err)
	assert.Equal(t, addr, c.Address, "a virtual function is no second card")
	for _, name := range []string{addr, "01:00.0"} {
		c, err := m.host().Find(name)
		require.NoError(t, err)
		assert.Equal(t, addr, c.Address)
	}
	m.function("0001:01:00.0", "177d", "a300", space(nil))
	for _, tt := range []struct{ name, device, says, hint string }{
		{"several", "", "2 cards are on the PCI bus: 0000:01:00.0, 0001:01:00.0", "--device 0000:01:00.0"},
		{"another function", "0000:00:00.0", "0000:00:00.0 is 8086:1234, not the card (177d:a300)", "oxpd devices"},
		{"a virtual function", "0000:01:00.1", "0000:01:00.1 is 177d:a303, a virtual function", "oxpd devices"},
		{"a path", "../../../etc", `device "../../../etc": want a PCI address such as 0000:01:00.0`, ""},
		{"a path in the shape of one", "0000:01:00.0/..", "want a PCI address", ""},
		{"nobody", "0000:09:00.0", "look at 0000:09:00.0: ", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := m.host().Find(tt.device)
			require.ErrorContains(t, err, tt.says)
			var h interface{ Hint() string }
			if tt.hint != "" {
				require.ErrorAs(t, err, &h)
				assert.Contains(t, h.Hint(), tt.hint)
			}
		})
	}
	_, err = m.host().Find("0000:09:00.0")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// Each obstacle, and what removes it.
func TestObstacles(t *testing.T) {
	for _, tt := range []struct {
		name    string
		make    func(m *machine)
		host    func(h *Host)
		level   Level
		looking bool
		says    string
		command string
	}{
		{"a kernel driver has the card", func(m *machine) { m.driver("octeon_ep") }, nil, Stop, false, "driver octeon_ep has the card", "oxpd unbind --device " + addr},
		{"vfio-pci has it", func(m *machine) { m.driver("vfio-pci") }, nil, Stop, false, "driver vfio-pci has the card", "oxpd unbind --device " + addr},
		{"not root", nil, func(h *Host) { h.Root = false }, Stop, true, "not root", "sudo oxpd run"},
		{"lockdown", func(m *machine) { m.file("sys/kernel/security/lockdown", "none [integrity] confidentiality\n") }, nil, Stop, true, "locked down (integrity)",
			"systemctl reboot --firmware-setup"},
		{"an IOMMU translates", func(m *machine) { m.group("DMA-FQ") }, nil, Stop, false, "an IOMMU translates for group 7 (DMA-FQ)",
			"echo identity > /sys/bus/pci/devices/" + addr + "/iommu_group/type"},
		{"an IOMMU translates for others too", func(m *machine) { m.group("DMA", "0000:00:01.0") }, nil, Stop, false, "group 7 (DMA)", "add iommu=pt"},
		{"an IOMMU of which nothing is known", func(m *machine) { m.group("") }, nil, Stop, false, "group 7 (of unknown type)", "add iommu=pt"},
		{"no mount", func(m *machine) { m.file("proc/mounts", "proc /proc proc rw 0 0\n") }, nil, Stop, false, "no hugetlbfs is mounted", "mount -t hugetlbfs"},
		{"no hugepages", func(m *machine) {
			m.file("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0\n")
			m.file("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "0\n")
		}, nil, Stop, false, "9 hugepages of 2048 KiB are needed and 0 are free", "sysctl -w vm.nr_hugepages=9"},
		{"too few are free", func(m *machine) { m.file("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "4\n") }, nil, Stop, false,
			"9 hugepages of 2048 KiB are needed and 4 are free", "sysctl -w vm.nr_hugepages=21"},
		{"too few beside those of an earlier run", func(m *machine) { m.keep(4, 4) }, nil, Stop, false, "9 hugepages of 2048 KiB are needed and 8 are free", "sysctl -w vm.nr_hugepages=17"},
		{"a BAR without an address", func(m *machine) { m.file(dev+"/resource", lines(map[int]string{0: seen[0]})) }, nil, Stop, true, "BAR2 has no address", "echo 1 > /sys/bus/pci/rescan"},
		{"a BAR that is too short", func(m *machine) {
			m.file(dev+"/resource", lines(map[int]string{0: "0x00000000f0000000 0x00000000f0000fff 0x0000000000140204", 2: seen[2]}))
		}, nil, Stop, true, "BAR0 is 4096 bytes long, and that of the card has 8388608", ""},
		{"held in reset", func(m *machine) { m.file(dev+"/config", strings.Repeat("\xff", 4096)) }, nil, Stop, true, "config space reads all ones", ""},
		{"asleep", func(m *machine) { m.file(dev+"/power_state", "D3hot\n") }, nil, Stop, true, "the card sleeps (D3hot)", "echo on > /sys/bus/pci/devices/" + addr + "/power/control"},
		{"memory decoding off", func(m *machine) { m.file(dev+"/config", string(space(func(b []byte) { b[4] = 0 }))) }, nil, Note, false, "memory decoding is off",
			"setpci -s " + addr + " COMMAND=2:2"},
		{"a narrow link", func(m *machine) { m.file(dev+"/config", string(space(func(b []byte) { b[0x82] = 0x41 }))) }, nil, Note, false, "the link has x4 at 2.5 GT/s", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t)
			m.card()
			if tt.make != nil {
				tt.make(m)
			}
			h := m.host()
			if tt.host != nil {
				tt.host(&h)
			}
			c, err := h.Card(addr)
			require.NoError(t, err)
			require.Len(t, c.Obstacles, 1, "%v", c.Obstacles)
			o := c.Obstacles[0]
			assert.Equal(t, tt.level, o.Level)
			assert.Equal(t, tt.looking, o.Looking)
			assert.Contains(t, o.Text, tt.says)
			assert.Contains(t, o.Command, tt.command)
			assert.Equal(t, tt.command == "", o.Command == "")
			assert.Equal(t, tt.level == Stop, len(c.Blocking()) == 1)
			assert.Empty(t, m.wrote, "a look writes nothing")
		})
	}
	for name, make := range map[string]func(m *machine){
		"memory of an earlier run":          func(m *machine) { m.keep(0, 9) },
		"an IOMMU that passes addresses on": func(m *machine) { m.group("identity", "0000:00:01.0") },
		"lockdown that is off":              func(m *machine) { m.file("sys/kernel/security/lockdown", "[none] integrity confidentiality\n") },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.card()
			make(m)
			c, err := m.host().Card(addr)
			require.NoError(t, err)
			assert.Empty(t, c.Obstacles)
		})
	}
}

// keep has an earlier run leave pages, and so many free.
func (m *machine) keep(free, left int) {
	m.file("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", fmt.Sprintln(free))
	m.file("proc/mounts", "none "+m.at("huge")+" hugetlbfs rw,pagesize=2M 0 0\n")
	m.file("huge/oxpd-"+addr, "")
	require.NoError(m.t, os.Truncate(m.at("huge/oxpd-"+addr), int64(left)<<21))
}

// group puts the card in an IOMMU group.
func (m *machine) group(kind string, others ...string) {
	if kind != "" {
		m.file("sys/kernel/iommu_groups/7/type", kind+"\n")
	}
	for _, a := range append(others, addr) {
		m.file("sys/kernel/iommu_groups/7/devices/"+a, "")
	}
	m.link(dev+"/iommu_group", m.at("sys/kernel/iommu_groups/7"))
}

func TestGroup(t *testing.T) {
	m := newMachine(t)
	m.card()
	m.group("identity", "0000:00:01.0", "0000:00:01.1")
	c, err := m.host().Card(addr)
	require.NoError(t, err)
	assert.Equal(t, &IOMMU{"7", "identity", []string{"0000:00:01.0", "0000:00:01.1"}}, c.IOMMU)
}

func TestBlockedError(t *testing.T) {
	e := &BlockedError{addr, []Obstacle{{Stop, "a is so", "make a", true}, {Stop, "b is so", "", true}, {Stop, "c is so", "make c", true}}}
	assert.Equal(t, addr+" cannot be driven: a is so; b is so; c is so", e.Error())
	assert.Equal(t, "make a; then make c", e.Hint())
}

func TestMounted(t *testing.T) {
	const two, giant = 2 << 20, 1 << 30
	for _, tt := range []struct {
		name, mounts, dir string
		size              int
	}{
		{"none", "proc /proc proc rw 0 0\n", "", two},
		{"the usual one", "hugetlbfs /dev/hugepages hugetlbfs rw,nosuid,relatime,pagesize=2M 0 0\n", "/dev/hugepages", two},
		{"of 1 GiB alone", "none /mnt/huge hugetlbfs rw,pagesize=1024M 0 0\n", "/mnt/huge", giant},
		{"2 MiB before 1 GiB", "none /mnt/huge hugetlbfs rw,pagesize=1024M 0 0\nnone /dev/hugepages hugetlbfs rw,pagesize=2M 0 0\n", "/dev/hugepages", two},
		{"a blank in its path", `none /mnt/a\040b hugetlbfs rw,pagesize=2M 0 0`, "/mnt/a b", two},
		{"of no size", "none /mnt/huge hugetlbfs rw 0 0\n", "", two},
		{"of a size that is none", "none /mnt/huge hugetlbfs rw,pagesize=xM 0 0\n", "", two},
		{"half a line", "none /mnt/huge", "", two},
		{"another file system of that name", "hugetlbfs /mnt tmpfs rw,pagesize=2M 0 0\n", "", two},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir, size := mounted(tt.mounts, two)
			assert.Equal(t, tt.dir, dir)
			assert.Equal(t, tt.size, size)
		})
	}
}
