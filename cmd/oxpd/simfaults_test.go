package main

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"oxpd/hwsim"
)

func TestFaultsOutput(t *testing.T) {
	both(t, "sim-faults", &faultList{Schema: 1, Faults: []faultRow{
		{"F3", "handshake-abandoned", "register keeps its value", "endpoint.md 15", "misuse", "no more stores to SLI_EPF_SCRATCH", false},
		{"D1", "message-edge-lost", "OUT_CNTS grows, vectors frozen", "datapath.md 7", "switch", "LoseMessages", true},
	}, Fields: []string{"Gone", "LoseMessages"}, Actions: []faultAction{{"kill", "", "the card is off the bus"}, {"stray-tag", "TAG", "a frame with a tag that no port has"}}}, printFaults)
}

func TestEveryFaultIsListed(t *testing.T) {
	d := listFaults()
	assert.Len(t, d.Faults, len(hwsim.FaultRows()))
	assert.Equal(t, hwsim.FaultNames(), d.Fields)
	assert.Equal(t, "bar2-interrupt-read", d.Faults[0].Name)
}
