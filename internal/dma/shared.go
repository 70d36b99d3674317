package dma

// FileMapper tells a device in another process which file's bytes lie at which bus
// address.
type FileMapper interface {
	// MapFile hands a descriptor over, which stays the caller's; off is where in the
	// file the bytes begin, in whole pages.
	MapFile(bus uint64, size, fd int, off int64) error
	UnmapFile(bus uint64, size int) error
}

// Shared provides memory that a device in another process maps too: a file in
// memory for each region. The device loses all of it when this process ends.
type Shared struct{ chosen }

// NewShared returns a provider for a device that knows no memory yet.
func NewShared(dev FileMapper) *Shared {
	return &Shared{chosen{
		next: chosenBase,
		make: func(name string, size int) ([]byte, func(bus uint64) error, error) {
			mem, fd, err := mapShared(name, size)
			return mem, func(bus uint64) error {
				defer closeFD(fd) // who has mapped it needs it no more
				return dev.MapFile(bus, size, fd, 0)
			}, err
		},
		forget: dev.UnmapFile,
	}}
}
