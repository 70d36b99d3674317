package switchcfg

import (
	"context"
	"errors"
	"fmt"

	"oxpd/switchcfg/reg"
)

// Bounds of reads that are to be trusted.
const (
	readTries = 4
	maxMisses = 6 // in one run; a foreign access between two of ours is rare
)

// trusted reads registers of ports so that a wrong value does not pass for a right one,
// and counts what was wrong: a way to the switch that is wrong often may also be wrong
// the same way twice.
type trusted struct {
	regs          Registers
	reads, misses int
}

// get is one access.
func (t *trusted) get(ctx context.Context, at Register) (uint16, error) {
	t.reads++
	return t.regs.Read(ctx, at.Dev, at.Reg)
}

// miss counts something wrong and says whether that is enough.
func (t *trusted) miss(err error) error {
	t.misses++
	if t.misses > maxMisses {
		return &UnreliableError{Misses: t.misses, Reads: t.reads, Last: err}
	}
	return nil
}

// product checks that the switch is the one that the registers here belong to.
func (t *trusted) product(ctx context.Context) (reg.ID, error) {
	v, err := t.equal(ctx, Register{reg.Uplink, reg.Identifier})
	if err != nil {
		return 0, fmt.Errorf("identify the switch: %w", err)
	}
	if id := reg.ID(v); id.Product() != reg.Product {
		return id, fmt.Errorf("identify the switch: %w", &ProductError{ID: id})
	}
	return reg.ID(v), nil
}

// port reads a register of a port: twice and equal, with the port's identifier as it
// must be in between.
func (t *trusted) port(ctx context.Context, p Port, r int) (uint16, error) {
	identity := Register{int(p), reg.Identifier}
	return t.again(ctx, Register{int(p), r}, func() error {
		v, err := t.get(ctx, identity)
		if err != nil {
			return err
		}
		if reg.ID(v).Product() != reg.Product {
			return &IdentityError{At: identity, Value: v}
		}
		return nil
	})
}

// shown reads a register that is only shown: twice, and equal.
func (t *trusted) shown(ctx context.Context, p Port, r int) (uint16, error) {
	return t.equal(ctx, Register{int(p), r})
}

// expect reads a register that should have a value, so many times. It returns that value
// when each read gives it, all sixteen bits, which no wrong read does; otherwise what port
// says.
func (t *trusted) expect(ctx context.Context, p Port, r int, want uint16, times int) (uint16, error) {
	for range times {
		v, err := t.get(ctx, Register{int(p), r})
		if err != nil || v != want {
			return t.port(ctx, p, r)
		}
	}
	return want, nil
}

// equal reads a register of which nothing is known.
func (t *trusted) equal(ctx context.Context, at Register) (uint16, error) {
	return t.again(ctx, at, func() error { return nil })
}

// again reads a register until it has read the same twice. between is done between the
// two. What was read wrong counts for the run; an access that failed lied about nothing,
// and is only tried again.
func (t *trusted) again(ctx context.Context, at Register, between func() error) (uint16, error) {
	var seen []uint16
	for try := 1; ; try++ {
		values, err := t.pair(ctx, at, between)
		seen = append(seen, values...)
		var foreign *IdentityError
		lied := err == nil && !same(values) || errors.As(err, &foreign)
		switch {
		case err == nil && !lied:
			return values[0], nil
		case ctx.Err() != nil:
			return 0, interrupted(ctx.Err())
		case err == nil:
			err = &UnstableError{At: at.String(), Values: seen}
		}
		if lied {
			if enough := t.miss(err); enough != nil {
				return 0, enough
			}
		}
		if final(err) || try == readTries {
			return 0, err
		}
	}
}

// pair reads a register twice; two values that a dead bus gives too are read twice more.
func (t *trusted) pair(ctx context.Context, at Register, between func() error) (values []uint16, err error) {
	for {
		v, err := t.get(ctx, at)
		if err != nil {
			return values, err
		}
		values = append(values, v)
		switch dead := v == 0 || v == reg.NoAnswer; {
		case len(values) == 1:
			if err := between(); err != nil {
				return values, err
			}
		case len(values) == 2 && (!dead || values[0] != v), len(values) == 4:
			return values, nil
		}
	}
}

func same(values []uint16) bool {
	for _, v := range values {
		if v != values[0] {
			return false
		}
	}
	return true
}

// final tells whether trying again is of no use: the wait was the try, or a Registers'
// error says so by a method Final.
func final(err error) bool {
	var (
		busy   *BusyError
		silent *NoAnswerError
		says   interface{ Final() bool }
	)
	return errors.As(err, &busy) || errors.As(err, &silent) || errors.As(err, &says) && says.Final()
}
