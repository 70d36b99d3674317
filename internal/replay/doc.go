// Package replay is `oxpd sim replay`: a capture is sent into one port of a
// simulated card, and the report says where each of its frames ended.
//
//	capture --> wire --> card --> rings --> oxpd --> interface --> packet socket
//	   |         |        |         |        |           |
//	  cut     filtered  MTU_     QUEUE_    rx_...     reached     compared, and
//	          ...       EXCEEDED FULL      tap_...                written to a file
//
// Everything is in this process: the card, the daemon that `oxpd run` is, and a
// network namespace without a name that holds the interface. In it IPv6 is
// switched off and there is no address, so that the host says nothing of its own
// accord and each counter that moves was moved by a frame of the capture. The sum
// over all ends must be the number of packets in the capture, and each frame that
// reached the interface must be one that was sent, byte for byte.
//
// Left out: answers of the host, which has no address to answer from (a pcap wire
// of `oxpd run --sim` records them); more than one port at a time.
package replay
