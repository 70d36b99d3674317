// Package calibrate holds the simulated card against what was measured on the
// real one. Each Row is a figure that the hardware pages publish and a scenario
// that asks the model for the same figure, in stepped time: the driver's own code
// (octep, ring, rpc, nwa) over internal/simdev, and beside it what was around the
// card when the figure was taken.
//
//	actors, each with a moment          one clock, the card's
//	  sender ── IQ.Post ──▶ ┌──────┐ ──▶ receiver of a wire (counts, echoes)
//	  server ◀─ message ─── │ card │
//	         ── Visit ────▶ └──────┘ ◀── source on a wire
//
// A host's own time is not the card's: what a sender takes for a frame, or how
// long a message needs until somebody looks, are constants of this package, each
// with its source (Constants).
//
// # What a row may say
//
// A row is fit when a constant was chosen so that it comes out: that it agrees
// says nothing. It is derived when the published figure, or the rule behind it,
// was put into the model: that it agrees says that the rule was followed. It is
// predicted when the figure was measured on the appliance and nothing was chosen
// by it. Check refuses a table in which a constant was fitted on a predicted row.
//
// # Left out
//
// Figures that are the host's and not the card's: TCP throughput, processor load,
// the tunnel. The serial console, which runs at wall time.
package calibrate
