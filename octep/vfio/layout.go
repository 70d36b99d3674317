package vfio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"oxpd/internal/dma"
	"oxpd/internal/vfu"
)

// errLayout is an answer of the kernel that makes no sense.
var errLayout = errors.New("malformed answer of the kernel")

// Requests of /dev/vfio (Linux, include/uapi/linux/vfio.h): _IO(';', 100 + n). Regions,
// interrupts and maps have the structures that vfio-user took over (internal/vfu).
const (
	reqAPIVersion     = 0x3b64 // no argument; 0
	reqExtension      = 0x3b65 // number
	reqSetIOMMU       = 0x3b66 // number
	reqGroupStatus    = 0x3b67 // argsz u32, flags u32
	reqGroupContainer = 0x3b68 // descriptor s32
	reqGroupDevice    = 0x3b6a // text that ends with 0; a descriptor
	reqDeviceInfo     = 0x3b6b // vfu.Device
	reqRegionInfo     = 0x3b6c // vfu.Region and capabilities
	reqIRQInfo        = 0x3b6d // vfu.IRQ
	reqSetIRQs        = 0x3b6e // vfu.IRQSet, descriptors as data
	reqIOMMUInfo      = 0x3b70 // type1Info and capabilities
	reqMap            = 0x3b71 // vfu.Map, Offset being the address in this process
	reqUnmap          = 0x3b72 // vfu.Unmap; the size comes back
	reqBindIOMMUFD    = 0x3b76 // argsz, flags, descriptor s32, id u32
	reqAttachIOMMUFD  = 0x3b77 // argsz, flags, id of address space u32

	extType1v2  = 3
	groupViable = 1 << 0
)

// Requests of /dev/iommu (include/uapi/linux/iommufd.h): _IO(';', 0x80 + n). Each
// structure begins with its size.
const (
	reqIOASAlloc  = 0x3b81 // size, flags, id u32
	reqIOASRanges = 0x3b84 // size, id, number, reserved u32; address of ranges, alignment u64
	reqIOASMap    = 0x3b85 // size, flags, id, reserved u32; address here, length, bus address u64
	reqIOASUnmap  = 0x3b86 // size, id u32; bus address, length u64; the length comes back

	ioasFixed    = 1 << 0 // at the bus address that was asked for
	ioasWritable = 1 << 1
	ioasReadable = 1 << 2
)

var le = binary.LittleEndian

// words writes numbers of 32 bits.
func words(v ...uint32) []byte {
	var b []byte
	for _, w := range v {
		b = le.AppendUint32(b, w)
	}
	return b
}

// longs adds numbers of 64 bits.
func longs(b []byte, v ...uint64) []byte {
	for _, w := range v {
		b = le.AppendUint64(b, w)
	}
	return b
}

// type1Info: argsz u32, flags u32, page sizes u64, offset of the first capability u32,
// padding u32. A capability: id u16, version u16, offset of the next u32, and for the
// ranges of bus addresses a number u32, reserved u32, and pairs of u64.
const (
	type1InfoSize = 24
	type1Caps     = 1 << 1 // flag: there are some
	capHeader     = 8
	capRanges     = 1
	rangesHeader  = 16
	rangeSize     = 16
)

// decodeRanges finds the bus addresses that an IOMMU of type 1 takes in the answer to
// reqIOMMUInfo. A kernel that does not say (before 5.4) takes all of them: ok false.
func decodeRanges(b []byte) (ranges []dma.Range, ok bool, err error) {
	if len(b) < type1InfoSize {
		return nil, false, fmt.Errorf("vfio: IOMMU info of %d bytes: %w", len(b), errLayout)
	}
	if le.Uint32(b[4:])&type1Caps == 0 {
		return nil, false, nil
	}
	for at, last := uint64(le.Uint32(b[16:])), uint64(0); at != 0; {
		// Each lies behind the one before it: a circle has an end.
		if at <= last || at < type1InfoSize || at+capHeader > uint64(len(b)) {
			return nil, false, fmt.Errorf("vfio: IOMMU info: capability at %#x of %#x bytes: %w", at, len(b), errLayout)
		}
		c := b[at:]
		if le.Uint16(c) != capRanges {
			last, at = at, uint64(le.Uint32(c[4:]))
			continue
		}
		if len(c) < rangesHeader || uint64(le.Uint32(c[8:])) > uint64(len(c)-rangesHeader)/rangeSize {
			return nil, false, fmt.Errorf("vfio: IOMMU info: more ranges than there is room for: %w", errLayout)
		}
		return pairs(c[rangesHeader:], int(le.Uint32(c[8:]))), true, nil
	}
	return nil, false, nil
}

// pairs reads n ranges.
func pairs(b []byte, n int) []dma.Range {
	ranges := make([]dma.Range, n)
	for i := range ranges {
		ranges[i] = dma.Range{First: le.Uint64(b[i*rangeSize:]), Last: le.Uint64(b[i*rangeSize+8:])}
	}
	return ranges
}

// lowAddresses is where a kernel that does not say takes maps: all but what x86 keeps
// for its interrupts.
var lowAddresses = [...]dma.Range{{First: 0, Last: 0xfedfffff}, {First: 0xfef00000, Last: ^uint64(0)}}

// pageSize is what offsets and sizes of mapped areas are multiples of.
const pageSize = 4096

// decodeRegion reads an answer to reqRegionInfo: the region, and what of it can be
// mapped. Areas that do not lie in it, page for page, are refused.
func decodeRegion(b []byte) (r vfu.Region, areas []vfu.Area, err error) {
	if err := r.Decode(b); err != nil {
		return r, nil, err
	}
	if r.Flags&vfu.RegionMap == 0 {
		return r, nil, nil
	}
	areas, sparse, err := r.DecodeAreas(b)
	if err != nil {
		return r, nil, err
	}
	if !sparse {
		areas = []vfu.Area{{Size: r.Size}}
	}
	for _, a := range areas {
		end := a.Offset + a.Size
		if a.Size == 0 || end < a.Size || end > r.Size || (a.Offset|a.Size|r.Offset)%pageSize != 0 || r.Size > math.MaxInt64 || r.Offset > math.MaxInt64-r.Size {
			return r, nil, fmt.Errorf("vfio: area of %#x bytes at %#x of region %d (%#x bytes at %#x): %w", a.Size, a.Offset, r.Index, r.Size, r.Offset, errLayout)
		}
	}
	return r, areas, nil
}
