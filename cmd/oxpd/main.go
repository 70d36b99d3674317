// Command oxpd drives the datapath coprocessor of the Sophos XGS 3300: `oxpd
// run` is the daemon, everything else asks it over its control socket.
//
// Data goes to standard output and talk to standard error. Exit status: 0 done,
// 1 tried and failed, 2 usage (an unknown port, a value that can never work), 3 of
// oxpd run: starting it again does not help (the coprocessor knows rings that cannot be
// taken over), so that a service manager must not.
// Output that could not be written is a failure. Standard output that was closed
// by whoever started the program is not seen as such: the runtime opens /dev/null
// in its place, as others do on purpose (Python's subprocess.DEVNULL, to the flag).
package main

import (
	"context"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

func main() {
	// That it is asked for makes a write to a pipe without a reader an error, which
	// is nobody's end: the daemon goes on without its log, any other command says
	// that its output failed.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	// Further signals while the first one is obeyed are swallowed: the stop
	// sequence runs once.
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	code := (&app{out: os.Stdout, err: os.Stderr}).main(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}
