// Package simtest is what the tests over a simulated card have in common: a card that
// had something to report fails the test that did not expect it.
package simtest

import (
	"slices"

	"oxpd/hwsim"
)

// T is the part of testing.TB that is needed.
type T interface {
	Helper()
	Errorf(format string, args ...any)
	Cleanup(fn func())
}

// Clean fails the test for each name of a report that it does not expect, with the first
// one's cycle and register, and tells whether there was none. A rig calls it when its
// driver has ended and before memory goes.
func Clean(t T, card *hwsim.Card, expected ...string) bool {
	t.Helper()
	clean, seen := true, map[string]bool{}
	for _, r := range card.Reports() {
		if slices.Contains(expected, r.Name) || seen[r.Name] {
			continue
		}
		seen[r.Name], clean = true, false
		t.Errorf("the card reports misuse, %d times: %s", card.ReportCount(r.Name), r)
	}
	return clean
}

// Guard has Clean look at the card when the test ends, before everything that was put up
// for cleaning earlier.
func Guard(t T, card *hwsim.Card, expected ...string) {
	t.Helper()
	t.Cleanup(func() { Clean(t, card, expected...) })
}

// Expect fails the test unless the card has reported each of the names and nothing else.
// What it has reported is forgotten.
func Expect(t T, card *hwsim.Card, names ...string) {
	t.Helper()
	for _, name := range names {
		if card.ReportCount(name) == 0 {
			t.Errorf("the card does not report %s", name)
		}
	}
	Clean(t, card, names...)
	card.ResetReports()
}
