package dma

// Mapper tells a device in this process which memory lies at which bus address.
type Mapper interface {
	MapDMA(bus uint64, mem []byte) error
	UnmapDMA(bus uint64, size int) error
}

// InProcess provides anonymous pages to a device in this process.
type InProcess struct{ chosen }

// NewInProcess returns a provider for dev whose bus addresses begin above 4 GiB
// and above above, the end of what dev was ever told about: no address of an
// earlier provider is used again.
func NewInProcess(dev Mapper, above uint64) *InProcess {
	return &InProcess{chosen{
		next: max(chosenBase, above+chosenHole),
		make: func(_ string, size int) ([]byte, func(bus uint64) error, error) {
			mem, err := mapPages(size)
			return mem, func(bus uint64) error { return dev.MapDMA(bus, mem) }, err
		},
		forget: dev.UnmapDMA,
	}}
}
