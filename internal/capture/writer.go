package capture

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// Writer writes one section of Ethernet interfaces, times in nanoseconds.
// Not safe for concurrent use.
type Writer struct {
	out *bufio.Writer
	buf []byte
}

// byteOrder of what is written.
var byteOrder = binary.LittleEndian

// NewWriter writes the beginning of a capture of the interfaces of these names. A
// Packet has the number of its one in this order.
func NewWriter(w io.Writer, names ...string) (*Writer, error) {
	const noLength = ^uint64(0)
	e := &Writer{out: bufio.NewWriterSize(w, 1<<16)}
	b := byteOrder.AppendUint32(nil, sectionMagic)
	b = byteOrder.AppendUint16(b, 1) // version 1.0
	b = byteOrder.AppendUint16(b, 0)
	b = byteOrder.AppendUint64(b, noLength)
	if err := e.block(blockSection, b); err != nil {
		return nil, err
	}
	for _, name := range names {
		if err := e.iface(name); err != nil {
			return nil, err
		}
	}
	return e, nil
}

func (e *Writer) iface(name string) error {
	const nano = 9 // 10^-9 s
	b := byteOrder.AppendUint16(nil, linkEthernet)
	b = byteOrder.AppendUint16(b, 0) // reserved
	b = byteOrder.AppendUint32(b, 0) // no snap length
	b = appendOption(b, optIfName, []byte(name))
	b = appendOption(b, optTsresol, []byte{nano})
	return e.block(blockInterface, appendOption(b, optEnd, nil))
}

func appendOption(b []byte, code uint16, v []byte) []byte {
	b = byteOrder.AppendUint16(b, code)
	b = byteOrder.AppendUint16(b, uint16(len(v)))
	return pad(append(b, v...))
}

// pad fills up to a multiple of four bytes.
func pad(b []byte) []byte {
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// block writes a block with a padded body.
func (e *Writer) block(kind uint32, body []byte) error {
	var h [blockHeader]byte
	length := uint32(blockHeader + len(body) + blockTrailer)
	byteOrder.PutUint32(h[:], kind)
	byteOrder.PutUint32(h[4:], length)
	_, err := e.out.Write(h[:])
	if err == nil {
		_, err = e.out.Write(body)
	}
	if err == nil {
		_, err = e.out.Write(h[4:])
	}
	return err
}

// Packet is a frame as a Writer takes it. What the zero value of a field is, is not
// written.
type Packet struct {
	Iface     int // number of the interface
	Time      time.Time
	Frame     []byte // its beginning, without FCS
	WireBytes int    // of the whole frame; 0: Frame is all of it
	Dir       Direction
	Comment   string // one line, at most MaxComment bytes
}

// Direction is the way of a packet at its interface, as a block's flags have it.
type Direction uint32

// Directions. NoDirection is not told.
const (
	NoDirection Direction = iota
	Inbound
	Outbound
)

// MaxComment bounds the comment of a packet, in bytes.
const MaxComment = 1 << 15

// Write adds a whole frame of the first interface, without FCS. It is copied; Flush
// makes it visible.
func (e *Writer) Write(at time.Time, frame []byte) error {
	return e.WritePacket(&Packet{Time: at, Frame: frame})
}

// WritePacket adds a packet. It is copied; Flush makes it visible.
func (e *Writer) WritePacket(p *Packet) error {
	wire := max(len(p.Frame), p.WireBytes)
	switch {
	case wire > MaxFrame:
		return fmt.Errorf("capture: a frame of %d bytes: want at most %d", wire, MaxFrame)
	case len(p.Comment) > MaxComment:
		return fmt.Errorf("capture: a comment of %d bytes: want at most %d", len(p.Comment), MaxComment)
	}
	units := uint64(p.Time.UnixNano())
	b := byteOrder.AppendUint32(e.buf[:0], uint32(p.Iface))
	b = byteOrder.AppendUint32(b, uint32(units>>32))
	b = byteOrder.AppendUint32(b, uint32(units))
	b = byteOrder.AppendUint32(b, uint32(len(p.Frame)))
	b = byteOrder.AppendUint32(b, uint32(wire))
	b = pad(append(b, p.Frame...))
	if p.Comment != "" {
		b = appendOption(b, optComment, []byte(p.Comment))
	}
	if p.Dir != NoDirection {
		b = appendOption(b, optFlags, byteOrder.AppendUint32(nil, uint32(p.Dir)))
	}
	if p.Comment != "" || p.Dir != NoDirection {
		b = appendOption(b, optEnd, nil)
	}
	e.buf = b
	return e.block(blockEnhanced, b)
}

// Flush hands everything to the writer below.
func (e *Writer) Flush() error { return e.out.Flush() }

// flushAfter is how long a frame may stay in memory before it is in the file, for
// whoever reads along, and for a process that is killed.
const flushAfter = time.Second

// Recorder is a Writer on a file of its own. Safe for concurrent use.
type Recorder struct {
	mu     sync.Mutex
	file   *os.File
	w      *Writer
	timer  *time.Timer
	armed  bool
	frames uint64
	err    error // sticky
}

// Create makes the file, or empties one that exists, for frames of the interface
// that name says.
func Create(path, name string) (*Recorder, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("record frames: %w", err)
	}
	r := &Recorder{file: f}
	if r.w, err = NewWriter(f, name); err == nil {
		err = r.w.Flush() // from here on the file is a capture
	}
	if err != nil {
		return nil, fmt.Errorf("record frames: %w", errors.Join(err, f.Close()))
	}
	r.timer = time.AfterFunc(flushAfter, r.flush)
	return r, nil
}

func (r *Recorder) flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.armed = false
	if r.err == nil {
		r.fail(r.w.Flush())
	}
}

func (r *Recorder) fail(err error) {
	if err != nil {
		r.err = fmt.Errorf("record frames: %w", err)
	}
}

// Record adds a frame; it is copied. After an error every call returns it, and
// the file stays as it is.
func (r *Recorder) Record(at time.Time, frame []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return r.err
	}
	r.fail(r.w.Write(at, frame))
	if r.err == nil {
		r.frames++
		if !r.armed {
			r.armed = true
			r.timer.Reset(flushAfter)
		}
	}
	return r.err
}

// Frames is how many were recorded.
func (r *Recorder) Frames() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.frames
}

// Close writes what is left and closes the file. It returns the first error of
// all; a second Close does nothing and returns os.ErrClosed.
func (r *Recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if errors.Is(r.err, os.ErrClosed) {
		return r.err
	}
	r.timer.Stop()
	if r.err == nil {
		r.fail(r.w.Flush())
	}
	err := r.err
	if e := r.file.Close(); err == nil && e != nil {
		err = fmt.Errorf("record frames: %w", e)
	}
	r.err = fmt.Errorf("record frames: %w", os.ErrClosed)
	return err
}
