package hwsim

import "fmt"

// Names of reports: what a driver did that it must not do.
const (
	ReportDMAOutside    = "dma-outside-region"  // the card was sent to memory that nobody registered
	ReportDMANoMemory   = "dma-no-memory"       // a registered range without memory that the card can reach
	ReportDMAReadOnly   = "dma-read-only"       // a write to memory that is registered for reading
	ReportDMALost       = "dma-memory-lost"     // the owner of the memory has taken it away under the card
	ReportBusMasterOff  = "dma-bus-master-off"  // the card had to reach memory with bus mastering off
	ReportDecodeOff     = "bar-decode-off"      // BAR access with memory decoding off
	ReportBadWidth      = "bad-width"           // BAR or config access of a width or alignment that the page does not allow
	ReportNarrowStore   = "narrow-store"        // 32-bit store to a register that is 64 bits wide
	ReportUnmappedBAR   = "bar-unmapped"        // no register there
	ReportReadOnly      = "read-only-store"     // store to a read-only register
	ReportForbiddenRead = "bar2-forbidden-read" // hangs the real host
	ReportForbiddenPut  = "bar2-forbidden-store"
	ReportUnknownSPI    = "doorbell-unknown-spi"
	ReportBaddrBusy     = "baddr-not-idle"
	ReportBaddrEnabled  = "baddr-while-enabled"
	ReportBaddrLatched  = "baddr-after-latch"   // F6: the block keeps the old address
	ReportRsizeEnabled  = "rsize-while-enabled" // a ring's size may change before it is enabled, and not on a live one
	ReportDrainEnabled  = "drain-after-enable"
	ReportAckAbove      = "ack-above-count"     // more packets acknowledged than were counted
	ReportScratch       = "scratch-overwritten" // F24: the pointer to the barmap is lost for the next reader; putting it back is none
	ReportINOverrun     = "in-overrun"          // F22: more posted than the ring holds
	ReportINSlotReuse   = "in-slot-reuse"       // posted over an instruction that is not finished
	ReportInstruction   = "bad-instruction"     // a field that the fast path does not understand
	ReportGatherSize    = "gather-size-without-bit"
	ReportGatherBit     = "gather-bit-without-size"
	ReportRlenssZ       = "rlenssz-zero-non-ip" // F12
	ReportMetadata      = "metadata-not-clear"  // F13
	ReportUnknownTag    = "tag-unknown"         // F27
	ReportUnpadded      = "frame-unpadded"
	ReportRsize         = "rsize-not-multiple-of-16"
	ReportCreditAbove   = "credit-above-grant" // rule 3: the block will lap
	ReportBSize         = "bsize-zero"
	ReportSRIOV         = "sriov-enable"

	ReportConsoleByte    = "console-byte-in-boot"  // a byte on the console while no kernel of the coprocessor runs: in a boot it stops the boot loader
	ReportSwitchBusy     = "switch-command-busy"   // a command was written while another one was not done, and is lost
	ReportSwitchBits     = "switch-other-bits"     // a write of register 8 with other bits than it had, beside the jumbo field
	ReportSwitchReserved = "switch-reserved-mode"  // jumbo mode 3 was written
	ReportSwitchMap      = "switch-vlan-map"       // register 6 was written: it keeps panel ports apart
	ReportSwitchUplink   = "switch-uplink-control" // register 4 of port 0 was written
	ReportSwitchGlobal   = "switch-global"         // a register of Global1 or Global2 was written, other than the PHY pair

	ReportHandshakeVFs    = "handshake-vfs"     // F5: the info word promises virtual functions
	ReportHandshakeAgain  = "handshake-again"   // F4: a store to the handshake register after the handshake
	ReportHandshakeInfo   = "handshake-info"    // an info word that promises no rings, or another mode
	ReportRPCDoorbell     = "rpc-doorbell"      // the doorbell of a high ring
	ReportRPCConfig       = "rpc-config"        // a configuration that the target does not acknowledge
	ReportRPCLivelock     = "rpc-livelock"      // one doorbell and no high ring
	ReportRPCPosted       = "rpc-posted"        // more posted than the ring has descriptors
	ReportRPCCommand      = "rpc-command"       // a command that this model does not run
	ReportRPCCommandZero  = "rpc-command-0"     // every offloaded flow is invalid; a wiped buffer reads so
	ReportRPCCounterClear = "rpc-counter-clear" // the host cleared counters
	ReportRPCTableFlags   = "rpc-table-flags"   // a table read with flags, one of which clears
	ReportNWALength       = "nwa-length"        // a request that is too short or too long
	ReportNWAFEC          = "nwa-fec"           // F15: attribute 0x0b
	ReportNWAState        = "nwa-state"         // a state that stops or starts transmit queues
)

// Report is one misuse of the card by a driver, or one access that the card had
// to give up.
type Report struct {
	Name  string // one of the Report constants
	Cycle uint64
	Text  string // register, address, values
}

func (r Report) String() string { return fmt.Sprintf("%s at cycle %d: %s", r.Name, r.Cycle, r.Text) }

// maxReports bounds the list; later reports are only counted.
const maxReports = 1000

// report notes a misuse. Held: c.mu.
func (c *Card) report(name, format string, args ...any) {
	c.reportCounts[name]++
	if len(c.reports) < maxReports {
		c.reports = append(c.reports, Report{Name: name, Cycle: c.now, Text: fmt.Sprintf(format, args...)})
	}
}

// Reports returns the misuses since the card was made or ResetReports was
// called, at most the first 1,000. Functional.
func (c *Card) Reports() []Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Report(nil), c.reports...)
}

// ReportCount returns how often a misuse was reported. Functional.
func (c *Card) ReportCount(name string) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reportCounts[name]
}

// ResetReports forgets what was reported. Functional.
func (c *Card) ResetReports() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reports = nil
	clear(c.reportCounts)
}
