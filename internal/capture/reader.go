package capture

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"time"
)

// MaxFrame is the longest frame that is read, in bytes: the largest snap length
// that capture programs use.
const MaxFrame = 262144

// linkEthernet is LINKTYPE_ETHERNET.
const linkEthernet = 1

// Record is one captured frame.
type Record struct {
	Number    int       // from 1
	Offset    int64     // of the record in the file, in bytes
	Time      time.Time // zero when the file has none
	Frame     []byte    // what was kept of it, without FCS
	WireBytes int       // its length when it was captured
}

// Cut tells whether the capture kept only the beginning of the frame.
func (r Record) Cut() bool { return len(r.Frame) < r.WireBytes }

// Reader reads a capture from its beginning to its end. Not safe for concurrent use.
type Reader struct {
	in     *bufio.Reader
	file   string // for errors
	at     int64  // bytes taken
	begin  int64  // of the record or block in progress
	count  int
	next   func() (Record, error)
	last   error  // sticky: after an error there is nothing that could be trusted
	frame  []byte // memory of Record.Frame
	order  binary.ByteOrder
	unit   time.Duration // pcap: of the second half of the time
	ifaces []iface       // pcapng: of the section in progress
	prev   time.Time     // of the record before, for one without a time
}

// Sizes of pcap in bytes.
const (
	pcapHeader = 24
	pcapRecord = 16
)

// First four bytes of a file, big-endian.
const (
	magicMicro     = 0xa1b2c3d4
	magicNano      = 0xa1b23c4d
	magicMicroSwap = 0xd4c3b2a1
	magicNanoSwap  = 0x4d3cb2a1
	magicNG        = blockSection
	magicGzip      = 0x1f8b
	magicModified  = 0x34cdb2a1 // and swapped: a patched libpcap of 1999
	magicModSwap   = 0xa1b2cd34
)

// NewReader reads the beginning of a capture; name is what errors call it.
// Errors: *FormatError, and those of r.
func NewReader(r io.Reader, name string) (*Reader, error) {
	d := &Reader{in: bufio.NewReaderSize(r, 1<<16), file: name}
	magic, err := d.in.Peek(4)
	if err != nil {
		return nil, d.short(err, "the first 4 bytes")
	}
	switch m := binary.BigEndian.Uint32(magic); {
	case m == magicMicro:
		err = d.pcap(binary.BigEndian, time.Microsecond)
	case m == magicNano:
		err = d.pcap(binary.BigEndian, time.Nanosecond)
	case m == magicMicroSwap:
		err = d.pcap(binary.LittleEndian, time.Microsecond)
	case m == magicNanoSwap:
		err = d.pcap(binary.LittleEndian, time.Nanosecond)
	case m == magicNG:
		d.next = d.nextNG
	case m>>16 == magicGzip:
		err = d.bad("unpack it first", "a compressed file")
	case m == magicModified, m == magicModSwap:
		err = d.bad("convert it: editcap -F pcapng OLD NEW", "the modified pcap format of an old libpcap")
	default:
		err = d.bad("give a pcap or pcapng file", "begins with % x: no capture", magic)
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

// Next returns the next frame. Its memory is valid until the call after. The
// error is io.EOF behind the last whole record; a file that ends inside one is a
// *FormatError. After an error every call returns it again.
func (d *Reader) Next() (Record, error) {
	if d.last != nil {
		return Record{}, d.last
	}
	d.begin = d.at
	r, err := d.next()
	if err != nil {
		d.last = err
		return Record{}, err
	}
	d.count++
	r.Number = d.count
	return r, nil
}

func (d *Reader) bad(todo, format string, args ...any) error {
	return &FormatError{File: d.file, Offset: d.begin, Record: d.count, Why: fmt.Sprintf(format, args...), ToDo: todo}
}

// again is the advice for a file that is damaged.
const again = "the file is damaged or was not closed; capture again, or save the whole part: tshark -r OLD -w NEW"

// short says that the file ended, or could not be read, before what was wanted.
func (d *Reader) short(err error, what string) error {
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("read %s: %w", d.file, err)
	}
	return &FormatError{
		File: d.file, Offset: d.begin, Record: d.count, Why: "the file ends inside " + what, ToDo: again, err: io.ErrUnexpectedEOF,
	}
}

// head takes the fixed part of a record or block; its memory is valid until the
// next read. io.EOF when the file ended before it.
func (d *Reader) head(n int, what string) ([]byte, error) {
	b, err := d.in.Peek(n)
	if len(b) == 0 && errors.Is(err, io.EOF) {
		return nil, io.EOF
	}
	if err != nil {
		return nil, d.short(err, what)
	}
	d.skip(n)
	return b, nil
}

// skip steps over bytes that were peeked.
func (d *Reader) skip(n int) {
	_, _ = d.in.Discard(n) // they are in the buffer
	d.at += int64(n)
}

// growth is by how much memory for a frame grows ahead of the bytes that fill it.
const growth = 1 << 16

// take reads n bytes into the reader's own memory.
func (d *Reader) take(n int, what string) ([]byte, error) {
	b := d.frame[:0]
	for len(b) < n {
		step := min(n-len(b), growth)
		if cap(b)-len(b) < step {
			b = append(make([]byte, 0, len(b)+step), b...)
			d.frame = b
		}
		got, err := io.ReadFull(d.in, b[len(b):len(b)+step])
		d.at += int64(got)
		if err != nil {
			return nil, d.short(err, what)
		}
		b = b[:len(b)+step]
	}
	return b, nil
}

// pcap reads the file header of the old format.
func (d *Reader) pcap(order binary.ByteOrder, unit time.Duration) error {
	const (
		version  = 4
		linkType = 20 // and FCS, in the upper bits
	)
	h, err := d.head(pcapHeader, "the file header")
	if err != nil {
		return err
	}
	if v := order.Uint16(h[version:]); v != 2 {
		return d.bad("convert it: editcap -F pcapng OLD NEW", "pcap version %d: want 2", v)
	}
	link := order.Uint32(h[linkType:])
	if err := d.ethernet(uint16(link)); err != nil {
		return err
	}
	const fcsKnown = 1 << 26
	if link&fcsKnown != 0 && link>>28 != 0 {
		return d.fcs(int(link>>28) * 2)
	}
	d.order, d.unit, d.next = order, unit, d.nextPcap
	return nil
}

func (d *Reader) ethernet(link uint16) error {
	if link != linkEthernet {
		return d.bad("capture on one Ethernet interface, not on \"any\"", "link type %d: want %d, Ethernet", link, linkEthernet)
	}
	return nil
}

func (d *Reader) fcs(n int) error {
	return d.bad("take it off: editcap -C -"+fmt.Sprint(n)+" OLD NEW", "frames with an FCS of %d bytes", n)
}

// lengths refuses what no capture program writes.
func (d *Reader) lengths(kept, wire uint32) error {
	switch {
	case kept > MaxFrame:
		return d.bad(again, "a packet of %d bytes: want at most %d", kept, MaxFrame)
	case wire > math.MaxInt32:
		return d.bad(again, "a packet that was %d bytes long", wire)
	case kept > wire:
		return d.bad(again, "%d bytes kept of a packet that was %d bytes long", kept, wire)
	}
	return nil
}

func (d *Reader) nextPcap() (Record, error) {
	h, err := d.head(pcapRecord, "a record's header")
	if err != nil {
		return Record{}, err
	}
	sec, frac, kept, wire := d.order.Uint32(h), d.order.Uint32(h[4:]), d.order.Uint32(h[8:]), d.order.Uint32(h[12:])
	if err := d.lengths(kept, wire); err != nil {
		return Record{}, err
	}
	if most := uint32(time.Second / d.unit); frac >= most {
		return Record{}, d.bad(again, "a time of %d s and %d parts of %d", sec, frac, most)
	}
	b, err := d.take(int(kept), "a packet")
	if err != nil {
		return Record{}, err
	}
	return Record{Offset: d.begin, Time: time.Unix(int64(sec), int64(frac)*int64(d.unit)), Frame: b, WireBytes: int(wire)}, nil
}
