package fdstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// Layout of a copy, little-endian: a head and the bytes.
const (
	blobMagic   = 0  // u32
	blobLen     = 4  // u32, of the bytes behind the head
	blobSeq     = 8  // u64, the higher of two whole copies is the newer
	blobCRC     = 16 // u32, CRC-32C of the head before it and of the bytes
	blobHead    = 20
	blobCopy    = 64 << 10
	blobMost    = blobCopy - blobHead
	blobCopies  = 2
	magicOfBlob = 0x6264786f // "oxdb"
)

// ErrBlob says that a file holds no whole copy.
var ErrBlob = errors.New("no whole copy of the state")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// file is the memory behind a Blob.
type file interface {
	io.ReaderAt
	io.WriterAt
}

// Blob is the state of a service in a file that its service manager keeps. The last
// Save that returned is what Load finds, and one during which the process died has
// not happened. Not safe for concurrent use.
type Blob struct {
	f   file
	seq uint64
}

// Load returns the newer whole copy, nil when nothing was ever saved.
// Errors: ErrBlob, those of reading.
func (b *Blob) Load() ([]byte, error) {
	all := make([]byte, blobCopies*blobCopy)
	if _, err := b.f.ReadAt(all, 0); err != nil {
		return nil, fmt.Errorf("fdstore: load the state: %w", err)
	}
	var newest []byte
	written := false
	for i := range blobCopies {
		c := all[i*blobCopy : (i+1)*blobCopy]
		seq, data, ok := decodeCopy(c)
		written = written || binary.LittleEndian.Uint32(c[blobMagic:]) != 0
		if ok && seq > b.seq {
			b.seq, newest = seq, data
		}
	}
	if newest == nil && written {
		return nil, fmt.Errorf("fdstore: load the state: %w", ErrBlob)
	}
	return newest, nil
}

func decodeCopy(c []byte) (seq uint64, data []byte, ok bool) {
	le := binary.LittleEndian
	n := le.Uint32(c[blobLen:])
	if le.Uint32(c[blobMagic:]) != magicOfBlob || n > blobMost {
		return 0, nil, false
	}
	data = c[blobHead : blobHead+n]
	if le.Uint32(c[blobCRC:]) != sum(c[:blobCRC], data) {
		return 0, nil, false
	}
	return le.Uint64(c[blobSeq:]), data, true
}

func sum(head, data []byte) uint32 {
	return crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, data)
}

// Save replaces what the blob holds. data is at most 65,516 bytes.
func (b *Blob) Save(data []byte) error {
	if len(data) > blobMost {
		return fmt.Errorf("fdstore: save the state: %d bytes, room for %d", len(data), blobMost)
	}
	seq := b.seq + 1
	c := make([]byte, blobHead, blobHead+len(data))
	le := binary.LittleEndian
	le.PutUint32(c[blobMagic:], magicOfBlob)
	le.PutUint32(c[blobLen:], uint32(len(data)))
	le.PutUint64(c[blobSeq:], seq)
	le.PutUint32(c[blobCRC:], sum(c[:blobCRC], data))
	if _, err := b.f.WriteAt(append(c, data...), int64(seq%blobCopies)*blobCopy); err != nil {
		return fmt.Errorf("fdstore: save the state: %w", err)
	}
	b.seq = seq
	return nil
}
