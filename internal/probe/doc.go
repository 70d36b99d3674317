// Package probe is a look at the card that changes nothing: what is there, what
// stands in the way of `oxpd run`, and what that would do next.
//
//	config space   identity, command, status, BAR addresses
//	BAR0           ring split, both scratch registers, error status, rings 0 to 7
//	BAR2           the barmap; of rpc and nw_agent the first words, where advertised
//	    │
//	    ▼
//	 Report ──▶ findings, and one verdict for each stage of the bring-up
//
// Nothing is stored to a BAR, nothing written to config space, no memory given to
// the card, no interrupt bound, nothing waited for. Memory decoding that is off
// stays off, and then nothing behind the BARs is read. Whatever run refuses is
// judged here by the code that refuses there (octep); loads of BAR2 go through
// octep's allow-list. Config space is asked before each load of BAR0: once the
// card has left it, no BAR is touched any more, and the report says so once.
//
// It takes any octep.Device, so what a look at a PCI function needs besides is
// only the opening of that.
//
// Left out: what takes a command to the coprocessor (the assembly, ports, LIFs,
// the watermark) and BAR sizes, which only a write to config space tells.
package probe
