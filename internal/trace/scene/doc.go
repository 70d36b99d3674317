// Package scene plays short scenes of the card's life for `oxpd sim trace`: the
// driver's own code (octep, ring) on a simulated card in stepped time, so that the
// same scene and seed give the same steps to the cycle.
//
//	New, rings programmed, ports up   not traced
//	scene                             traced: frames on wires, frames of the host, one worker
//	the books                         the scene's own promise, and the card's sums
//
// A scene fails when what it shows did not happen. Ports are brought up by
// hwsim.Card.Provision and not over rpc and NetAgent, of which a scene shows nothing.
package scene
