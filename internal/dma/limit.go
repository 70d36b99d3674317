package dma

import (
	"errors"
	"fmt"
	"math/bits"
)

// WidthKey is the configuration key of the widest address, named in refusals.
const WidthKey = "dma-bits"

// DefaultBits is the widest address that the card is told without being asked to:
// the sister board's coprocessor stops there, this one has been seen with 33 bits,
// and nobody has measured its end (rpc-lif.md 12).
const DefaultBits = 36

// WidthError is a region that the card may not be able to address. The card was
// never told about it.
type WidthError struct {
	Region string
	Bus    BusAddr // of the first byte
	Size   int     // bytes
	Bits   int     // widest address that is allowed
}

// Needs is how many bits the region's last byte takes, 65 when it lies behind the
// end of 64 bits.
func (e *WidthError) Needs() int {
	last := uint64(e.Bus) + uint64(e.Size) - 1
	if last < uint64(e.Bus) {
		return 65
	}
	return bits.Len64(last)
}

func (e *WidthError) Error() string {
	return fmt.Sprintf("dma: region %s: %d bytes at bus address %#x need addresses of %d bits, and %s is %d",
		e.Region, e.Size, uint64(e.Bus), e.Needs(), WidthKey, e.Bits)
}

// Hint is what an operator can do.
func (e *WidthError) Hint() string {
	if e.Needs() > 64 {
		return "the memory provider is wrong about its addresses; report it"
	}
	return fmt.Sprintf("give oxpd memory below 2^%d; or set %s to %d, if this card is known to reach that far", e.Bits, WidthKey, e.Needs())
}

// Limit returns p without the regions that end above 2^bits: Alloc checks each
// region's whole range on the bus before anybody can tell the card about it, and
// gives a refused one back to p. A provider that chooses bus addresses itself
// chooses them below 4 GiB; one that takes them as the kernel gives them is what
// the limit is for.
//
// Memory of an earlier process (Holder) is p's to give: the card has it already.
//
// Alloc's errors: *WidthError, and p's.
func Limit(p Provider, bits int) Provider { return &limited{p, bits} }

type limited struct {
	Provider
	bits int
}

func (l *limited) Alloc(name string, size, align int) (*Region, error) {
	r, err := l.Provider.Alloc(name, size, align)
	if err != nil {
		return nil, err
	}
	if e := (&WidthError{name, r.Bus(), r.Size(), l.bits}); r.Size() > 0 && e.Needs() > l.bits {
		return nil, errors.Join(e, l.Provider.Free(r))
	}
	return r, nil
}

// Held implements Holder for a provider that does.
func (l *limited) Held(name string, size, align int) (*Region, error) {
	h, ok := l.Provider.(Holder)
	if !ok {
		return nil, fmt.Errorf("dma: find %s: %w", name, ErrNotHeld)
	}
	return h.Held(name, size, align)
}
