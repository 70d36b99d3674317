// Package fdstore keeps open descriptors with the service manager while oxpd is
// not running, as sd_notify(3) and sd_listen_fds(3) of systemd describe it: what is
// put into the store comes back, under its name, with the next start of the
// service, also when the process was killed.
//
//	oxpd -- FDSTORE=1 FDNAME=x, descriptor --> service manager
//	oxpd <-- LISTEN_FDS, LISTEN_FDNAMES, descriptors 3 and up -- next start
//
// A Store says once, in Why, why there is none: no service manager, one that keeps
// nothing, or a descriptor that did not fit. There is no half of a store: one that
// has failed is given up (Abandon), and what it held is taken out of it.
//
// A Blob is a file in memory that holds the one piece of state beside the
// descriptors. It is written in two copies by turns, so that one of them is whole
// whenever the process dies.
//
// Package fdtest is a service manager for tests.
package fdstore
