package rpc_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/rpc"
	"oxpd/rpc/msg"
)

// Never possible: a clobbered command buffer after a time-out. The late answer comes at
// every moment from before the deadline to after the channel was opened anew. Whenever
// the target runs the command, it finds the request as it was posted; and no later
// command gets anything but its own answer.
//
//oxpd:fault R7 behaviour
//oxpd:fault R8 behaviour
func TestNeverAClobberedBuffer(t *testing.T) {
	const (
		deadline = 2 * time.Second
		doorbell = 2 * time.Millisecond // from the doorbell to the target's look: room for an answer on its way
		step     = 70 * time.Microsecond
	)
	for name, inPlace := range map[string]bool{"done written from the value before": false, "done incremented in place": true} {
		t.Run(name, func(t *testing.T) {
			times := hwsim.Compressed()
			times.RPCDoorbell = doorbell
			s := newSim(t, hwsim.Options{Timeline: times, Choices: hwsim.Choices{DoneInPlace: inPlace}})
			s.Provision()
			c := s.opened(t)
			read := func(p board.Port) error {
				want, _ := s.LIF(uint32(p.LIF()))
				got, present, err := c.LIFRead(bg, uint32(p.LIF()))
				if err == nil {
					require.True(t, present)
					require.Equal(t, want, got, "the answer to another command")
				}
				return err
			}
			timeouts, ran, round := 0, 0, 0
			for late := -2 * doorbell; late < 4*doorbell; late += step {
				s.ResetCommands()
				asked := board.ByIndex(round % board.Ports)
				round++
				s.Faults(func(f *hwsim.Faults) { f.RPCDelay = deadline - doorbell + late })
				err := read(asked)
				s.Faults(func(f *hwsim.Faults) { f.RPCDelay = 0 })
				posted := 1
				if err != nil {
					require.ErrorIs(t, err, rpc.ErrTimeout, "answer at %v", late)
					timeouts++
					require.ErrorIs(t, read(asked), rpc.ErrStalled)
					require.NoError(t, c.Reopen(bg), "answer at %v", late)
				}
				for i := range board.Ports {
					require.NoError(t, read(board.ByIndex((round+i)%board.Ports)), "answer at %v", late)
					posted++
				}
				log := s.Commands()
				require.LessOrEqual(t, len(log), posted, "answer at %v", late)
				if len(log) == posted {
					require.Equal(t, lifRead(asked), log[0].Payload, "answer at %v", late)
					if err != nil {
						ran++
					}
				}
				for _, entry := range log {
					require.Equal(t, msg.CmdLIFRead, entry.Command, "answer at %v: a buffer that was wiped is command 0", late)
				}
			}
			require.Greater(t, timeouts, 50)
			require.Less(t, timeouts, round)
			require.Positive(t, ran, "commands that were given up, and run")
			require.LessOrEqual(t, s.bufs, timeouts+2)
			s.quiet(t)
		})
	}
}

func lifRead(p board.Port) []byte {
	return msg.TableRead{Start: uint32(p.LIF()), Num: 1, End: uint32(p.LIF())}.Append(nil)
}
