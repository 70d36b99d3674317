package main

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/assert"

	"oxpd/internal/calibrate"
)

func TestCalibrateOutput(t *testing.T) {
	good := calibrate.Result{Row: "round-trip", Source: "endpoint.md 15", Asks: "a ping", Model: 0.1824, Low: 0.17, High: 0.19, Unit: "ms",
		Tag: calibrate.Fit, FittedOn: []string{"host.echo"}, OK: true}
	bad := calibrate.Result{Row: "two-senders", Source: "endpoint.md 15", Asks: "two senders", Model: 900_000, Low: 1_053_385, High: 1_053_385, Unit: "frames/s",
		Error: -14.56, Allowed: 10, Tag: calibrate.Predicted, Note: "of two"}
	both(t, "calibrate", &calibrate.Report{Schema: 1, Results: []calibrate.Result{good}, Missed: []string{}, OK: true}, printCalibration)
	both(t, "calibrate-missed", &calibrate.Report{Schema: 1, Results: []calibrate.Result{good, bad}, Missed: []string{"two-senders"}}, printCalibration)
}

func TestCalibrateRows(t *testing.T) {
	run := func(args ...string) (code int, out, talk string) {
		var o, e bytes.Buffer
		a := &app{out: &o, err: &e}
		code = a.main(context.Background(), append([]string{"sim", "calibrate"}, args...))
		return code, o.String(), e.String()
	}
	code, out, talk := run("grant-2", "interrupt-timer")
	assert.Equal(t, exitDone, code, "%s", talk)
	assert.Regexp(t, `(?m)^grant-2 +-14 credit +-14 +0 +derived$`, out)
	assert.Contains(t, out, "2 of 2 rows within their tolerance")
	code, out, talk = run("grant-3")
	assert.Equal(t, exitUsage, code)
	assert.Empty(t, out)
	assert.Contains(t, talk, `calibrate: "grant-3": no such row`)
}
