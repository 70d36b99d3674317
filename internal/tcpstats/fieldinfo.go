package tcpstats

import "math/bits"

// Kind is what a field's value is.
type Kind uint8

// Kinds of fields.
const (
	Gauge   Kind = iota // as it is now
	Counter             // only grows while the socket, or the flow, lives
	Text                // bytes, zeroes behind them
	Address
)

// Info describes a field.
type Info struct {
	Field Field
	Name  string // in JSON and for --by; the unit is in it where it is not bytes or a count
	Kind  Kind
	Doc   string
}

// Offset is where the field is in the full format.
func (f Field) Offset() int { return f.offset() }

// Width is its size in bytes.
func (f Field) Width() int { return f.width() }

// Block is where the block of a group begins in the full format, and its size. Its first
// word has the bits of the fields.
func Block(g Groups) (at, bytes int) {
	i := bits.TrailingZeros16(uint16(g))
	return blockAt[i], blockAt[i+1] - blockAt[i]
}

// fields has every field, in the order of a record.
var fields = [...]Info{
	{FieldFamily, "family", Gauge, "4 or 6: what is spoken on the wire"},
	{FieldState, "state", Gauge, "0 closed, 1 listen, 2 syn_sent, 3 syn_received, 4 established, 5 close_wait, 6 fin_wait_1, 7 closing, 8 last_ack, 9 fin_wait_2, 10 time_wait"},
	{FieldFlags, "flags", Gauge, "1: an IPv6 socket that speaks IPv4"},
	{FieldPort, "port", Gauge, "index of the appliance's port that it crosses, from 0 for oxp1; absent when there is none, or several, or nobody asked (via=)"},
	{FieldLocalPort, "local_port", Gauge, "port of the local end"},
	{FieldRemotePort, "remote_port", Gauge, "absent of a listener"},
	{FieldUID, "uid", Gauge, "owner of the socket; absent when nobody has it open"},
	{FieldLocalAddr, "local_addr", Address, "network order, IPv4 as ::ffff:a.b.c.d"},
	{FieldRemoteAddr, "remote_addr", Address, "absent of a listener"},
	{FieldInode, "inode", Gauge, "of the socket's file; absent when nobody has it open"},
	{FieldCookie, "cookie", Gauge, "the same as long as the socket, or the flow, lives"},
	{FieldIfIndex, "ifindex", Gauge, "the interface that it is bound to"},
	{FieldMark, "mark", Gauge, "SO_MARK, when oxpd may see it"},
	{FieldDirection, "direction", Gauge, "of a flow: 1 opened from the wire of the port, 2 towards it; absent when its beginning was not seen"},
	{FieldVLAN, "vlan", Gauge, "of a flow, the outermost tag"},
	{FieldSndWScale, "snd_wscale", Gauge, "what the peer's window is shifted by"},
	{FieldRcvWScale, "rcv_wscale", Gauge, "what its own is shifted by"},
	{FieldOptions, "options", Gauge, "in use: bit 0 timestamps, 1 SACK, 2 window scale, 3 ECN, 4 ECN seen, 5 data in SYN"},
	{FieldCAState, "ca_state", Gauge, "of congestion avoidance: 0 open, 1 disorder, 2 CWR, 3 recovery, 4 loss"},
	{FieldBackoff, "backoff", Gauge, "doublings of the timeout"},
	{FieldCWnd, "cwnd", Gauge, "segments"},
	{FieldSSThresh, "ssthresh", Gauge, "segments; absent before the first loss"},
	{FieldSndWnd, "snd_wnd", Gauge, "bytes, what the peer last offered"},
	{FieldRcvWnd, "rcv_wnd", Gauge, "bytes, what was last offered to it"},
	{FieldSndMSS, "snd_mss", Gauge, "bytes a segment may carry now, without options"},
	{FieldRcvMSS, "rcv_mss", Gauge, "estimate of what the peer's segments carry"},
	{FieldAdvMSS, "advmss", Gauge, "what the local end announced; of the host's sockets less the timestamps that go with each segment"},
	{FieldPMTU, "pmtu", Gauge, "bytes, as discovered"},
	{FieldRcvSSThresh, "rcv_ssthresh", Gauge, "bytes of window that are clamped to"},
	{FieldRcvSpace, "rcv_space", Gauge, "bytes that the program was given in a round trip"},
	{FieldAppLimited, "app_limited", Gauge, "1: the delivery rate was measured while the sender had nothing to send"},
	{FieldDeliveryRate, "delivery_rate", Gauge, "bytes a second"},
	{FieldPacingRate, "pacing_rate", Gauge, "bytes a second; absent when there is none"},
	{FieldMaxPacingRate, "max_pacing_rate", Gauge, "bytes a second; absent when there is none"},
	{FieldBusy, "busy_us", Counter, "microseconds with data to send or in flight"},
	{FieldRWndLimited, "rwnd_limited_us", Counter, "microseconds of them, held by the peer's window"},
	{FieldSndBufLimited, "sndbuf_limited_us", Counter, "microseconds of them, held by the send buffer"},
	{FieldBytesAcked, "bytes_acked", Counter, "bytes that the remote end acknowledged, ever; of the host's sockets with one for the SYN"},
	{FieldBytesReceived, "bytes_received", Counter, "bytes that came, ever, each once"},
	{FieldBytesSent, "bytes_sent", Counter, "bytes that were sent, ever, resent ones too"},
	{FieldBytesRetrans, "bytes_retrans", Counter, "of those, sent again"},
	{FieldPeerMSS, "peer_mss", Gauge, "of a flow: what the remote end announced"},
	{FieldMaxSegOut, "max_seg_out", Gauge, "of a flow: largest payload towards the remote end"},
	{FieldMaxSegIn, "max_seg_in", Gauge, "of a flow: largest payload from it"},
	{FieldRTT, "rtt_us", Gauge, "smoothed round trip, microseconds; of a flow between this host and the remote end"},
	{FieldRTTVar, "rttvar_us", Gauge, "its mean deviation, microseconds"},
	{FieldRTO, "rto_us", Gauge, "timeout of retransmission, microseconds"},
	{FieldMinRTT, "min_rtt_us", Gauge, "least round trip, microseconds"},
	{FieldRcvRTT, "rcv_rtt_us", Gauge, "as the receiver estimates it, microseconds"},
	{FieldHandshakeRTT, "handshake_rtt_us", Gauge, "of a flow, between this host and the remote end, microseconds"},
	{FieldHandshakeLocal, "handshake_local_us", Gauge, "of a flow, between this host and the local end, microseconds"},
	{FieldUnacked, "unacked", Gauge, "segments"},
	{FieldSndNxt, "snd_nxt", Gauge, "of a flow, as seen"},
	{FieldSndUna, "snd_una", Gauge, "of a flow, as seen"},
	{FieldRcvNxt, "rcv_nxt", Gauge, "of a flow, as seen"},
	{FieldNotSent, "notsent", Gauge, "bytes that wait in the send queue"},
	{FieldSegsOut, "segs_out", Counter, "segments sent, ever"},
	{FieldSegsIn, "segs_in", Counter, "segments that came, ever"},
	{FieldDataSegsOut, "data_segs_out", Counter, "of those sent, with data"},
	{FieldDataSegsIn, "data_segs_in", Counter, "of those that came, with data"},
	{FieldRetrans, "retrans", Counter, "segments that the local end sent again, ever"},
	{FieldRetransNow, "retrans_now", Gauge, "of what is in flight"},
	{FieldLost, "lost", Gauge, "of what is in flight, taken for lost"},
	{FieldSacked, "sacked", Gauge, "of what is in flight"},
	{FieldOutOfOrder, "ooo", Counter, "segments from the peer"},
	{FieldDupAcks, "dup_acks", Counter, "of a flow, from the remote end"},
	{FieldZeroWindows, "zero_windows", Counter, "of a flow: times that the remote end closed its window"},
	{FieldProbes, "probes", Gauge, "unanswered window probes now"},
	{FieldReordering, "reordering", Gauge, "segments that reordering is allowed for"},
	{FieldReordSeen, "reord_seen", Counter, "times that reordering was seen"},
	{FieldDelivered, "delivered", Counter, "segments that the remote end has, as far as it said"},
	{FieldRetransIn, "retrans_in", Counter, "of a flow: segments that the remote end sent again"},
	{FieldOutOfOrderL, "ooo_out", Counter, "of a flow: segments of the local end, out of order"},
	{FieldRTOs, "rtos", Counter, "timeouts, where the kernel counts them (Linux 6.7)"},
	{FieldTimer, "timer", Gauge, "that runs: 1 retransmit, 2 keepalive, 3 time_wait, 4 window probe; absent when none does"},
	{FieldRetries, "retries", Gauge, "of that timer"},
	{FieldTimerMS, "timer_ms", Gauge, "milliseconds left"},
	{FieldLastSentMS, "last_sent_ms", Gauge, "milliseconds since data was sent"},
	{FieldLastRecvMS, "last_received_ms", Gauge, "milliseconds since data came"},
	{FieldLastAckMS, "last_ack_ms", Gauge, "milliseconds since an acknowledgement came"},
	{FieldFirstSeen, "first_seen", Gauge, "of a flow, nanoseconds since 1970"},
	{FieldLastSeen, "last_seen", Gauge, "of a flow, nanoseconds since 1970"},
	{FieldRecvQueue, "recv_queue", Gauge, "bytes that nobody has read"},
	{FieldSendQueue, "send_queue", Gauge, "bytes that the peer has not acknowledged"},
	{FieldRcvBuf, "rcvbuf", Gauge, "limit of what is used to receive, as the kernel accounts it"},
	{FieldSndBuf, "sndbuf", Gauge, "limit of what is used to send, as the kernel accounts it"},
	{FieldRMemAlloc, "rmem_alloc", Gauge, "used of RcvBuf"},
	{FieldWMemAlloc, "wmem_alloc", Gauge, "handed to the device and not sent"},
	{FieldWMemQueued, "wmem_queued", Gauge, "used of SndBuf"},
	{FieldFwdAlloc, "fwd_alloc", Gauge, "bytes of memory reserved for the socket and not used"},
	{FieldOptMem, "optmem", Gauge, "bytes of memory for options and filters"},
	{FieldBacklog, "backlog", Gauge, "bytes that came while the socket was locked"},
	{FieldDrops, "drops", Counter, "packets"},
	{FieldAcceptQueue, "accept_queue", Gauge, "of a listener: connections that nobody has accepted"},
	{FieldAcceptLimit, "accept_limit", Gauge, "of a listener"},
	{FieldECN, "ecn", Gauge, "1: negotiated"},
	{FieldDeliveredCE, "delivered_ce", Counter, "segments that arrived with a mark"},
	{FieldReceivedCE, "received_ce", Counter, "segments from the peer that arrived with a mark (AccECN, Linux 6.18)"},
	{FieldDSACKDups, "dsack_dups", Counter, "segments that the peer had twice"},
	{FieldAlgorithm, "algorithm", Text, "of congestion control, up to 16 bytes, zeroes behind it"},
	{FieldULP, "ulp", Text, "upper layer protocol: tls, mptcp"},
}

// Fields are all fields of records, in their order. It is the caller's.
func Fields() []Info { return append([]Info(nil), fields[:]...) }

// FieldByName finds a field by its name in JSON.
func FieldByName(name string) (Info, bool) {
	for _, i := range fields {
		if i.Name == name {
			return i, true
		}
	}
	return Info{}, false
}
