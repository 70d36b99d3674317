package port

import (
	"bytes"
	"log/slog"
	"strconv"
)

// InlineConfig is what OpenInline needs. Log is optional.
type InlineConfig struct {
	Names [2]string // of the two interfaces
	NetNS string    // path of a network namespace; empty: the process's own
	MTU   int       // of both
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
