package daemon

import (
	"sync/atomic"
	"time"

	"oxpd/internal/frame"
	"oxpd/internal/tcpstats/flows"
)

// flowWatch shows frames to the table of flows, when there is one: a load and a branch a
// frame when there is none. Each shard is one goroutine's at a time, as those of the
// filters are.
type flowWatch struct {
	table atomic.Pointer[flows.Table]
	clock interface{ Now() time.Duration }
	began int64 // nanoseconds from 1970 to the clock's 0
	now   [filterShards]watchTime
}

// watchTime is the time of a shard's present pass over frames.
type watchTime struct {
	unix int64 // 0: not asked for yet
	_    [56]byte
}

func newFlowWatch(clock interface{ Now() time.Duration }) *flowWatch {
	return &flowWatch{clock: clock, began: time.Now().UnixNano() - int64(clock.Now())}
}

// unix is a time of the clock in nanoseconds since 1970.
func (w *flowWatch) unix(now time.Duration) int64 { return w.began + int64(now) }

// see shows a frame that passed the filters of its port.
func (w *flowWatch) see(shard int, port int, out bool, head *frame.Packet, first []byte, frameBytes int) {
	t := w.table.Load()
	if t == nil {
		return
	}
	at := &w.now[shard]
	if at.unix == 0 {
		at.unix = w.unix(w.clock.Now())
	}
	t.Observe(at.unix, port, out, head, first, frameBytes)
}

// leave ends a shard's pass.
func (w *flowWatch) leave(shard int) { w.now[shard].unix = 0 }
