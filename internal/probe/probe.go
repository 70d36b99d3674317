package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"oxpd/internal/board"
	"oxpd/internal/mmio"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/rpc/msg"
)

// Options of a look. The zero value works.
type Options struct {
	Source string       // shown in the report
	Logger *slog.Logger // nil discards
}

// looker is one look. After the card has gone nothing touches a BAR.
type looker struct {
	dev octep.Device
	ep  *octep.Endpoint
	r   *Report
	// What stops the bring-up, by the stage that it would stop in.
	identity, split, earlier, ready error
	awaiting                        string // what the target has not done yet
	offer                           bool   // a host's offer stands unanswered
	gone                            error
}

// Look reads the card and judges it. The device stays the caller's.
//
// A card that is gone, foreign or refused is a report. Errors are the context's,
// and those of a config space that cannot be read.
func Look(ctx context.Context, dev octep.Device, o Options) (*Report, error) {
	l := &looker{dev: dev, r: &Report{Schema: Schema, Device: dev.Name(), Source: o.Source, Findings: []Finding{}}}
	if err := l.config(); err != nil {
		return nil, err
	}
	ep, err := octep.Look(ctx, dev, octep.Config{Logger: o.Logger})
	var foreign *octep.IdentityError
	switch {
	case err == nil:
		l.ep = ep
		l.behind()
	case errors.As(err, &foreign):
		l.identity = err
	case errors.Is(err, octep.ErrNotDecoding):
	case errors.Is(err, mmio.ErrGone):
		l.gone = err
	default:
		return nil, err
	}
	l.find()
	l.plan()
	return l.r, nil
}

func hex(v uint64, bits int) string { return fmt.Sprintf("0x%0*x", bits/4, v) }

// config reads config space, which answers whatever state the card is in.
func (l *looker) config() error {
	var err error
	read := func(off, width int) uint64 {
		v, e := l.dev.ConfigRead(off, width)
		if err == nil && e != nil {
			err = fmt.Errorf("probe: read config space of %s at %#x: %w", l.dev.Name(), off, e)
		}
		return uint64(v)
	}
	c := &l.r.Config
	vendor, device := read(csr.CfgVendor, 2), read(csr.CfgDevice, 2)
	c.Vendor, c.Device = hex(vendor, 16), hex(device, 16)
	if vendor == csr.CfgVendorNone {
		return err // octep.Look says that it is gone
	}
	c.Recognised = vendor == board.Vendor && device == board.DevicePF
	command, status, class := read(csr.CfgCommand, 2), read(csr.CfgStatus, 2), read(csr.CfgRevision, 4)
	c.Command, c.Status = hex(command, 16), hex(status, 16)
	c.Memory, c.BusMaster = command&csr.CfgCommandMemory != 0, command&csr.CfgCommandBusMaster != 0
	c.Revision, c.Class = hex(class&0xff, 8), hex(class>>8, 24)
	if c.Recognised {
		for n := range 3 {
			const flags = 0xf // type and prefetch bits of a memory BAR
			at := csr.CfgBAR0 + 8*n
			c.BARs = append(c.BARs, hex(read(at, 4)&^flags|read(at+4, 4)<<32, 64))
		}
	}
	return err
}

// load reads a register of BAR0. Config space is asked first, and again when all
// ones come back: a register may hold them, a card that has gone reads nothing
// else.
func (l *looker) load(reg csr.Reg64) uint64 {
	if l.gone != nil {
		return 0
	}
	if octep.Alive(l.dev) {
		v := mmio.Load64(l.dev.BAR0(), reg)
		if v != csr.AllOnes || octep.Alive(l.dev) {
			return v
		}
	}
	l.gone = fmt.Errorf("probe: read %v: vendor id of %s: %w", reg, l.dev.Name(), mmio.ErrGone)
	return 0
}

// lost notes an error that is the loss of the card, and tells whether it was.
func (l *looker) lost(err error) bool {
	if l.gone == nil && errors.Is(err, mmio.ErrGone) {
		l.gone = err
	}
	return l.gone != nil
}

// behind reads what lies behind the BARs. Each section is filled when all of it
// was read.
func (l *looker) behind() {
	for _, section := range []func(){
		l.ringInfo, l.scratch, l.barmap, l.windows, l.globals, l.rings, l.judge,
	} {
		if section(); l.gone != nil {
			break
		}
	}
	l.r.Refused, _ = l.ep.Refusals()
}

func (l *looker) ringInfo() {
	v := l.load(csr.RInfo)
	if l.gone != nil {
		return
	}
	i := octep.DecodeRingInfo(v)
	l.r.RingInfo = &RingInfo{Value: hex(v, 64), SRN: i.SRN, TRS: i.TRS, RPVF: i.RPVF, NVFS: i.NVFS}
}

func (l *looker) scratch() {
	sdp, sli := l.load(csr.SDPScratch), l.load(csr.SLIScratch)
	if l.gone != nil {
		return
	}
	s := &Readiness{Value: hex(sdp, 64)}
	switch state, _ := octep.DecodeScratch(sdp); state {
	case octep.ScratchReady:
		s.State, s.Words = "ready", "the target's endpoint driver is up"
	case octep.ScratchOverwritten:
		s.State, s.Words = "overwritten", "another driver has written its note over the barmap pointer"
	default:
		s.State, s.Words = "booting", "no magic: the target's endpoint driver is not up"
	}
	l.r.Readiness = s
	l.offer = sli == csr.HostLoaded
	h := &Handshake{Value: hex(sli, 64)}
	h.State, h.Words = octep.HandshakeWord(sli)
	l.r.Handshake = h
}

func (l *looker) barmap() {
	if l.awaiting, l.ready = l.ep.Ready(); l.lost(l.ready) || l.ready != nil || l.awaiting != "" {
		return
	}
	_, at := octep.DecodeScratch(l.load(csr.SDPScratch))
	if l.gone != nil {
		return
	}
	m := l.ep.Barmap()
	b := &Barmap{Offset: hex(uint64(at), 32), Version: fmt.Sprintf("%d.%d", m.Version>>16, m.Version&0xffff), Doorbell: hex(uint64(m.GICD), 32)}
	for i, f := range m.Facility {
		row := Facility{Name: csr.FacilityNames[i], Present: f.Size != 0}
		if row.Present {
			row.Offset, row.Size, row.Doorbell, row.Doorbells = hex(uint64(f.Offset), 32), hex(uint64(f.Size), 32), f.Doorbell, f.Doorbells
		}
		b.Facilities = append(b.Facilities, row)
	}
	l.r.Barmap = b
}

// windows reads the heads of rpc and nw_agent, where the barmap has them. Loads
// there ask for nothing and acknowledge nothing.
func (l *looker) windows() {
	if l.r.Barmap == nil {
		return
	}
	l.r.Handshake.FastPath = l.ep.FastPathUp()
	f, err := l.ep.Facility(csr.FacRPC)
	if err == nil && f.Size() >= msg.StateSize {
		v := f.Load64(msg.StateMagic)
		w := &Window{Value: hex(v, 64)}
		switch c := msg.UnpackConfig(v); {
		case v == csr.AllOnes:
			w.Words = "nothing answers: the target's software is gone, or has not mapped it"
		case v == 0:
			w.Words = "blank: the fast path has not published it"
		case v == msg.ConfigIdle:
			w.Words = "alive, and nobody has configured it"
		case c.Magic == msg.ConfigMagic && c.Done != 0:
			w.Words = fmt.Sprintf("configured by a host, revision %d", c.Revision)
		case c.Magic == msg.ConfigMagic:
			w.Words = fmt.Sprintf("a host's configuration of revision %d waits for the target", c.Revision)
		default:
			w.Words = "not a word of rpc"
		}
		l.r.RPC = w
	} else if l.lost(err) {
		return
	}
	f, err = l.ep.Facility(csr.FacNWA)
	if err == nil && f.Size() >= msg.NWAHeadBytes {
		v := f.Load32(msg.NWACookie)
		w := &Window{Value: hex(uint64(v), 32)}
		switch {
		case v == ^uint32(0):
			w.Words = "nothing answers: the target's software is gone, or has not mapped it"
		case v == 0:
			w.Words = "blank: NetAgent is not up"
		case v != msg.NWAMagic:
			w.Words = "not NetAgent's cookie"
		case f.Load32(msg.NWABody) != msg.NWABodyOffset:
			w.Words = fmt.Sprintf("NetAgent of another layout: body at %#x, not %#x", f.Load32(msg.NWABody), msg.NWABodyOffset)
		case f.Load32(msg.NWAStatus) != 0:
			w.Words = "NetAgent is up and holds a reply that no host has acknowledged"
		default:
			w.Words = "NetAgent is up and idle"
		}
		l.r.NetAgent = w
	} else if l.lost(err) {
		return
	}
}

// globals are the registers outside the rings that tell of trouble.
func (l *looker) globals() {
	var all []Register
	for _, reg := range []csr.Reg64{csr.SDPIRErr, csr.SDPORErr, csr.SDPOEI, csr.MACNumber} {
		all = append(all, l.register(uint32(reg)))
	}
	if l.gone == nil {
		l.r.Globals = all
	}
}

// register reads one register by its offset in BAR0.
func (l *looker) register(off uint32) Register {
	info, _, _ := csr.Lookup(off)
	return Register{Name: info.Name, Offset: hex(uint64(off), 24), Value: hex(l.load(csr.Reg64(off)), 64)}
}

// judge asks what run would ask before it writes anything.
func (l *looker) judge() {
	l.split = l.ep.CheckRingInfo()
	l.earlier = l.ep.CheckFresh()
	if !l.lost(l.earlier) && !octep.Alive(l.dev) { // it went while BAR2 was read, where all ones are "not yet"
		l.gone = fmt.Errorf("probe: vendor id of %s: %w", l.dev.Name(), mmio.ErrGone)
	}
}
