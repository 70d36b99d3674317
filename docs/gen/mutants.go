package main

import (
	"fmt"
	"path/filepath"

	"oxpd/internal/mutants"
)

// mutantList is the page of testdata/mutants.
func mutantList(root string) (string, error) {
	list, err := mutants.Load(filepath.Join(root, "testdata", "mutants"))
	if err != nil {
		return "", err
	}
	d := head("Mutants")
	d.text(fmt.Sprintf("%s breaks of the source, each of a line or two, and for each the test that must notice. `make mutants` puts them in one after the other, by a build "+
		"overlay and never in the tree, and runs the named test of each: it must fail. One that survives fails the run, and so does one that does not compile, "+
		"a test that hangs or is red without it, and a line that is not where it was. It takes seven minutes of processor time, four on two idle cores, and is part of `make ci`.", number(len(list))))
	d.text("The lists are `testdata/mutants/*.txt`; `internal/mutants/doc.go` says how a mutant is written. `go run ./internal/mutants/cmd -only \"second stride\"` runs those whose names match. " +
		"Who changes a line that a mutant breaks is told so by `go test ./internal/mutants` and writes the same break down for the new line.")
	var rows [][]string
	for _, m := range list {
		rows = append(rows, []string{m.Name, quote(m.File), quote(m.Package + " " + m.Test), m.Why})
	}
	d.table([]string{"mutant", "file", "killed by", "why it matters"}, rows)
	return d.String(), nil
}
