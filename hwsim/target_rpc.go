package hwsim

import (
	"math"
	"syscall"
	"time"

	"oxpd/rpc/msg"
)

// rpcTarget is the target's half of the rpc window (rpc-lif.md 2, 3). The rings'
// counters and descriptors live in the window itself.
type rpcTarget struct {
	up          bool   // the module that serves the window is loaded
	cached      uint64 // the config word that was applied
	epoch       uint64 // counts reconfigurations; a command of an older one is void
	configuring bool
	ready       bool // the low ring is set up
	busy        bool // a command is being run
	livelock    bool // one doorbell and no high ring: hangs after the next command (rpc-lif.md 3.1)
	hung        bool
	descOff     uint32
	descCount   uint32
	seed        uint16 // of the last answer

	buf [msg.BufferSize + msg.RespMagic]byte
}

const (
	rpcSeedBase = 1              // the first answer of a boot carries 2
	rpcUserData = msg.MaxRequest // most payload of a reply, too (rpc-lif.md 2.4)
	rpcHiRings  = (msg.StateSize - msg.StateHiRing) / msg.RingSize
	rpcTransEIN = msg.RCTransport | msg.RC(syscall.EINVAL)
	rpcTransFLT = msg.RCTransport | msg.RC(syscall.EFAULT)
)

// CommandLog is one rpc command that the target took from its ring.
type CommandLog struct {
	At      time.Duration // when it was run
	Command msg.Command
	Flags   uint16 // of the descriptor
	Payload []byte // as read from the host's buffer when the command was run
	RC      msg.RC
	Replied bool // a reply was written
}

// maxLog bounds the logs of commands and handshake writes; the older half goes.
const maxLog = 8192

// Commands returns the commands that the target ran since the card was made or
// ResetCommands was called, at least the last 4,096, oldest first. The payloads
// are the log's own: do not write to them. Functional.
func (c *Card) Commands() []CommandLog {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]CommandLog(nil), c.target.commands...)
}

// ResetCommands forgets the commands logged so far. Functional.
func (c *Card) ResetCommands() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.target.commands = nil
}

func appendLog[T any](log []T, x T) []T {
	if len(log) >= maxLog {
		log = append(log[:0], log[maxLog/2:]...)
	}
	return append(log, x)
}

func (t *target) rpcWindow() []byte { return t.c.win[winRPC : winRPC+facSize] }

// rpcBells is how many doorbells the facility publishes.
func (t *target) rpcBells() uint32 {
	if t.c.faults.RPCOneDoorbell {
		return 1
	}
	return spiRPCBells
}

// rpcUp publishes the idle window: alive, nothing configured.
func (t *target) rpcUp() {
	w := t.rpcWindow()
	clear(w)
	le.PutUint64(w, msg.ConfigIdle)
	t.rpc = rpcTarget{up: true, cached: msg.ConfigIdle, seed: rpcSeedBase, epoch: t.rpc.epoch + 1}
}

// rpcDoorbell is the interrupt of doorbell index i of the facility.
func (t *target) rpcDoorbell(i uint32) {
	if i != 0 {
		// Nothing behind the doorbells of the high rings is modelled beyond their
		// declaration.
		t.c.report(ReportRPCDoorbell, "doorbell %d of rpc belongs to a high ring", i)
		return
	}
	t.after(t.tl.RPCDoorbell, t.rpcLook)
}

// rpcLook compares the live config word with the applied one: equal means
// commands, different means a new configuration. The magic is not tested.
func (t *target) rpcLook() {
	r := &t.rpc
	if !r.up || r.configuring || r.hung || t.c.acts(fltRPCSilent, t.c.faults.RPCSilent) {
		return
	}
	if le.Uint64(t.rpcWindow()) == r.cached {
		t.rpcKick()
		return
	}
	t.rpcConfigure()
}

// rpcConfigure quiesces, takes the rings' geometry and acknowledges, if the
// doorbells could be enabled: byte 7 is set and the word that then stands there
// is cached as applied, whoever wrote it in between.
func (t *target) rpcConfigure() {
	r := &t.rpc
	r.epoch++
	r.busy, r.ready, r.configuring = false, false, true
	w := t.rpcWindow()
	word := msg.UnpackConfig(le.Uint64(w))
	low := w[msg.StateLowRing:][:msg.RingSize]
	off, count := le.Uint32(low[msg.RingDescOffset:]), le.Uint32(low[msg.RingDescCount:])
	ok := low[msg.RingDoorbell] == 0 && low[msg.RingShared] == 0 && word.HiRings <= rpcHiRings
	if count != 0 {
		ok = ok && count&(count-1) == 0 && off%8 == 0 && off >= msg.StateSize &&
			uint64(off)+uint64(count)*msg.DescSize <= uint64(len(w))
	}
	for i := range min(int(word.HiRings), rpcHiRings) {
		hi := w[msg.StateHiRing+i*msg.RingSize:][:msg.RingSize]
		shared := hi[msg.RingShared] != 0
		ok = ok && uint32(hi[msg.RingDoorbell]) < t.rpcBells() && shared == (hi[msg.RingDoorbell] == 0)
	}
	livelock := t.rpcBells() == 1 && word.HiRings == 0 && count != 0
	epoch := r.epoch
	t.after(t.tl.RPCConfigure, func() {
		if r.epoch != epoch || !r.up {
			return
		}
		r.configuring = false
		if !ok {
			t.c.report(ReportRPCConfig, "config %#x, doorbell index %d, shared %d, %d descriptors at %#x: not acknowledged",
				word.Word(), low[msg.RingDoorbell], low[msg.RingShared], count, off)
			return
		}
		w[msg.StateDone] = 1
		r.cached = le.Uint64(w)
		r.descOff, r.descCount, r.ready = off, count, count != 0
		if livelock {
			t.c.report(ReportRPCLivelock, "one doorbell and no high ring: the target will hang after one command")
			r.livelock = true
		}
	})
}

// rpcKick begins the next command of the low ring, if there is one.
func (t *target) rpcKick() {
	r := &t.rpc
	low := t.rpcWindow()[msg.StateLowRing:]
	if !r.ready || r.busy {
		return
	}
	posted, done := le.Uint64(low[msg.RingPosted:]), le.Uint64(low[msg.RingDone:])
	if posted == done || t.c.acts(fltRPCSilent, t.c.faults.RPCSilent) {
		return
	}
	if posted-done > uint64(r.descCount) {
		if le.Uint64(t.rpcWindow()) != r.cached {
			return // the rings are being declared anew
		}
		t.c.report(ReportRPCPosted, "posted %d with done %d on a ring of %d", posted, done, r.descCount)
		return
	}
	r.busy = true
	epoch := r.epoch
	t.c.chance(perCommand)
	t.after(t.tl.RPCCommand+t.c.delay(fltRPCDelay, t.c.faults.RPCDelay), func() {
		if r.epoch != epoch || !r.up {
			return
		}
		r.busy = false
		if t.c.acts(fltRPCSilent, t.c.faults.RPCSilent) {
			return // the command stays on the ring
		}
		t.rpcRun(int(done & uint64(r.descCount-1)))
		if t.c.o.Choices.DoneInPlace {
			done = le.Uint64(low[msg.RingDone:])
		}
		le.PutUint64(low[msg.RingDone:], done+1)
		t.rpcKick()
	})
}

// rpcRun runs the command of one descriptor. The buffer is read now and not when
// it was posted: what was wiped meanwhile is command 0.
func (t *target) rpcRun(slot int) {
	r := &t.rpc
	var d msg.Descriptor
	// The window holds the whole ring: rpcConfigure checked it.
	_ = d.Decode(t.rpcWindow()[int(r.descOff)+slot*msg.DescSize:])
	req := r.buf[:msg.ReqPayload+min(int(d.Len), msg.BufferSize-msg.ReqPayload)]
	entry := CommandLog{At: durationOf(t.c.now), Flags: d.Flags, RC: rpcTransEIN}
	var reply []byte
	room := 0
	switch {
	case !t.c.dmaRead("read", d.Addr, req):
		entry.RC = rpcTransFLT
	case int(d.Len) > len(req)-msg.ReqPayload:
		entry.Command = msg.Command(req[msg.ReqCommand])
	default:
		entry.Command = msg.Command(req[msg.ReqCommand])
		entry.Payload = append([]byte(nil), req[msg.ReqPayload:]...)
		room = min(int(le.Uint16(req[msg.ReqRespSize:])), rpcUserData)
		if rc := t.c.faults.RPCError; t.c.acts(fltRPCError, rc != msg.RCOK) {
			entry.RC = rc
			break
		}
		entry.RC, reply = t.command(entry.Command, entry.Payload, room)
	}
	entry.Replied = d.Flags&msg.FlagPost == 0 && !(t.c.o.Choices.SilentUnknown && entry.RC == rpcTransEIN)
	if t.c.o.Choices.SilentUnknown && isTableRead(entry.Command) && len(entry.Payload) >= msg.TableReadSize && le.Uint16(entry.Payload[4:]) == 0 {
		entry.Replied = false
	}
	if entry.Replied {
		r.seed++
		b := append(r.buf[:0], make([]byte, msg.HeaderSize)...)
		le.PutUint16(b[msg.RespRC:], uint16(entry.RC))
		b[msg.RespDone] = 1
		le.PutUint16(b[msg.RespSeed:], r.seed)
		le.PutUint16(b[msg.RespLen:], uint16(len(reply)))
		if t.c.acts(fltRPCLongReply, t.c.faults.RPCLongReply) {
			le.PutUint16(b[msg.RespLen:], math.MaxUint16)
		}
		b = append(b, reply...)
		b = le.AppendUint32(b, doneMagic(r.seed))
		t.c.dmaWrite("write", d.Addr, b)
	}
	t.commands = appendLog(t.commands, entry)
	if r.livelock {
		t.rpcHang()
	}
}

// doneMagic is a fixed function of the seed. The real one is not known and no
// host checks it; this one never gives four equal bytes, as a poison does.
func doneMagic(seed uint16) uint32 { return 0x4f585044 ^ uint32(seed)*0x00010001 }

// rpcHang is the end of rpc-lif.md 3.1: one answer, then nothing, later
// all-ones.
func (t *target) rpcHang() {
	t.rpc.ready, t.rpc.hung = false, true
	t.after(t.tl.Crash, t.crash)
}
