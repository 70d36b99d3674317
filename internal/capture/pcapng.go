package capture

import (
	"encoding/binary"
	"io"
	"math/bits"
	"time"
)

// Types of blocks. The section header's reads the same in both byte orders.
const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockObsolete  = 2 // the first form of a packet; still written by a few
	blockSimple    = 3
	blockEnhanced  = 6
)

// Sizes in bytes.
const (
	blockHeader  = 8 // type, length
	blockTrailer = 4 // length once more
	sectionFixed = 16
	ifaceFixed   = 8
	packetFixed  = 20
	simpleFixed  = 4

	maxSmall = 1 << 16 // of an interface block's body
	// maxIfaces bounds memory; captures have one, or one for each port.
	maxIfaces = 1 << 12
)

const sectionMagic = 0x1a2b3c4d

// Options of any block.
const (
	optEnd     = 0
	optComment = 1
)

// Options of an interface block.
const (
	optIfName   = 2
	optTsresol  = 9
	optFCSLen   = 13
	optTsoffset = 14
)

// optFlags is an option of an enhanced packet block; its low two bits are a Direction.
const optFlags = 2

// iface is what an interface block says.
type iface struct {
	link   uint16
	snap   uint32 // 0: none
	fcs    int
	binary bool  // unit: 2^-exp s, or 10^-exp s
	exp    uint8 // 6 unless said
	offset int64 // seconds
}

// nextNG reads blocks up to and including the next packet.
func (d *Reader) nextNG() (Record, error) {
	for {
		d.begin = d.at
		h, err := d.head(blockHeader, "a block's header")
		if err != nil {
			return Record{}, err // io.EOF between blocks is the end
		}
		if binary.BigEndian.Uint32(h) == blockSection {
			if err := d.section([4]byte(h[4:])); err != nil {
				return Record{}, err
			}
			continue
		}
		kind, length := d.order.Uint32(h), d.order.Uint32(h[4:])
		if length < blockHeader+blockTrailer || length%4 != 0 {
			return Record{}, d.bad(again, "a block of %d bytes", length)
		}
		body := int64(length) - blockHeader - blockTrailer
		var r Record
		packet := false
		switch kind {
		case blockInterface:
			err = d.iface(body)
		case blockEnhanced, blockObsolete:
			packet = true
			r, err = d.packet(kind, body)
		case blockSimple:
			packet = true
			r, err = d.simple(body)
		default:
			err = d.discard(body)
		}
		if err == nil {
			err = d.trailer(length)
		}
		if err != nil {
			return Record{}, err
		}
		if packet {
			d.prev = r.Time
			return r, nil
		}
	}
}

// discard steps over what is not wanted.
func (d *Reader) discard(n int64) error {
	got, err := io.CopyN(io.Discard, d.in, n)
	d.at += got
	if err != nil {
		return d.short(err, "a block")
	}
	return nil
}

// trailer checks the length behind a block.
func (d *Reader) trailer(length uint32) error {
	b, err := d.head(blockTrailer, "a block")
	if err != nil {
		return d.inside(err)
	}
	if n := d.order.Uint32(b); n != length {
		return d.bad(again, "a block that is %d bytes long at its beginning and %d at its end", length, n)
	}
	return nil
}

// section begins a section. raw is its length in the byte order that comes
// behind it.
func (d *Reader) section(raw [4]byte) error {
	b, err := d.in.Peek(sectionFixed)
	if err != nil {
		return d.short(err, "a section header")
	}
	switch {
	case binary.BigEndian.Uint32(b) == sectionMagic:
		d.order = binary.BigEndian
	case binary.LittleEndian.Uint32(b) == sectionMagic:
		d.order = binary.LittleEndian
	default:
		return d.bad(again, "a section whose byte order is % x", b[:4])
	}
	if major := d.order.Uint16(b[4:]); major != 1 {
		return d.bad("", "pcapng version %d: want 1", major)
	}
	length := d.order.Uint32(raw[:])
	if length < blockHeader+sectionFixed+blockTrailer || length%4 != 0 {
		return d.bad(again, "a section header of %d bytes", length)
	}
	d.ifaces = d.ifaces[:0]
	if err := d.discard(int64(length) - blockHeader - blockTrailer); err != nil {
		return err
	}
	return d.trailer(length)
}

// iface adds an interface to the section. Its link type matters once it has a packet.
func (d *Reader) iface(body int64) error {
	switch {
	case body < ifaceFixed || body > maxSmall:
		return d.bad(again, "an interface block of %d bytes", body)
	case len(d.ifaces) == maxIfaces:
		return d.bad("", "more than %d interfaces", maxIfaces)
	}
	b, err := d.take(int(body), "an interface block")
	if err != nil {
		return err
	}
	i := iface{link: d.order.Uint16(b), snap: d.order.Uint32(b[4:]), exp: 6}
	for b = b[ifaceFixed:]; len(b) >= 4; {
		code, n := d.order.Uint16(b), int(d.order.Uint16(b[2:]))
		padded := 4 + (n+3)&^3
		if code == optEnd {
			break
		}
		if padded > len(b) {
			return d.bad(again, "an interface option of %d bytes in the last %d", n, len(b))
		}
		switch v := b[4 : 4+n]; {
		case code == optTsresol && n == 1:
			i.binary, i.exp = v[0]&0x80 != 0, v[0]&0x7f
		case code == optFCSLen && n == 1:
			i.fcs = int(v[0])
		case code == optTsoffset && n == 8:
			i.offset = int64(d.order.Uint64(v))
		}
		b = b[padded:]
	}
	const maxBinary, maxDecimal = 63, 19 // a second still fits in 64 bits
	if i.binary && i.exp > maxBinary || !i.binary && i.exp > maxDecimal {
		return d.bad("", "a unit of time with the exponent -%d", i.exp)
	}
	d.ifaces = append(d.ifaces, i)
	return nil
}

// at tells the time that a number of units is.
func (i *iface) at(units uint64) time.Time {
	var sec, nano uint64
	if i.binary {
		sec = units >> i.exp
		hi, lo := bits.Mul64(units&(1<<i.exp-1), uint64(time.Second))
		nano = lo>>i.exp | hi<<(64-i.exp) // exp 0 leaves nothing to multiply
	} else {
		unit := uint64(1)
		for range i.exp {
			unit *= 10
		}
		sec = units / unit
		hi, lo := bits.Mul64(units%unit, uint64(time.Second))
		nano, _ = bits.Div64(hi, lo, unit) // the remainder is below unit, so is hi
	}
	return time.Unix(int64(sec)+i.offset, int64(nano))
}

// packet reads an enhanced or an obsolete packet block. They differ in the size
// of the interface's number.
func (d *Reader) packet(kind uint32, body int64) (Record, error) {
	if body < packetFixed {
		return Record{}, d.bad(again, "a packet block of %d bytes", body)
	}
	h, err := d.head(packetFixed, "a packet block")
	if err != nil {
		return Record{}, d.inside(err)
	}
	n := d.order.Uint32(h)
	if kind == blockObsolete {
		n = uint32(d.order.Uint16(h))
	}
	units := uint64(d.order.Uint32(h[4:]))<<32 | uint64(d.order.Uint32(h[8:]))
	kept, wire := d.order.Uint32(h[12:]), d.order.Uint32(h[16:])
	i, err := d.from(n)
	if err != nil {
		return Record{}, err
	}
	b, err := d.kept(kept, wire, body-packetFixed)
	if err != nil {
		return Record{}, err
	}
	return Record{Offset: d.begin, Time: i.at(units), Frame: b, WireBytes: int(wire)}, nil
}

// simple reads a packet block without interface, time and length.
func (d *Reader) simple(body int64) (Record, error) {
	if body < simpleFixed {
		return Record{}, d.bad(again, "a simple packet block of %d bytes", body)
	}
	h, err := d.head(simpleFixed, "a packet block")
	if err != nil {
		return Record{}, d.inside(err)
	}
	wire := d.order.Uint32(h)
	i, err := d.from(0)
	if err != nil {
		return Record{}, err
	}
	kept := wire
	if i.snap != 0 {
		kept = min(kept, i.snap)
	}
	b, err := d.kept(kept, wire, body-simpleFixed)
	if err != nil {
		return Record{}, err
	}
	return Record{Offset: d.begin, Time: d.prev, Frame: b, WireBytes: int(wire)}, nil
}

// inside makes the end of the file an error: the block has begun.
func (d *Reader) inside(err error) error {
	if err == io.EOF {
		return d.short(err, "a block")
	}
	return err
}

// from finds the interface of a packet.
func (d *Reader) from(n uint32) (*iface, error) {
	if int64(n) >= int64(len(d.ifaces)) {
		return nil, d.bad(again, "a packet of interface %d of %d", n, len(d.ifaces))
	}
	i := &d.ifaces[n]
	if err := d.ethernet(i.link); err != nil {
		return nil, err
	}
	if i.fcs != 0 {
		return nil, d.fcs(i.fcs)
	}
	return i, nil
}

// kept takes a packet's bytes and steps over its padding and options, room bytes
// in all.
func (d *Reader) kept(kept, wire uint32, room int64) ([]byte, error) {
	if err := d.lengths(kept, wire); err != nil {
		return nil, err
	}
	padded := (int64(kept) + 3) &^ 3
	if padded > room {
		return nil, d.bad(again, "a packet of %d bytes in a block with room for %d", kept, room)
	}
	b, err := d.take(int(kept), "a packet block")
	if err != nil {
		return nil, err
	}
	return b, d.discard(room - int64(kept))
}
