package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"oxpd/hwsim"
)

// A test says which failure mode it proves, by lines right above its func:
//
//	//oxpd:fault F7 symptom
//	//oxpd:fault F7 behaviour
//
// symptom: what a host sees is what the page says. behaviour: oxpd survives,
// recovers or refuses.
const faultDirective = "//oxpd:fault"

// Words of the directive.
const (
	provesSymptom   = "symptom"
	provesBehaviour = "behaviour"
)

// proofs are the tests of each row, by id and word.
type proofs map[string]map[string][]string

// faultProofs reads the directives of the module's tests. It fails for one that
// says nothing that the page can show: an unknown row or word, a place that is not
// above a test.
func faultProofs(root string) (proofs, error) {
	all := proofs{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && p != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin" || name == "tools") {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, "_test.go") {
			return nil
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		return all.read(p, path.Dir(filepath.ToSlash(rel)), nil)
	})
	for _, words := range all {
		for _, tests := range words {
			slices.Sort(tests)
		}
	}
	return all, err
}

// read adds the directives of a file of a package, whose text is src, or nil.
func (all proofs) read(file, pkg string, src any) error {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	above := map[*ast.CommentGroup]string{}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Doc != nil && strings.HasPrefix(fn.Name.Name, "Test") && fn.Name.Name != "TestMain" {
			above[fn.Doc] = fn.Name.Name
		}
	}
	for _, group := range f.Comments {
		for _, c := range group.List {
			text, ok := strings.CutPrefix(c.Text, faultDirective)
			if !ok {
				continue
			}
			at := fset.Position(c.Pos())
			test := above[group]
			if test == "" {
				return fmt.Errorf("%s: %s: not right above a test", at, c.Text)
			}
			row, word, err := parseDirective(text)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", at, c.Text, err)
			}
			name := pkg + "." + test
			if slices.Contains(all[row][word], name) {
				return fmt.Errorf("%s: %s: said twice of %s", at, c.Text, name)
			}
			if all[row] == nil {
				all[row] = map[string][]string{}
			}
			all[row][word] = append(all[row][word], name)
		}
	}
	return nil
}

func parseDirective(text string) (row, word string, err error) {
	words := strings.Fields(text)
	if len(words) != 2 || !strings.HasPrefix(text, " ") {
		return "", "", fmt.Errorf("want %s ROW %s or %s", faultDirective, provesSymptom, provesBehaviour)
	}
	row, word = words[0], words[1]
	if r, ok := hwsim.FaultRowOf(row); !ok || r.ID != row {
		return "", "", fmt.Errorf("no row %q: want an id such as F7 (oxpd sim faults lists them)", row)
	}
	if word != provesSymptom && word != provesBehaviour {
		return "", "", fmt.Errorf("no word %q: want %s or %s", word, provesSymptom, provesBehaviour)
	}
	return row, word, nil
}

// faultTests is the table of the failure modes and the tests of each.
func faultTests(root string) (string, error) {
	all, err := faultProofs(root)
	if err != nil {
		return "", err
	}
	if err := checkOpen(all, openFaults); err != nil {
		return "", err
	}
	d := head("Failure modes and their tests")
	d.text("Each failure mode that the hardware pages state, by name (`oxpd sim faults` prints them with where each comes from), and the tests that prove it. " +
		"A symptom is asserted from what a host sees: registers, memory, the wire, the card's counters. The behaviour is oxpd's: it survives, recovers or refuses to cause it. " +
		"A row with one half missing is open and says why. How to say of a test which row it proves: [Contributing](../contributing/index.md#failure-modes).")
	rows := hwsim.FaultRows()
	closed := 0
	for _, r := range rows {
		if openFaults[r.ID] == "" {
			closed++
		}
	}
	d.text(fmt.Sprintf("%d rows, of which %d are tested both ways and %d are open.", len(rows), closed, len(rows)-closed))
	for _, s := range []struct{ letter, title string }{
		{"F", "The endpoint ([endpoint.md](../hardware/endpoint.md), section 15)"},
		{"D", "The data path ([datapath.md](../hardware/datapath.md), section 7)"},
		{"R", "The rpc facility, LIFs, NetAgent, console ([rpc-lif.md](../hardware/rpc-lif.md))"},
		{"S", "The switch ([switch.md](../hardware/switch.md))"},
	} {
		d.section(s.title)
		var cells [][]string
		for _, r := range rows {
			if strings.HasPrefix(r.ID, s.letter) {
				cells = append(cells, []string{r.ID, quote(r.Name), r.Effect, string(r.How) + ": " + r.By,
					testsCell(all[r.ID][provesSymptom]), testsCell(all[r.ID][provesBehaviour]), openFaults[r.ID]})
			}
		}
		d.table([]string{"row", "name", "what a host sees", "how it comes about", "symptom", "behaviour", "open because"}, cells)
	}
	return d.String(), nil
}

func testsCell(tests []string) string {
	if len(tests) == 0 {
		return "open"
	}
	cells := make([]string, len(tests))
	for i, t := range tests {
		cells[i] = quote(t)
	}
	return strings.Join(cells, " ")
}

// checkOpen fails for a row that is neither tested both ways nor open, for one
// that is both, and for an open one that does not exist or says no reason.
func checkOpen(all proofs, open map[string]string) error {
	known := map[string]bool{}
	for _, r := range hwsim.FaultRows() {
		known[r.ID] = true
		symptom, behaviour := len(all[r.ID][provesSymptom]) > 0, len(all[r.ID][provesBehaviour]) > 0
		_, listed := open[r.ID]
		switch {
		case symptom && behaviour && listed:
			return fmt.Errorf("row %s is tested both ways: take it out of openFaults", r.ID)
		case !(symptom && behaviour) && !listed:
			return fmt.Errorf("row %s %s has no test of its %s: write one with the line %s %s %s, or a reason in openFaults",
				r.ID, r.Name, missing(symptom), faultDirective, r.ID, missing(symptom))
		case listed && open[r.ID] == "":
			return fmt.Errorf("row %s is open without a reason", r.ID)
		}
	}
	for id := range open {
		if !known[id] {
			return fmt.Errorf("openFaults names row %q, which does not exist", id)
		}
	}
	return nil
}

func missing(symptom bool) string {
	if symptom {
		return provesBehaviour
	}
	return provesSymptom
}
