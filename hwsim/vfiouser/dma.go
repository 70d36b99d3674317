package vfiouser

import (
	"math"

	"golang.org/x/sys/unix"

	"oxpd/hwsim"
	"oxpd/internal/vfu"
)

// mapping is one DMA map of the client.
type mapping struct {
	size uint64
	mem  []byte // nil: it came without a descriptor
}

// checkRange judges a range of bus addresses: whole pages, not empty, not past the
// end of the address space, which it may reach.
func checkRange(address, size uint64) error {
	if size == 0 || (address|size)%pageSize != 0 || address+size-1 < address {
		return unix.EINVAL
	}
	return nil
}

func (c *session) mapDMA(r *request) error {
	var m vfu.Map
	if err := m.Decode(r.payload); err != nil {
		return err
	}
	if err := checkRange(m.Address, m.Size); err != nil {
		return err
	}
	const known = vfu.MapRead | vfu.MapWrite
	switch {
	case m.ArgSize != vfu.MapSize || m.Flags&^known != 0 || m.Flags&vfu.MapRead == 0 || m.Offset%pageSize != 0 || len(r.fds) > 1:
		return unix.EINVAL
	case len(c.maps) >= maxMaps:
		return unix.ENOSPC
	}
	d := hwsim.DMARegion{Bus: m.Address, Size: m.Size, ReadOnly: m.Flags&vfu.MapWrite == 0}
	if len(r.fds) == 1 {
		var err error
		if d.Mem, err = mapFile(r.fds[0], m, d.ReadOnly); err != nil {
			return err
		}
		d.Foreign = true
	}
	if err := c.s.card.MapRegion(d); err != nil {
		unmapFile(d.Mem)
		return unix.EEXIST
	}
	c.maps[m.Address] = mapping{m.Size, d.Mem}
	return nil
}

// mapFile maps what a descriptor has for a map. A file that is shorter is refused;
// what has no length decides for itself.
func mapFile(fd int, m vfu.Map, readOnly bool) ([]byte, error) {
	if m.Size > math.MaxInt || m.Offset > math.MaxInt64-m.Size {
		return nil, unix.EINVAL
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFREG && uint64(st.Size) < m.Offset+m.Size {
		return nil, unix.EINVAL
	}
	prot := unix.PROT_READ | unix.PROT_WRITE
	if readOnly {
		prot = unix.PROT_READ
	}
	return unix.Mmap(fd, int64(m.Offset), int(m.Size), prot, unix.MAP_SHARED)
}

func unmapFile(mem []byte) {
	if mem != nil {
		_ = unix.Munmap(mem) // it was mapped by mapFile
	}
}

// unmapDMA takes one map back, as it was made, several that lie whole in a range, or all
// of them. QEMU sends such a range when the guest's kernel has given back a page table of
// an emulated IOMMU, which held many of them. One that cuts a map is refused. The card
// holds its lock during each access, so that none is under way when it is answered.
func (c *session) unmapDMA(r *request) ([]byte, error) {
	var m vfu.Unmap
	if err := m.Decode(r.payload); err != nil {
		return nil, err
	}
	if err := c.checkArgSize(m.ArgSize, vfu.UnmapSize); err != nil {
		return nil, err
	}
	switch m.Flags {
	case 0:
	case vfu.UnmapAll:
		if m.Address != 0 || m.Size != 0 {
			return nil, unix.EINVAL
		}
		c.unmapAll()
		return m.Append(nil), nil
	default:
		return nil, unix.EINVAL
	}
	if err := checkRange(m.Address, m.Size); err != nil {
		return nil, err
	}
	if c.maps[m.Address].size == m.Size {
		c.unmap(m.Address)
		return m.Append(nil), nil
	}
	inside := c.inside(m.Address, m.Address+m.Size-1)
	if len(inside) == 0 {
		return nil, unix.ENOENT
	}
	for _, address := range inside {
		c.unmap(address)
	}
	return m.Append(nil), nil
}

// inside are the maps that lie between two addresses, none when one is cut.
func (c *session) inside(first, last uint64) (all []uint64) {
	for at, m := range c.maps {
		end := at + m.size - 1
		switch {
		case end < first || at > last:
		case at < first || end > last:
			return nil
		default:
			all = append(all, at)
		}
	}
	return all
}

func (c *session) unmap(address uint64) {
	m := c.maps[address]
	if err := c.s.card.UnmapRegion(address, m.size); err != nil {
		panic(err) // it was made by mapDMA, and nobody else unmaps
	}
	unmapFile(m.mem)
	delete(c.maps, address)
}

func (c *session) unmapAll() {
	for address := range c.maps {
		c.unmap(address)
	}
}
