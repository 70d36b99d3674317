package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/tcpstats"
)

// hang guards against hanging, by the wall clock.
const hang = 10 * time.Second

// service is the far end of a connection, which says what a test has it say.
type service struct {
	t     testing.TB
	c     net.Conn
	lines *bufio.Reader
}

func connected(t testing.TB) (*Conn, *service) {
	a, b := net.Pipe()
	t.Cleanup(func() { a.Close(); b.Close() })
	return &Conn{c: a}, &service{t: t, c: b, lines: bufio.NewReader(b)}
}

// line is the client's next one.
func (s *service) line() string {
	text, err := s.lines.ReadString('\n')
	assert.NoError(s.t, err)
	return strings.TrimSuffix(text, "\n")
}

func message(kind byte, read uint32, records int, body string) string {
	m := tcpstats.Message{Bytes: len(body), Kind: kind, Read: read, Records: records}
	return string(m.Append(nil)) + body
}

func reply(r tcpstats.Reply) string {
	b, _ := json.Marshal(r) // a plain struct
	return message(tcpstats.MessageReply, 0, 0, string(b))
}

func ending(read uint32, e tcpstats.End) string {
	b, _ := json.Marshal(e) // a plain struct
	return message(tcpstats.MessageEnd, read, 0, string(b))
}

// says writes, and ignores a client that has had enough.
func (s *service) says(text string) { _, _ = io.WriteString(s.c, text) }

// chunk is n records.
func chunk(n int) string {
	var b []byte
	for i := range n {
		var r tcpstats.Record
		r.Reset(tcpstats.Host)
		r.SetUint(tcpstats.FieldLocalPort, uint64(i+1))
		b = r.Append(b, tcpstats.GroupIdentity, tcpstats.Compact)
	}
	return string(b)
}

func quick(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	t.Cleanup(cancel)
	return ctx
}

func TestReadOfAService(t *testing.T) {
	c, s := connected(t)
	go func() {
		assert.Equal(t, "FILTER local_port=1", s.line())
		s.says(reply(tcpstats.Reply{Filter: "local_port=1"}))
		assert.Equal(t, "READ 1", s.line())
		s.says(reply(tcpstats.Reply{}) + message(tcpstats.MessageRecords, 1, 3, chunk(3)) + message(tcpstats.MessageRecords, 1, 2, chunk(2)))
		s.says(ending(1, tcpstats.End{Emitted: 5, Visited: 5}))
		assert.Equal(t, "READ 2", s.line())
		s.says(reply(tcpstats.Reply{}) + ending(2, tcpstats.End{Visited: 9}))
	}()
	text, err := c.Filter(quick(t), "local_port=1")
	require.NoError(t, err)
	assert.Equal(t, "local_port=1", text)
	var ports []uint64
	var records int
	end, err := c.Read(quick(t), func(b []byte, n int) error {
		records += n
		return Records(b, func(r *tcpstats.Record) error {
			v, _ := r.Uint(tcpstats.FieldLocalPort)
			ports = append(ports, v)
			return nil
		})
	})
	require.NoError(t, err)
	assert.Equal(t, []uint64{1, 2, 3, 1, 2}, ports)
	assert.Equal(t, 5, records)
	assert.EqualValues(t, 5, end.Emitted)
	end, err = c.Read(quick(t), nil)
	require.NoError(t, err)
	assert.EqualValues(t, 9, end.Visited, "of the second read alone")
	assert.Zero(t, end.Emitted)
}

// A read whose records nobody wants any more is cancelled, and the connection is good for
// another one.
func TestReadThatIsGivenUp(t *testing.T) {
	c, s := connected(t)
	go func() {
		s.line()
		go s.says(reply(tcpstats.Reply{}) + message(tcpstats.MessageRecords, 1, 1, chunk(1)))
		assert.Equal(t, "CANCEL 1", s.line())
		s.says(message(tcpstats.MessageRecords, 1, 1, chunk(1)) + ending(1, tcpstats.End{Code: tcpstats.CodeCancelled, Partial: true}) + reply(tcpstats.Reply{}))
		assert.Equal(t, "READ 2", s.line())
		s.says(reply(tcpstats.Reply{}) + ending(2, tcpstats.End{}))
	}()
	enough := errors.New("enough")
	calls := 0
	end, err := c.Read(quick(t), func([]byte, int) error { calls++; return enough })
	assert.ErrorIs(t, err, enough)
	assert.True(t, end.Partial)
	assert.Equal(t, 1, calls, "what comes after is nobody's")
	_, err = c.Read(quick(t), nil)
	assert.NoError(t, err, "and its answers are not taken for those of the first")
}

func TestReadIsInterrupted(t *testing.T) {
	c, s := connected(t)
	ctx, cancel := context.WithCancel(quick(t))
	go func() {
		s.line()
		s.says(reply(tcpstats.Reply{}) + message(tcpstats.MessageRecords, 1, 1, chunk(1)))
		cancel()
		assert.Equal(t, "CANCEL 1", s.line())
		// The read had ended already: CANCEL finds none.
		s.says(ending(1, tcpstats.End{Emitted: 1, Visited: 1}) + reply(tcpstats.Reply{Code: tcpstats.CodeNoProfile, Reason: "no read 1 is under way"}))
	}()
	end, err := c.Read(ctx, func([]byte, int) error { return nil })
	require.NoError(t, err)
	assert.EqualValues(t, 1, end.Emitted)
	assert.False(t, end.Partial)
}

// A line that nobody answers ends with its context.
func TestLineWithoutAnAnswer(t *testing.T) {
	c, s := connected(t)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { s.line(); cancel() }()
	_, err := c.Profile(ctx, "web")
	assert.ErrorIs(t, err, context.Canceled)
	_, err = c.Filter(context.Background(), "ipv4_only\nREAD 1")
	assert.ErrorContains(t, err, "a line feed", "one line would be two")
}

func TestRefusals(t *testing.T) {
	c, s := connected(t)
	at := 11
	go func() {
		s.line()
		s.says(reply(tcpstats.Reply{Code: tcpstats.CodeInvalid, Reason: "no port: want 1 to 65535", Offset: &at, Word: "0", Filter: "ipv4_only"}))
		s.line()
		s.says(reply(tcpstats.Reply{Code: tcpstats.CodeBusy, Reason: "32 reads are under way"}))
	}()
	text, err := c.Filter(quick(t), "local_port=0")
	var refused *RefusedError
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, "ipv4_only", text, "the filter that stays in force")
	assert.Equal(t, (&tcpstats.SyntaxError{Offset: 11, Word: "0", Reason: "no port: want 1 to 65535"}).Error(), err.Error())
	_, err = c.Read(quick(t), nil)
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, tcpstats.CodeBusy, refused.Code)
	assert.Equal(t, "32 reads are under way (EBUSY)", err.Error())
}

// What a service must not say is an error, and nothing that was not whole gets out.
func TestServiceThatMisbehaves(t *testing.T) {
	good := reply(tcpstats.Reply{})
	for _, tc := range []struct {
		name, says string
		is         error
		has        string
	}{
		{"nothing", "", io.EOF, "read from the service"},
		{"half a header", good[:7], io.ErrUnexpectedEOF, "read from the service"},
		{"half a body", good[:len(good)-1], io.ErrUnexpectedEOF, "read from the service"},
		{"another version", good[:5] + "\x09" + good[6:], tcpstats.ErrMessage, "version 9"},
		{"another kind", good[:4] + "Z" + good[5:], tcpstats.ErrMessage, "kind 'Z'"},
		{"more than a message may have", "\xff\xff\xff\xff" + good[4:], tcpstats.ErrMessage, "4294967295 bytes"},
		{"a reply that is no document", message(tcpstats.MessageReply, 0, 0, "yes"), nil, "decode reply"},
		{"an end that is no document", good + message(tcpstats.MessageEnd, 1, 0, "{"), nil, "decode end of read"},
		{"records of another read", good + message(tcpstats.MessageRecords, 2, 1, chunk(1)), tcpstats.ErrMessage, "of read 2 while 1"},
		{"an end of another read", good + ending(7, tcpstats.End{}), tcpstats.ErrMessage, "of read 7 while 1"},
		{"records cut in the middle", good + message(tcpstats.MessageRecords, 1, 2, chunk(2)[:30]) + ending(1, tcpstats.End{}), tcpstats.ErrShort, ""},
		{"records that are none", good + message(tcpstats.MessageRecords, 1, 2, strings.Repeat("x", 300)) + ending(1, tcpstats.End{}), tcpstats.ErrRecord, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, s := connected(t)
			go func() {
				s.line()
				if tc.is == io.EOF || tc.is == io.ErrUnexpectedEOF {
					s.says(tc.says)
					s.c.Close()
					return
				}
				go s.says(tc.says + good) // the last one to a CANCEL
				_, _ = io.Copy(io.Discard, s.lines)
			}()
			_, err := c.Read(quick(t), func(b []byte, _ int) error { return Records(b, func(*tcpstats.Record) error { return nil }) })
			require.Error(t, err)
			if tc.is != nil {
				assert.ErrorIs(t, err, tc.is)
			}
			assert.ErrorContains(t, err, tc.has)
		})
	}
	t.Run("records for an answer to a line", func(t *testing.T) {
		c, s := connected(t)
		go func() { s.line(); s.says(message(tcpstats.MessageRecords, 1, 1, chunk(1))) }()
		_, err := c.Filter(quick(t), "")
		assert.ErrorIs(t, err, tcpstats.ErrMessage)
	})
}

func TestRecordsStopAtAnError(t *testing.T) {
	enough := errors.New("enough")
	n := 0
	assert.ErrorIs(t, Records([]byte(chunk(3)), func(*tcpstats.Record) error { n++; return enough }), enough)
	assert.Equal(t, 1, n)
	assert.NoError(t, Records(nil, func(*tcpstats.Record) error { return enough }))
}

// Whatever a service says, a read ends when the connection does, and each chunk is one
// message at the most.
func FuzzRead(f *testing.F) {
	good := reply(tcpstats.Reply{})
	f.Add([]byte(good + message(tcpstats.MessageRecords, 1, 2, chunk(2)) + ending(1, tcpstats.End{Emitted: 2, Visited: 2})))
	f.Add([]byte(good + good + ending(1, tcpstats.End{})))
	f.Add([]byte(reply(tcpstats.Reply{Code: tcpstats.CodeBusy})))
	f.Add([]byte("\xff\xff\xff\xffA\x01"))
	f.Fuzz(func(t *testing.T, says []byte) {
		c, s := connected(t)
		go func() { _, _ = io.Copy(io.Discard, s.c) }()
		go func() { _, _ = s.c.Write(says); s.c.Close() }()
		end, err := c.Read(context.Background(), func(b []byte, _ int) error {
			if len(b) > tcpstats.MaxMessage {
				t.Errorf("%d bytes", len(b))
			}
			return Records(b, func(r *tcpstats.Record) error { _ = r.AppendJSON(nil); return nil })
		})
		if err == nil && !strings.Contains(string(says), "{") {
			t.Errorf("%+v of %q", end, says)
		}
	})
}
