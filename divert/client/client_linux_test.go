package client

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/divert/proto"
)

const hang = 30 * time.Second

// far is oxpd's side of a connection, by hand.
type far struct {
	*testing.T
	*net.UnixConn
}

// connected is an engine and oxpd's side of it.
func connected(t *testing.T) (*Engine, *far) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	accepted := make(chan *net.UnixConn, 1)
	go func() {
		c, err := ln.AcceptUnix()
		if err == nil {
			_, err = c.Write(proto.AppendHello(nil, &proto.Hello{Version: proto.Version, MaxFrame: 9022, QueueLen: 7, Name: "oxpd"}))
		}
		if err != nil {
			close(accepted)
			return
		}
		accepted <- c
	}()
	e, err := Dial(context.Background(), path, Options{Name: "mine"})
	require.NoError(t, err)
	t.Cleanup(func() { e.Close() })
	c, ok := <-accepted
	require.True(t, ok)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(hang)))
	f := &far{t, c}
	h, err := proto.ParseHello(f.read())
	require.NoError(t, err)
	assert.Equal(t, "mine", h.Name)
	assert.Equal(t, 9022, e.MaxFrame())
	assert.Equal(t, 7, e.QueueLen())
	return e, f
}

func (f *far) read() []byte {
	b := make([]byte, proto.MaxMessage)
	n, err := f.Read(b)
	require.NoError(f, err)
	return b[:n]
}

func (f *far) send(id uint64, data string) {
	b := make([]byte, proto.FrameHeader)
	proto.PutFrameHeader(b, &proto.Frame{ID: id, Port: 3, Direction: 1, Time: 5, Bytes: []byte(data)})
	_, err := f.Write(append(b, data...))
	require.NoError(f, err)
}

// verdicts is the next message of the engine.
func (f *far) verdicts() (all []proto.Record) {
	v, err := proto.ParseVerdicts(f.read())
	require.NoError(f, err)
	for r, ok := v.Next(); ok; r, ok = v.Next() {
		all = append(all, r)
	}
	return all
}

func TestEngine(t *testing.T) {
	e, f := connected(t)
	for i := range uint64(5) {
		f.send(i, "frame")
	}
	for i := range uint64(5) {
		got, err := e.Next()
		require.NoError(t, err)
		assert.Equal(t, Frame{ID: i, Port: 3, Out: true, Time: time.Unix(0, 5), Data: []byte("frame")}, got)
	}
	require.NoError(t, e.Accept(0))
	require.NoError(t, e.Drop(1))
	require.NoError(t, e.Replace(2, []byte("another")))
	require.NoError(t, e.AcceptFlow(3))
	next := make(chan error, 1)
	go func() { _, err := e.Next(); next <- err }()
	assert.Equal(t, []proto.Record{{ID: 0, Code: proto.Accept}, {ID: 1, Code: proto.Drop}, {ID: 2, Code: proto.Replace, Frame: []byte("another")}, {ID: 3, Code: proto.AcceptFlow}}, f.verdicts(), "one message, sent when Next waits")
	f.Close()
	assert.ErrorIs(t, <-next, io.EOF)
}

func TestVerdictsAreSentInBatches(t *testing.T) {
	e, f := connected(t)
	for i := range uint64(flushRecords + 1) {
		require.NoError(t, e.Accept(i))
	}
	assert.Len(t, f.verdicts(), flushRecords)
	require.NoError(t, e.Flush())
	assert.Len(t, f.verdicts(), 1)
	big := make([]byte, 40000)
	require.NoError(t, e.Replace(1, big))
	require.NoError(t, e.Replace(2, big))
	assert.Len(t, f.verdicts(), 1, "the second does not fit into one message with it")
	assert.ErrorContains(t, e.Replace(3, make([]byte, proto.MaxMessage)), "do not fit")
}

func TestEnds(t *testing.T) {
	t.Run("bye", func(t *testing.T) {
		e, f := connected(t)
		_, err := f.Write(proto.AppendBye(nil, &proto.Bye{Reason: proto.ReasonShutdown, Text: "oxpd ends"}))
		require.NoError(t, err)
		_, err = e.Next()
		var refused *RefusedError
		require.ErrorAs(t, err, &refused)
		assert.Equal(t, proto.ReasonShutdown, refused.Reason)
	})
	t.Run("close", func(t *testing.T) {
		e, _ := connected(t)
		require.NoError(t, e.Close())
		_, err := e.Next()
		assert.ErrorIs(t, err, ErrClosed)
	})
	t.Run("garbage", func(t *testing.T) {
		e, f := connected(t)
		_, err := f.Write([]byte{2, 0, 0})
		require.NoError(t, err)
		_, err = e.Next()
		assert.ErrorIs(t, err, proto.ErrMalformed)
	})
	t.Run("nobody listens", func(t *testing.T) {
		_, err := Dial(context.Background(), filepath.Join(t.TempDir(), "none"), Options{})
		assert.ErrorContains(t, err, "connect to inspection socket")
	})
}

// oxpd ends while verdicts are under way: the engine gets what was said before, and the
// reason, and no error of the socket.
func TestEndWhileVerdictsAreUnderWay(t *testing.T) {
	e, f := connected(t)
	f.send(1, "frame")
	got, err := e.Next()
	require.NoError(t, err)
	require.NoError(t, e.Accept(got.ID))
	require.NoError(t, e.Flush())
	f.send(2, "another")
	_, err = f.Write(proto.AppendBye(nil, &proto.Bye{Reason: proto.ReasonShutdown, Text: "oxpd ends"}))
	require.NoError(t, err)
	require.NoError(t, f.Close()) // the verdict is unread
	got, err = e.Next()
	require.NoError(t, err)
	assert.Equal(t, uint64(2), got.ID)
	require.NoError(t, e.Accept(got.ID))
	require.NoError(t, e.Flush())
	_, err = e.Next()
	var refused *RefusedError
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, proto.ReasonShutdown, refused.Reason)
	_, err = e.Next()
	assert.ErrorIs(t, err, io.EOF)
}
