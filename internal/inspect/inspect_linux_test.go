package inspect

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/divert/proto"
	"oxpd/internal/pfil"
)

const hang = 30 * time.Second

func compile(t *testing.T, rules string) Config {
	r, err := pfil.Parse(pfil.Source{Name: "test.rules", Rules: []byte(rules)})
	require.NoError(t, err)
	p, err := pfil.Compile(r)
	require.NoError(t, err)
	return Config{Program: p, Rules: r.Rules, Name: "test"}
}

// tcp is a frame of a connection to a port, or back from it.
func tcp(port uint16, back bool) []byte {
	b := make([]byte, 60)
	copy(b[12:], []byte{8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2})
	binary.BigEndian.PutUint16(b[34:], 1000)
	binary.BigEndian.PutUint16(b[36:], port)
	if back {
		copy(b[26:34], []byte{10, 0, 0, 2, 10, 0, 0, 1})
		binary.BigEndian.PutUint16(b[34:], port)
		binary.BigEndian.PutUint16(b[36:], 1000)
	}
	b[46] = 0x50
	return b
}

// served is an engine at a socket of a card by hand.
func served(t *testing.T, cfg Config) (*Engine, *net.UnixConn, chan error) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	require.NoError(t, err)
	defer ln.Close()
	e, err := New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	done := make(chan error, 1)
	go func() { done <- e.ServeAll(ctx, []string{path}) }()
	c, err := ln.AcceptUnix()
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(hang)))
	_, err = c.Write(proto.AppendHello(nil, &proto.Hello{Version: proto.Version, Name: "oxpd"}))
	require.NoError(t, err)
	_, err = c.Read(make([]byte, proto.HelloSize))
	require.NoError(t, err)
	return e, c, done
}

func ask(t *testing.T, c *net.UnixConn, id uint64, direction uint8, b []byte) proto.Code {
	m := make([]byte, proto.FrameHeader)
	proto.PutFrameHeader(m, &proto.Frame{ID: id, Port: 8, Direction: direction, Bytes: b})
	_, err := c.Write(append(m, b...))
	require.NoError(t, err)
	answer := make([]byte, proto.MaxMessage)
	n, err := c.Read(answer)
	require.NoError(t, err)
	v, err := proto.ParseVerdicts(answer[:n])
	require.NoError(t, err)
	r, _ := v.Next()
	assert.Equal(t, id, r.ID)
	assert.Zero(t, v.Len())
	return r.Code
}

func TestRules(t *testing.T) {
	e, c, done := served(t, compile(t, "drop tcp from any to any port 23 in\ncount tcp from any to any port 80\n"))
	assert.Equal(t, proto.Drop, ask(t, c, 1, 0, tcp(23, false)))
	assert.Equal(t, proto.Accept, ask(t, c, 2, 1, tcp(23, false)), "the rule is for frames from the wire")
	assert.Equal(t, proto.Accept, ask(t, c, 3, 0, tcp(80, false)))
	assert.Equal(t, proto.Accept, ask(t, c, 4, 0, []byte{1, 2, 3}))
	assert.Equal(t, Totals{Frames: 4, Bytes: 183, Accepted: 3, Dropped: 1}, e.Totals())
	c.Close()
	select {
	case err := <-done:
		assert.ErrorContains(t, err, "inspect at")
	case <-time.After(hang):
		t.Fatal("the engine does not end")
	}
}

func TestAcceptFlow(t *testing.T) {
	cfg := compile(t, "pass ip from any to any\n")
	cfg.FlowAfter, cfg.FlowPorts = 3, []uint16{443}
	_, c, _ := served(t, cfg)
	for i, want := range []proto.Code{proto.Accept, proto.Accept, proto.AcceptFlow} {
		assert.Equal(t, want, ask(t, c, uint64(i), 0, tcp(443, i == 1)), "both directions count")
		assert.Equal(t, proto.Accept, ask(t, c, 100, 0, tcp(80, false)))
	}
}

func TestDivertIsRefused(t *testing.T) {
	_, err := New(compile(t, "pass ip4 from any to any\ndivert ip6 from any to any\n"))
	assert.ErrorContains(t, err, "line 2 diverts")
}

func TestEndsWithContext(t *testing.T) {
	e, err := New(Config{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	assert.True(t, errors.Is(e.Serve(ctx, filepath.Join(t.TempDir(), "none")), context.Canceled))
}
