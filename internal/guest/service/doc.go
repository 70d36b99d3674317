// Package service is the guest's init as a service manager, and the way to ask it: it
// starts one service, keeps the descriptors that the service puts into its store, and
// starts it again with them. Tests only.
//
//	a test ── a line of JSON on a socket ──▶ init: Serve
//	init: fdtest.Manager ── NOTIFY_SOCKET, LISTEN_FDS ──▶ oxpd run
//
// What is started is killed by whoever asked for it: the process has its number.
package service
