package scene

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/frame"
	"oxpd/internal/trace"
	"oxpd/octep/csr"
	"oxpd/ring"
	"oxpd/ring/wire"
	"oxpd/rpc/msg"
)

// Scene is one thing that can be watched.
type Scene struct {
	Name  string
	About string // what it shows, in a line

	rings ring.Config
	play  func(*stage) error // frames, and what must come of them
}

// All lists the scenes.
func All() []Scene {
	return []Scene{
		{Name: "small", About: "a frame of 60 bytes in by PortF1, and one out when the driver has it", play: small},
		{Name: "jumbo", About: "a frame of 9,014 bytes: six buffers, the length word last, one count, one message", play: jumbo},
		{Name: "burst", About: "1,100 small frames to a ring that nobody services: its credit runs out, and comes back", play: burst},
		{Name: "ports", About: "frames of random sizes at random moments, both ways on all twelve ports", play: ports},
		{Name: "timer", About: "interrupt level 8: three frames wait for the timer, eight do not",
			rings: ring.Config{PacketLevel: timerLevel, LevelTime: 50 * time.Microsecond}, play: timer},
		{Name: "tail", About: "fault: a jumbo frame's tail and count come 20 us after its length word, and the driver waits", play: tail},
		{Name: "mtu", About: "a frame one byte over the MTU of its LIF is refused, the next one passes; the switch drops a longer one on its own", play: mtu},
	}
}

// Names lists them by name.
func Names() []string {
	var names []string
	for _, s := range All() {
		names = append(names, s.Name)
	}
	return names
}

// UnknownError says that there is no such scene.
type UnknownError struct{ Name string }

func (e *UnknownError) Error() string {
	return fmt.Sprintf("unknown scenario %q: want %s", e.Name, strings.Join(Names(), ", "))
}

// Find returns the scene of a name. The error is *UnknownError.
func Find(name string) (Scene, error) {
	for _, s := range All() {
		if s.Name == name {
			return s, nil
		}
	}
	return Scene{}, &UnknownError{name}
}

// Result is what came of a scene.
type Result struct {
	Received []Frame // by the driver, in its order
	Left     []Frame // by the wires, in order of time
	Steps    uint64
	Elapsed  time.Duration // of the card, from the scene's begin
}

// Trace plays the scene and writes its trace to w. The bytes are the same for the
// same scene and seed. Errors are Run's, and w's: what was written is then not whole.
func (s *Scene) Trace(ctx context.Context, w io.Writer, seed int64) (Result, error) {
	t := trace.NewWriter(w, trace.Head{Scenario: s.Name, Seed: seed})
	r, err := s.Run(ctx, seed, t.Step)
	return r, errors.Join(err, t.Close())
}

// Run plays the scene and tells of every step, in cycles since the scene's begin. It
// fails when what the scene shows did not happen, when a frame is in no counter,
// when the driver did what it must not, and with the context.
func (s *Scene) Run(ctx context.Context, seed int64, tell func(hwsim.Step)) (r Result, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("scene %s: %w", s.Name, err)
		}
	}()
	st, err := open(ctx, seed, s.rings)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, st.close()) }()
	st.begin = st.card.Now()
	st.card.SetTracer(func(step hwsim.Step) {
		step.Start -= min(step.Start, st.begin)
		step.End -= min(step.End, st.begin)
		r.Steps++
		st.hear(&step)
		tell(step)
	})
	if err := s.play(st); err != nil {
		return r, err
	}
	st.card.SetTracer(nil)
	r.Received, r.Left = st.received, st.left
	r.Elapsed = time.Duration(st.card.Now()-st.begin) * time.Microsecond / csr.ClocksPerUS
	for _, report := range st.card.Reports() {
		err = errors.Join(err, errors.New(report.String()))
	}
	return r, errors.Join(err, st.card.CheckConservation())
}

func small(s *stage) error {
	p := f1()
	in, out := s.udp(p, 1, frame.MinSize), s.udp(p, 1, frame.MinSize)
	s.sendIn(p, in)
	if err := s.settle(); err != nil {
		return err
	}
	if err := s.sendOut(p, out); err != nil {
		return err
	}
	if err := s.settle(); err != nil {
		return err
	}
	return errors.Join(same("received", s.received, []Frame{{uint16(p.Tag), in}}), same("out", s.left, []Frame{{uint16(p.Tag), out}}))
}

// Golden is the scene of the golden trace in testdata, which `make generate` writes,
// and GoldenSeed its seed.
const (
	Golden     = "small"
	GoldenSeed = 1
)

// Jumbo is the longest frame of an MTU of 9,000, in bytes. It takes six buffers.
const Jumbo = 9014

func jumbo(s *stage) error {
	p := f1()
	if err := s.setMTU(p, 9000); err != nil {
		return err
	}
	b := s.udp(p, 1, Jumbo)
	s.sendIn(p, b)
	if err := s.settle(); err != nil {
		return err
	}
	return same("received", s.received, []Frame{{uint16(p.Tag), b}})
}

// burstFrames is more than a ring holds.
const burstFrames = wire.OQEntries + 76

func burst(s *stage) error {
	p := f1()
	var sent []Frame
	for range burstFrames {
		b := s.udp(p, 1, frame.MinSize)
		s.sendIn(p, b)
		sent = append(sent, Frame{uint16(p.Tag), b})
	}
	s.wait(time.Millisecond)
	if err := s.settle(); err != nil {
		return err
	}
	refused := s.card.Counter(msg.CntTXDropQueueFull)
	if refused != burstFrames-wire.OQEntries {
		return fmt.Errorf("%d frames were refused, want %d", refused, burstFrames-wire.OQEntries)
	}
	return same("received", s.received, sent[:wire.OQEntries])
}

// portsFrames is how many frames each port has each way.
const portsFrames = 3

func ports(s *stage) error {
	var in, out []Frame
	for range portsFrames {
		for _, i := range s.rng.Perm(board.Ports) {
			p := board.ByIndex(i)
			tag := uint16(p.Tag)
			r := s.udp(p, i, frame.MinSize+s.rng.IntN(portsLongest-frame.MinSize+1))
			s.sendIn(p, r)
			t := s.udp(p, i, frame.MinSize+s.rng.IntN(portsLongest-frame.MinSize+1))
			if err := s.sendOut(p, t); err != nil {
				return err
			}
			in, out = append(in, Frame{tag, r}), append(out, Frame{tag, t})
			if err := s.serve(time.Duration(s.rng.IntN(int(4 * time.Microsecond)))); err != nil {
				return err
			}
		}
	}
	if err := s.settle(); err != nil {
		return err
	}
	return errors.Join(sameByPort("received", s.received, in), sameByPort("out", s.left, out))
}

// portsLongest is the longest frame of an MTU of 1,500.
const portsLongest = 1514

// timerLevel is the count at which a message goes out at once.
const timerLevel = 8

func timer(s *stage) error {
	p := f1()
	var sent []Frame
	for _, n := range []int{3, timerLevel} {
		for range n {
			b := s.udp(p, 1, frame.MinSize)
			s.sendIn(p, b)
			sent = append(sent, Frame{uint16(p.Tag), b})
		}
		if err := s.settle(); err != nil {
			return err
		}
	}
	return same("received", s.received, sent)
}

// tailLate is how long the fault of the scene holds a tail back: shorter than the
// two ticks after which a driver repairs its ring.
const tailLate = 20 * time.Microsecond

func tail(s *stage) error {
	s.card.Faults(func(f *hwsim.Faults) { f.LateTail, f.LateBy = ^hwsim.RingMask(0), tailLate })
	p := f1()
	if err := s.setMTU(p, 9000); err != nil {
		return err
	}
	b := s.udp(p, 1, Jumbo)
	s.sendIn(p, b)
	if err := s.serveUntilVisible(); err != nil {
		return err
	}
	s.wake()
	if err := s.settle(); err != nil {
		return err
	}
	return same("received", s.received, []Frame{{uint16(p.Tag), b}})
}

func mtu(s *stage) error {
	p := f1()
	s.sendIn(p, s.udp(p, 1, portsLongest+1))
	b := s.udp(p, 1, portsLongest)
	s.sendIn(p, b)
	behind := board.ByIndex(0)
	s.sendIn(behind, s.udp(behind, 1, hwsim.SwitchFrameFound))
	if err := s.settle(); err != nil {
		return err
	}
	if n := s.card.Counter(msg.CntDropMTUExceeded); n != 1 {
		return fmt.Errorf("%s is %d, want 1", msg.CounterNames[msg.CntDropMTUExceeded], n)
	}
	if n := s.card.Wire(uint16(behind.Tag)).Stats().SwitchDropped; n != 1 {
		return fmt.Errorf("the switch dropped %d frames, want 1", n)
	}
	return same("received", s.received, []Frame{{uint16(p.Tag), b}})
}

// f1 is PortF1, the first of the two at 10 Gbit/s.
func f1() board.Port {
	p, _ := board.Parse("F1")
	return p
}

// same compares frames in their order.
func same(what string, got, want []Frame) error {
	if len(got) != len(want) {
		return fmt.Errorf("%s: %d frames, want %d", what, len(got), len(want))
	}
	for i := range got {
		if got[i].Tag != want[i].Tag || !bytes.Equal(got[i].Bytes, want[i].Bytes) {
			return fmt.Errorf("%s: frame %d is not the one that was sent", what, i)
		}
	}
	return nil
}

// sameByPort compares the frames of each port in their order.
func sameByPort(what string, got, want []Frame) error {
	split := func(all []Frame) map[uint16][]Frame {
		m := map[uint16][]Frame{}
		for _, f := range all {
			m[f.Tag] = append(m[f.Tag], f)
		}
		return m
	}
	g, w := split(got), split(want)
	for _, p := range board.All() {
		if err := same(p.Label+" "+what, g[uint16(p.Tag)], w[uint16(p.Tag)]); err != nil {
			return err
		}
	}
	return nil
}
