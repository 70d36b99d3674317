package witness

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// The FIFOs in testpmd's folder.
const (
	inFile  = "in.pcap"
	outFile = "out.pcap"
)

// Capture files (pcap, the format of libpcap 1), of whole Ethernet frames.
const (
	pcapMagic     = 0xa1b2c3d4
	pcapMagicNS   = 0xa1b23c4d // DPDK writes nanoseconds
	pcapHeader    = 24
	pcapRecord    = 16
	pcapSnap      = 65535
	pcapEthernet  = 1
	pcapRecordLen = 8 // u32 bytes in the file, u32 bytes of the frame

	pipeBytes   = 1 << 20
	bufferBytes = 1 << 16
)

// fill makes frame number n: no two are alike, and no part of one is like another.
func fill(n uint64, b []byte) {
	x := (n + 1) * 0x9e3779b97f4a7c15
	var word [8]byte
	for len(b) > 0 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.LittleEndian.PutUint64(word[:], x)
		b = b[copy(b, word[:]):]
	}
}

// feed writes frames number 0 to n-1 of so many bytes as a capture.
func feed(to io.Writer, n, size int) error {
	w := bufio.NewWriterSize(to, bufferBytes)
	le := binary.LittleEndian
	var head [pcapHeader]byte
	le.PutUint32(head[0:], pcapMagic)
	le.PutUint16(head[4:], 2)
	le.PutUint16(head[6:], 4)
	le.PutUint32(head[16:], pcapSnap)
	le.PutUint32(head[20:], pcapEthernet)
	if _, err := w.Write(head[:]); err != nil {
		return err
	}
	b := make([]byte, pcapRecord+size)
	le.PutUint32(b[pcapRecordLen:], uint32(size))
	le.PutUint32(b[pcapRecordLen+4:], uint32(size))
	for i := range n {
		fill(uint64(i), b[pcapRecord:])
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return w.Flush()
}

// stream is where a capture comes from. It ends when nothing has come for a while.
type stream struct {
	f     *os.File
	quiet time.Duration
}

func (s stream) Read(p []byte) (int, error) {
	if err := s.f.SetReadDeadline(time.Now().Add(s.quiet)); err != nil {
		return 0, err
	}
	return s.f.Read(p)
}

// check reads a capture of frames number 0 to n-1 and compares each. The error is the
// first that is missing or other than it was sent.
func check(from io.Reader, n, size int) error {
	r := bufio.NewReaderSize(from, bufferBytes)
	le := binary.LittleEndian
	var head [pcapHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return fmt.Errorf("no frame came back: %w", err)
	}
	if m := le.Uint32(head[:]); m != pcapMagic && m != pcapMagicNS {
		return fmt.Errorf("what came back is no capture: % x", head)
	}
	got, want := make([]byte, pcapSnap), make([]byte, size)
	for i := range n {
		if _, err := io.ReadFull(r, head[:pcapRecord]); err != nil {
			return fmt.Errorf("%d frames of %d came back: %w", i, n, err)
		}
		bytesHere := le.Uint32(head[pcapRecordLen:])
		if bytesHere > pcapSnap {
			return fmt.Errorf("frame %d came back with %d bytes", i, bytesHere)
		}
		got = got[:bytesHere]
		if _, err := io.ReadFull(r, got); err != nil {
			return fmt.Errorf("%d frames of %d came back: %w", i, n, err)
		}
		fill(uint64(i), want)
		if !bytes.Equal(got, want) {
			return differs(i, got, want)
		}
	}
	if extra := r.Buffered(); extra != 0 {
		return fmt.Errorf("%d bytes came back behind the last frame", extra)
	}
	return nil
}

var errDiffers = errors.New("is not what was sent")

// differs says where a frame is not as it was sent.
func differs(n int, got, want []byte) error {
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	return fmt.Errorf("frame %d %w: %d bytes for %d, equal up to %d: % x, want % x",
		n, errDiffers, len(got), len(want), at, got[at:min(at+16, len(got))], want[at:min(at+16, len(want))])
}
