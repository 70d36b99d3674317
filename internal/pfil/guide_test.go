package pfil

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestGuide holds docs/guides/filter-rules.md to the parser: its rules are read, its
// errors are the ones that come, its words and bounds are those of the language.
func TestGuide(t *testing.T) {
	raw, err := os.ReadFile("../../docs/guides/filter-rules.md")
	require.NoError(t, err)
	page := string(raw)
	var blocks []string
	for _, b := range regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$").FindAllStringSubmatch(page, -1) {
		if b[1] == "" { // no shell
			blocks = append(blocks, b[2])
		}
	}
	require.Len(t, blocks, 4, "example, language, program, errors")
	source := Source{Files: map[string][]byte{"bad.txt": files["bad.txt"], "big-dns.bpf": files["all.bpf"]}}

	for _, i := range []int{0, 2} {
		source.Rules = []byte(blocks[i])
		_, err := Parse(source)
		assert.NoError(t, err)
	}
	assert.Contains(t, blocks[1], strings.Join(verdictWords[:2], " | "))
	for _, p := range protocols {
		assert.Contains(t, blocks[1], p.name+" |")
	}
	assert.Contains(t, page, "`"+strings.Join(tcpFlags[:], " ")+"`")

	rules := Source{Name: "office.rules", Rules: []byte("set bad file bad.txt\n\ndrop ip from 10.0.0.1/8 to any"), Files: map[string][]byte{"bad.txt": []byte(strings.Repeat("\n", 16) + "example.org")}}
	_, err = Parse(rules)
	require.Error(t, err)
	assert.Equal(t, strings.TrimSpace(blocks[3]), err.Error())

	_, options, _ := strings.Cut(page, "| option | the frame |")
	found := regexp.MustCompile("(?m)^\\| `(.*?)`(?:, `(.*?)`)? \\| (?:goes|is|has) ").FindAllStringSubmatch(options, -1)
	assert.Len(t, found, 8)
	for _, option := range found {
		for _, o := range slices.DeleteFunc(option[1:], func(s string) bool { return s == "" }) {
			proto := map[string]string{"ethertype": "any", "icmp-type": "icmp", "tcp-flags": "tcp"}[strings.Fields(o)[0]]
			if proto == "" {
				proto = "ip"
			}
			_, err := parse(fmt.Sprintf("drop %s from any to any %s", proto, o))
			assert.NoError(t, err, o)
		}
	}
	for name, n := range map[string]int{"rules": MaxRules, "sets, programs": MaxSets, "prefixes in all sets": MaxPrefixes, "a line": maxLine, "a name": MaxName,
		"a list of ports, lengths, types": maxRanges, "the rule file": MaxRulesBytes >> 20, "all files of sets and programs": MaxFilesBytes >> 20} {
		assert.Contains(t, page, "\n| "+name+" | "+thousands(n)+" ")
	}
	assert.Equal(t, MaxSets, MaxPrograms)
	assert.Contains(t, page, "exact in the first "+thousands(maxPairs)+";")
}

// thousands is a number as pages write it.
func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
