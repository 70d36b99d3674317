package traps

import (
	"errors"
	"os"
	"time"
)

// Folders below Options.Dir.
const (
	HugeDir    = "huge" // a hugetlbfs, in the program's namespace alone
	RuntimeDir = "run"  // what DPDK keeps beside
	treeDir    = "pci"
)

// Address is where the function is on the bus that the program sees.
const Address = "0000:77:00.1"

// Options are a program and what it gets to see.
type Options struct {
	Dir     string   // an empty folder of the caller's
	Command []string // path and arguments
	Env     []string // beside what says where the device and the folders are
	CPU     int      // where the tracing thread runs: best on that of the program's loop; negative: anywhere
	Stdin   *os.File
	Output  *os.File // standard output and error

	// Pause says how far the card is moved after an access: the program computes in no time
	// of the card's, and meets it in the middle of its work. It is called on the tracing
	// thread. nil: until the card is quiet.
	Pause func() time.Duration

	// Observe is called after each access and its effects, on the tracing thread, with the
	// program standing still. Read, good until it returns, reads memory as the card does,
	// and returns false where the card may not.
	Observe func(a Access, read func(bus uint64, p []byte) bool)
}

// Access is a load or store of BAR0.
type Access struct {
	Store  bool
	Offset uint64
	Width  int    // 4 or 8 bytes
	Value  uint64 // what was read or written
}

// Errors of a run.
var (
	// ErrInstruction says that an access was made in a way that is not known.
	ErrInstruction = errors.New("an instruction that is no plain MOV of 4 or 8 bytes")
	// ErrRefused says that the kernel does not let this process trace, mount, or see page frames.
	ErrRefused = errors.New("the kernel does not allow it")
)
