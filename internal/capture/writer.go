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

// Writer writes one section with one Ethernet interface, times in nanoseconds.
// Not safe for concurrent use.
type Writer struct {
	out *bufio.Writer
	buf []byte
}

// byteOrder of what is written.
var byteOrder = binary.LittleEndian

// NewWriter writes the beginning of a capture of the interface that name says.
func NewWriter(w io.Writer, name string) (*Writer, error) {
	const (
		optIfName = 2
		nano      = 9 // 10^-9 s
		noLength  = ^uint64(0)
	)
	e := &Writer{out: bufio.NewWriterSize(w, 1<<16)}
	b := byteOrder.AppendUint32(nil, sectionMagic)
	b = byteOrder.AppendUint16(b, 1) // version 1.0
	b = byteOrder.AppendUint16(b, 0)
	b = byteOrder.AppendUint64(b, noLength)
	if err := e.block(blockSection, b); err != nil {
		return nil, err
	}
	b = byteOrder.AppendUint16(b[:0], linkEthernet)
	b = byteOrder.AppendUint16(b, 0)
	b = byteOrder.AppendUint32(b, 0) // no snap length
	b = appendOption(b, optIfName, []byte(name))
	b = appendOption(b, optTsresol, []byte{nano})
	b = appendOption(b, optEnd, nil)
	if err := e.block(blockInterface, b); err != nil {
		return nil, err
	}
	return e, nil
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

// Write adds a whole frame without FCS. It is copied; Flush makes it visible.
func (e *Writer) Write(at time.Time, frame []byte) error {
	if len(frame) > MaxFrame {
		return fmt.Errorf("capture: a frame of %d bytes: want at most %d", len(frame), MaxFrame)
	}
	units := uint64(at.UnixNano())
	b := byteOrder.AppendUint32(e.buf[:0], 0) // the interface
	b = byteOrder.AppendUint32(b, uint32(units>>32))
	b = byteOrder.AppendUint32(b, uint32(units))
	b = byteOrder.AppendUint32(b, uint32(len(frame)))
	b = byteOrder.AppendUint32(b, uint32(len(frame)))
	e.buf = pad(append(b, frame...))
	return e.block(blockEnhanced, e.buf)
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
