// Package octep is the endpoint itself: identity, BARs, barmap and facility
// windows, doorbells and the handshake.
package octep
