package console

import (
	"fmt"
	"log/slog"
	"os"
	"slices"

	"oxpd/hwsim"
)

// Card is the coprocessor whose console this is; hwsim.Card is one. All methods are
// called from several goroutines.
type Card interface {
	SetConsole(fn func(hwsim.BootEvent)) // who is told of its life
	KernelUp() bool
	ConsoleByte() // a byte came in before the kernel ran
	ConsoleFaults() hwsim.ConsoleFaults
	Faults(fn func(f *hwsim.Faults))
	MDIORead(bus, phy, reg int) (uint16, error)
	MDIOWrite(bus, phy, reg int, v uint16) error
}

// Baud is the speed of the real line (rpc-lif.md 10).
const Baud = 115200

// interpreterArgs come before FILE; shellArg instead of FILE asks for the shell.
var interpreterArgs = [...]string{"sim", "a64"}

const shellArg = "--shell"

// Called tells whether this process was started as the interpreter of a console, and runs
// the program then: args are its own, without its name. A program that has consoles, a
// test too, asks before it does anything else.
func Called(args []string) (status int, called bool) {
	n := len(interpreterArgs)
	if len(args) <= n || !slices.Equal(args[:n], interpreterArgs[:]) {
		return 0, false
	}
	status, err := Execute(args[n:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", args[n], err)
	}
	return status, true
}

// Exit statuses of Execute with an error, as a shell has them.
const (
	statusNotRun = 126 // it cannot be executed
	statusFault  = 139 // it was ended by a signal for what it did
)

// Options say what kind of console it is. The zero value is a fast line to a shell that
// echoes.
type Options struct {
	Link        string       // symbolic link that is made to the terminal, and removed at the end; "" for none
	Baud        int          // bits a second, ten for each byte, both ways; 0: as fast as it goes
	NoEcho      bool         // the coprocessor's terminal does not echo
	AskPassword bool         // the login asks for a password, and takes the empty one
	MDIOZero    bool         // a read or write of the MDIO device returns 0, as in the published source, and not 16 (switch.md 3)
	Interpreter string       // program that is run as PROGRAM sim a64 FILE ARGS...; "": this one, which must ask Called
	Logger      *slog.Logger // nil discards
}
