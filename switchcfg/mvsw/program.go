package mvsw

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
)

// program is helper/mvsw.c for the coprocessor, as `make helper` built it. Never
// written to.
//
//go:embed helper/mvsw.aarch64
var program []byte

// recordedSum is what sha256sum says of the file, one line.
//
//go:embed helper/mvsw.sha256
var recordedSum string

// compilerVersion says which compiler and linker made it, two lines.
//
//go:embed helper/mvsw.compiler
var compilerVersion string

// Program describes the program that oxpd carries.
type Program struct {
	Bytes    int
	SHA256   string // hexadecimal
	Compiler string // and linker, a line each
}

// Embedded is the program that oxpd carries for the coprocessor.
func Embedded() Program { return Program{len(program), sum(program), compilerVersion} }

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}
