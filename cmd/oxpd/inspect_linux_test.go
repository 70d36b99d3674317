package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/divert/proto"
	"oxpd/internal/inspect"
)

func TestInspectOutput(t *testing.T) {
	both(t, "inspect", &inspected{Schema: 1, Totals: inspect.Totals{Frames: 5, Bytes: 700, Accepted: 4, Dropped: 1, Flows: 2}}, printInspected)
}

func TestInspectUsage(t *testing.T) {
	dir := t.TempDir()
	good, diverts := filepath.Join(dir, "good.rules"), filepath.Join(dir, "diverts.rules")
	require.NoError(t, os.WriteFile(good, []byte("drop tcp from any to any port 23\n"), 0o600))
	require.NoError(t, os.WriteFile(diverts, []byte("divert ip from any to any\n"), 0o600))
	for _, tc := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"no rules", nil, 2, "rules"},
		{"no such file", []string{"--rules", filepath.Join(dir, "none")}, 1, "none"},
		{"a rule that diverts", []string{"--rules", diverts}, 1, "line 1 diverts"},
		{"ports alone", []string{"--rules", good, "--accept-flow-ports", "443"}, 2, "--accept-flow-after"},
		{"port", []string{"--rules", good, "--accept-flow-after", "1", "--accept-flow-ports", "65536"}, 2, "65536: want 1 to 65535"},
		{"negative", []string{"--rules", good, "--delay", "-1s"}, 2, "want 0 or more"},
		{"nobody there", []string{"--rules", good, "--at", filepath.Join(dir, "none.sock")}, 1, "connect to inspection socket"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, stdout, stderr := inspectCommand(tc.args...)
			assert.Equal(t, tc.code, code, stderr)
			assert.Contains(t, stderr, tc.says)
			assert.Empty(t, stdout, "nothing was done")
		})
	}
}

// A daemon that ends says so, and the engine says what it has done.
func TestInspectEndsWithTheDaemon(t *testing.T) {
	dir := t.TempDir()
	rules, path := filepath.Join(dir, "r"), filepath.Join(dir, "inspect.sock")
	require.NoError(t, os.WriteFile(rules, []byte("pass ip from any to any\n"), 0o600))
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	require.NoError(t, err)
	defer ln.Close()
	go func() {
		c, err := ln.AcceptUnix()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = c.Write(proto.AppendHello(nil, &proto.Hello{Version: proto.Version}))
		_, _ = c.Read(make([]byte, 100))
		_, _ = c.Write(proto.AppendBye(nil, &proto.Bye{Reason: proto.ReasonShutdown, Text: "oxpd ends"}))
	}()
	code, stdout, stderr := inspectCommand("--rules", rules, "--socket", filepath.Join(dir, "oxpd.sock"))
	assert.Equal(t, 1, code)
	assert.Contains(t, stdout, "0 frames")
	assert.Contains(t, stderr, "oxpd ends; frames without a verdict go by on-absent")
}

func inspectCommand(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = (&app{out: &out, err: &err}).main(context.Background(), append([]string{"inspect"}, args...))
	return code, out.String(), err.String()
}
