package switchcfg

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/switchcfg/reg"
)

// all is the plan of `oxpd switch jumbo --all`.
func all() Plan { return Plan{Mode: reg.Jumbo10240, Ports: PanelPorts()} }

func modesOf(uplink, panel reg.Jumbo) (m [reg.Ports]reg.Jumbo) {
	for i := range m {
		m[i] = panel
	}
	m[Uplink] = uplink
	return m
}

// outcomes are those of a result, by the port's short name.
func outcomes(r Result) string {
	var out []string
	for _, p := range r.Ports {
		out = append(out, p.Port.Short()+" "+string(p.Outcome))
	}
	return strings.Join(out, ", ")
}

//oxpd:fault S18 behaviour
func TestJumboAll(t *testing.T) {
	ctx := context.Background()
	b := newBus()
	var told []Port
	r, err := New(b.smi()).Jumbo(ctx, all(), func(p PortResult) { told = append(told, p.Port) })
	require.NoError(t, err)
	m, other := b.modes()
	assert.Equal(t, modesOf(2, 2), m)
	assert.False(t, other, "no other bit")
	assert.Len(t, b.writes, 10)
	assert.Equal(t, []Port{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0}, told)
	assert.Equal(t, 0x193, r.ID.Product())
	require.Len(t, r.Ports, reg.Ports)
	assert.Equal(t, Unchanged, r.Ports[0].Outcome)
	for _, p := range r.Ports[1:] {
		assert.Equal(t, Changed, p.Outcome)
		assert.Equal(t, reg.Jumbo2048, reg.JumboOf(p.Before))
		assert.Equal(t, reg.Jumbo10240, p.Mode())
		assert.Equal(t, 1, p.Tries)
	}

	t.Run("again writes nothing", func(t *testing.T) {
		b.writes = nil
		r, err := New(b.smi()).Jumbo(ctx, all(), nil)
		require.NoError(t, err)
		assert.Empty(t, b.writes)
		for _, p := range r.Ports {
			assert.Equal(t, Unchanged, p.Outcome)
		}
	})
}

//oxpd:fault S16 behaviour
func TestJumboPlans(t *testing.T) {
	one := modesOf(2, 1)
	one[9] = 2
	for _, tc := range []struct {
		name          string
		uplink, panel reg.Jumbo // as found
		plan          Plan
		want          [reg.Ports]reg.Jumbo
		writes        int
	}{
		{"one port", 2, 1, Plan{Mode: 2, Ports: []Port{9}}, one, 1},
		{"the uplink is raised with it", 1, 1, Plan{Mode: 2, Ports: []Port{9}}, one, 2},
		{"restore", 2, 2, Plan{Mode: 1, Ports: PanelPorts(), LeaveUplink: true}, modesOf(2, 1), 10},
		{"restore leaves a low uplink", 0, 2, Plan{Mode: 1, Ports: PanelPorts(), LeaveUplink: true}, modesOf(0, 1), 10},
		{"2048 needs more on the uplink", 1, 1, Plan{Mode: 1, Ports: PanelPorts()}, modesOf(2, 1), 1},
		{"1522 needs 2048 on the uplink", 0, 2, Plan{Mode: 0, Ports: PanelPorts()}, modesOf(1, 0), 11},
		{"the uplink is never lowered", 2, 2, Plan{Mode: 0, Ports: PanelPorts()}, modesOf(2, 0), 10},
		{"dry run", 1, 1, Plan{Mode: 2, Ports: PanelPorts(), DryRun: true}, modesOf(1, 1), 0},
		{"no port", 1, 1, Plan{Mode: 2}, modesOf(1, 1), 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBus()
			for p := range reg.Ports {
				j := tc.panel
				if p == reg.Uplink {
					j = tc.uplink
				}
				b.regs[p][reg.PortControl2] = j.Put(otherBits(p))
			}
			_, err := New(b.smi()).Jumbo(context.Background(), tc.plan, nil)
			require.NoError(t, err)
			m, other := b.modes()
			assert.Equal(t, tc.want, m)
			assert.False(t, other)
			assert.Len(t, b.writes, tc.writes)
		})
	}
	t.Run("dry run says what it would do", func(t *testing.T) {
		r, err := New(newBus().smi()).Jumbo(context.Background(), Plan{Mode: 2, Ports: []Port{1}, DryRun: true}, nil)
		require.NoError(t, err)
		assert.Equal(t, WouldChange, r.Ports[1].Outcome)
		assert.Equal(t, Left, r.Ports[2].Outcome)
		assert.Equal(t, Unchanged, r.Ports[0].Outcome)
	})
	t.Run("no plan writes the reserved mode, or a port that is none", func(t *testing.T) {
		for _, p := range []Plan{{Mode: 3}, {Mode: 2, Ports: []Port{0}}, {Mode: 2, Ports: []Port{11}}, {Mode: 2, Ports: []Port{-1}}} {
			b := newBus()
			_, err := New(b.smi()).Jumbo(context.Background(), p, nil)
			var e *RangeError
			require.ErrorAs(t, err, &e)
			assert.Zero(t, b.accesses)
		}
	})
}

// onlyGood fails when anything was written that is not a value of the plan.
func onlyGood(t *testing.T, b *fakeBus, mode reg.Jumbo) {
	t.Helper()
	good := map[string]bool{}
	for p := range reg.Ports {
		good[strings.Join([]string{Port(p).Short(), "0x08", words([]uint16{mode.Put(otherBits(p))})}, " ")] = true
	}
	for _, w := range b.writes {
		assert.True(t, good[w], "wrong write: %s", w)
	}
}

//oxpd:fault S3 behaviour
//oxpd:fault S9 behaviour
func TestJumboNeverWritesWrong(t *testing.T) {
	ctx := context.Background()
	for _, tc := range []struct {
		name   string
		fault  func(b *fakeBus)
		err    any // type of the error, nil for success
		text   string
		writes int
	}{
		{"another product", func(b *fakeBus) { b.regs[0][reg.Identifier] = 0x1920 }, new(*ProductError), "product 0x192, want product 0x193", 0},
		{"every second read wrong", func(b *fakeBus) {
			b.readAs = func(n, _, _ int, v uint16) uint16 {
				if n%2 == 0 {
					return 0x007f
				}
				return v
			}
		}, new(*UnstableError), "does not read the same twice: 0x1930 0x007f", 0},
		{"a port reads zero for ever", func(b *fakeBus) {
			b.readAs = func(_, dev, _ int, v uint16) uint16 {
				if dev == 5 {
					return 0
				}
				return v
			}
		}, new(*IdentityError), "register 0x03 of oxp5 (Port5, sw5) is 0x0000", 0},
		{"stuck busy from the first access", func(b *fakeBus) { b.busyFor = time.Hour }, new(*BusyError), "stayed busy", 0},
		{"stuck busy after the third write", func(b *fakeBus) {
			b.after = func(int) {
				if len(b.writes) == 3 {
					b.busyFor = time.Hour
				}
			}
		}, new(*UnverifiedError), "could not be read back", 3},
		{"a value that does not stick", func(b *fakeBus) {
			b.stores = func(_, dev, _ int, old, v uint16) uint16 {
				if dev == 4 {
					return old
				}
				return v
			}
		}, new(*VerifyError), "written 3 times: the old value stands", 12},
		{"a value that sticks at the second try", func(b *fakeBus) {
			b.stores = func(n, _, _ int, old, v uint16) uint16 {
				if n == 1 {
					return old
				}
				return v
			}
		}, nil, "", 11},
		{"a value that does not stick, and one read that says it does", func(b *fakeBus) {
			said := false
			b.stores = func(n, _, _ int, old, v uint16) uint16 {
				if n == 1 {
					return old
				}
				return v
			}
			b.readAs = func(_, dev, _ int, v uint16) uint16 {
				if len(b.writes) == 1 && dev == 1 && !said {
					said = true
					return reg.Jumbo10240.Put(v)
				}
				return v
			}
		}, nil, "", 11},
		{"a foreign command between data and command", func(b *fakeBus) {
			b.between = func(b *fakeBus) { b.data = 0x1930 }
		}, nil, "", 11},
		{"reserved mode", func(b *fakeBus) { b.regs[7][reg.PortControl2] |= 0x3000 }, new(*ReservedError), "mode 3", 9},
		{"an error of the bus", func(b *fakeBus) { b.err = errors.New("EIO") }, nil, "identify the switch: read register 0x03 of sw0 (uplink): EIO", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBus()
			tc.fault(b)
			r, err := New(b.smi()).Jumbo(ctx, all(), nil)
			writes := b.writes
			if tc.name == "a foreign command between data and command" {
				assert.Equal(t, "sw1 0x08 0x1930", writes[0], "which nobody can prevent, and the read-back finds")
				b.writes = writes[1:]
			}
			onlyGood(t, b, reg.Jumbo10240)
			assert.Len(t, writes, tc.writes)
			switch {
			case tc.err != nil:
				require.ErrorAs(t, err, tc.err)
				require.ErrorContains(t, err, tc.text)
			case tc.text != "":
				require.ErrorContains(t, err, tc.text)
			default:
				require.NoError(t, err)
				m, other := b.modes()
				assert.Equal(t, modesOf(2, 2), m)
				assert.False(t, other)
			}
			for _, p := range r.Ports {
				if p.Known {
					assert.Equal(t, p.Now, b.regs[p.Port][reg.PortControl2], "%s: the result is what stands", p.Port)
				}
			}
		})
	}
}

// TestJumboOnAWayThatIsWrongHalfOfTheTime is the memory poke of switch.md 2: the same two
// wrong values, at random.
func TestJumboOnAWayThatIsWrongHalfOfTheTime(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		b := newBus()
		b.readAs = func(_, _, _ int, v uint16) uint16 {
			return []uint16{v, v, 0x0000, 0x007f}[rnd.IntN(4)]
		}
		_, err := New(b.smi()).Jumbo(context.Background(), all(), nil)
		require.Error(t, err)
		require.Empty(t, b.writes, "seed %d", seed)
	}
}

// TestJumboWithForeignReads is a coprocessor that uses the switch now and then: the
// values are somebody else's, and the run goes through.
func TestJumboWithForeignReads(t *testing.T) {
	b := newBus()
	b.readAs = func(n, _, _ int, v uint16) uint16 {
		if n%37 == 5 {
			return 0x0e0f
		}
		return v
	}
	_, err := New(b.smi()).Jumbo(context.Background(), all(), nil)
	require.NoError(t, err)
	m, other := b.modes()
	assert.Equal(t, modesOf(2, 2), m)
	assert.False(t, other)
	onlyGood(t, b, reg.Jumbo10240)
}

// TestJumboOnAWayThatIsWrongNowAndThen: each register would read the same twice in the
// end, and that is not enough.
func TestJumboOnAWayThatIsWrongNowAndThen(t *testing.T) {
	b := newBus()
	b.readAs = func(n, _, _ int, v uint16) uint16 {
		if n%5 == 0 {
			return 0x007f
		}
		return v
	}
	_, err := New(b.smi()).Jumbo(context.Background(), all(), nil)
	var e *UnreliableError
	require.ErrorAs(t, err, &e)
	assert.Empty(t, b.writes)
}

func TestJumboInterruptedAnywhere(t *testing.T) {
	clean := newBus()
	_, err := New(clean.smi()).Jumbo(context.Background(), all(), nil)
	require.NoError(t, err)
	for at := 1; at <= clean.accesses; at++ {
		b := newBus()
		ctx, cancel := context.WithCancel(context.Background())
		b.after = func(n int) {
			if n == at {
				cancel()
			}
		}
		r, err := New(b.smi()).Jumbo(ctx, all(), nil)
		cancel()
		require.ErrorIs(t, err, context.Canceled, "access %d", at)
		_, other := b.modes()
		require.False(t, other)
		onlyGood(t, b, reg.Jumbo10240)
		for _, p := range r.Ports[min(1, len(r.Ports)):] {
			if !p.Known {
				require.Empty(t, b.writes, "nothing is written before all is read")
				continue
			}
			require.Equal(t, b.regs[p.Port][reg.PortControl2], p.Now, "access %d: %s is what the result says", at, p.Port)
			want := Changed
			if p.Mode() == reg.Jumbo2048 {
				want = NotBegun
			}
			require.Equal(t, want, p.Outcome, "access %d: %s", at, p.Port)
		}
	}
}

func TestJumboChangedByOthers(t *testing.T) {
	ctx := context.Background()
	t.Run("before its turn: left as it is", func(t *testing.T) {
		b := newBus()
		b.after = func(int) {
			if len(b.writes) == 2 {
				b.after = nil
				b.regs[6][reg.PortControl2] ^= 0x0200
			}
		}
		r, err := New(b.smi()).Jumbo(ctx, all(), nil)
		var e *ChangedError
		require.ErrorAs(t, err, &e)
		assert.Equal(t, Failed, r.Ports[6].Outcome)
		assert.Len(t, b.writes, 9)
	})
	t.Run("after its turn", func(t *testing.T) {
		b := newBus()
		b.after = func(int) {
			if len(b.writes) == 10 {
				b.regs[2][reg.PortControl2] = reg.Jumbo2048.Put(otherBits(2))
			}
		}
		r, err := New(b.smi()).Jumbo(ctx, all(), nil)
		var e *ChangedError
		require.ErrorAs(t, err, &e)
		assert.ErrorContains(t, err, "1 of 11 ports of the switch are not as asked: oxp2 (Port2, sw2): register 0x08")
		assert.Equal(t, Failed, r.Ports[2].Outcome)
		assert.Equal(t, reg.Jumbo2048, r.Ports[2].Mode())
	})
}

func TestJumboEndsWhereTheWayIsGone(t *testing.T) {
	b := newBus()
	gone := errors.New("console is silent")
	b.after = func(int) {
		if len(b.writes) == 4 {
			b.err = gone
		}
	}
	r, err := New(b.smi()).Jumbo(context.Background(), all(), nil)
	require.ErrorIs(t, err, gone)
	assert.Equal(t, "sw0 unchanged, sw1 changed, sw2 changed, sw3 changed, sw4 failed, sw5 not begun, sw6 not begun, sw7 not begun, sw8 not begun, "+
		"sw9 not begun, sw10 not begun", outcomes(r))
	assert.False(t, r.Ports[4].Known, "it may be either")
	assert.ErrorContains(t, err, "it is 0x9484 or 0xa484")
	assert.ErrorContains(t, err, "not begun and as they were: sw5, sw6, sw7, sw8, sw9, sw10")
}

// flaky fails accesses by their number.
type flaky struct {
	Registers
	n    int
	fail func(n int) error
}

func (f *flaky) Read(ctx context.Context, dev, r int) (uint16, error) {
	f.n++
	if err := f.fail(f.n); err != nil {
		return 0, err
	}
	return f.Registers.Read(ctx, dev, r)
}

type finalError struct{}

func (finalError) Error() string { return "the helper is missing" }
func (finalError) Final() bool   { return true }

//oxpd:fault S28 behaviour
func TestReadsThatFailAreTriedAgain(t *testing.T) {
	ctx := context.Background()
	noise := errors.New("no value in: [ 12.3] eth0: link up")
	t.Run("now and then", func(t *testing.T) {
		b := newBus()
		f := &flaky{Registers: b.smi(), fail: func(n int) error {
			if n%9 == 0 {
				return noise
			}
			return nil
		}}
		_, err := New(f).Jumbo(ctx, all(), nil)
		require.NoError(t, err)
	})
	t.Run("for ever", func(t *testing.T) {
		f := &flaky{Registers: newBus().smi(), fail: func(int) error { return noise }}
		_, err := New(f).Jumbo(ctx, all(), nil)
		require.ErrorIs(t, err, noise)
		assert.Equal(t, readTries, f.n)
	})
	t.Run("not when the error is final", func(t *testing.T) {
		f := &flaky{Registers: newBus().smi(), fail: func(int) error { return finalError{} }}
		_, err := New(f).Jumbo(ctx, all(), nil)
		require.ErrorIs(t, err, finalError{})
		assert.Equal(t, 1, f.n)
	})
}

func TestSizeMode(t *testing.T) {
	for bytes, want := range map[int]reg.Jumbo{1522: 0, 2048: 1, 10240: 2} {
		got, err := SizeMode(bytes)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	for _, bytes := range []int{0, 1500, 9000, 10241, -1} {
		_, err := SizeMode(bytes)
		var e *SizeError
		require.ErrorAs(t, err, &e)
		assert.ErrorContains(t, err, "want 1522, 2048 or 10240")
	}
}

func TestModeFor(t *testing.T) {
	for mtu, want := range map[int]reg.Jumbo{72: 0, 1500: 0, 1501: 1, 2026: 1, 2027: 2, 9000: 2} {
		assert.Equal(t, want, ModeFor(mtu), mtu)
	}
}

// TestJumboRefusesForeignBits: what somebody else has written is not taken for the port's
// own the next time, and the command that is named makes it good.
//
//oxpd:fault S13 behaviour
func TestJumboRefusesForeignBits(t *testing.T) {
	ctx := context.Background()
	const foreign = 0x0e0f
	spoilt := func(t *testing.T) (*fakeBus, *Switch) {
		b := newBus()
		s := New(b.smi())
		b.stores = func(n, dev, _ int, _, v uint16) uint16 {
			if dev == 1 && n <= writeTries {
				return foreign
			}
			return v
		}
		_, err := s.Jumbo(ctx, all(), nil)
		var verify *VerifyError
		require.ErrorAs(t, err, &verify)
		assert.Contains(t, verify.Hint(), "oxpd switch write oxp1 8 0x2181 --i-know repairs it")
		assert.NotContains(t, verify.Hint(), "repeat")
		b.stores, b.writes = nil, nil
		return b, s
	}
	for _, tc := range []struct {
		name string
		plan Plan
		want string
	}{
		{"all again", all(), "0x2181"},
		{"one port", Plan{Mode: reg.Jumbo10240, Ports: []Port{1}}, "0x2181"},
		{"the size that the foreign value has", Plan{Mode: reg.Jumbo1522, Ports: []Port{1}}, "0x0181"},
		{"dry run", Plan{Mode: reg.Jumbo2048, Ports: []Port{1}, DryRun: true, LeaveUplink: true}, "0x1181"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, s := spoilt(t)
			r, err := s.Jumbo(ctx, tc.plan, nil)
			var e *OthersError
			require.ErrorAs(t, err, &e)
			assert.EqualError(t, e, "register 0x08 of oxp1 (Port1, sw1) reads 0x0e0f: somebody else has changed its other bits, which were 0x0181 and are 0x0e0f; "+
				"it was not written, and oxpd switch write oxp1 8 "+tc.want+" --i-know repairs it")
			assert.Equal(t, Failed, r.Ports[1].Outcome)
			assert.Empty(t, b.writes)
			assert.EqualValues(t, foreign, b.regs[1][reg.PortControl2])
		})
	}
	t.Run("a port that is not asked for is no error", func(t *testing.T) {
		_, s := spoilt(t)
		_, err := s.Jumbo(ctx, Plan{Mode: reg.Jumbo2048, Ports: []Port{2}}, nil)
		require.NoError(t, err)
	})
	for name, v := range map[string]uint16{"repaired": 0x2181, "taken as it is": reg.Jumbo10240.Put(foreign)} {
		t.Run(name, func(t *testing.T) {
			b, s := spoilt(t)
			_, _, err := s.Write(ctx, Register{1, reg.PortControl2}, v)
			require.NoError(t, err)
			_, err = s.Jumbo(ctx, all(), nil)
			require.NoError(t, err)
			assert.Equal(t, v, b.regs[1][reg.PortControl2])
		})
	}
	t.Run("a write that did not stick is not what is expected", func(t *testing.T) {
		b, s := spoilt(t)
		b.stores = func(_, _, _ int, old, _ uint16) uint16 { return old }
		_, _, err := s.Write(ctx, Register{1, reg.PortControl2}, 0x2fff)
		require.Error(t, err)
		b.stores = nil
		_, err = s.Jumbo(ctx, all(), nil)
		assert.ErrorContains(t, err, "which were 0x0181")
	})
	t.Run("read by show first, and the reserved size in it", func(t *testing.T) {
		b := newBus()
		s := New(b.smi())
		_, err := s.Show(ctx)
		require.NoError(t, err)
		b.regs[0][reg.PortControl2] = 0x3e0f
		_, err = s.Jumbo(ctx, all(), nil)
		assert.ErrorContains(t, err, "oxpd switch write sw0 8 0x2080 --i-know")
		assert.EqualValues(t, 0x3e0f, b.regs[0][reg.PortControl2])
	})
	t.Run("another boot knows nothing of it", func(t *testing.T) {
		b, _ := spoilt(t)
		_, err := New(b.smi()).Jumbo(ctx, all(), nil)
		require.NoError(t, err)
	})
	t.Run("changed while the others are set", func(t *testing.T) {
		b := newBus()
		b.after = func(int) {
			if len(b.writes) == 2 {
				b.after = nil
				b.regs[6][reg.PortControl2] ^= 0x0200
			}
		}
		_, err := New(b.smi()).Jumbo(ctx, all(), nil)
		var e *ChangedError
		require.ErrorAs(t, err, &e)
		assert.Contains(t, e.Hint(), "oxpd switch write oxp6 8 0x9686 --i-know")
		assert.NotContains(t, e.Hint(), "repeated")
	})
}

// TestJumboInterruptedCountsWhatIsNotAsAsked, and nothing else.
func TestJumboInterruptedCountsWhatIsNotAsAsked(t *testing.T) {
	// Accesses of a port in the survey; the identifier of the switch takes two before. The
	// last one counted is the one that is interrupted.
	const survey = 3
	for _, tc := range []struct {
		name   string
		plan   Plan
		after  int // accesses, then the context ends
		text   string
		result string
	}{
		{
			"after the first look at all", all(), 3 + survey*reg.Ports,
			"interrupted: context canceled; 9 of 11 ports of the switch are not as asked: not begun and as they were: sw1, sw2, sw3, sw5, sw6, sw7, sw8, sw9, sw10",
			"sw0 unchanged, sw1 not begun, sw2 not begun, sw3 not begun, sw4 unchanged, sw5 not begun, sw6 not begun, sw7 not begun, sw8 not begun, sw9 not begun, sw10 not begun",
		},
		{
			"in the first look", all(), 3 + survey*6,
			"read all ports before the first write: interrupted: context canceled; 4 of 11 ports of the switch are not as asked: " +
				"not begun and as they were: sw1, sw2, sw3, sw5; not read, and as they were: sw6, sw7, sw8, sw9, sw10",
			"sw0 unchanged, sw1 not begun, sw2 not begun, sw3 not begun, sw4 unchanged, sw5 not begun, sw6 not begun, sw7 not begun, sw8 not begun, sw9 not begun, sw10 not begun",
		},
		{
			"in the first look, for ports that are as asked or not asked for", Plan{Mode: reg.Jumbo10240, Ports: []Port{4}, LeaveUplink: true}, 3 + survey*6,
			"read all ports before the first write: interrupted: context canceled",
			"sw0 left, sw1 left, sw2 left, sw3 left, sw4 unchanged, sw5 left, sw6 left, sw7 left, sw8 left, sw9 left, sw10 left",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBus()
			b.regs[4][reg.PortControl2] = reg.Jumbo10240.Put(otherBits(4))
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			b.after = func(n int) {
				if n == tc.after {
					cancel()
				}
			}
			r, err := New(b.smi()).Jumbo(ctx, tc.plan, nil)
			require.EqualError(t, err, tc.text)
			assert.Equal(t, tc.result, outcomes(r))
			assert.Empty(t, b.writes)
		})
	}
}
