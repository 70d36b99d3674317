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
	// Promisc and AllMulti count whatever asks for them: ip link set, and what only
	// the kernel's own count shows, such as bridge membership, a capture or a macvlan.
	// Before kernel 6.3 all-multicast shows only when ip link set it.
	Promisc   bool
	AllMulti  bool
	Master    int    // index of the bridge, bond or VRF that it belongs to, or 0
	Bridge    string // name of the master when that is a Linux bridge
	BridgeMTU int    // and its MTU

	// Raised: Watch tells that the interface was administratively up at some time since it
	// was reported last, whatever it is now.
	Raised bool

	dropped kernelCount
}

// WatchConfig is what Watch needs. The zero value watches every interface of
// the process's namespace.
type WatchConfig struct {
	NetNS string
	// Filter chooses interfaces by index; nil: all. Called by one goroutine.
	Filter func(index int) bool
}
