package tcpstats

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
}

// fields has every field, in the order of a record.
var fields = [...]Info{
	{FieldFamily, "family", Gauge},
	{FieldState, "state", Gauge},
	{FieldFlags, "flags", Gauge},
	{FieldPort, "port", Gauge},
	{FieldLocalPort, "local_port", Gauge},
	{FieldRemotePort, "remote_port", Gauge},
	{FieldUID, "uid", Gauge},
	{FieldLocalAddr, "local_addr", Address},
	{FieldRemoteAddr, "remote_addr", Address},
	{FieldInode, "inode", Gauge},
	{FieldCookie, "cookie", Gauge},
	{FieldIfIndex, "ifindex", Gauge},
	{FieldMark, "mark", Gauge},
	{FieldDirection, "direction", Gauge},
	{FieldVLAN, "vlan", Gauge},
	{FieldSndWScale, "snd_wscale", Gauge},
	{FieldRcvWScale, "rcv_wscale", Gauge},
	{FieldOptions, "options", Gauge},
	{FieldCAState, "ca_state", Gauge},
	{FieldBackoff, "backoff", Gauge},
	{FieldCWnd, "cwnd", Gauge},
	{FieldSSThresh, "ssthresh", Gauge},
	{FieldSndWnd, "snd_wnd", Gauge},
	{FieldRcvWnd, "rcv_wnd", Gauge},
	{FieldSndMSS, "snd_mss", Gauge},
	{FieldRcvMSS, "rcv_mss", Gauge},
	{FieldAdvMSS, "advmss", Gauge},
	{FieldPMTU, "pmtu", Gauge},
	{FieldRcvSSThresh, "rcv_ssthresh", Gauge},
	{FieldRcvSpace, "rcv_space", Gauge},
	{FieldAppLimited, "app_limited", Gauge},
	{FieldDeliveryRate, "delivery_rate", Gauge},
	{FieldPacingRate, "pacing_rate", Gauge},
	{FieldMaxPacingRate, "max_pacing_rate", Gauge},
	{FieldBusy, "busy_us", Counter},
	{FieldRWndLimited, "rwnd_limited_us", Counter},
	{FieldSndBufLimited, "sndbuf_limited_us", Counter},
	{FieldBytesAcked, "bytes_acked", Counter},
	{FieldBytesReceived, "bytes_received", Counter},
	{FieldBytesSent, "bytes_sent", Counter},
	{FieldBytesRetrans, "bytes_retrans", Counter},
	{FieldPeerMSS, "peer_mss", Gauge},
	{FieldMaxSegOut, "max_seg_out", Gauge},
	{FieldMaxSegIn, "max_seg_in", Gauge},
	{FieldRTT, "rtt_us", Gauge},
	{FieldRTTVar, "rttvar_us", Gauge},
	{FieldRTO, "rto_us", Gauge},
	{FieldMinRTT, "min_rtt_us", Gauge},
	{FieldRcvRTT, "rcv_rtt_us", Gauge},
	{FieldHandshakeRTT, "handshake_rtt_us", Gauge},
	{FieldHandshakeLocal, "handshake_local_us", Gauge},
	{FieldUnacked, "unacked", Gauge},
	{FieldSndNxt, "snd_nxt", Gauge},
	{FieldSndUna, "snd_una", Gauge},
	{FieldRcvNxt, "rcv_nxt", Gauge},
	{FieldNotSent, "notsent", Gauge},
	{FieldSegsOut, "segs_out", Counter},
	{FieldSegsIn, "segs_in", Counter},
	{FieldDataSegsOut, "data_segs_out", Counter},
	{FieldDataSegsIn, "data_segs_in", Counter},
	{FieldRetrans, "retrans", Counter},
	{FieldRetransNow, "retrans_now", Gauge},
	{FieldLost, "lost", Gauge},
	{FieldSacked, "sacked", Gauge},
	{FieldOutOfOrder, "ooo", Counter},
	{FieldDupAcks, "dup_acks", Counter},
	{FieldZeroWindows, "zero_windows", Counter},
	{FieldProbes, "probes", Gauge},
	{FieldReordering, "reordering", Gauge},
	{FieldReordSeen, "reord_seen", Counter},
	{FieldDelivered, "delivered", Counter},
	{FieldRetransIn, "retrans_in", Counter},
	{FieldOutOfOrderL, "ooo_out", Counter},
	{FieldRTOs, "rtos", Counter},
	{FieldTimer, "timer", Gauge},
	{FieldRetries, "retries", Gauge},
	{FieldTimerMS, "timer_ms", Gauge},
	{FieldLastSentMS, "last_sent_ms", Gauge},
	{FieldLastRecvMS, "last_received_ms", Gauge},
	{FieldLastAckMS, "last_ack_ms", Gauge},
	{FieldFirstSeen, "first_seen", Gauge},
	{FieldLastSeen, "last_seen", Gauge},
	{FieldRecvQueue, "recv_queue", Gauge},
	{FieldSendQueue, "send_queue", Gauge},
	{FieldRcvBuf, "rcvbuf", Gauge},
	{FieldSndBuf, "sndbuf", Gauge},
	{FieldRMemAlloc, "rmem_alloc", Gauge},
	{FieldWMemAlloc, "wmem_alloc", Gauge},
	{FieldWMemQueued, "wmem_queued", Gauge},
	{FieldFwdAlloc, "fwd_alloc", Gauge},
	{FieldOptMem, "optmem", Gauge},
	{FieldBacklog, "backlog", Gauge},
	{FieldDrops, "drops", Counter},
	{FieldAcceptQueue, "accept_queue", Gauge},
	{FieldAcceptLimit, "accept_limit", Gauge},
	{FieldECN, "ecn", Gauge},
	{FieldDeliveredCE, "delivered_ce", Counter},
	{FieldReceivedCE, "received_ce", Counter},
	{FieldDSACKDups, "dsack_dups", Counter},
	{FieldAlgorithm, "algorithm", Text},
	{FieldULP, "ulp", Text},
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
