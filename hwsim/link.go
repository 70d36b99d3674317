package hwsim

// direction is one direction of the PCIe link: a server that sends what it is given in
// the order of asking.
type direction struct {
	unit    Unit
	perByte uint64            // length of a byte in 2^-20 cycles
	busy    [linkUsers]uint64 // end of what it was given, in 2^-8 cycles
}

// linkUser is who asks for the link. In stepped mode all of them queue in front of
// one link. In free mode, where a unit runs a batch ahead of the others, each has
// one of its own: what one did early must not make another one late.
type linkUser int

const (
	linkHost linkUser = iota // the driver's loads and stores
	linkFetch
	linkRead
	linkOut
	linkUsers
)

// pcie is the link of the card.
type pcie struct {
	up   direction // card to host: writes, messages, requests, completions of the host's loads
	down direction // host to card: completions of the card's reads, the host's loads and stores
}

func (l *pcie) init(o *Options) {
	l.up, l.down = direction{unit: UnitLinkUp}, direction{unit: UnitLinkDown}
	if o.Latencies.Link >= 0 {
		l.up.perByte = lineTime(o.Rates.LinkRate)
		l.down.perByte = l.up.perByte
	}
}

func (l *pcie) reset() {
	l.up.busy, l.down.busy = [linkUsers]uint64{}, [linkUsers]uint64{}
}

// end is where in direction.busy a user's time stands.
func (c *Card) end(l *direction, u linkUser) *uint64 {
	if c.mode == stepped {
		u = 0
	}
	return &l.busy[u]
}

// send puts bytes on the link at a cycle, or when what is in front of them has
// gone, and returns the cycle of the last one.
func (c *Card) send(l *direction, u linkUser, at uint64, bytes int, what string) uint64 {
	if c.instant {
		return at
	}
	busy := c.end(l, u)
	start := max(*busy, at<<busyFraction)
	*busy = start + uint64(bytes)*l.perByte>>(byteFraction-busyFraction)
	end := (*busy + 1<<busyFraction - 1) >> busyFraction
	if c.tracer != nil {
		// Both rounded down: what follows at once begins where this ends.
		c.tracer(Step{Unit: l.unit, What: what, Start: start >> busyFraction, End: *busy >> busyFraction, Bytes: bytes})
	}
	return end
}

// room is the cycle from which on a direction's queue has room for more.
func (c *Card) room(l *direction, u linkUser) uint64 {
	end := *c.end(l, u) >> busyFraction
	return end - min(end, c.linkQueue)
}

// tlps is how many packets of the link n bytes make, of at most 2^most bytes each.
func tlps(n int, most uint) int { return (n + 1<<most - 1) >> most }

// hostRead is a read of host memory that the card asks for at a cycle. It returns
// the cycle of the data's arrival, which is when they should be looked at.
func (c *Card) hostRead(u linkUser, at uint64, n int, what string) uint64 {
	if c.instant {
		return at
	}
	asked := c.send(&c.link.up, u, at, tlps(n, c.cfg.maxReadRequest())*tlpHead, what)
	at = asked + c.lat.link + c.lat.hostMemory
	return c.send(&c.link.down, u, at, n+tlps(n, c.cfg.maxPayload())*tlpCompletion, what) + c.lat.link
}

// hostAccess is the way of a load or a store to the card: the cycle of its arrival.
// The direction to the card counts from when the host's memory has answered, which is
// what nearly all of its traffic waits for; an access takes its place in that queue.
func (c *Card) hostAccess(at uint64, n int, what string) uint64 {
	lag := c.lat.link + c.lat.hostMemory
	return c.send(&c.link.down, linkHost, at+lag, tlpHead+n, what) - lag + c.lat.link
}

// storeAt is when the card acts on a register write of this moment. The register
// has its value at once: no load could tell, as it takes the same way.
func (c *Card) storeAt() uint64 {
	if c.mode == free || c.instant {
		return c.now
	}
	return c.now + c.lat.link
}

// early tells whether a step of that cycle may be done now: it is due, or in free
// mode not too far ahead.
func (c *Card) early(due uint64) bool { return due <= c.horizon || c.instant }
