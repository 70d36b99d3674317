package tcpstats

import (
	"fmt"
	"strings"
)

// Cause is what slows a connection down.
type Cause string

// Causes.
const (
	CauseLoss        Cause = "loss"           // what was sent got lost, and was sent again
	CauseRecvWindow  Cause = "receive-window" // the peer had no room for more
	CauseSendBuffer  Cause = "send-buffer"    // the sender's socket had no room for more
	CauseMSS         Cause = "mss-clamped"    // segments are smaller than the port would take
	CauseSlowReader  Cause = "slow-reader"    // this end's program does not read what came
	CauseApplication Cause = "application"    // the sender's program had nothing to send
)

// Diagnosis is one thing that a record's numbers show.
type Diagnosis struct {
	Cause   Cause    `json:"cause"`
	Text    string   `json:"text"`
	Figures []Figure `json:"figures"` // what it rests on
}

// Figure is a number of a diagnosis.
type Figure struct {
	Name  string `json:"name"`
	Value uint64 `json:"value"`
}

// Thresholds.
const (
	lossPerMille   = 10      // of segments, or bytes, sent again
	lossLeast      = 10      // segments
	limitedPercent = 20      // of the time with data to send
	limitedBusyUS  = 100_000 // less time than that shows nothing
	smallMSS       = 60      // bytes under what the port allows: options take less
	fullPercent    = 90      // of the average to the largest: the sender sends what fits
	fewSegments    = 20      // fewer show no largest size
	readPercent    = 50      // of the receive buffer that nobody reads
	zeroLeast      = 1
	probesOfWindow = 2      // segments sent again, at most, for each time that a window was closed
	idleMS         = 10_000 // without data for so long nothing is transferred
	mostMSS        = 16_000 // of an Ethernet, by far
)

// header4 and header6 are the bytes of an IP and a TCP header without options.
const (
	header4       = 40
	header6       = 60
	timestampSize = 12
)

// Needed are the groups that Diagnose looks at.
const Needed = GroupIdentity | GroupState | GroupCongestion | GroupRTT | GroupSequences | GroupCounters | GroupTimers | GroupBuffers

// Diagnose tells what a record's numbers show, the most telling first; nothing when they
// allow nothing. mtu is the MTU of the port that the connection crosses, 0 when it is not
// known. A connection that is not established is not looked at.
func Diagnose(r *Record, mtu int) []Diagnosis {
	switch s, _ := r.Uint(FieldState); State(s) {
	case Established, CloseWait, FinWait1:
	default:
		return nil
	}
	d := numbers{r: r}
	d.receiveWindow()
	d.slowReader()
	d.sendBuffer()
	d.loss()
	limited := len(d.found) > 0
	d.mss(mtu)
	if !limited {
		d.application()
	}
	return d.found
}

// Line is diagnoses in one line, empty for none.
func Line(all []Diagnosis) string {
	var b strings.Builder
	for i, d := range all {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(string(d.Cause) + ": " + d.Text)
	}
	return b.String()
}

// numbers is a record that is looked at, and what was found.
type numbers struct {
	r     *Record
	found []Diagnosis
}

// get is a field, 0 when it is absent.
func (d *numbers) get(f Field) uint64 {
	v, _ := d.r.Uint(f)
	return v
}

// say adds a diagnosis with the fields that it rests on.
func (d *numbers) say(c Cause, text string, rest ...Field) {
	out := Diagnosis{Cause: c, Text: text}
	for _, f := range rest {
		if v, ok := d.r.Uint(f); ok {
			out.Figures = append(out.Figures, Figure{nameOf(f), v})
		}
	}
	d.found = append(d.found, out)
}

func nameOf(f Field) string {
	for i := range fields {
		if fields[i].Field == f {
			return fields[i].Name
		}
	}
	return ""
}

// count is a number with a comma between thousands.
func count(n uint64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func times(n uint64) string {
	if n == 1 {
		return "once"
	}
	return count(n) + " times"
}

func percent(part, whole uint64) string {
	return fmt.Sprintf("%.1f %%", 100*float64(part)/float64(whole))
}

func (d *numbers) loss() {
	again, ok := d.r.Uint(FieldRetrans)
	sent := d.get(FieldDataSegsOut)
	// What asks whether a closed window has opened is a segment that is sent again.
	if closed := d.get(FieldZeroWindows); closed > 0 && again <= probesOfWindow*closed {
		ok = false
	}
	if ok && again >= lossLeast && sent > 0 && again*1000 >= sent*lossPerMille {
		d.say(CauseLoss, fmt.Sprintf("%s of %s segments were sent again (%s)", count(again), count(sent), percent(again, sent)),
			FieldRetrans, FieldDataSegsOut, FieldCWnd, FieldSSThresh, FieldCAState)
		return
	}
	if window, ok := d.r.Uint(FieldRcvWnd); ok && window == 0 && d.r.Source() == Flow {
		return // likewise, of the local end's
	}
	if came, again := d.get(FieldDataSegsIn), d.get(FieldRetransIn); again >= lossLeast && came > 0 && again*1000 >= came*lossPerMille {
		d.say(CauseLoss, fmt.Sprintf("the remote end sent %s of %s segments again (%s)", count(again), count(came), percent(again, came)),
			FieldRetransIn, FieldDataSegsIn, FieldOutOfOrder)
	}
}

// limited is a share of the busy time.
func (d *numbers) limited(f Field) (part, busy uint64, ok bool) {
	part, busy = d.get(f), d.get(FieldBusy)
	return part, busy, busy >= limitedBusyUS && part*100 >= busy*limitedPercent
}

func (d *numbers) receiveWindow() {
	if part, busy, ok := d.limited(FieldRWndLimited); ok {
		d.say(CauseRecvWindow, fmt.Sprintf("the peer's window held the sender up for %s of the time with data to send; it is %s bytes", percent(part, busy), count(d.get(FieldSndWnd))),
			FieldRWndLimited, FieldBusy, FieldSndWnd, FieldRTT)
		return
	}
	if n := d.get(FieldZeroWindows); n >= zeroLeast {
		d.say(CauseRecvWindow, fmt.Sprintf("the remote end closed its window, %s", times(n)), FieldZeroWindows, FieldSndWnd)
		return
	}
	if d.r.Source() != Flow || !d.r.Has(FieldSndWnd) || !d.r.Has(FieldSndNxt) || !d.r.Has(FieldSndUna) {
		return
	}
	flight, window := uint64(uint32(d.get(FieldSndNxt)-d.get(FieldSndUna))), d.get(FieldSndWnd)
	if window > 0 && flight < 1<<31 && flight*100 >= window*fullPercent {
		d.say(CauseRecvWindow, fmt.Sprintf("%s bytes are in flight, and the remote end's window is %s", count(flight), count(window)), FieldSndNxt, FieldSndUna, FieldSndWnd, FieldRTT)
	}
}

func (d *numbers) sendBuffer() {
	// Everything is in flight, more could be, and the program waits for the buffer.
	queued, limit := d.get(FieldWMemQueued), d.get(FieldSndBuf)
	if limit > 0 && queued >= limit && d.r.Has(FieldNotSent) && d.get(FieldNotSent) == 0 && d.get(FieldUnacked) < d.get(FieldCWnd) {
		d.say(CauseSendBuffer, fmt.Sprintf("the send buffer is full with what is in flight: %s bytes of a limit of %s, and %s of %s segments", count(queued), count(limit), count(d.get(FieldUnacked)), count(d.get(FieldCWnd))),
			FieldWMemQueued, FieldSndBuf, FieldUnacked, FieldCWnd)
		return
	}
	if part, busy, ok := d.limited(FieldSndBufLimited); ok {
		d.say(CauseSendBuffer, fmt.Sprintf("the send buffer held the sender up for %s of the time with data to send; its limit is %s bytes", percent(part, busy), count(d.get(FieldSndBuf))),
			FieldSndBufLimited, FieldBusy, FieldSndBuf, FieldRTT)
	}
}

func (d *numbers) slowReader() {
	if window, ok := d.r.Uint(FieldRcvWnd); ok && window == 0 && d.r.Source() == Flow {
		d.say(CauseSlowReader, "the local end has closed its window: its program does not read", FieldRcvWnd, FieldRetransIn)
		return
	}
	waits, limit := d.get(FieldRecvQueue), d.get(FieldRcvBuf)
	if limit > 0 && waits*100 >= limit*readPercent {
		d.say(CauseSlowReader, fmt.Sprintf("%s bytes wait for this end's program, of a receive buffer of %s", count(waits), count(limit)), FieldRecvQueue, FieldRcvBuf)
	}
}

// mss finds segments that are smaller than the port, or this end, allows.
func (d *numbers) mss(mtu int) {
	header := uint64(header4)
	if d.get(FieldFamily) == uint64(IPv6) {
		header = header6
	}
	options := uint64(0)
	if d.get(FieldOptions)&OptionTimestamps != 0 {
		options = timestampSize
	}
	allows, of := d.get(FieldAdvMSS), "this end announced"
	if d.r.Source() == Host && allows > 0 {
		allows += options // the kernel has taken them off
	}
	if mtu > int(header) {
		allows, of = uint64(mtu)-header, fmt.Sprintf("the port's MTU of %s allows", count(uint64(mtu)))
	}
	if allows == 0 || allows > mostMSS {
		return // of the loopback, whose MSS the kernel bounds by the window
	}
	if d.r.Source() == Flow {
		if peer, ok := d.r.Uint(FieldPeerMSS); ok && peer+smallMSS < allows {
			d.say(CauseMSS, fmt.Sprintf("the remote end announced an MSS of %s where %s %s: what goes to it is cut to that", count(peer), of, count(allows)), FieldPeerMSS, FieldMaxSegOut, FieldAdvMSS)
		} else if own, ok := d.r.Uint(FieldAdvMSS); ok && own+smallMSS < allows {
			d.say(CauseMSS, fmt.Sprintf("the local end announced an MSS of %s where %s %s: what comes is cut to that", count(own), of, count(allows)), FieldAdvMSS, FieldMaxSegIn, FieldPeerMSS)
		}
		return
	}
	if mss, ok := d.r.Uint(FieldSndMSS); ok && mss+options+smallMSS < allows {
		on := mss + options
		// What the kernel knows of the path is what its MSS would be without the peer's.
		if path := d.get(FieldPMTU); path > header && path-header <= on+smallMSS {
			d.say(CauseMSS, fmt.Sprintf("segments carry %s bytes: the path's MTU is %s, %s %s", count(mss), count(path), of, count(allows)), FieldSndMSS, FieldPMTU, FieldAdvMSS)
			return
		}
		d.say(CauseMSS, fmt.Sprintf("segments carry %s bytes: the peer, or a box between, clamped the MSS to %s, %s %s", count(mss), count(on), of, count(allows)), FieldSndMSS, FieldPMTU, FieldAdvMSS)
		return
	}
	// What comes is cut by the other end, of whose MSS nothing is known here but its segments.
	came, segments := d.get(FieldBytesReceived), d.get(FieldDataSegsIn)
	if largest := d.get(FieldRcvMSS); segments >= fewSegments && largest+options+smallMSS < allows && came/segments*100 >= largest*fullPercent {
		d.say(CauseMSS, fmt.Sprintf("segments that come carry %s bytes: the peer's MSS was clamped, %s %s", count(largest), of, count(allows)), FieldRcvMSS, FieldDataSegsIn, FieldAdvMSS)
	}
}

func (d *numbers) application() {
	if d.get(FieldDataSegsOut) == 0 || d.get(FieldLastSentMS) > idleMS {
		return // it is no transfer, or not one of this end
	}
	if d.get(FieldAppLimited) == 0 || !d.r.Has(FieldNotSent) || d.get(FieldNotSent) > 0 || d.get(FieldUnacked) >= d.get(FieldCWnd) {
		return
	}
	d.say(CauseApplication, fmt.Sprintf("the program had nothing more to send: %s of %s segments in flight, none wait", count(d.get(FieldUnacked)), count(d.get(FieldCWnd))),
		FieldAppLimited, FieldUnacked, FieldCWnd, FieldNotSent, FieldLastSentMS)
}
