package calibrate

import (
	"time"

	"oxpd/hwsim"
)

// What was around the card when the figures were taken. None of it is the card's.
const (
	// senderTakes is what one sender takes for a frame of 1,472 bytes of payload.
	senderTakes = 1900 * time.Nanosecond
	// smallTakes is the same for a frame of 64 bytes.
	smallTakes = 1647 * time.Nanosecond
	// jumboTakes is what four TCP streams take together for a frame of 9,014 bytes.
	jumboTakes = 8200 * time.Nanosecond
	// hostWake is the time from a message to the first register access of the thread
	// that it wakes.
	hostWake = 10 * time.Microsecond
	// echoTakes is the rest of a round trip: the other machine's answer, and both
	// machines' stacks.
	echoTakes = 140 * time.Microsecond
)

// Constants are the numbers that rows depend on: the card's, and those of what was
// around it (Host).
func Constants() []hwsim.Constant { return append(hwsim.Constants(), Host()...) }

// Host are the constants of the scenarios.
func Host() []hwsim.Constant {
	us := func(d time.Duration) float64 { return d.Seconds() * 1e6 }
	return []hwsim.Constant{
		{Name: "host.sender", Value: us(senderTakes), Unit: "us/frame", Tag: hwsim.Fit, Source: "525,722 pps accepted from one sender, about 1.9 us each (datapath.md 6.2)", Row: "one-sender"},
		{Name: "host.sender-small", Value: us(smallTakes), Unit: "us/frame", Tag: hwsim.Fit, Source: "607,232 pps of 64 bytes accepted from one sender (datapath.md 6.2)", Row: "one-sender-small"},
		{Name: "host.jumbo", Value: us(jumboTakes), Unit: "us/frame", Tag: hwsim.Derived, Source: "121,600 frames/s up with four streams (datapath.md 6.1)"},
		{Name: "host.wake", Value: us(hostWake), Unit: "us", Tag: hwsim.Estimate, Source: "no record times the interrupt thread"},
		{Name: "host.echo", Value: us(echoTakes), Unit: "us", Tag: hwsim.Fit, Source: "the rest of a round trip of 0.17 to 0.19 ms (endpoint.md 15)", Row: "round-trip"},
	}
}
