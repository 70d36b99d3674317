package main

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFaultDirectives(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"above a test", "//oxpd:fault F7 symptom\nfunc TestA(t *testing.T) {}", ""},
		{"under its comment", "// TestA is so.\n//\n//oxpd:fault F7 symptom\n//oxpd:fault D28 behaviour\nfunc TestA(t *testing.T) {}", ""},
		{"unknown row", "//oxpd:fault F31 symptom\nfunc TestA(t *testing.T) {}", `x_test.go:3:1: //oxpd:fault F31 symptom: no row "F31": want an id such as F7`},
		{"name of a row", "//oxpd:fault rlenss-zero symptom\nfunc TestA(t *testing.T) {}", `no row "rlenss-zero"`},
		{"row in another case", "//oxpd:fault f7 symptom\nfunc TestA(t *testing.T) {}", `no row "f7"`},
		{"unknown word", "//oxpd:fault F7 behavior\nfunc TestA(t *testing.T) {}", `no word "behavior": want symptom or behaviour`},
		{"no word", "//oxpd:fault F7\nfunc TestA(t *testing.T) {}", "want //oxpd:fault ROW symptom or behaviour"},
		{"two words", "//oxpd:fault F7 symptom behaviour\nfunc TestA(t *testing.T) {}", "want //oxpd:fault ROW symptom or behaviour"},
		{"run together", "//oxpd:faults F7 symptom\nfunc TestA(t *testing.T) {}", "want //oxpd:fault ROW symptom or behaviour"},
		{"with a line between", "//oxpd:fault F7 symptom\n\nfunc TestA(t *testing.T) {}", "not right above a test"},
		{"inside a test", "func TestA(t *testing.T) {\n\t//oxpd:fault F7 symptom\n}", "not right above a test"},
		{"above no test", "//oxpd:fault F7 symptom\nfunc helper() {}", "not right above a test"},
		{"above a method", "type s struct{}\n\n//oxpd:fault F7 symptom\nfunc (s) TestA(t *testing.T) {}", "not right above a test"},
		{"twice", "//oxpd:fault F7 symptom\n//oxpd:fault F7 symptom\nfunc TestA(t *testing.T) {}", "said twice of x.TestA"},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := proofs{}
			err := all.read("x_test.go", "x", "package x\n\n"+c.text+"\n")
			if c.want != "" {
				assert.ErrorContains(t, err, c.want)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, []string{"x.TestA"}, all["F7"][provesSymptom])
		})
	}
}

func TestEachFaultRowIsTestedOrOpen(t *testing.T) {
	all, err := faultProofs(module)
	require.NoError(t, err)
	require.NoError(t, checkOpen(all, openFaults))

	both := map[string][]string{provesSymptom: {"x.TestA"}, provesBehaviour: {"x.TestA"}}
	for _, c := range []struct {
		name   string
		change func(all proofs, open map[string]string)
		want   string
	}{
		{"neither", func(_ proofs, open map[string]string) { delete(open, "F17") }, "row F17 mgmt-short-frame has no test of its symptom"},
		{"half", func(all proofs, open map[string]string) {
			delete(open, "F17")
			all["F17"] = map[string][]string{provesSymptom: {"x.TestA"}}
		}, "row F17 mgmt-short-frame has no test of its behaviour"},
		{"both", func(all proofs, _ map[string]string) { all["F17"] = both }, "row F17 is tested both ways: take it out of openFaults"},
		{"without a reason", func(_ proofs, open map[string]string) { open["F17"] = "" }, "row F17 is open without a reason"},
		{"unknown", func(_ proofs, open map[string]string) { open["F99"] = "x" }, `row "F99", which does not exist`},
	} {
		t.Run(c.name, func(t *testing.T) {
			all, open := maps.Clone(all), maps.Clone(openFaults)
			c.change(all, open)
			assert.ErrorContains(t, checkOpen(all, open), c.want)
		})
	}
}
