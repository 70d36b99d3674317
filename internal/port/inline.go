package port

import (
	"bytes"
	"log/slog"
	"strconv"

	"oxpd/internal/board"
	"oxpd/internal/frame"
)

// InlineMTU is the MTU of the two interfaces of an Inline, in bytes: the largest of a port
// and room for all tags that it takes, whatever the port's MTU is. An engine that sends
// through a ring (PACKET_TX_RING) is dead in one direction, until it is started again, once
// it has had one frame that is too long for the interface by which it leaves; so there is
// no such frame: not with two tags, for which the kernel allows no more than one, and not
// when a port's MTU is lowered while longer frames are in the engine. And an engine that
// makes its buffers by the MTU that it finds when it starts cuts nothing later.
// (Seen with libdaq 2.0.7 and Linux 6.18; internal/divert/daqtest.)
const InlineMTU = board.MaxMTU + frame.MaxVLANs*frame.VLANSize

// inlineQueue is how many frames that an engine gives back may wait in each interface to
// be read: the kernel drops what is more. Its own 500 are gone in 2 ms at the rate of an
// engine. Frames of a port that wait there wait for their verdicts, of which the inspection
// queue bounds number and bytes; this bounds what an engine makes itself.
const inlineQueue = 8192

// InlineConfig is what OpenInline needs. Log is optional.
type InlineConfig struct {
	Names [2]string // of the two interfaces
	NetNS string    // path of a network namespace; empty: the process's own
	Log   *slog.Logger
}

// Columns of /proc/net/packet.
const (
	packetIndex   = 4 // of the interface
	packetRunning = 5 // 1: bound, and the interface is up
	packetColumns = 9
)

// packetIndexes are the interfaces that a packet socket is bound to, out of the text of
// /proc/net/packet. Lines that are not like the kernel's are left out.
func packetIndexes(text []byte) map[int]bool {
	have := map[int]bool{}
	for _, line := range bytes.Split(text, []byte("\n")) {
		f := bytes.Fields(line)
		if len(f) < packetColumns || string(f[packetRunning]) != "1" {
			continue
		}
		if index, err := strconv.Atoi(string(f[packetIndex])); err == nil && index > 0 {
			have[index] = true
		}
	}
	return have
}
