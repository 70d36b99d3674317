package mmio

// Piece is a part of a BAR that is reached in a way of its own.
type Piece struct {
	Offset uint64 // in the BAR
	Space
}

// Pieces is a BAR of which parts are mapped. An access that lies in none of them whole
// goes to Rest, which is the BAR as a whole.
type Pieces struct {
	Rest   Space
	Mapped []Piece
}

// Size returns the bytes of the BAR.
func (p *Pieces) Size() uint64 { return p.Rest.Size() }

// at returns who answers an access, and the offset there.
func (p *Pieces) at(off, width uint32) (Space, uint32) {
	for i := range p.Mapped {
		if m := &p.Mapped[i]; uint64(off) >= m.Offset && uint64(off)+uint64(width) <= m.Offset+m.Size() {
			return m.Space, off - uint32(m.Offset)
		}
	}
	return p.Rest, off
}

// Load32 reads 32 bits.
func (p *Pieces) Load32(off uint32) uint32 {
	s, at := p.at(off, 4)
	return s.Load32(at)
}

// Load64 reads 64 bits.
func (p *Pieces) Load64(off uint32) uint64 {
	s, at := p.at(off, 8)
	return s.Load64(at)
}

// Store32 writes 32 bits.
func (p *Pieces) Store32(off uint32, v uint32) {
	s, at := p.at(off, 4)
	s.Store32(at, v)
}

// Store64 writes 64 bits.
func (p *Pieces) Store64(off uint32, v uint64) {
	s, at := p.at(off, 8)
	s.Store64(at, v)
}
