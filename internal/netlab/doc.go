// Package netlab is a network laboratory inside one Linux process: network
// namespaces without a name, their addresses, routes and neighbours, an ICMP
// echo client, a TCP stream whose every byte is verified, and child processes
// that live in a namespace. `oxpd demo` and the tests that want the kernel's
// own TCP/IP on both sides of the card are built from it.
//
//	       this process
//	+--------------------------+
//	| thread A   |  thread B   |   one locked thread and one descriptor per
//	|  NS "host" |   NS "far"  |   namespace; nothing is mounted, nothing
//	+-----|------+------|------+   has a name
//	      |             |
//	  child, TAPs    far TAPs
//
// A namespace is held by its thread and its descriptor and by nothing else, so
// the kernel removes it, with every interface and address in it, as soon as
// this process and its children are gone. Children are killed by the kernel
// when the thread that started them ends. Both hold when this process is ended
// by SIGKILL: nothing is left behind, and there is nothing to clean up.
//
// Everything here needs CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_NET_RAW: those of
// root, or of a user namespace (internal/rootless). The package
// models no IPv6 and no routing beyond one hop; a test that needs them adds
// them here. It exists on Linux only.
package netlab
