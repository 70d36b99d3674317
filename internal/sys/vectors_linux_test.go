package sys

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestVectors(t *testing.T) {
	var told []int
	v, refused := Vectors{}, errors.New("refused")
	tell := func(fd int) error { told = append(told, fd); return nil }
	came := make(chan struct{})
	require.NoError(t, v.Bind(3, nil, tell))
	assert.Empty(t, told, "nobody was bound, nobody is")
	require.NoError(t, v.Bind(3, func() { came <- struct{}{} }, tell))
	first := told[0]
	_, err := unix.Write(first, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	require.NoError(t, err)
	<-came

	require.NoError(t, v.Bind(3, func() {}, tell))
	assert.Equal(t, -1, told[1], "the device lets go of what is closed then")
	assert.Len(t, told, 3)
	require.NoError(t, v.Bind(3, nil, tell))
	assert.Equal(t, -1, told[3])
	assert.Empty(t, v)

	assert.ErrorIs(t, v.Bind(4, func() {}, func(int) error { return refused }), refused)
	assert.Empty(t, v, "nothing is bound that the device was not told")
	require.NoError(t, v.Bind(5, func() {}, tell))
	assert.ErrorIs(t, v.Bind(5, func() {}, func(int) error { return refused }), refused)
	assert.Empty(t, v)
	require.NoError(t, v.Bind(6, func() {}, tell))
	v.Close()
	assert.Empty(t, v)
}
