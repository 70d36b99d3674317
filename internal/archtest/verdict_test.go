package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// verdictSwitches are the files in which a verdict becomes a deed, with the verdict by
// which such a switch is known.
var verdictSwitches = []struct{ file, verdict string }{
	{"ring/oq.go", "Unowned"},
	{"internal/daemon/datapath.go", "Divert"},
	{"internal/pfil/table.go", "Divert"},
	{"internal/port/transmit.go", "Take"},
}

// enforce is what `make lint` goes by: bin/exhaustive wants each verdict in a switch that
// it stands over. Behind the brace it means nothing.
const enforce = "//exhaustive:enforce"

// Each switch that acts on a verdict is one that the linter checks, and has no default:
// a new verdict must not pass, or drop, because somebody forgot it.
func TestSwitchesOverVerdictsAreExhaustive(t *testing.T) {
	for _, tc := range verdictSwitches {
		t.Run(tc.file, func(t *testing.T) {
			fset := token.NewFileSet()
			tree, err := parser.ParseFile(fset, filepath.Join(root(t), tc.file), nil, parser.ParseComments)
			require.NoError(t, err)
			var enforced []int // lines
			for _, g := range tree.Comments {
				for _, c := range g.List {
					if strings.TrimSpace(c.Text) == enforce {
						enforced = append(enforced, fset.Position(c.Pos()).Line)
					}
				}
			}
			switches := 0
			ast.Inspect(tree, func(n ast.Node) bool {
				s, ok := n.(*ast.SwitchStmt)
				if !ok || !asks(s, tc.verdict) {
					return true
				}
				switches++
				line := fset.Position(s.Pos()).Line
				assert.Contains(t, enforced, line-1, "%s:%d: needs %s on the line above", tc.file, line, enforce)
				for _, c := range s.Body.List {
					assert.NotNil(t, c.(*ast.CaseClause).List, "%s:%d: has a default", tc.file, fset.Position(c.Pos()).Line)
				}
				return true
			})
			assert.Equal(t, 1, switches, "%s: switches over verdicts", tc.file)
		})
	}
}

// asks tells whether a switch has a case of that name.
func asks(s *ast.SwitchStmt, name string) bool {
	return slices.ContainsFunc(s.Body.List, func(c ast.Stmt) bool {
		return slices.ContainsFunc(c.(*ast.CaseClause).List, func(e ast.Expr) bool {
			switch x := e.(type) {
			case *ast.Ident:
				return x.Name == name
			case *ast.SelectorExpr:
				return x.Sel.Name == name
			}
			return false
		})
	})
}
