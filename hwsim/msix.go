package hwsim

import "oxpd/octep/csr"

// msixTable is the MSI-X table and pending bits in BAR0, and who is called for
// a vector.
type msixTable struct {
	entry   [csr.MSIXVectors][4]uint32 // address, address high, data, control
	pending [csr.MSIXVectors]bool
	fn      [csr.MSIXVectors]func()
	told    [csr.MSIXVectors]uint64 // calls of fn, those of earlier callees too
}

const (
	msixControl = 3
	msixMasked  = 1
)

// powerOn masks every vector; who listens stays.
func (m *msixTable) powerOn() {
	for i := range m.entry {
		m.entry[i] = [4]uint32{msixControl: msixMasked}
		m.pending[i] = false
	}
}

// OnIRQ says who is called when a vector's message arrives: without the card's
// lock, from whatever goroutine moves the card, and it must not block. As the
// kernel does for whoever binds a vector, it unmasks the table entry and turns
// MSI-X on; nil removes the callee and masks the entry. After that the table
// counts, also when a driver writes to it. What waited for the vector comes at once. With Options.HostVectors the table is
// storage, and who has a callee is unmasked.
func (c *Card) OnIRQ(vector int, fn func()) {
	if vector < 0 || vector >= c.Vectors() {
		return
	}
	c.lock()
	c.msix.fn[vector] = fn
	switch {
	case c.o.HostVectors:
	case fn != nil:
		c.msix.entry[vector][msixControl] &^= msixMasked
		c.cfg.b[cfgMSIX+3] |= msixEnable >> 8
	default:
		c.msix.entry[vector][msixControl] |= msixMasked
	}
	c.atOnce(c.msixPending)
	c.leave()
}

// Messages is how often whoever listened to a vector was called.
func (c *Card) Messages(vector int) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.msix.told[vector]
}

// open tells whether a vector's message goes out now: the table says so, or with
// Options.HostVectors that somebody listens.
func (c *Card) open(vector int) bool {
	if c.o.HostVectors {
		return c.msix.fn[vector] != nil
	}
	return c.cfg.msixOn() && c.msix.entry[vector][msixControl]&msixMasked == 0
}

// message sends a vector's message at a cycle, or remembers it while the vector is
// masked. A message is a memory write: it comes behind what was written before, and
// without bus mastering it is lost.
func (c *Card) message(vector int, at uint64) {
	if c.gone() {
		return
	}
	if !c.open(vector) {
		c.msix.pending[vector] = true
		return
	}
	if !c.cfg.busMaster() {
		return
	}
	due := at
	if !c.instant {
		due = c.send(&c.link.up, linkOut, at, messageBytes+tlpHead, "message") + c.lat.link
	}
	c.trace(Step{Unit: UnitMessage, Lane: vector, What: "message", Start: at, End: due})
	c.outs.messages.enter(vector, due)
}

// messageBytes is the data of a message.
const messageBytes = 4

// msixPending sends what waits for vectors that are not masked any more.
func (c *Card) msixPending() {
	for v := range c.msix.pending {
		if c.msix.pending[v] && c.open(v) {
			c.msix.pending[v] = false
			c.message(v, c.storeAt())
		}
	}
}

// msixLoad reads the table or the pending bits, 4 bytes at an aligned offset.
func (c *Card) msixLoad32(off uint32) uint32 {
	if off < csr.MSIXVectors*csr.MSIXEntrySize {
		return c.msix.entry[off/csr.MSIXEntrySize][off%csr.MSIXEntrySize/4]
	}
	var v uint32
	if first := int(off-csr.MSIXPBA) * 8; first >= 0 {
		for i := 0; i < 32 && first+i < csr.MSIXVectors; i++ {
			if c.msix.pending[first+i] {
				v |= 1 << i
			}
		}
	}
	return v
}

func (c *Card) msixStore32(off, v uint32) {
	if off >= csr.MSIXVectors*csr.MSIXEntrySize {
		return
	}
	word := off % csr.MSIXEntrySize / 4
	if word == msixControl {
		v &= msixMasked
	}
	c.msix.entry[off/csr.MSIXEntrySize][word] = v
	if word == msixControl {
		c.msixPending()
	}
}

// inMSIX tells whether an offset of BAR0 is the table or the pending bits.
func (c *Card) inMSIX(off uint32) bool {
	return c.Vectors() != 0 && (off < csr.MSIXVectors*csr.MSIXEntrySize || off >= csr.MSIXPBA && off < csr.MSIXPBA+(csr.MSIXVectors+63)/64*8)
}
