package hwsim

import "time"

// ConsoleFaults are the faults of the coprocessor's serial console (package
// hwsim/console, rpc-lif.md 10); the zero value is a quiet line that loses nothing.
// A field that counts is used up as it acts.
type ConsoleFaults struct {
	ConsoleSilent       bool          // nothing reaches the host; what the host sends is obeyed all the same
	ConsoleDead         bool          // the line is cut: nothing passes either way
	ConsoleCutAfter     int           // the line is cut after so many more bytes from the host: ConsoleDead is set
	ConsoleByteTime     time.Duration // added to each byte for the host
	ConsoleNoise        int           // after every so many bytes for the host a kernel message comes in between, wherever that is in a line
	ConsoleLoseOut      int           // one in so many bytes for the host is lost
	ConsoleLoseIn       int           // one in so many bytes from the host is lost
	ConsoleLocalEcho    bool          // the host's end echoes what comes in, as a terminal does that nobody has set otherwise
	ConsoleSecondReader bool          // somebody else has the host's end open, and takes every other run of 16 bytes
	ConsoleLogout       time.Duration // the shell ends after so long without a byte from the host, and there is a login prompt again
	ConsoleLoseFiles    bool          // a start of the coprocessor empties /root too, and not /tmp alone
}

// ConsoleFaults are the present faults of the console. Functional.
func (c *Card) ConsoleFaults() ConsoleFaults {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.faults.ConsoleFaults
}
