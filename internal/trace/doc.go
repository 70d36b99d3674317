// Package trace writes what the units of a simulated card did as a file that
// Perfetto and chrome://tracing open: the JSON trace event format, one event a
// line.
//
//	unit            process       fast path to host
//	lane            thread        ring 0          spans that overlap take further rows:
//	                              ring 0 (2)      on one track they would have to nest
//	pipelined lane  async events  PortF1 frame    spans overlap as a rule, and need not nest
//	level           counter       ring 0 credit
//	packet          flow arrow    from one unit to the next
//
// Times are microseconds with five decimals, which hold a cycle of 800 MHz (1.25
// ns) exactly. Every byte follows from the steps and their order: nothing is
// sorted, measured or drawn at random on the way.
//
// Left out: reading such a file.
package trace
