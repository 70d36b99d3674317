package calibrate

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
)

var bg = context.Background()

func TestEveryRowIsWithinItsTolerance(t *testing.T) {
	if raceEnabled {
		t.Skip("one goroutine does everything, and some rows run in the other tests")
	}
	report, err := Run(bg)
	require.NoError(t, err)
	for i := range report.Results {
		if r := &report.Results[i]; !r.OK {
			t.Error(r.Miss())
		}
	}
	assert.True(t, report.OK)
	assert.Len(t, report.Results, len(Rows()))
	assert.GreaterOrEqual(t, report.Predicted, 4)
}

func TestASecondRunGivesTheSame(t *testing.T) {
	names := []string{"lowered-ceiling", "absence-waiting", "ping-flood", "agent-tick-share", "link"}
	first, err := Run(bg, names...)
	require.NoError(t, err)
	second, err := Run(bg, names...)
	require.NoError(t, err)
	assert.Len(t, first.Results, len(names))
	assert.Equal(t, first, second)
}

func TestRunRefuses(t *testing.T) {
	_, err := Run(bg, "link", "no-such")
	require.ErrorIs(t, err, ErrUnknownRow)
	assert.ErrorContains(t, err, `"no-such"`)
	ended, cancel := context.WithCancel(bg)
	cancel()
	_, err = Run(ended, "link")
	assert.ErrorIs(t, err, context.Canceled)
}

func TestCheck(t *testing.T) {
	row := func(name string, tag Tag) Row {
		return Row{Name: name, Source: "page", Asks: "something", Low: 1, High: 2, Tag: tag}
	}
	fit := hwsim.Constant{Name: "c", Tag: hwsim.Fit, Row: "a"}
	for _, tc := range []struct {
		name      string
		rows      []Row
		constants []hwsim.Constant
		want      string
	}{
		{"a fit", []Row{row("a", Fit)}, []hwsim.Constant{fit}, ""},
		{"a prediction beside it", []Row{row("a", Fit), row("b", Predicted)}, []hwsim.Constant{fit}, ""},
		{"a derived row that settled a constant", []Row{row("a", Derived)}, []hwsim.Constant{fit}, ""},
		{"a constant fitted on a prediction", []Row{row("a", Predicted)}, []hwsim.Constant{fit}, "row a is tagged predicted, but constant c was fitted on it"},
		{"the second of two constants", []Row{row("a", Fit), row("b", Predicted)}, []hwsim.Constant{fit, {Name: "d", Tag: hwsim.Fit, Row: "b"}}, "row b is tagged predicted, but constant d was fitted on it"},
		{"a fit without a constant", []Row{row("a", Fit)}, nil, "row a is tagged fit and no constant was fitted on it"},
		{"a fit that names no row", nil, []hwsim.Constant{{Name: "c", Tag: hwsim.Fit}}, "constant c is tagged fit and names no row"},
		{"a fit on a row that is not there", nil, []hwsim.Constant{fit}, "constant c was fitted on row a, which does not exist"},
		{"an estimate that names a row", []Row{row("a", Derived)}, []hwsim.Constant{{Name: "c", Tag: hwsim.Estimate, Row: "a"}}, "only a fit has a row"},
		{"two rows of a name", []Row{row("a", Derived), row("a", Derived)}, nil, "two rows are called a"},
		{"an unknown tag", []Row{row("a", "guessed")}, nil, `row a is tagged "guessed"`},
		{"a range upside down", []Row{{Name: "a", Source: "page", Asks: "something", Low: 2, High: 1, Tag: Derived}}, nil, "row a lacks a range"},
		{"no source", []Row{{Name: "a", Asks: "something", Tag: Derived}}, nil, "row a lacks"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := Check(tc.rows, tc.constants)
			if tc.want == "" {
				assert.NoError(t, err)
			} else {
				assert.ErrorContains(t, err, tc.want)
			}
		})
	}
}

func TestResult(t *testing.T) {
	for _, tc := range []struct {
		name      string
		low, high float64
		within    float64
		model     float64
		deviation string
		ok        bool
	}{
		{"inside", 18, 67, 0, 18, "0", true},
		{"above", 18, 67, 0.1, 73.5, "+9.7 %", true},
		{"too far above", 18, 67, 0.1, 74, "+10.4 %", false},
		{"below", 18, 67, 0.1, 17.1, "-5.0 %", true},
		{"one figure", 1000, 1000, 0.01, 1010, "+1.0 %", true},
		{"exactly", 1008, 1008, 0, 1009, "+0.1 %", false},
		{"a negative one", -14, -14, 0, -15, "-7.1 %", false},
		{"anything where there was nothing", 0, 0, 0.5, 1, "+100.0 %", false},
		{"by next to nothing", 2, 2, 0, 2.0001, "+0.0 %", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			row := Row{Name: "a", Source: "page 1", Low: tc.low, High: tc.high, Within: tc.within, Tag: Predicted}
			r := row.result(tc.model, []hwsim.Constant{{Name: "c", Row: "a"}, {Name: "d", Row: "b"}})
			assert.Equal(t, tc.deviation, r.Deviation())
			assert.Equal(t, tc.ok, r.OK)
			assert.Equal(t, []string{"c"}, r.FittedOn)
		})
	}
	far := Row{Name: "a", Source: "page 1", Low: 10, High: 20, Unit: "ms", Tag: Predicted, Within: 0.1}
	near := Row{Name: "b", Low: 10, High: 20, Tag: Predicted}
	p := &Report{}
	p.add(far.result(25, nil))
	p.add(near.result(22, nil))
	p.add(near.result(15, nil))
	assert.Equal(t, []string{"a", "b"}, p.Missed)
	assert.Equal(t, 2, p.Predicted, "an agreement within 10 %, whatever the row allows")
	assert.Equal(t, "a: the model gives 25 where 10 to 20 ms was measured (page 1): +25.0 % off, 10 % are allowed", p.Results[0].Miss())
}

func TestFigure(t *testing.T) {
	for v, want := range map[float64]string{0: "0", -14: "-14", 0.18242: "0.1824", 49.92: "49.92", 999.96: "1000", 1008: "1,008", 83830: "83,830", 1053385: "1,053,385", -1234: "-1,234", 123992.6: "123,993"} {
		assert.Equal(t, want, figure(v), "%v", v)
	}
}

func TestActorsActAtTheirMoments(t *testing.T) {
	_, err := withRig(bg, setup{}, func(r *rig) (float64, error) {
		start := r.now()
		var moments []time.Duration
		r.every(100_000, 3, func(int) { moments = append(moments, r.now()-start) })
		var self *actor
		self = r.add(15*time.Microsecond, func() time.Duration {
			moments = append(moments, r.now()-start)
			self.at = r.now() + time.Microsecond // as by a message that comes while it acts
			r.pass(10 * time.Microsecond)        // others go on meanwhile
			self.at = never
			moments = append(moments, r.now()-start)
			return never
		})
		r.pass(40 * time.Microsecond)
		want := []time.Duration{0, 10 * time.Microsecond, 15 * time.Microsecond, 20 * time.Microsecond, 25 * time.Microsecond}
		require.Len(t, moments, len(want))
		for i := range want {
			assert.InDelta(t, want[i], moments[i], float64(cycle))
		}
		assert.InDelta(t, 40*time.Microsecond, r.now()-start, float64(cycle))
		return 0, nil
	})
	require.NoError(t, err)
}

// What a scenario does to the card that it did not mean to is an error, not a figure.
func TestMisuseIsAnError(t *testing.T) {
	over := setup{}
	over.ring.Watermark = 4096
	nothing := func(*rig) (float64, error) { return 0, nil }
	_, err := withRig(bg, over, nothing)
	assert.ErrorContains(t, err, hwsim.ReportCreditAbove)
	over.reports = []string{hwsim.ReportCreditAbove}
	_, err = withRig(bg, over, nothing)
	assert.NoError(t, err)
}

func TestDeviationOfNothing(t *testing.T) {
	assert.False(t, math.IsNaN(deviation(0, 0, 0)))
	assert.InDelta(t, -1, deviation(-3, 0, 0), 0)
}
