// Package archtest holds the tests of what no compiler checks: which package
// may import which, where unsafe and os.Exit may stand, that nothing works at
// import time, and what the module may depend on.
//
//	cmd/oxpd
//	internal/daemon  internal/demo
//	octep  ring  rpc  lif  internal/nwa  internal/port    one level: none imports another
//	octep/csr  ring/wire  rpc/msg  switchcfg/reg  internal/board  internal/frame    layouts
//	internal/mmio  internal/dma  internal/sys  internal/clock
//	hwsim                                                 layouts only
//
// The table in arch_test.go is the rule; a package without a row fails the test,
// so that whoever adds one decides where it belongs. Source files are read
// whatever platform they are for; the dependency graph is that of `go list -deps`
// on each platform.
package archtest
