package simtest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"oxpd/hwsim"
)

// recorder is a test that notes how it fails.
type recorder struct {
	errs []string
	end  []func()
}

func (*recorder) Helper()                        {}
func (r *recorder) Errorf(f string, args ...any) { r.errs = append(r.errs, fmt.Sprintf(f, args...)) }
func (r *recorder) Cleanup(fn func())            { r.end = append(r.end, fn) }

func TestUnexpectedReportFailsTheTest(t *testing.T) {
	card := hwsim.New(hwsim.Options{Timeline: hwsim.Compressed()})
	defer card.Close()
	card.ConfigWrite(4, 2, 2)
	var r recorder
	assert.True(t, Clean(&r, card))
	Guard(&r, card, hwsim.ReportBadWidth)
	for range 3 {
		card.Load(0, 0x10100, 2)
		card.Store(0, 0x10160, 4, 0)
	}
	assert.Empty(t, r.errs, "not before its end")
	for _, fn := range r.end {
		fn()
	}
	assert.Len(t, r.errs, 1, "each name once, and the expected one not")
	assert.Regexp(t, `^the card reports misuse, 3 times: narrow-store at cycle \d+: OUT_ENABLE\[0\]\[0x10160\]`, r.errs[0])
	assert.False(t, Clean(&r, card, hwsim.ReportNarrowStore))
	assert.True(t, Clean(&r, card, hwsim.ReportNarrowStore, hwsim.ReportBadWidth))

	r = recorder{}
	Expect(&r, card, hwsim.ReportNarrowStore, hwsim.ReportBadWidth)
	assert.Empty(t, r.errs)
	assert.Empty(t, card.Reports(), "forgotten")
	Expect(&r, card, hwsim.ReportBSize)
	assert.Equal(t, []string{"the card does not report bsize-zero"}, r.errs)
}
