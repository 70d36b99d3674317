package capture

import (
	"encoding/binary"
	"io"
	"math"
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

	// maxSmall is the longest interface block, and the most options of a packet.
	maxSmall = 1 << 16
	// maxIfaces bounds memory; captures have one, or one for each port.
	maxIfaces = 1 << 12
)

const sectionMagic = 0x1a2b3c4d

// Options of an interface block.
const (
	optEnd      = 0
	optTsresol  = 9
	optFCSLen   = 13
	optTsoffset = 14
)

// iface is what an interface block says.
type iface struct {
	link   uint16
	snap   uint32 // 0: none
	fcs    int
	binary bool   // unit: 2^-exp s, or 10^-exp s
	exp    uint8  // 6 unless said
	offset int64  // seconds
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
			if err := d.section(); err != nil {
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
	if err == io.EOF {
		return d.short(err, "a block")
	}
	if err != nil {
		return err
	}
	if n := d.order.Uint32(b); n != length {
		return d.bad(again, "a block that is %d bytes long at its beginning and %d at its end", length, n)
	}
	return nil
}

// section begins a section; the type and the length, whose byte order nobody
// knows yet, have been taken.
func (d *Reader) section() error {
	b, err := d.in.Peek(sectionFixed)
	if err != nil {
		return d.short(err, "a section header")
	}
	var order binary.ByteOrder = binary.LittleEndian
	if binary.BigEndian.Uint32(b) == sectionMagic {
		order = binary.BigEndian
	} else if order.Uint32(b) != sectionMagic {
		return d.bad(again, "a section with the byte order % x", b[:4])
	}
	if major := order.Uint16(b[4:]); major != 1 {
		return d.bad("", "pcapng version %d: want 1", major)
	}
	// The length comes before the byte order that it is in; it is known again only
	// from the end, so both are read back from there.
	d.order, d.ifaces = order, d.ifaces[:0]
	return d.sectionRest()
}
