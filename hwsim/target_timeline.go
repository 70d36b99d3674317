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

// timelineConstants are the times of Real with their sources.
func timelineConstants() []Constant {
	t := Real()
	of := func(name string, d time.Duration, tag Tag, source, row string) Constant {
		c := Constant{Name: "Timeline." + name, Tag: tag, Source: source, Row: row}
		switch {
		case d >= time.Second:
			c.Value, c.Unit = d.Seconds(), "s"
		case d >= time.Millisecond:
			c.Value, c.Unit = d.Seconds()*1e3, "ms"
		default:
			c.Value, c.Unit = d.Seconds()*1e6, "us"
		}
		return c
	}
	return []Constant{
		of("Kernel", t.Kernel, Fit, "about 20 to 40 s (endpoint.md 13)", "boot-kernel"),
		of("Poll", t.Poll, Derived, "about once a second (endpoint.md 4.3)", ""),
		of("Spin", t.Spin, Estimate, "a core that does nothing else", ""),
		of("FastPath", t.FastPath, Fit, "about 1 to 4 minutes (endpoint.md 13)", "fast-path"),
		of("TableClear", t.TableClear, Derived, "of the sister board (rpc-lif.md 5.6)", ""),
		of("Crash", t.Crash, Estimate, "within minutes (endpoint.md 15, F5)", ""),
		of("RPCDoorbell", t.RPCDoorbell, Estimate, "an interrupt on the coprocessor", ""),
		of("RPCConfigure", t.RPCConfigure, Fit, "7 ms (rpc-lif.md 3)", "rpc-ack"),
		of("RPCCommand", t.RPCCommand, Estimate, "a poll or two of the reference driver (rpc-lif.md 3.2)", ""),
		of("AgentUp", t.AgentUp, Fit, "about 10 s after rpc (endpoint.md 13)", "agent-up"),
		of("AgentNudge", t.AgentNudge, Estimate, "an interrupt on the coprocessor", ""),
		of("AgentTick", t.AgentTick, Derived, "a 10 ms tick (rpc-lif.md 7)", ""),
		of("AgentAnswer", t.AgentAnswer, Fit, "typical about 12 ms (rpc-lif.md 7)", "agent-answer"),
		of("AgentSettle", t.AgentSettle, Fit, "18 to 67 us, drawn evenly: the least (rpc-lif.md 7)", "agent-settle"),
		of("AgentSettleTo", t.AgentSettleTo, Fit, "the same: the most", "agent-settle"),
		{Name: "Timeline.TickShare", Value: 100.0 / nwaTickOneIn, Unit: "%", Tag: Fit, Source: "acknowledgements that wait for a tick, about 1 in 100 (rpc-lif.md 7)", Row: "agent-tick-share"},
		of("LinkTrain", t.LinkTrain, Fit, "1 to 2 s, drawn evenly: the least (rpc-lif.md 7.2)", "link"),
		of("LinkTrainTo", t.LinkTrainTo, Fit, "the same: the most", "link"),
	}
}
