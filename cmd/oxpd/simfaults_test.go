package main

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"oxpd/hwsim"
	"oxpd/internal/daemon/client"
)

func TestFaultsOutput(t *testing.T) {
	both(t, "sim-faults", &faultList{Schema: 1, Faults: []faultRow{
		{"F3", "handshake-abandoned", "register keeps its value", "endpoint.md 15", "misuse", "no more stores to SLI_EPF_SCRATCH", false},
		{"D1", "message-edge-lost", "OUT_CNTS grows, vectors frozen", "datapath.md 7", "switch", "LoseMessages", true},
	}, Fields: []string{"Gone", "LoseMessages"}, Actions: []faultAction{{"kill", "", "the card is off the bus"}, {"stray-tag", "TAG", "a frame with a tag that no port has"}}}, printFaults)
}

func TestFaultOutput(t *testing.T) {
	both(t, "sim-fault", &client.Faults{Schema: 1, Now: 12.5, Cycle: 10_000_000_000, Faults: []client.Fault{
		{Name: "LoseMessages", Argument: "3", State: "on", Probability: 0.01, Opportunity: "a message", Acted: 17},
		{Name: "Gone", State: "timed", At: 17.5, Opportunity: "a register access"},
		{Name: "LateBy", Argument: "200us", State: "on"},
		{Name: "wipe-lifs", State: "over", Opportunity: "a command of rpc or NetAgent", Acted: 1},
	}}, printFault)
	both(t, "sim-fault-none", &client.Faults{Schema: 1, Now: 1, Cycle: 800_000_000, Faults: []client.Fault{}}, printFault)
}

func TestEveryFaultIsListed(t *testing.T) {
	d := listFaults()
	assert.Len(t, d.Faults, len(hwsim.FaultRows()))
	assert.Equal(t, hwsim.FaultNames(), d.Fields)
	assert.Equal(t, "bar2-interrupt-read", d.Faults[0].Name)
}
