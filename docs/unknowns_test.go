package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The lists of what nobody knows: where each is, and the letter of its ids in the
// guide.
var lists = []struct {
	letter, page, heading string
	items                 int // at least; a list that is not found must not pass
}{
	{"E", "endpoint.md", "## 17. Open unknowns", 16},
	{"D", "datapath.md", "## 9. Unknown", 15},
	{"R", "rpc-lif.md", "## 12. Unknowns", 10},
	{"S", "switch.md", "## 11. Unknowns", 7},
	{"C", "ERRATA.md", "## Choices", 30},
}

var (
	listItem = regexp.MustCompile(`^(?:\d+\.|[*-]) (.*)`)
	tableRow = regexp.MustCompile(`^\| (\d+) \| (.*?) \|`)
	guideRow = regexp.MustCompile(`^\| ([EDRSC]\d+) \|`)
	riskStep = regexp.MustCompile(`^(?:[0-5]|none)$`)
)

// section is a page's text under a heading, up to the next one of any level.
func section(t *testing.T, text, heading string) string {
	t.Helper()
	_, rest, found := strings.Cut(text, heading+"\n")
	require.True(t, found, "no heading %q", heading)
	if at := strings.Index(rest, "\n#"); at >= 0 {
		rest = rest[:at]
	}
	return rest
}

// items are the entries of a list, each in one line, or the rows of a table.
func items(text string) (all []string) {
	for _, line := range strings.Split(text, "\n") {
		switch {
		case tableRow.MatchString(line):
			all = append(all, tableRow.FindStringSubmatch(line)[2])
		case listItem.MatchString(line):
			all = append(all, listItem.FindStringSubmatch(line)[1])
		case strings.HasPrefix(line, "  ") && len(all) > 0:
			all[len(all)-1] += " " + strings.TrimSpace(line)
		}
	}
	return all
}

// unknown is a row of the guide.
type unknown struct {
	id, quote, assumes, how, step string
}

// guide reads the rows of the first-run guide.
func guide(t *testing.T) (rows []unknown) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("guides", "first-run.md"))
	require.NoError(t, err)
	for _, line := range strings.Split(string(text), "\n") {
		if !guideRow.MatchString(line) {
			continue
		}
		line = strings.ReplaceAll(line, `\|`, "/")
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		require.Len(t, cells, 5, "%s", line)
		rows = append(rows, unknown{cells[0], cells[1], cells[2], cells[3], cells[4]})
	}
	return rows
}

// unanswered returns the items without a row and the rows without an item. A row
// belongs to the item that begins with its quote.
func unanswered(letter string, items []string, rows []unknown) (found []string) {
	for _, item := range items {
		n := 0
		for _, r := range rows {
			if strings.HasPrefix(r.id, letter) && strings.HasPrefix(item, r.quote) {
				n++
			}
		}
		if n != 1 {
			found = append(found, "rows "+strconv.Itoa(n)+" for: "+item)
		}
	}
	for _, r := range rows {
		if !strings.HasPrefix(r.id, letter) {
			continue
		}
		n := 0
		for _, item := range items {
			if strings.HasPrefix(item, r.quote) {
				n++
			}
		}
		if n != 1 {
			found = append(found, r.id+" quotes "+strconv.Itoa(n)+" items: "+r.quote)
		}
	}
	return found
}

func TestGuideAnswersEveryUnknown(t *testing.T) {
	rows := guide(t)
	total := 0
	for _, l := range lists {
		text, err := os.ReadFile(filepath.Join("hardware", l.page))
		require.NoError(t, err)
		all := items(section(t, string(text), l.heading))
		require.GreaterOrEqual(t, len(all), l.items, l.page)
		total += len(all)
		for _, what := range unanswered(l.letter, all, rows) {
			t.Errorf("%s: %s", l.page, what)
		}
	}
	assert.Equal(t, total, len(rows), "rows")
	seen := map[string]bool{}
	for _, r := range rows {
		assert.False(t, seen[r.id], "%s twice", r.id)
		seen[r.id] = true
		assert.NotEmpty(t, r.assumes, r.id)
		assert.NotEmpty(t, r.how, r.id)
		assert.Regexp(t, riskStep, r.step, r.id)
	}
}

// A choice keeps the number that the simulator's options, the tests and the commits
// know it by.
func TestChoicesKeepTheirNumbers(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("hardware", "ERRATA.md"))
	require.NoError(t, err)
	quotes := map[string]string{}
	for _, r := range guide(t) {
		quotes[r.id] = r.quote
	}
	for _, line := range strings.Split(section(t, string(text), "## Choices"), "\n") {
		if m := tableRow.FindStringSubmatch(line); m != nil {
			quote, ok := quotes["C"+m[1]]
			require.True(t, ok, "C%s has no row", m[1])
			assert.True(t, strings.HasPrefix(m[2], quote), "C%s is %q in the guide", m[1], quote)
		}
	}
}

func TestUnanswered(t *testing.T) {
	rows := []unknown{{id: "D1", quote: "What the block does"}, {id: "E1", quote: "What the block does"}}
	for _, tc := range []struct {
		name, text string
		want       []string
	}{
		{"quoted by its beginning", "* What the block does\n  in the end.\n", nil},
		{"an item without a row", "* What the block does.\n* What else.\n", []string{"rows 0 for: What else."}},
		{"a row without an item", "", []string{"D1 quotes 0 items: What the block does"}},
		{"a quote that fits two", "1. What the block does now.\n2. What the block does then.\n", []string{"D1 quotes 2 items: What the block does"}},
		{"a row of a table", "| # | x |\n|---|---|\n| 3 | What the block does here | y |\n", nil},
	} {
		t.Run(tc.name, func(t *testing.T) { assert.Equal(t, tc.want, unanswered("D", items(tc.text), rows)) })
	}
}
