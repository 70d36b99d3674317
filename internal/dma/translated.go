package dma

// Translator is an IOMMU, as far as it is this process's.
type Translator interface {
	// MapMemory lets the card reach mapped memory of this process at a bus address.
	MapMemory(bus uint64, mem []byte) error
	// UnmapMemory takes exactly one map away.
	UnmapMemory(bus uint64, size int) error
}

// Translated provides memory that an IOMMU shows the card under bus addresses below
// 4 GiB. Each region is a map of its own, of a file in memory, and an address that is
// none of a region's reaches nothing: the page behind each is nobody's. The card loses
// all of it when this process ends.
type Translated struct{ chosen }

// NewTranslated returns a provider that chooses from the allowed bus addresses.
func NewTranslated(iommu Translator, allowed []Range) *Translated {
	addresses := newIOVAs(allowed)
	return &Translated{chosen{
		take: func(size, align uint64) (uint64, error) { return addresses.take(size+pageSize, align) },
		give: func(bus, size uint64) { addresses.give(bus, size+pageSize) },
		make: func(name string, size int) ([]byte, func(bus uint64) error, error) {
			mem, err := sharedPages(name, size)
			return mem, func(bus uint64) error { return iommu.MapMemory(bus, mem) }, err
		},
		forget: iommu.UnmapMemory,
	}}
}
