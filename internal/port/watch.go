package port

// Link is the state of an interface, as the kernel had it when it was read.
type Link struct {
	Index   int
	Gone    bool // there is no such interface; only Index is valid, and what Port.Note takes
	Name    string
	MTU     int
	MAC     [6]byte
	Up      bool // administratively
	Carrier bool
	Master  int // index of the bridge or bond that it belongs to, or 0

	dropped kernelCount
}

// WatchConfig is what Watch needs. The zero value watches every interface of
// the process's namespace.
type WatchConfig struct {
	NetNS string
	// Filter chooses interfaces by index; nil: all. Called by one goroutine.
	Filter func(index int) bool
}
