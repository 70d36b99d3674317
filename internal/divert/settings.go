package divert

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Bounds of settings.
const (
	MinQueueLen   = 1
	MaxQueueLen   = 1 << slotBits
	MinQueueBytes = 16 << 10 // a frame of 9,022 bytes fits always
	MaxQueueBytes = 4 << 30
	MinBufferSize = 64 << 10
	MaxBufferSize = 64 << 20
	MinStall      = 10 * time.Millisecond
	MaxStall      = time.Minute

	// EntryOverhead is what a queued frame costs beside its own bytes.
	EntryOverhead = 64
)

// Direction is where a frame goes.
type Direction uint8

// Directions.
const (
	In  Direction = iota // from the wire to the host
	Out                  // from the host to the wire

	Directions = 2
)

var directionNames = [Directions]string{"in", "out"}

// String is the direction as rules and commands have it.
func (d Direction) String() string {
	if int(d) >= len(directionNames) {
		return "unknown"
	}
	return directionNames[d]
}

// Policy is what becomes of a frame that no engine can decide about.
type Policy uint8

// Policies.
const (
	Drop Policy = iota // the frame is dropped and counted
	Pass               // it goes on uninspected, and is counted
)

var policyNames = []string{"drop", "pass"}

// String is the policy as settings have it.
func (p Policy) String() string { return nameOf(policyNames, int(p)) }

// ParsePolicy reads a policy.
func ParsePolicy(text string) (Policy, error) {
	i, err := parseName(policyNames, text)
	return Policy(i), err
}

// Order is whether frames that pass by a policy may overtake queued ones of their flow.
type Order uint8

// Orders.
const (
	Any  Order = iota // they may, and are counted as reordered
	Keep              // they may not: they are dropped
)

var orderNames = []string{"any", "keep"}

// String is the order as settings have it.
func (o Order) String() string { return nameOf(orderNames, int(o)) }

// ParseOrder reads an order.
func ParseOrder(text string) (Order, error) {
	i, err := parseName(orderNames, text)
	return Order(i), err
}

func nameOf(names []string, i int) string {
	if i >= len(names) {
		return "unknown"
	}
	return names[i]
}

func parseName(names []string, text string) (int, error) {
	for i, n := range names {
		if n == text {
			return i, nil
		}
	}
	return 0, fmt.Errorf("found %q, want %s", text, strings.Join(names, " or "))
}

// Settings are what an operator chooses. They hold for every queue, and each queue has
// the bounds for itself.
type Settings struct {
	QueueLen   int   // frames without a verdict
	QueueBytes int64 // bytes of them, each with EntryOverhead
	BufferSize int64 // bytes of an engine's socket; 0: the kernel's default

	OnFull   Policy // the frame would exceed one of the bounds
	OnAbsent Policy // there is no engine
	OnStall  Policy // the engine has given no verdict for Stall
	Stall    time.Duration
	Order    Order
}

// Defaults are the settings of a queue that nobody has set.
func Defaults() Settings {
	return Settings{QueueLen: 1024, QueueBytes: 4 << 20, Stall: time.Second}
}

// Check refuses what cannot be.
func (s Settings) Check() error {
	switch {
	case s.QueueLen < MinQueueLen || s.QueueLen > MaxQueueLen:
		return fmt.Errorf("queue-len %d: want %d to %d frames", s.QueueLen, MinQueueLen, MaxQueueLen)
	case s.QueueBytes < MinQueueBytes || s.QueueBytes > MaxQueueBytes:
		return fmt.Errorf("queue-bytes %d: want %d to %d (16kb to 4gb)", s.QueueBytes, MinQueueBytes, int64(MaxQueueBytes))
	case s.Stall < MinStall || s.Stall > MaxStall:
		return fmt.Errorf("stall-ms %d: want %d to %d", s.Stall.Milliseconds(), MinStall.Milliseconds(), MaxStall.Milliseconds())
	case s.OnFull > Pass || s.OnAbsent > Pass || s.OnStall > Pass:
		return fmt.Errorf("policies %d, %d, %d: want %s", s.OnFull, s.OnAbsent, s.OnStall, strings.Join(policyNames, " or "))
	case s.Order > Keep:
		return fmt.Errorf("order %d: want %s", s.Order, strings.Join(orderNames, " or "))
	}
	return CheckBufferSize(s.BufferSize)
}

// CheckBufferSize refuses sizes of an engine's socket that cannot be: 0 leaves it to the
// kernel.
func CheckBufferSize(n int64) error {
	if n != 0 && (n < MinBufferSize || n > MaxBufferSize) {
		return fmt.Errorf("buffer-size %d: want 64kb to 64mb (%d to %d), or 0 for the kernel's default", n, MinBufferSize, MaxBufferSize)
	}
	return nil
}

var sizeUnits = map[string]int64{"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}

// ParseSize reads a size in bytes: digits, and a unit of 1,024 (k, kb), 1,024² (m, mb) or
// 1,024³ (g, gb) in either case.
func ParseSize(text string) (int64, error) {
	digits := strings.TrimRight(text, "bBkKmMgG")
	unit, known := sizeUnits[strings.ToLower(text[len(digits):])]
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || !known {
		return 0, fmt.Errorf("size %q: want a number of bytes, or one with kb, mb or gb", text)
	}
	if int64(n) > math.MaxInt64/unit {
		return 0, fmt.Errorf("size %q: larger than any", text)
	}
	return int64(n) * unit, nil
}
