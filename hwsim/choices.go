package hwsim

// Choices settles what the hardware pages leave open. The zero value is the
// default of every row of hardware/ERRATA.md; each field names its row. Rows
// that are one behaviour without an alternative (8, 13, 15, 16, 25) have none.
type Choices struct {
	UnderWatermark   UnderWatermark // 1: what a first grant under the watermark delivers
	LazyFetch        bool           // 2: descriptors are fetched for a packet, not ahead of it
	StatusStops      bool           // 3: latched OUT_INT_STATUS stops delivery until cleared
	DrainIsGrant     bool           // 4: 0xffffffff to an enabled OUT ring grants four billion buffers
	ResendAtLevel    bool           // 5: RESEND raises only at or above the level, not for any waiting packet
	TimerZeroFires   bool           // 6: time part 0 fires at once, not never
	ByteCntWithHead  bool           // 7: OUT_BYTE_CNT sums L + 8, not L
	RInfoSetOnly     bool           // 9: RPVF and NVFS bits can only be added
	ForeignMACToLIF  bool           // 10: a foreign unicast address reaches the LIF, not stopped by the port's filter
	PuntUnbound      bool           // 11: a frame of an unbound tag is handed over, not dropped
	CountVanished    bool           // 12: host frames with tag 253 or 255 count in RX_KN before they vanish
	StallForbidden   bool           // 14: a forbidden BAR2 read never completes
	FLRKeepsRings    bool           // 17: a function reset keeps ring state; the card is silent until a reboot
	NoZeroInfo       bool           // 18: 0 written during the target's first wait is not taken as an info word
	SilentUnknown    bool           // 19: table reads of 0 entries and unknown commands get no reply
	InCntsWraps      bool           // 20: IN_CNTS written above its value wraps, it does not stop at 0
	StrictVLAN       bool           // 21: MTU + 14 for tagged frames too
	CutMidway        bool           // 22: a packet that runs out of credit half-way has begun
	LengthFirst      bool           // 23: the length word is written before the tail of a span
	SharedEgress     bool           // 24: one queue for all switch ports, not one a tag
	DoneInPlace      bool           // 26: an rpc ring's done is incremented where it stands, not written from the value at the command's start
	DisabledWrites   bool           // 27: a disabled OUT ring whose addresses are latched goes on writing while it has credit
	DSAUncounted     bool           // 29: the uplink's frame limit leaves out the 4 bytes of the DSA tag
	IngressLimitOnly bool           // 30: the switch checks a frame's length where it comes in, not where it leaves
}

// UnderWatermark is row 1 of the choices: the fate of the batch that the first
// grant of a ring fetched although the credit was under the watermark.
type UnderWatermark uint8

// Alternatives of row 1.
const (
	DeliverBatch UnderWatermark = iota // up to 16 buffers, then silence
	DeliverOne                         // one packet, then silence
	DeliverNone
)
