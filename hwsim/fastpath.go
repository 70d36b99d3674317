package hwsim

// fastPath is the packet program: seventeen workers, and what is with them each way.
// Every frame takes a worker for the same time, so they take frames in turn. In free
// mode each way has workers of its own, as users of the link have links.
type fastPath struct {
	free   [2][workers]uint64 // cycle from which a worker is free
	next   [2]int
	toWire stage[*packet]
	toHost stage[*packet]
}

func (f *fastPath) reset() {
	f.free, f.next = [2][workers]uint64{}, [2]int{}
	f.toWire.reset()
	f.toHost.reset()
}

// worker is the cycle at which a worker takes a frame that comes at a cycle.
func (c *Card) worker(toHost bool, at uint64) uint64 {
	f, way := &c.fast, 0
	if toHost && c.mode == free {
		way = 1
	}
	w := &f.free[way][f.next[way]]
	at = max(at, *w)
	*w = at + c.lat.worker
	f.next[way] = (f.next[way] + 1) % workers
	return at
}

// toFastPath is a frame of the host whose data is read.
func (c *Card) toFastPath(p *packet, at uint64) {
	p.since = at
	c.fast.toWire.enter(p, c.worker(false, at)+c.lat.toWire)
}

// enterFastPath is a frame of a wire that the MAC has whole. What comes while too
// many are with the workers is lost, as on a wire that is too fast.
func (c *Card) enterFastPath(p *packet, at uint64) {
	w := c.wires[p.port]
	if c.fast.toHost.len() >= c.o.Queues.FastPath {
		w.inside--
		w.stats.Overrun++
		c.pool.put(p)
		return
	}
	p.since = at
	c.fast.toHost.enter(p, c.worker(true, at)+c.lat.toHost)
}

// leaveFastPath is the program's decision on a frame of a wire.
func (c *Card) leaveFastPath(p *packet, at uint64) {
	w := c.wires[p.port]
	w.inside--
	port := &c.ports[p.port]
	c.trace(Step{Unit: UnitToHost, Lane: p.port, What: "frame", Start: p.since, End: at, Packet: p.id, Bytes: len(p.b)})
	switch {
	case c.gone() || !c.fastPathAlive():
		w.stats.NoFastPath++
		c.pool.put(p)
	case !port.admits(p.frame()) && !c.o.Choices.ForeignMACToLIF:
		w.stats.Filtered++
		c.pool.put(p)
	default:
		w.stats.Passed++
		c.fromWire(w.port, p, at)
	}
}
