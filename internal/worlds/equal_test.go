package worlds

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/simdev"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/ring"
	"oxpd/ring/wire"
	"oxpd/rpc/msg"
)

// scene is a scenario in which nothing depends on when it happens: of each act less is
// sent than any ring or queue holds, and the next begins when all of it has come out.
type scene struct {
	plan
	acts []act
}

type act struct {
	mtu   int // of one port, before the frames; 0: none
	port  board.Port
	sends []send
}

// send is one frame of a flow, or a statistics message.
type send struct {
	flow, size int
	message    bool
}

// Bounds of an act: a ring holds 1,008 buffers whatever is in them, the shortest
// egress queue 128 frames.
const (
	actBuffers = 900
	actPosts   = 100
)

func drawScene(seed uint64) scene {
	d := drawer{rand.New(rand.NewPCG(seed, 0x5ce2e))}
	s := scene{plan: plan{seed: seed}}
	s.card = d.options(seed)
	s.card.Queues, s.card.Choices.StatusStops = hwsim.Queues{}, false
	// A card of free time whose goroutine waits for a core between the length word and
	// the tail has a packet that nothing counts for too long.
	s.card.Choices.LengthFirst = false
	s.card.Rates = hwsim.Rates{}
	s.drawRings(d)
	s.drawHost(d)
	s.drawFlows(d)
	for i := range s.mtus {
		s.mtus[i] = d.mtu()
	}
	for range d.from(2, 4) {
		a := act{port: board.ByIndex(d.IntN(board.Ports))}
		if d.one(2) {
			a.mtu = d.mtu()
		}
		room, posts := actBuffers, 0
		for range d.from(1, 250) {
			x := send{message: d.one(30), size: d.from(60, 14000)}
			if !x.message {
				x.flow = d.IntN(len(s.flows))
				f := &s.flows[x.flow]
				x.size = f.sizes[d.IntN(len(f.sizes))]
				if f.out {
					if posts++; posts > actPosts {
						continue
					}
				}
			}
			if room -= buffers(x.size); room < 0 {
				break
			}
			a.sends = append(a.sends, x)
		}
		s.acts = append(s.acts, a)
	}
	return s
}

// stage is where a scene is played: a card, the driver, and what came out.
type stage struct {
	scene
	card *hwsim.Card
	dev  octep.Device
	driver
	pattern *pattern

	mu    sync.Mutex
	came  map[int][]string // by flow, in order
	wrong []string
}

// outcome is what is the same however time passes, by name.
type outcome map[string]string

func (o outcome) set(name string, v any) { o[name] = fmt.Sprintf("%+v", v) }

// others returns what is not the same in another outcome.
func (o outcome) others(p outcome) (lines []string) {
	for name := range p {
		if _, ok := o[name]; !ok {
			o[name] = "nothing"
		}
	}
	for name, v := range o {
		if w, ok := p[name]; !ok || v != w {
			lines = append(lines, fmt.Sprintf("%s: %s, then %s", name, v, w))
		}
	}
	slices.Sort(lines)
	return lines
}

func (s *stage) keep(f *flow, what string, b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.came[f.n] = append(s.came[f.n], what+fmt.Sprintf(" %x", sum(b)))
}

// frame finds the flow of a frame.
func (s *stage) frame(b []byte) (*flow, int, bool) {
	n, i, ok := mark(b)
	if !ok || n >= len(s.flows) {
		return nil, 0, false
	}
	return &s.flows[n], i, true
}

func (s *stage) verdict(first []byte, _ int, tag uint16) ring.Verdict {
	_, i, ok := s.frame(first)
	switch {
	case board.Tag(tag) == board.TagControl:
		return ring.Unowned
	case ok && s.host.drop > 0 && i%s.host.drop == 0:
		return ring.Drop
	}
	return ring.Pass
}

// Deliver implements ring.Sink.
func (s *stage) Deliver(oq int, frames []ring.Frame) {
	for _, x := range frames {
		f, i, ok := s.frame(x.Pieces[0])
		if !ok {
			s.mu.Lock()
			s.wrong = append(s.wrong, fmt.Sprintf("% x", x.Pieces[0]))
			s.mu.Unlock()
			continue
		}
		s.keep(f, fmt.Sprintf("%d by ring %d, tag %#x, %d bytes", i, oq, x.Tag, x.Bytes), x.Pieces[0])
	}
}

// hangGuard ends a wait on a machine that does not move.
const hangGuard = 5 * time.Minute

// play plays a scene in stepped or free time.
func play(t *testing.T, sc scene, p *pattern, free bool) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(bg, hangGuard)
	defer cancel()
	s := &stage{scene: sc, pattern: p, came: map[int][]string{}, card: hwsim.New(sc.card)}
	s.dev = simdev.New(s.card)
	defer s.card.Close()
	var err error
	s.driver, err = s.plan.bringUp(ctx, s.card, s.dev, s.dev.DMA(), s.card.Clock(), s, ring.JudgeFunc(s.verdict))
	require.NoError(t, err)
	for _, p := range board.All() {
		l, ok := s.card.LIF(uint32(p.LIF()))
		require.True(t, ok)
		for j := range s.flows {
			if f := &s.flows[j]; f.port == p && !f.out && !f.foreign {
				f.dst = l.MAC
			}
		}
		s.card.Wire(uint16(p.Tag)).SetReceiver(func(b []byte) {
			f, i, ok := s.frame(b)
			if !ok {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.wrong = append(s.wrong, fmt.Sprintf("% x", b))
				return
			}
			s.keep(f, fmt.Sprintf("%d out of %s, %d bytes", i, p.Label, len(b)), b)
		})
	}
	if free {
		s.card.Start()
	}
	next := make([]int, len(s.flows))
	b := make([]byte, longestFrame)
	for _, a := range s.acts {
		if a.mtu > 0 {
			require.NoError(t, s.lifs.SetMTU(ctx, a.port, a.mtu))
		}
		for _, x := range a.sends {
			if x.message {
				require.True(t, s.card.DeliverRaw(0, uint16(board.TagControl), make([]byte, x.size), uint64(x.size)+wire.LenOverhead))
				continue
			}
			f := &s.flows[x.flow]
			p.put(b, f, next[x.flow], x.size)
			next[x.flow]++
			if f.out {
				require.True(t, s.rings.IQ().Post(uint16(f.port.Tag), b[:x.size]))
			} else {
				s.card.Wire(uint16(f.port.Tag)).Send(b[:x.size])
			}
		}
		s.settle(ctx, t)
	}
	o := s.outcome(ctx, t)
	require.NoError(t, s.takeDown(s.dev))
	return o
}

// settle serves until everything of an act has come out.
func (s *stage) settle(ctx context.Context, t *testing.T) {
	for still := 0; still < 2; {
		quiet := s.card.Quiesced()
		took := 0
		for q := range wire.OQs {
			n, err := s.rings.OQ(q).Visit(ring.VisitBound)
			require.NoError(t, err)
			took += n
		}
		if still++; !quiet || took > 0 || s.rings.IQ().Settle() > 0 {
			still = 0
		}
		require.NoError(t, s.card.Clock().Sleep(ctx, 200*time.Microsecond), "an act does not come to its end")
	}
}

func sum(b []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

func (s *stage) outcome(ctx context.Context, t *testing.T) outcome {
	o := outcome{}
	require.Empty(t, s.wrong)
	require.NoError(t, s.card.CheckConservation())
	require.Empty(t, s.card.Reports())
	for flow, came := range s.came {
		for i, what := range came {
			o.set(fmt.Sprintf("flow %d, frame %d that came", flow, i), what)
		}
	}
	var c [msg.CountersSys]uint64
	require.NoError(t, s.channel.SysCounters(ctx, &c))
	for i, n := range c {
		o.set(msg.CounterNames[i], n)
	}
	var ports [msg.CountersPort][msg.CountersPortStride]uint64
	require.NoError(t, s.channel.PortCounters(ctx, &ports))
	for i := range ports {
		for fp := range 3 {
			o.set(fmt.Sprintf("counter %d of fast-path port %d", i, fp), ports[i][fp])
		}
	}
	for _, p := range board.All() {
		o.set("wire of "+p.Label, s.card.Wire(uint16(p.Tag)).Stats())
		l, _ := s.card.LIF(uint32(p.LIF()))
		o.set("LIF of "+p.Label, l)
	}
	st := s.rings.Stats()
	for _, q := range st.Queues {
		// How often somebody looked is the time's.
		q.IntrDrained, q.PrefixSeq = 0, 0
		o.set(fmt.Sprintf("driver, ring %d", q.Ring), q)
	}
	o.set("driver, input queue", []uint64{st.TxPosted, st.TxFinished, st.TxBytes, st.TxFull, st.TxUnknown, st.TxBadCount})
	o.set("gather buffers", []int{st.GatherFree, st.LargeFree})
	bar := s.dev.BAR0()
	for _, r := range csr.GlobalTable {
		o.set(r.Name, bar.Load64(r.Offset))
	}
	for q := range csr.Rings {
		for _, r := range csr.RingTable {
			o.set(fmt.Sprintf("%s[%d]", r.Name, q), bar.Load64(uint32(csr.RingReg(r.Offset).Queue(q))))
		}
	}
	return o
}

// A2: a scenario without drops that depend on time gives the same frames, counters and
// final registers in stepped and in free time.
func TestSteppedAndFreeTimeGiveTheSame(t *testing.T) {
	n := uint64(40)
	if testing.Short() || raceDetector {
		n = 8
	}
	p := newPattern()
	frames := 0
	for seed := uint64(1); seed <= n; seed++ {
		sc := drawScene(seed)
		stepped := play(t, sc, p, false)
		free := play(t, sc, p, true)
		require.Empty(t, stepped.others(free), "scene %d\n%s", seed, sc.plan.String())
		for name := range stepped {
			if strings.HasSuffix(name, "that came") {
				frames++
			}
		}
	}
	require.Greater(t, frames, 50*int(n), "frames that came out")
}
