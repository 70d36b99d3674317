// Package pfil gives a verdict on a frame where the device wrote it, before anything
// is spent on it: the packet filter hook of the receive path, and of transmit.
//
//	text --Parse--> Rules --Compile--> Program --Table.Link--> hook of a port and direction
//	                                                              |
//	ring, transmitter --> Judge, Judge, ... Leave                 v
//	                              first match wins: verdict, rule's counters
//
// A rule sees the contiguous bytes of the packet's first buffer and the length of the
// whole frame as two values. What a rule needs and the frame lacks, or has beyond those
// bytes, makes that it does not match.
//
// The package knows neither rings nor interfaces; daemon wires it.
package pfil
