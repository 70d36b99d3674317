// Package vfiouser reaches a card that another process is: a simulated one that
// `oxpd sim serve` shows on a unix socket, in the messages of internal/vfu. What
// Open returns is an octep.Device.
//
//	config space   by message, each access one
//	BAR0           by message; loads wait for their answer, stores do not
//	BAR2           where the server lets it be mapped, mapped; elsewhere by message
//	DMA            pieces of one file in memory, handed over by descriptor
//	interrupts     one eventfd a vector, one goroutine each
//
// Messages are answered in order, so that a load sees every store before it, and a
// store to a doorbell every write to memory.
//
// A server that has gone, or that does not answer within 10 s, is a card that has
// gone: config space and BARs read all-ones from then on, and nothing is sent any
// more. Mapped BAR2 keeps what it last held. A server is not trusted: what it says
// is checked, and an answer that is none ends the connection.
//
// A connection outlives the process that made it when somebody else keeps its
// descriptor and that of the memory (Keep): a later process goes on with both (Adopt),
// and the server notices nothing.
//
// Left out: reset, which no driver code asks for; commands from the server, of which
// any ends the connection; coming back to a server that was started again, for which a new
// device is opened (Ended).
package vfiouser
