package hwsim

// BootEvent is a moment of the coprocessor's life that somebody at its console
// sees.
type BootEvent uint8

// Moments of the coprocessor's life.
const (
	BootOff    BootEvent = iota // it has ended: every process is gone, and what RAM held
	BootLoader                  // it starts: the boot loader, which a byte stops, and then the kernel
	BootKernel                  // the kernel runs
)

// SetConsole says who is told of the coprocessor's life from now on: called
// without the card's lock, in order. nil is nobody.
func (c *Card) SetConsole(fn func(BootEvent)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.console = fn
}

// KernelUp tells whether the coprocessor's kernel runs. Before that a byte on the
// console stops its boot loader. Functional.
func (c *Card) KernelUp() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.follow()
	return c.target.mapped
}

// ConsoleByte tells the card that a byte reached the coprocessor's console. Before
// the kernel runs, it stops the boot loader, and with it everything until the
// coprocessor is started anew (rpc-lif.md 10): the report ReportConsoleByte. While the
// kernel runs it means nothing to the card. Once that has ended nobody reads it, but
// whoever sent it cannot know that no boot has begun: the same report.
func (c *Card) ConsoleByte() {
	c.lock()
	defer c.leave()
	t := c.target
	if !t.running || t.mapped {
		return
	}
	if t.ended {
		c.report(ReportConsoleByte, "a byte while the coprocessor runs nothing: nobody reads it, and in a boot it would stop the boot loader")
		return
	}
	c.report(ReportConsoleByte, "a byte while the coprocessor boots: its boot loader has stopped")
	t.gen++ // the boot that is under way ends here
}
