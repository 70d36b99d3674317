package tcpstats

import "math/bits"

// Groups is a set of groups of fields, as fields= names them. The bits are those of
// records.
type Groups uint16

// Groups of fields.
const (
	GroupIdentity Groups = 1 << iota
	GroupState
	GroupCongestion
	GroupRTT
	GroupSequences
	GroupCounters
	GroupTimers
	GroupBuffers
	GroupECN
	GroupNames

	groupCount = iota
)

// Sets of groups that have names of their own.
const (
	DefaultGroups = GroupIdentity | GroupState | GroupCongestion | GroupRTT | GroupBuffers
	AllGroups     = 1<<groupCount - 1
)

// groupNames are the words of fields=, in the order of the bits.
var groupNames = [groupCount]string{"identity", "state", "congestion", "rtt", "sequences", "counters", "timers", "buffers", "ecn", "names"}

// String is the name of a single group.
func (g Groups) String() string {
	if bits.OnesCount16(uint16(g)) == 1 && g <= AllGroups {
		return groupNames[bits.TrailingZeros16(uint16(g))]
	}
	return "groups"
}

// Sizes of a record in bytes. A block is its first word, which has a bit for each of its
// fields that is there, and its fields at offsets that are always the same.
const (
	headerSize = 8

	identityAt   = headerSize
	statesAt     = identityAt + 80
	congestionAt = statesAt + 16
	rttAt        = congestionAt + 144
	sequencesAt  = rttAt + 32
	countersAt   = sequencesAt + 56
	timersAt     = countersAt + 64
	buffersAt    = timersAt + 40
	ecnAt        = buffersAt + 56
	namesAt      = ecnAt + 24

	// FullSize is the size of a record in the full format, and the most that one in the
	// compact format has.
	FullSize = namesAt + 40

	// MaxRecord is the most that a record of any version has: its size is two bytes.
	MaxRecord = 1<<16 - 1
)

// blockAt is where each block begins, and where the last one ends.
var blockAt = [groupCount + 1]int{identityAt, statesAt, congestionAt, rttAt, sequencesAt, countersAt, timersAt, buffersAt, ecnAt, namesAt, FullSize}

// Field is one field of a record: its group, its bit in the block's first word, its place
// and its width, which are constants of the code that fills it.
type Field uint32

// A Field's parts.
const (
	fieldOffset = 0  // in the full format, 10 bits
	fieldWidth  = 10 // in bytes, 5 bits
	fieldBit    = 16 // 5 bits
	fieldGroup  = 24 // number of the group, 4 bits

	w1, w2, w4, w8, w16 = 1 << fieldWidth, 2 << fieldWidth, 4 << fieldWidth, 8 << fieldWidth, 16 << fieldWidth
)

func (f Field) offset() int { return int(f >> fieldOffset & 0x3ff) }
func (f Field) width() int  { return int(f >> fieldWidth & 0x1f) }
func (f Field) group() int  { return int(f >> fieldGroup & 0xf) }

// Bit is the field's bit in its block's first word.
func (f Field) Bit() uint32 { return 1 << (f >> fieldBit & 0x1f) }

// Group is the group of the field.
func (f Field) Group() Groups { return 1 << f.group() }

// Fields of a record. Of the host's are those of INET_DIAG and tcp_info(7) of like name;
// of a flow local is the end that is reached by way of this host, and remote the one
// at the port's wire.
const (
	inIdentity   Field = 0<<fieldGroup | identityAt
	inStates     Field = 1<<fieldGroup | statesAt
	inCongestion Field = 2<<fieldGroup | congestionAt
	inRTT        Field = 3<<fieldGroup | rttAt
	inSequences  Field = 4<<fieldGroup | sequencesAt
	inCounters   Field = 5<<fieldGroup | countersAt
	inTimers     Field = 6<<fieldGroup | timersAt
	inBuffers    Field = 7<<fieldGroup | buffersAt
	inECN        Field = 8<<fieldGroup | ecnAt
	inNames      Field = 9<<fieldGroup | namesAt

	FieldFamily     = inIdentity + 0<<fieldBit + w1 + 4   // 4 or 6: what is spoken on the wire
	FieldState      = inIdentity + 1<<fieldBit + w1 + 5   // a State
	FieldFlags      = inIdentity + 2<<fieldBit + w1 + 6   // FlagMapped
	FieldPort       = inIdentity + 3<<fieldBit + w1 + 7   // index of the port that it crosses
	FieldLocalPort  = inIdentity + 4<<fieldBit + w2 + 8   //
	FieldRemotePort = inIdentity + 5<<fieldBit + w2 + 10  // absent of a listener
	FieldUID        = inIdentity + 6<<fieldBit + w4 + 12  //
	FieldLocalAddr  = inIdentity + 7<<fieldBit + w16 + 16 // network order, IPv4 as ::ffff:a.b.c.d
	FieldRemoteAddr = inIdentity + 8<<fieldBit + w16 + 32 // absent of a listener
	FieldInode      = inIdentity + 9<<fieldBit + w8 + 48  //
	FieldCookie     = inIdentity + 10<<fieldBit + w8 + 56 // the same as long as the socket, or the flow, lives
	FieldIfIndex    = inIdentity + 11<<fieldBit + w4 + 64 // the interface that it is bound to
	FieldMark       = inIdentity + 12<<fieldBit + w4 + 68 //
	FieldDirection  = inIdentity + 13<<fieldBit + w1 + 72 // of a flow: DirectionIn when the remote end opened it
	FieldVLAN       = inIdentity + 14<<fieldBit + w2 + 74 // of a flow, the outermost tag

	FieldSndWScale = inStates + 0<<fieldBit + w1 + 4 // what the peer's window is shifted by
	FieldRcvWScale = inStates + 1<<fieldBit + w1 + 5 // what its own is shifted by
	FieldOptions   = inStates + 2<<fieldBit + w1 + 6 // Option bits, in use
	FieldCAState   = inStates + 3<<fieldBit + w1 + 7 // of congestion avoidance: 0 open, 1 disorder, 2 CWR, 3 recovery, 4 loss
	FieldBackoff   = inStates + 4<<fieldBit + w1 + 8 // doublings of the timeout

	FieldCWnd          = inCongestion + 0<<fieldBit + w4 + 4   // segments
	FieldSSThresh      = inCongestion + 1<<fieldBit + w4 + 8   // segments; absent before the first loss
	FieldSndWnd        = inCongestion + 2<<fieldBit + w4 + 12  // bytes, what the peer last offered
	FieldRcvWnd        = inCongestion + 3<<fieldBit + w4 + 16  // bytes, what was last offered to it
	FieldSndMSS        = inCongestion + 4<<fieldBit + w4 + 20  // bytes a segment may carry now, without options
	FieldRcvMSS        = inCongestion + 5<<fieldBit + w4 + 24  // estimate of what the peer's segments carry
	FieldAdvMSS        = inCongestion + 6<<fieldBit + w4 + 28  // what the local end announced
	FieldPMTU          = inCongestion + 7<<fieldBit + w4 + 32  // bytes, as discovered
	FieldRcvSSThresh   = inCongestion + 8<<fieldBit + w4 + 36  // bytes
	FieldRcvSpace      = inCongestion + 9<<fieldBit + w4 + 40  // bytes
	FieldAppLimited    = inCongestion + 10<<fieldBit + w1 + 44 // 1: the delivery rate was measured while the sender had nothing to send
	FieldDeliveryRate  = inCongestion + 11<<fieldBit + w8 + 48 // bytes a second
	FieldPacingRate    = inCongestion + 12<<fieldBit + w8 + 56 // bytes a second; absent when there is none
	FieldMaxPacingRate = inCongestion + 13<<fieldBit + w8 + 64 // likewise
	FieldBusy          = inCongestion + 14<<fieldBit + w8 + 72 // microseconds with data to send or in flight
	FieldRWndLimited   = inCongestion + 15<<fieldBit + w8 + 80 // microseconds of them, held by the peer's window
	FieldSndBufLimited = inCongestion + 16<<fieldBit + w8 + 88 // microseconds of them, held by the send buffer
	FieldBytesAcked    = inCongestion + 17<<fieldBit + w8 + 96
	FieldBytesReceived = inCongestion + 18<<fieldBit + w8 + 104
	FieldBytesSent     = inCongestion + 19<<fieldBit + w8 + 112
	FieldBytesRetrans  = inCongestion + 20<<fieldBit + w8 + 120
	FieldPeerMSS       = inCongestion + 21<<fieldBit + w4 + 128 // of a flow: what the remote end announced
	FieldMaxSegOut     = inCongestion + 22<<fieldBit + w4 + 132 // of a flow: largest payload towards the remote end
	FieldMaxSegIn      = inCongestion + 23<<fieldBit + w4 + 136 // of a flow: largest payload from it

	FieldRTT            = inRTT + 0<<fieldBit + w4 + 4  // microseconds, smoothed; and so the others
	FieldRTTVar         = inRTT + 1<<fieldBit + w4 + 8  //
	FieldRTO            = inRTT + 2<<fieldBit + w4 + 12 //
	FieldMinRTT         = inRTT + 3<<fieldBit + w4 + 16 //
	FieldRcvRTT         = inRTT + 4<<fieldBit + w4 + 20 // as the receiver estimates it
	FieldHandshakeRTT   = inRTT + 5<<fieldBit + w4 + 24 // of a flow, from this host to the remote end and back
	FieldHandshakeLocal = inRTT + 6<<fieldBit + w4 + 28 // of a flow, from this host to the local end and back

	FieldUnacked     = inSequences + 0<<fieldBit + w4 + 4  // segments
	FieldSndNxt      = inSequences + 1<<fieldBit + w4 + 8  // of a flow, as seen
	FieldSndUna      = inSequences + 2<<fieldBit + w4 + 12 // of a flow, as seen
	FieldRcvNxt      = inSequences + 3<<fieldBit + w4 + 16 // of a flow, as seen
	FieldNotSent     = inSequences + 4<<fieldBit + w4 + 20 // bytes that wait in the send queue
	FieldSegsOut     = inSequences + 5<<fieldBit + w8 + 24
	FieldSegsIn      = inSequences + 6<<fieldBit + w8 + 32
	FieldDataSegsOut = inSequences + 7<<fieldBit + w8 + 40
	FieldDataSegsIn  = inSequences + 8<<fieldBit + w8 + 48

	FieldRetrans     = inCounters + 0<<fieldBit + w4 + 4  // segments that the local end sent again, ever
	FieldRetransNow  = inCounters + 1<<fieldBit + w4 + 8  // of what is in flight
	FieldLost        = inCounters + 2<<fieldBit + w4 + 12 // of what is in flight, taken for lost
	FieldSacked      = inCounters + 3<<fieldBit + w4 + 16 // of what is in flight
	FieldOutOfOrder  = inCounters + 4<<fieldBit + w4 + 20 // segments from the peer
	FieldDupAcks     = inCounters + 5<<fieldBit + w4 + 24 // of a flow, from the remote end
	FieldZeroWindows = inCounters + 6<<fieldBit + w4 + 28 // of a flow: times that the remote end closed its window
	FieldProbes      = inCounters + 7<<fieldBit + w1 + 32 // unanswered window probes now
	FieldReordering  = inCounters + 8<<fieldBit + w4 + 36 // segments that reordering is allowed for
	FieldReordSeen   = inCounters + 9<<fieldBit + w4 + 40
	FieldDelivered   = inCounters + 10<<fieldBit + w4 + 44 // segments
	FieldRetransIn   = inCounters + 11<<fieldBit + w4 + 48 // of a flow: segments that the remote end sent again
	FieldOutOfOrderL = inCounters + 12<<fieldBit + w4 + 52 // of a flow: segments of the local end, out of order
	FieldRTOs        = inCounters + 13<<fieldBit + w4 + 56 // timeouts, where the kernel counts them (Linux 6.7)

	FieldTimer      = inTimers + 0<<fieldBit + w1 + 4  // a Timer; absent when none runs
	FieldRetries    = inTimers + 1<<fieldBit + w1 + 5  // of that timer
	FieldTimerMS    = inTimers + 2<<fieldBit + w4 + 8  // milliseconds left
	FieldLastSentMS = inTimers + 3<<fieldBit + w4 + 12 // milliseconds since data was sent
	FieldLastRecvMS = inTimers + 4<<fieldBit + w4 + 16 // since data came
	FieldLastAckMS  = inTimers + 5<<fieldBit + w4 + 20 // since an acknowledgement came
	FieldFirstSeen  = inTimers + 6<<fieldBit + w8 + 24 // of a flow, nanoseconds since 1970
	FieldLastSeen   = inTimers + 7<<fieldBit + w8 + 32 // likewise

	FieldRecvQueue   = inBuffers + 0<<fieldBit + w4 + 4  // bytes that nobody has read
	FieldSendQueue   = inBuffers + 1<<fieldBit + w4 + 8  // bytes that the peer has not acknowledged
	FieldRcvBuf      = inBuffers + 2<<fieldBit + w4 + 12 // limit, as the kernel accounts it
	FieldSndBuf      = inBuffers + 3<<fieldBit + w4 + 16 // likewise
	FieldRMemAlloc   = inBuffers + 4<<fieldBit + w4 + 20 // used of RcvBuf
	FieldWMemAlloc   = inBuffers + 5<<fieldBit + w4 + 24 // handed to the device and not sent
	FieldWMemQueued  = inBuffers + 6<<fieldBit + w4 + 28 // used of SndBuf
	FieldFwdAlloc    = inBuffers + 7<<fieldBit + w4 + 32
	FieldOptMem      = inBuffers + 8<<fieldBit + w4 + 36
	FieldBacklog     = inBuffers + 9<<fieldBit + w4 + 40  // bytes that came while the socket was locked
	FieldDrops       = inBuffers + 10<<fieldBit + w4 + 44 // packets
	FieldAcceptQueue = inBuffers + 11<<fieldBit + w4 + 48 // of a listener: connections that nobody has accepted
	FieldAcceptLimit = inBuffers + 12<<fieldBit + w4 + 52 // of a listener

	FieldECN         = inECN + 0<<fieldBit + w1 + 4  // 1: negotiated
	FieldDeliveredCE = inECN + 1<<fieldBit + w4 + 8  // segments that arrived with a mark
	FieldReceivedCE  = inECN + 2<<fieldBit + w4 + 12 // likewise from the peer (AccECN)
	FieldDSACKDups   = inECN + 3<<fieldBit + w4 + 16 // segments that the peer had twice

	FieldAlgorithm = inNames + 0<<fieldBit + w16 + 8  // of congestion control, up to 16 bytes, zeroes behind it
	FieldULP       = inNames + 1<<fieldBit + w16 + 24 // upper layer protocol: tls, mptcp
)
