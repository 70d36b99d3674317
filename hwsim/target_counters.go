package hwsim

import "oxpd/rpc/msg"

// counters are the fast path's counters: the 182 of rpc-lif.md 6.1 and those of
// its own ports (6.2). A coprocessor start zeroes them. Card embeds it.
type counters struct {
	cnt     [msg.CountersSys]uint64
	portCnt [msg.CountersPort][msg.CountersPortStride]uint64
}

// Counter returns counter i of the 182 (msg.Cnt...). Functional.
func (c *Card) Counter(i int) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cnt[i]
}

// PortCounter returns counter i (msg.CounterPort...) of one of the fast path's
// ports: 0 the switch uplink, 1 PortF1, 2 PortF2. Functional.
func (c *Card) PortCounter(i, port int) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.portCnt[i][port]
}
