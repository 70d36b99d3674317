// Package rootless runs a program again where it may do what root may: as user 0
// of a user namespace of its own. Network namespaces, their interfaces and mounts
// can be made there, and nothing outside can be touched.
//
//	oxpd demo (nobody)
//	  |  signals: SIGTERM            | exit status, output
//	  v                              |
//	oxpd demo (user 0 of a namespace, mounts and network of its own)
//	  `- oxpd run --sim, in a network namespace that the demo makes
//
// The kernel kills the second program when the first one ends, however that comes.
//
// Left out: a namespace for processes, in which /proc would have to be mounted
// again; more than one user, which takes the setuid program newuidmap.
package rootless
