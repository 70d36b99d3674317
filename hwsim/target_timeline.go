package hwsim

import "time"

// Timeline is how long the software on the coprocessor takes, in card time. The
// zero value of a field means "at once", except Poll and AgentTick, which must
// be above 0. Use Real or Compressed and change single fields.
type Timeline struct {
	Kernel        time.Duration // reset to barmap and SDP_SCRATCH magic
	Poll          time.Duration // period at which the handshake register is looked at
	Spin          time.Duration // a busy-waiting core sees a new handshake value
	FastPath      time.Duration // handshake finished to host port open and rpc published
	TableClear    time.Duration // fast path up to its table clear, where the option asks for one
	Crash         time.Duration // handshake finished to the end of a fast path that was promised VFs that do not exist
	RPCDoorbell   time.Duration // doorbell to the comparison of the config word
	RPCConfigure  time.Duration // reconfiguration to reconfig_done
	RPCCommand    time.Duration // one command
	AgentUp       time.Duration // fast path up to the NetAgent cookie
	AgentNudge    time.Duration // doorbell to a look at TURN
	AgentTick     time.Duration // period at which NetAgent looks at TURN without a doorbell
	AgentAnswer   time.Duration // request seen to STATUS 1
	AgentSettle   time.Duration // acknowledgement to STATUS 0, least
	AgentSettleTo time.Duration // the same, most; one in a hundred waits for the tick instead
	LinkTrain     time.Duration // port raised to link up, least
	LinkTrainTo   time.Duration // the same, most
}

// Real is the timeline of endpoint.md 13 with the times of rpc-lif.md 3 and 7.
// FastPath is the middle of "about 1 to 4 minutes". RPCDoorbell, RPCCommand,
// AgentNudge, Spin and Crash are estimates: no record times them.
func Real() Timeline {
	return Timeline{
		Kernel:        30 * time.Second,
		Poll:          time.Second,
		Spin:          time.Microsecond,
		FastPath:      150 * time.Second,
		TableClear:    13 * time.Second,
		Crash:         240 * time.Second,
		RPCDoorbell:   2 * time.Microsecond,
		RPCConfigure:  7 * time.Millisecond,
		RPCCommand:    30 * time.Microsecond,
		AgentUp:       10 * time.Second,
		AgentNudge:    2 * time.Microsecond,
		AgentTick:     10 * time.Millisecond,
		AgentAnswer:   12 * time.Millisecond,
		AgentSettle:   18 * time.Microsecond,
		AgentSettleTo: 67 * time.Microsecond,
		LinkTrain:     time.Second,
		LinkTrainTo:   2 * time.Second,
	}
}

// Compressed is the order of Real in a fraction of a second. Times of a second
// and more are scaled by about 1:1,000 (Poll and LinkTrain by 1:100), those of
// milliseconds by about 1:50, those of microseconds stay.
func Compressed() Timeline {
	t := Real()
	t.Kernel = 30 * time.Millisecond
	t.Poll = 10 * time.Millisecond
	t.FastPath = 150 * time.Millisecond
	t.TableClear = 30 * time.Millisecond
	t.Crash = 240 * time.Millisecond
	t.RPCConfigure = 150 * time.Microsecond
	t.AgentUp = 10 * time.Millisecond
	t.AgentAnswer = 250 * time.Microsecond
	t.AgentTick = time.Millisecond
	t.LinkTrain = 10 * time.Millisecond
	t.LinkTrainTo = 20 * time.Millisecond
	return t
}
