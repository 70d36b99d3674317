package fdstore

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// paper is a file whose writes can be cut short, as by the death of the writer.
type paper struct {
	b    [blobCopies * blobCopy]byte
	left int // bytes that can still be written; negative: all
}

var errCut = errors.New("cut")

func (p *paper) ReadAt(b []byte, off int64) (int, error) { return copy(b, p.b[off:]), nil }

func (p *paper) WriteAt(b []byte, off int64) (int, error) {
	if p.left >= 0 && p.left < len(b) {
		return copy(p.b[off:], b[:p.left]), errCut
	}
	return copy(p.b[off:], b), nil
}

func TestBlobOfAWriterThatDies(t *testing.T) {
	old, young := []byte("the state before"), []byte("the state after, which is longer")
	for cut := range blobHead + len(young) {
		p := &paper{left: -1}
		w := &Blob{f: p}
		require.NoError(t, w.Save([]byte("older")))
		require.NoError(t, w.Save(old))
		p.left = cut
		require.ErrorIs(t, w.Save(young), errCut)
		p.left = -1
		r := &Blob{f: p}
		got, err := r.Load()
		require.NoError(t, err)
		require.Equal(t, old, got, "after %d bytes", cut)
		require.NoError(t, r.Save(young), "and it goes on")
		got, err = (&Blob{f: p}).Load()
		require.NoError(t, err)
		require.Equal(t, young, got)
	}
}

func TestBlobIsTheNewest(t *testing.T) {
	p := &paper{left: -1}
	b := &Blob{f: p}
	got, err := b.Load()
	require.NoError(t, err)
	assert.Nil(t, got, "nothing was saved")
	for i := range 9 {
		want := bytes.Repeat([]byte{byte(i)}, i*100+1)
		require.NoError(t, b.Save(want))
		got, err := (&Blob{f: p}).Load()
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	assert.ErrorContains(t, b.Save(make([]byte, blobMost+1)), "room for")
	require.NoError(t, b.Save(make([]byte, blobMost)))
}

func TestBlobWithoutAWholeCopy(t *testing.T) {
	for _, tc := range []struct {
		name string
		at   int
	}{{"magic", blobMagic}, {"length", blobLen + 3}, {"order", blobSeq}, {"checksum", blobCRC}, {"data", blobHead}} {
		t.Run(tc.name, func(t *testing.T) {
			p := &paper{left: -1}
			b := &Blob{f: p}
			require.NoError(t, b.Save([]byte("x")))
			require.NoError(t, b.Save([]byte("y")))
			p.b[tc.at] ^= 0x40
			p.b[blobCopy+tc.at] ^= 0x40
			_, err := (&Blob{f: p}).Load()
			assert.ErrorIs(t, err, ErrBlob)
		})
	}
}

func FuzzBlob(f *testing.F) {
	p := &paper{left: -1}
	if err := (&Blob{f: p}).Save([]byte("seed")); err != nil {
		f.Fatal(err)
	}
	f.Add(p.b[blobCopy : blobCopy+64])
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < blobHead || len(b) > blobCopy {
			return
		}
		p := &paper{left: -1}
		copy(p.b[:], b)
		got, err := (&Blob{f: p}).Load()
		if err != nil && !errors.Is(err, ErrBlob) || errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if len(got) > blobMost {
			t.Fatal(len(got))
		}
	})
}
