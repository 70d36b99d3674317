package calibrate

import "time"

// What was around the card when the figures were taken. None of it is the card's.
const (
	// senderTakes is what one sender takes for a frame of 1,472 bytes of payload.
	senderTakes = 1900 * time.Nanosecond
	// jumboTakes is what four TCP streams take together for a frame of 9,014 bytes.
	jumboTakes = 8200 * time.Nanosecond
	// hostWake is the time from a message to the first register access of the thread
	// that it wakes.
	hostWake = 10 * time.Microsecond
	// echoTakes is the rest of a round trip: the other machine's answer, and both
	// machines' stacks.
	echoTakes = 150 * time.Microsecond
)

// Constants are all numbers that a row's figure depends on, and that are not in the
// scenario's own source.
func Constants() []Constant {
	return []Constant{
		{"hwsim.Latencies.Fetch", 949.3, "ns", Fit, "datapath.md 6.2: 1,053,385 frames/s accepted", "two-senders"},
		{"hwsim.Rates.SwitchTotal", 1018, "Mbit/s", Fit, "datapath.md 6.2: the middle of 1,013 to 1,023", "switch-egress"},
		{"hwsim.Timeline.Kernel", 30, "s", Fit, "endpoint.md 13: about 20 to 40 s", "boot-kernel"},
		{"hwsim.Timeline.FastPath", 150, "s", Fit, "endpoint.md 13: about 1 to 4 minutes", "fast-path"},
		{"hwsim.Timeline.RPCConfigure", 7, "ms", Fit, "rpc-lif.md 3", "rpc-ack"},
		{"hwsim.Timeline.AgentUp", 10, "s", Fit, "endpoint.md 13", "agent-up"},
		{"hwsim.Timeline.AgentAnswer", 12, "ms", Fit, "rpc-lif.md 7", "agent-answer"},
		{"hwsim.Timeline.AgentSettle", 18, "us", Fit, "rpc-lif.md 7", "agent-settle"},
		{"hwsim.Timeline.AgentSettleTo", 67, "us", Fit, "rpc-lif.md 7", "agent-settle"},
		{"hwsim.nwaTickOneIn", 100, "", Fit, "rpc-lif.md 7", "agent-tick-share"},
		{"hwsim.Timeline.LinkTrain", 1, "s", Fit, "rpc-lif.md 7", "link"},
		{"hwsim.Timeline.LinkTrainTo", 2, "s", Fit, "rpc-lif.md 7", "link"},
		{"host.sender", senderTakes.Seconds() * 1e6, "us/frame", Fit, "datapath.md 6.2: 525,722 pps accepted from one sender, about 1.9 us each", "one-sender"},
		{"host.jumbo", jumboTakes.Seconds() * 1e6, "us/frame", Derived, "datapath.md 6.1: 121,600 frames/s up with four streams", ""},
		{"host.wake", hostWake.Seconds() * 1e6, "us", Estimate, "no record times the interrupt thread", ""},
		{"host.echo", echoTakes.Seconds() * 1e6, "us", Fit, "endpoint.md 15: the rest of a round trip of 0.17 to 0.19 ms", "round-trip"},
	}
}
