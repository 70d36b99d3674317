package hwsim

import (
	"time"

	"oxpd/octep/csr"
)

// hsState is where the target's half of the handshake stands (endpoint.md 4.3).
type hsState uint8

const (
	hsListening hsState = iota // looked at once a Poll
	hsWaitInfo                 // a core spins while the register reads GET_HOST_INFO
	hsWaitDone                 // a core spins while it reads the reply
	hsDone                     // once per coprocessor boot: nobody listens any more
)

type handshake struct {
	state    hsState
	info     uint64
	launched bool
}

// HandshakeWrite is one store of the host to SLI_EPF_SCRATCH.
type HandshakeWrite struct {
	At    time.Duration
	Value uint64
}

// HandshakeWrites returns the host's stores to the handshake register, oldest
// first. Functional.
func (c *Card) HandshakeWrites() []HandshakeWrite {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]HandshakeWrite(nil), c.target.handshakes...)
}

// scratchWritten is called after each host store to the handshake register.
func (t *target) scratchWritten() {
	v := t.c.sliScratch
	t.handshakes = appendLog(t.handshakes, HandshakeWrite{durationOf(t.c.now), v})
	switch t.hs.state {
	case hsWaitInfo, hsWaitDone:
		t.after(t.tl.Spin, t.spin)
	case hsDone:
		t.c.report(ReportHandshakeAgain, "%s = %#x after the handshake: no answer, started-port bitmap lost", csr.SLIScratch, v)
	}
}

// pollHandshake looks at the register once a Poll. It also looks on behalf of
// the spinning core, for the end of a fault during which that one saw nothing.
func (t *target) pollHandshake() {
	if t.hs.state == hsDone || t.crashed {
		return
	}
	t.spin()
	if t.hs.state == hsListening && t.c.sliScratch == csr.HostLoaded && !t.c.acts(fltHandshakeDeaf, t.c.faults.HandshakeDeaf) {
		t.c.sliScratch = csr.GetHostInfo
		t.hs.state = hsWaitInfo
	}
	t.after(t.tl.Poll, t.pollHandshake)
}

// spin is one turn of a busy-wait. Neither has a timeout and neither checks what
// ended it: any value but GET_HOST_INFO is an info word, 0 and HOST_LOADED too
// (choice 18); any value with other upper bits than the reply's ends the second.
func (t *target) spin() {
	if t.c.acts(fltHandshakeMute, t.c.faults.HandshakeMute) {
		return
	}
	v := t.c.sliScratch
	switch {
	case t.hs.state == hsWaitInfo && v == 0 && t.c.o.Choices.NoZeroInfo:
	case t.hs.state == hsWaitInfo && v != csr.GetHostInfo:
		t.hs.info = v
		t.hs.state = hsWaitDone
		t.c.sliScratch = csr.HostInfoReceived<<csr.HostInfoShift | csr.ClocksPerUS
	case t.hs.state == hsWaitDone && v>>csr.HostInfoShift != csr.HostInfoReceived:
		// Only the exact word marks the handshake done; the register is zeroed and
		// the ports are created in either case. Whether an unfinished one listens
		// again is not on record; the model's does.
		t.hs.state = hsListening
		if v == csr.HandshakeCompleted {
			t.hs.state = hsDone
		}
		t.c.sliScratch = 0
		if t.hs.launched {
			return
		}
		t.hs.launched = true
		if csr.InfoRPPF.Get(t.hs.info) == 0 || csr.InfoAppMode.Get(t.hs.info) != csr.AppModeNIC {
			// A promise of no rings: what the launcher makes of it is not on record.
			// Here it never opens a host port.
			t.c.report(ReportHandshakeInfo, "%s: info word %#x promises no rings or another mode", csr.SLIScratch, t.hs.info)
			return
		}
		t.launch()
	}
}
