// Package client is the control socket of oxpd as its users see it: the JSON
// documents and a client for them.
//
// The socket speaks HTTP on a unix socket (DefaultSocket, mode 0600):
//
//	GET  /v1/status              Status
//	GET  /v1/ports               Ports
//	GET  /v1/ports/{port}/mtu    MTU
//	PUT  /v1/ports/{port}/mtu    SetMTU -> MTU
//	GET  /v1/stats[?port=NAME]   Stats
//	GET  /v1/counters            Counters (asks the coprocessor over rpc)
//	GET  /v1/switch              Switch (asks the coprocessor by its console)
//	PUT  /v1/switch/jumbo        SetSwitch -> SwitchEvent, several, the last with a SwitchRun
//	GET  /v1/sim/faults          Faults (a simulated card's)
//	POST /v1/sim/faults          SetFaults -> Faults
//	POST /v1/stop                StopRequest -> StopResult
//
// Each document carries "schema". A field is never renamed, removed or given
// another meaning within one schema; new fields may appear. Names are those of
// `ip -j -s link` where it has one (ifname, mtu, address, operstate, stats64).
// A port is named as internal/board.Parse accepts it. Refusals are an Error
// document with a code; the status is 400 for what can never work, 404 for an
// unknown port, 409 and 5xx for what was tried and failed.
//
// Left out: events. Who wants changes reads again.
package client
