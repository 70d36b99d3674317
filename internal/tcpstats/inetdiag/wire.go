package inetdiag

// Layouts of linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h. Host order, but for
// ports and addresses.
const (
	nlHeader = 16
	nlType   = 4 // u16
	nlFlags  = 6 // u16
	nlAlign  = 4

	attrHeader = 4
	attrType   = 2      // u16, behind the length
	attrMask   = 0x3fff // of the type: without the flags of nested attributes

	msgNoop    = 1
	msgError   = 2
	msgDone    = 3
	msgOverrun = 4

	flagDumpIntr = 0x10

	// Both families in one walk over the kernel's tables, which costs a millisecond also
	// when they are empty. SOCK_DIAG_BY_FAMILY takes two.
	tcpDiagGetSock = 18

	// struct inet_diag_req
	reqSize   = 60
	reqExt    = 3  // u8: a bit for each attribute wanted, its number less one
	reqStates = 52 // u32

	reqByteCode = 1 // attribute

	// struct inet_diag_msg
	diagSize    = 72
	diagFamily  = 0  // u8
	diagState   = 1  // u8
	diagTimer   = 2  // u8
	diagRetrans = 3  // u8
	diagSPort   = 4  // be16
	diagDPort   = 6  // be16
	diagSrc     = 8  // 16 bytes, IPv4 in the first four
	diagDst     = 24 // likewise
	diagIf      = 40 // u32
	diagCookie  = 44 // u32 twice, low first
	diagExpires = 52 // u32, ms
	diagRQueue  = 56 // u32
	diagWQueue  = 60 // u32
	diagUID     = 64 // u32
	diagInode   = 68 // u32

	attrInfo      = 2
	attrCong      = 4
	attrSKMemInfo = 7
	attrMark      = 15
	attrULPInfo   = 19

	ulpName = 1 // within attrULPInfo

	// attrSKMemInfo, u32 each
	memRMemAlloc  = 0
	memRcvBuf     = 4
	memWMemAlloc  = 8
	memSndBuf     = 12
	memFwdAlloc   = 16
	memWMemQueued = 20
	memOptMem     = 24
	memBacklog    = 28
	memDrops      = 32
	memSize       = 36
)

// States of the kernel (net/tcp_states.h).
const (
	kEstablished = 1 + iota
	kSynSent
	kSynRecv
	kFinWait1
	kFinWait2
	kTimeWait
	kClose
	kCloseWait
	kLastAck
	kListen
	kClosing
	kNewSynRecv
	kBoundInactive // Linux 6.8

	kStates
)

// struct tcp_info (linux/tcp.h). What a kernel's ends before is absent.
const (
	infoCAState       = 1
	infoRetransmits   = 2
	infoProbes        = 3
	infoBackoff       = 4
	infoOptions       = 5
	infoWScale        = 6 // send in the low half
	infoAppLimited    = 7 // bit 0
	infoRTO           = 8
	infoSndMSS        = 16
	infoRcvMSS        = 20
	infoUnacked       = 24
	infoSacked        = 28
	infoLost          = 32
	infoRetrans       = 36
	infoLastDataSent  = 44
	infoLastDataRecv  = 52
	infoLastAckRecv   = 56
	infoPMTU          = 60
	infoRcvSSThresh   = 64
	infoRTT           = 68
	infoRTTVar        = 72
	infoSndSSThresh   = 76
	infoSndCWnd       = 80
	infoAdvMSS        = 84
	infoReordering    = 88
	infoRcvRTT        = 92
	infoRcvSpace      = 96
	infoTotalRetrans  = 100
	infoPacingRate    = 104
	infoMaxPacing     = 112
	infoBytesAcked    = 120
	infoBytesReceived = 128
	infoSegsOut       = 136
	infoSegsIn        = 140
	infoNotSent       = 144
	infoMinRTT        = 148
	infoDataSegsIn    = 152
	infoDataSegsOut   = 156
	infoDeliveryRate  = 160
	infoBusy          = 168
	infoRWndLimited   = 176
	infoSndBufLimited = 184
	infoDelivered     = 192
	infoDeliveredCE   = 196
	infoBytesSent     = 200
	infoBytesRetrans  = 208
	infoDSACKDups     = 216
	infoReordSeen     = 220
	infoRcvOOOPack    = 224
	infoSndWnd        = 228
	infoRcvWnd        = 232 // Linux 6.2
	infoTotalRTO      = 240 // u16, Linux 6.7
	infoReceivedCE    = 248 // Linux 6.18

	infoBase = 232 // of Linux 5.4, which has all up to infoSndWnd
	infoMost = 252
)
