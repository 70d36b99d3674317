//go:build tools

// Package tools pins the programs that `make lint` builds. It is a module of
// its own, so that users of oxpd's packages do not inherit them.
package tools

import (
	_ "github.com/nishanths/exhaustive/cmd/exhaustive"
	_ "honnef.co/go/tools/cmd/staticcheck"
)
