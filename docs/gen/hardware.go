package main

import (
	"fmt"
	"strconv"

	"oxpd/internal/board"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
	"oxpd/rpc"
	"oxpd/rpc/msg"
)

// registers is the register map.
func registers(string) (string, error) {
	d := head("Registers")
	d.text("The registers of BAR0 that oxpd and the simulator know, from `octep/csr`. Bits and behaviour are in " +
		"[endpoint.md](../hardware/endpoint.md), sections 1 to 5; `oxpd` prints a register as `OUT_CNTS[5][0xb0100]`: name, ring, offset in BAR0.")
	d.table([]string{"access", "what a store does"}, [][]string{
		{csr.RW.String(), "plain storage; read-only bits excepted"},
		{csr.RO.String(), "nothing"},
		{csr.W1C.String(), "a one clears the bit"},
		{csr.W1S.String(), "a one sets the bit of the status register"},
		{csr.EnaW1C.String() + ", " + csr.EnaW1S.String(), "a one clears or sets the interrupt's enable"},
		{csr.WriteAdds.String(), "the value is added: a doorbell"},
		{csr.WriteSubs.String(), "the value is subtracted: an acknowledgement"},
		{csr.ClearOnZero.String(), "zero clears, other values are ignored"},
		{csr.RWIdle.String(), "plain storage, but only while the half ring is IDLE"},
	})
	d.section("One ring")
	d.text(fmt.Sprintf("Offsets are from the ring's block: ring n lies at 0x%05x + n × 0x%05x, n = 0 to %d. All are 64 bits wide; "+
		"doorbells and acknowledgements are written as 32 bits.", uint32(csr.InControl.Queue(0)), uint32(csr.InControl.Queue(1)-csr.InControl.Queue(0)), csr.Rings-1))
	d.registers(csr.RingTable)
	d.section("Global")
	d.text("Offsets are from BAR0.")
	d.registers(csr.GlobalTable)
	d.section("Handshake")
	d.text(fmt.Sprintf("Words of %v ([endpoint.md](../hardware/endpoint.md), section 4).", csr.SLIScratch))
	d.table([]string{"word", "value", "written by"}, [][]string{
		{"HOST_LOADED", hex(csr.HostLoaded), "host"},
		{"GET_HOST_INFO", hex(csr.GetHostInfo), "target"},
		{"info word", "fields", "host"},
		{"HOST_INFO_RECEIVED", hex(csr.HostInfoReceived) + " << 16, clocks per microsecond in the low half", "target"},
		{"HANDSHAKE_COMPLETED", hex(csr.HandshakeCompleted), "host"},
		{"idle, then started ports", "0, then a bitmap", "target"},
	})
	return d.String(), nil
}

func (d *document) registers(list []csr.Info) {
	rows := make([][]string, 0, len(list))
	for _, r := range list {
		rows = append(rows, []string{fmt.Sprintf("0x%05x", r.Offset), quote(r.Name), r.Access.String(), hex(r.Reset), r.Note})
	}
	d.table([]string{"offset", "name", "access", "reset", "note"}, rows)
}

func hex(v uint64) string { return "0x" + strconv.FormatUint(v, 16) }

// commands is the rpc channel.
func commands(string) (string, error) {
	d := head("rpc commands")
	d.text("The command channel to the coprocessor's fast path, from `rpc/msg` and `rpc`. Formats are in [rpc-lif.md](../hardware/rpc-lif.md), " +
		"sections 2 to 6. oxpd sends the commands marked *yes* and refuses every other by number, before anything is written: " +
		"command 0 alone would throw away every offloaded flow.")
	rows := make([][]string, 0, msg.CmdMax)
	for c := msg.Command(0); c < msg.CmdMax; c++ {
		sent := ""
		if rpc.Allowed(c) {
			sent = "yes"
		}
		rows = append(rows, []string{strconv.Itoa(int(c)), quote(c.String()), sent})
	}
	d.table([]string{"number", "name", "sent"}, rows)

	d.section("Result codes")
	d.table([]string{"rc", "as oxpd prints it"}, [][]string{
		{"0", "accepted"},
		{"1", (&msg.RCError{RC: msg.RCRefused}).Error()},
		{"2 to 20", (&msg.RCError{RC: 2}).Error()},
		{"21 to 32,767", (&msg.RCError{RC: 31}).Error() + " (the number less 20 is an errno)"},
		{"bit 15 set", (&msg.RCError{RC: msg.RCTransport | 22}).Error()},
	})

	d.section("LIF_ADD_UPDATE")
	d.text(fmt.Sprintf("%d bytes, little-endian, on this board. The mask says which fields change.", msg.LIFSize))
	d.table([]string{"offset", "field"}, [][]string{
		{strconv.Itoa(msg.LIFIndex), "LIF index, 32 bits: interface id << 12, VLAN in the low 12"},
		{strconv.Itoa(msg.LIFMAC), "MAC, wire order"},
		{strconv.Itoa(msg.LIFMTU), "MTU, 16 bits"},
		{strconv.Itoa(msg.LIFFlags), "forwarding mode (1:0), admin_disabled (2), offload_disabled (3), representor (15:4)"},
		{strconv.Itoa(msg.LIFPrivMask), "private mask: 1"},
		{strconv.Itoa(msg.LIFDF), "df_enabled"},
		{strconv.Itoa(msg.LIFUpdate), "update mask, 16 bits"},
	})
	mask := func(m msg.LIFMask) string { return fmt.Sprintf("0x%04x", uint16(m)) }
	d.table([]string{"mask", "changes", "accepted for"}, [][]string{
		{mask(msg.MaskCreate), "everything: creates", "an empty entry, and nothing else is accepted for one"},
		{mask(msg.MaskMAC), "MAC", "a live entry"},
		{mask(msg.MaskMTU), "MTU", "a live entry"},
		{mask(msg.MaskFwd), "forwarding mode", "a live entry"},
		{mask(msg.MaskAdmin), "admin_disabled", "a live entry"},
		{mask(msg.MaskOffload), "offload_disabled", "a live entry"},
		{mask(msg.MaskRepresentor), "representor", "a live entry"},
	})
	return d.String(), nil
}

// ports is the board table.
func ports(string) (string, error) {
	d := head("Front ports")
	d.text(fmt.Sprintf("The %d front ports of the Sophos XGS 3300 (assembly %s), from `internal/board`. Every command takes the interface, the label, or for the cages "+
		"the short label (F1). MTU %d to %s, %s unless set.", board.Ports, board.Assembly, board.MinMTU, number(board.MaxMTU), number(board.DefaultMTU)))
	rows := make([][]string, 0, board.Ports)
	for _, p := range board.All() {
		sw := "-"
		if p.BehindSwitch() {
			sw = strconv.Itoa(p.SwitchPort)
		}
		rows = append(rows, []string{quote(p.Name), p.Label, number(p.SpeedMbps), p.Tag.String(), strconv.Itoa(int(p.Iface)), strconv.Itoa(int(p.LIF())), sw})
	}
	d.table([]string{"interface", "label", "Mbit/s", "tag", "interface id", "LIF index", "switch port"}, rows)
	d.text("A port without a switch port is a MAC of the coprocessor itself. The switch caps the frames of the other ten, whatever their LIF allows: " +
		"see [Who owns the MTU](../concepts/mtu.md).")
	d.section("Sizes on the rings")
	d.text("From `ring/wire`; explained in [Rings and spans](../concepts/rings-and-spans.md).")
	d.table([]string{"what", "value"}, [][]string{
		{"input queue (TX): slots, instruction, slot stride", fmt.Sprintf("%d, %d bytes, %s bytes", wire.IQSlots, wire.InstrSize, number(wire.SlotStride))},
		{"longest frame that a slot takes", number(wire.MaxTxFrame) + " bytes"},
		{"output queues (RX): number, entries, buffer, buffer stride", fmt.Sprintf("%d, %s, %s bytes, %s bytes", wire.OQs, number(wire.OQEntries), number(wire.BufSize), number(wire.BufStride))},
		{"in front of a posted frame", strconv.Itoa(wire.PrivSize) + " bytes"},
		{"in front of a received frame", strconv.Itoa(wire.PrefixSize) + " bytes"},
		{"frame bytes in the first buffer", number(wire.FirstPayload)},
		{"watermark, fetch batch, grant", fmt.Sprintf("%s, %d, %s", number(wire.Watermark), wire.FetchBatch, number(wire.Grant(wire.OQEntries, wire.Watermark)))},
		{"buffers of a frame of 1,514, 1,522 and 9,014 bytes", fmt.Sprintf("%d, %d, %d", buffers(1514), buffers(1522), buffers(9014))},
	})
	return d.String(), nil
}

func buffers(frame int) int { return wire.Buffers(wire.LenOverhead + frame) }

// number prints with commas between thousands.
func number(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
