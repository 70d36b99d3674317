package divert

// Counts is what became of the frames of one port and direction. At any moment Seen is
// the sum of all others but Reordered and Injected, which count events.
type Counts struct {
	Seen uint64 // offered to the queue

	Accepted   uint64 // by a verdict
	Dropped    uint64 // by a verdict; of a tap-pair: not come back in time
	Replaced   uint64 // by another frame of the engine, which went on
	FlowPassed uint64 // of a connection that the engine accepted whole

	PassFull, PassAbsent, PassStall uint64 // uninspected, by policy
	DropFull, DropAbsent, DropStall uint64 // by policy

	Oversize  uint64 // the engine's replacement cannot be sent: too long, or no frame
	Shortened uint64 // came back from a tap-pair shorter than it left
	Queued    uint64 // no verdict yet

	Reordered uint64 // passed by a policy while its flow had frames queued
	Injected  uint64 // frames of the engine's own, which went on
}

// Lost is how many frames ended here.
func (c *Counts) Lost() uint64 {
	return c.Dropped + c.DropFull + c.DropAbsent + c.DropStall + c.Oversize + c.Shortened
}

// Passed is how many frames went on, changed or not.
func (c *Counts) Passed() uint64 {
	return c.Accepted + c.Replaced + c.FlowPassed + c.PassFull + c.PassAbsent + c.PassStall
}

// Sum is what Seen has to be.
func (c *Counts) Sum() uint64 { return c.Lost() + c.Passed() + c.Queued }

// Add adds another's.
func (c *Counts) Add(o *Counts) {
	c.Seen += o.Seen
	c.Accepted += o.Accepted
	c.Dropped += o.Dropped
	c.Replaced += o.Replaced
	c.FlowPassed += o.FlowPassed
	c.PassFull += o.PassFull
	c.PassAbsent += o.PassAbsent
	c.PassStall += o.PassStall
	c.DropFull += o.DropFull
	c.DropAbsent += o.DropAbsent
	c.DropStall += o.DropStall
	c.Oversize += o.Oversize
	c.Shortened += o.Shortened
	c.Queued += o.Queued
	c.Reordered += o.Reordered
	c.Injected += o.Injected
}

// Each calls fn with each counter and its name, in a fixed order.
func (c *Counts) Each(fn func(name string, value uint64)) {
	fn("divert_seen", c.Seen)
	fn("divert_accepted", c.Accepted)
	fn("divert_dropped", c.Dropped)
	fn("divert_replaced", c.Replaced)
	fn("divert_flow_passed", c.FlowPassed)
	fn("divert_pass_full", c.PassFull)
	fn("divert_pass_absent", c.PassAbsent)
	fn("divert_pass_stall", c.PassStall)
	fn("divert_drop_full", c.DropFull)
	fn("divert_drop_absent", c.DropAbsent)
	fn("divert_drop_stall", c.DropStall)
	fn("divert_oversize", c.Oversize)
	fn("divert_shortened", c.Shortened)
	fn("divert_queued", c.Queued)
	fn("divert_reordered", c.Reordered)
	fn("divert_injected", c.Injected)
}
