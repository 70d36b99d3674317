package daemon

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket/pcapgo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/internal/capture"
	"oxpd/internal/pfil"
)

type noRoom struct{}

func (noRoom) Write([]byte) (int, error) { return 0, errors.New("no room") }

func TestWriteSamples(t *testing.T) {
	at := time.Unix(1_700_000_000, 123_456_789).UTC()
	frame := bytes.Repeat([]byte{0xa5}, 60)
	kept := []pfil.Sampled{
		{Filter: "bad", Line: 3, Rule: "sample 100 icmp from any to any", Time: at, Port: board.ByIndex(8), Dir: pfil.In, FrameBytes: 9014, Bytes: frame},
		{Filter: "bad", Line: 4, Rule: "sample 1 any from any to any", Time: at.Add(1), Port: board.ByIndex(0), Dir: pfil.Out, FrameBytes: 60, Bytes: frame},
	}
	var out bytes.Buffer
	require.NoError(t, writeSamples(&out, kept))
	assert.Contains(t, out.String(), "filter bad, line 3: sample 100 icmp from any to any")

	r, err := pcapgo.NewNgReader(bytes.NewReader(out.Bytes()), pcapgo.NgReaderOptions{})
	require.NoError(t, err)
	for _, s := range kept {
		b, info, err := r.ReadPacketData()
		require.NoError(t, err)
		i, err := r.Interface(info.InterfaceIndex)
		require.NoError(t, err)
		assert.Equal(t, []any{s.Port.Name, s.FrameBytes, s.Bytes, s.Time}, []any{i.Name, info.Length, b, info.Timestamp.UTC()})
	}

	out.Reset()
	require.NoError(t, writeSamples(&out, nil))
	_, err = capture.NewReader(&out, "none")
	assert.NoError(t, err, "no samples are a capture too")
	kept[0].Rule = strings.Repeat("x", capture.MaxComment)
	require.NoError(t, writeSamples(&out, kept))
	assert.EqualError(t, writeSamples(noRoom{}, kept), "write samples: no room")
}
