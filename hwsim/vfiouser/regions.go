package vfiouser

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"oxpd/internal/vfu"
	"oxpd/octep/csr"
)

// mappable is the part of BAR2 that a client may map: entries 0 to 8.
const mappable = csr.BAR2FacEnd

// configSize is that of configuration space.
const configSize = 4096

// bars is how many BARs a function can have; they are the first regions.
const bars = 6

// regionSize returns the size of a region, 0 for one that is not there.
func (c *session) regionSize(index uint32) uint64 {
	switch {
	case index == vfu.RegionConfig:
		return configSize
	case index < bars:
		return c.s.card.BARSize(int(index))
	}
	return 0
}

func (c *session) regionInfo(r *request) ([]byte, int, error) {
	var q vfu.Region
	if err := q.Decode(r.payload); err != nil {
		return nil, -1, err
	}
	if err := c.checkArgSize(q.ArgSize, vfu.RegionSize); err != nil {
		return nil, -1, err
	}
	if len(r.payload) != vfu.RegionSize || q.Index >= vfu.Regions {
		return nil, -1, unix.EINVAL
	}
	a := vfu.Region{ArgSize: vfu.RegionSize, Index: q.Index, Size: c.regionSize(q.Index)}
	if a.Size != 0 {
		a.Flags = vfu.RegionRead | vfu.RegionWrite
	}
	if q.Index != vfu.RegionBAR0+2 || a.Size == 0 {
		return a.Append(nil), -1, nil
	}
	a.Flags |= vfu.RegionMap | vfu.RegionCaps
	a.CapOffset = vfu.RegionSize
	a.ArgSize += uint32(vfu.AreasSize(1))
	b := a.Append(nil)
	if q.ArgSize >= a.ArgSize { // else the client knows now how much room it needs
		b = vfu.AppendAreas(b, vfu.Area{Size: mappable})
	}
	return b, int(c.s.bar2.file.Fd()), nil
}

// access decodes an access and checks that it lies in its region.
func (c *session) access(r *request) (vfu.Access, error) {
	var a vfu.Access
	if err := a.Decode(r.payload); err != nil {
		return a, err
	}
	size := c.regionSize(a.Region)
	if a.Count == 0 || a.Count > c.transfer || a.Offset > size || uint64(a.Count) > size-a.Offset {
		return a, unix.EINVAL
	}
	if a.Region != vfu.RegionConfig && (a.Count > 8 || a.Count&(a.Count-1) != 0 || a.Offset%uint64(a.Count) != 0) {
		return a, unix.EINVAL // no access that a bus carries
	}
	return a, nil
}

// readRegion reads as the bus would: a BAR by one access, configuration space by
// those that it takes.
func (c *session) readRegion(r *request) ([]byte, error) {
	a, err := c.access(r)
	if err != nil {
		return nil, err
	}
	if len(a.Data) != 0 {
		return nil, unix.EINVAL
	}
	if a.Region == vfu.RegionConfig {
		a.Data = make([]byte, 0, a.Count)
		configParts(a, func(off, width, at int) {
			var v [4]byte
			binary.LittleEndian.PutUint32(v[:], c.s.card.ConfigRead(off, width))
			a.Data = append(a.Data, v[:width]...)
		})
		return a.Append(nil), nil
	}
	var v [8]byte
	binary.LittleEndian.PutUint64(v[:], c.s.card.Load(int(a.Region), a.Offset, int(a.Count)))
	a.Data = v[:a.Count]
	return a.Append(nil), nil
}

func (c *session) writeRegion(r *request) ([]byte, error) {
	a, err := c.access(r)
	if err != nil {
		return nil, err
	}
	if len(a.Data) != int(a.Count) {
		return nil, unix.EINVAL
	}
	data := a.Data
	a.Data = nil
	if a.Region == vfu.RegionConfig {
		configParts(a, func(off, width, at int) {
			var v [4]byte
			copy(v[:width], data[at:])
			c.s.card.ConfigWrite(off, width, binary.LittleEndian.Uint32(v[:]))
		})
		return a.Append(nil), nil
	}
	var v [8]byte
	copy(v[:], data)
	c.s.card.Store(int(a.Region), a.Offset, int(a.Count), binary.LittleEndian.Uint64(v[:]))
	return a.Append(nil), nil
}

// configParts cuts an access to configuration space into aligned ones of 4, 2 and 1
// bytes; at counts the bytes before each.
func configParts(a vfu.Access, part func(off, width, at int)) {
	for at := 0; at < int(a.Count); {
		off, width := int(a.Offset)+at, 4
		for off%width != 0 || width > int(a.Count)-at {
			width /= 2
		}
		part(off, width, at)
		at += width
	}
}
