package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"oxpd/hwsim"
	"oxpd/internal/divert"
	"oxpd/internal/port"
	"oxpd/ring"
	"oxpd/ring/wire"
	"oxpd/rpc/msg"
)

// meanings says when each counter moves. A counter without a row, or a row
// without a counter, is an error.
var meanings = []struct{ name, moves string }{
	{"rx_done", "a packet is taken from an output queue; control messages and drops included"},
	{"rx_seen", "a snapshot: buffers of the rings that the card has written and nobody has taken, as found by this reading of the counters; the buffers of packets that are just being taken included. 0 at rest, up to 8,192 where rings are left"},
	{"rx_delivered", "of those, handed on to the ports' interfaces"},
	{"rx_prefix_seq", "`oxpd stats --instruments` has another last packet of a ring: once a pass that took something"},
	{"rx_untagged", "a packet whose tag no interface owns, tag 254 (control and statistics messages) included"},
	{"pfil_dropped", "a packet that a filter dropped where the device wrote it"},
	{"pfil_dropped_bytes", "bytes of the frames in `pfil_dropped`"},
	{"pfil_recycled_bufs", "buffers of the packets in `pfil_dropped`: each was emptied and given back as credit in the pass that took it"},
	{"rx_spans", "a packet of more than one buffer, delivered or not"},
	{"rx_span_bufs", "buffers of such packets after their first"},
	{"rx_span_max", "largest length word of such a packet, bytes: frame + 74"},
	{"rx_span_nobuf", "such a packet dropped because no gather buffer was free, or because it is longer than one"},
	{"rx_long", "a length word above 65,535 or spanning the ring; one buffer is consumed"},
	{"rx_short", "a buffer stepped over whose length word was 74 or less"},
	{"rx_resync", "the read index moved over a gap"},
	{"rx_skipped", "entries stepped over"},
	{"rx_ghosts", "counted packets of which nothing was ever seen"},
	{"oq_lapped", "a count larger than the ring: the card had too much credit and overwrote"},
	{"oq_unseen", "a pass read a count and found no packet"},
	{"oq_behind", "packets taken with no count to acknowledge"},
	{"oq_bound", "a visit ended on its bound"},
	{"oq_declined", "a servicer found the queue taken and left a note"},
	{"oq_handed", "such a note was obeyed"},
	{"credit_capped", "a pass could not return all the credit that it owed"},
	{"credit_returned", "buffers returned to the card"},
	{"credit_carry", "buffers owed to the card now"},
	{"credit_unit", "constant 1: a unit of credit is a buffer"},
	{"intr_taken", "the interrupt handler of a ring was entered: a message came. The total is the sum of the rings' (`rings` of the document)"},
	{"intr_drained", "passes that took something after the first in one hold of a ring"},
	{"rxwd_runs", "the watchdog took something"},
	{"rxwd_rescues", "the watchdog took something from a queue that had not asked"},
	{"rxwd_stalls", "of those, when much had waited and nobody else had been inside"},
	{"adopt_dup", "a frame handed on once more when a new process took the rings over: the one before had been killed while it handed it on, so at most so many got through twice. At most one pass of a ring, 64 frames"},
	{"tx_posted", "an instruction is posted to the input queue"},
	{"tx_finished", "the card has finished with an instruction, as far as oxpd has looked: IN_CNTS is read when slots are wanted and never by reading counters, so this may lag behind `tx_posted` while nothing is sent"},
	{"tx_unknown", "posted to a card that was lost before it was seen to finish: whether the frame left is not known. `tx_posted` = `tx_finished` + `tx_unknown` + what is under way"},
	{"tx_posted_bytes", "bytes of posted frames, padding included"},
	{"tx_iq_full", "a frame refused for want of a slot; where reading the interface can stop instead, it stops"},
	{"adopt_lost", "a frame of an interface that the process before had written to a slot and not announced to the card when it was killed: at most one burst"},
	{"tx_bad_count", "IN_CNTS moved by more than was outstanding"},
	{"gather_buffers", "gather buffers of 9 KiB"},
	{"gather_free", "of those, free now"},
	{"gather_high_water", "most that were ever taken at once"},
	{"gather_large_buffers", "gather buffers of 16 KiB"},
	{"gather_large_free", "of those, free now"},
	{"gather_large_high_water", "most that were ever taken at once"},

	{"rx_packets", "a frame reached the interface"},
	{"rx_bytes", "bytes of those"},
	{"rx_malformed", "a frame from the card shorter than 14 bytes, dropped"},
	{"rx_toolong", "a frame from the card longer than MTU + 14 + 4 per VLAN tag, two at most, dropped"},
	{"rx_nobuf", "a frame from the card that the kernel had no memory for, or no room in the TAP's send buffer, dropped"},
	{"tap_down", "a frame from the card for an interface that is down, dropped"},
	{"tap_err", "a frame from the card that the kernel refused for another reason"},
	{"tx_packets", "a frame of the interface posted to the card"},
	{"tx_bytes", "bytes of those, without padding"},
	{"tx_drops", "a frame of the interface that was not posted: the sum of the six below, and `tx_divert_lost`"},
	{"tx_pfil_dropped", "dropped by a filter, before a slot was taken"},
	{"tx_malformed", "shorter than 14 bytes"},
	{"tx_toolong", "longer than a slot or than MTU + 14 + 4 per VLAN tag"},
	{"tx_closed", "left unread in the interface's queue when oxpd took it away. When somebody else removes the interface, the kernel throws that queue away without a count: up to txqueuelen frames (1,000 unless changed) are then in no counter"},
	{"tx_gone", "waited unread in the interface's queue when the card was lost, or came back: too old to be sent then; or let go on by an engine while there was no card"},
	{"tx_ring_full", "let go on by an engine while the card's queue had been full for 20 ms"},
	{"tx_pfil_dropped_bytes", "bytes of the frames in `tx_pfil_dropped`"},
	{"tap_read_errors", "the kernel refused a read"},
	{"tap_kernel_dropped", "the interface's own queue was full, or a frame was sent without carrier: the kernel's tx_dropped. Of an interface that somebody removed, the number in the kernel's news of it, or else as last looked at"},
	{"quiesce_waits", "the interface was taken out of the transmitter, or taken away, and oxpd had to wait for whoever was inside: a worker with a frame of it, the transmitter in its turn, a reader of these counters. An interface that goes is both, one after the other. Among the device's counters: of all ports together"},
	{"quiesce_longest_us", "the longest such wait, in microseconds, rounded up. Among the device's counters: of all ports"},

	{"divert_seen", "a frame was to be inspected: a filter's rule diverted it, or all of the port's are"},
	{"divert_accepted", "the engine let it go on"},
	{"divert_dropped", "the engine dropped it; by a tap-pair: it did not come back in time, or what left behind it did"},
	{"divert_replaced", "another frame of the engine's went on in its place"},
	{"divert_flow_passed", "its connection was accepted whole before, so that it went on without a question"},
	{"divert_pass_full", "it went on uninspected: the queue had no room (`on-full`)"},
	{"divert_pass_absent", "the same: no engine was attached (`on-absent`)"},
	{"divert_pass_stall", "the same: the engine gave no verdict (`on-stall`)"},
	{"divert_drop_full", "it was dropped: the queue had no room"},
	{"divert_drop_absent", "the same: no engine was attached"},
	{"divert_drop_stall", "the same: the engine gave no verdict"},
	{"divert_oversize", "it was dropped: what the engine made of it is longer than its port takes, or shorter than 14 bytes"},
	{"divert_shortened", "it was dropped: it came back from a tap-pair shorter than it left"},
	{"divert_queued", "a snapshot: it has no verdict yet"},
	{"divert_reordered", "an event: it passed by a policy, or with its connection, while frames of its flow were queued"},
	{"divert_injected", "an event: the engine of a tap-pair sent a frame of its own, which went on"},
	{"rx_divert_lost", "of the frames towards the host: dropped by an engine or a policy"},
	{"rx_divert_queued", "of the frames towards the host: a snapshot, those without a verdict"},
	{"tx_divert_lost", "of the frames towards the wire: dropped by an engine or a policy; part of `tx_drops`"},
	{"tx_divert_queued", "of the frames towards the wire: a snapshot, those without a verdict. They are in neither `tx_packets` nor `tx_drops` yet"},
}

// wireMeanings are the counters of a simulated card's wires: in the order of a
// frame that comes in, then one that goes out.
var wireMeanings = []struct{ name, moves string }{
	{"in", "a frame was sent into the port from outside; it is in one of the next eight, or still on the wire"},
	{"link_down", "the port was down, or its far side"},
	{"runt", "shorter than 14 bytes"},
	{"oversize", "longer than the port's MAC takes"},
	{"switch_dropped", "longer than the switch's cap (ten ports)"},
	{"overrun", "more was sent at once than the wire holds"},
	{"filtered", "unicast to a MAC that is not the port's"},
	{"no_fast_path", "the fast path was not running"},
	{"passed", "seen by the fast path, whose own counters say more"},
	{"out", "a frame left the card for the wire"},
	{"out_link_down", "of those that the coprocessor counts as sent: the port was down"},
	{"out_switch_dropped", "the same: longer than the switch's cap"},
	{"out_refused", "of `out`: nobody at the other end took it"},
	{"replay_sent", "of a capture: a packet was sent into the port"},
	{"replay_cut", "of a capture: a packet that was kept only in part, and not sent"},
	{"recorded", "a frame was written to the recording"},
}

// wireName finds the counters in the source of the simulated card's device, which
// this program does not import.
var wireName = regexp.MustCompile(`"([a-z_]+)": s\.|to\["([a-z_]+)"\]`)

// wireCounters are the names in that source.
func wireCounters(root string) (map[string]bool, error) {
	names := map[string]bool{}
	for _, file := range []string{"simcard.go", "pcap.go"} {
		b, err := os.ReadFile(filepath.Join(root, "internal/daemon/simcard", file))
		if err != nil {
			return nil, err
		}
		for _, line := range strings.Split(string(b), "\n") {
			for _, m := range wireName.FindAllStringSubmatch(line, -1) {
				names[m[1]+m[2]] = true
			}
			if left, _, ok := strings.Cut(line, "="); ok && strings.Contains(left, `to["`) {
				for _, part := range strings.Split(left, `to["`)[1:] {
					name, _, _ := strings.Cut(part, `"`)
					names[name] = true
				}
			}
		}
	}
	return names, nil
}

// Of a port's inspection: events beside the sum, and what the daemon makes of it for the
// sums of its two directions.
var (
	divertEvents = []string{"divert_reordered", "divert_injected"}
	divertParts  = []string{"rx_divert_lost", "rx_divert_queued", "tx_divert_lost", "tx_divert_queued"}
)

// divertCounters are the names of what is counted of a port's inspection.
func divertCounters() (names []string) {
	new(divert.Counts).Each(func(name string, _ uint64) { names = append(names, name) })
	return append(names, divertParts...)
}

// divertAddends are those that divert_seen is the sum of.
func divertAddends() (names []string) {
	new(divert.Counts).Each(func(name string, _ uint64) {
		if name != "divert_seen" && !slices.Contains(divertEvents, name) {
			names = append(names, name)
		}
	})
	return names
}

// dispositions are the addends of rx_done.
var dispositions = []string{"rx_packets", "rx_malformed", "rx_toolong", "rx_nobuf", "tap_down", "tap_err", "rx_untagged", "pfil_dropped", "rx_divert_lost", "rx_divert_queued", "rx_span_nobuf", "rx_long"}

// counters is every counter.
func counters(root string) (string, error) {
	d := head("Counters")
	d.text("`oxpd stats` shows oxpd's own, `oxpd counters` the coprocessor's. Names are those of the published records " +
		"([datapath.md](../hardware/datapath.md), section 4; [rpc-lif.md](../hardware/rpc-lif.md), section 6).")
	d.section("The sum")
	d.text("Each packet taken from a ring ends in exactly one of these, and `oxpd stats` says whether the sum closes:")
	d.code("rx_done + made by engines = " + strings.Join(dispositions, " + "))
	d.text("`rx_packets`, `rx_malformed`, `rx_toolong`, `rx_nobuf`, `tap_down`, `tap_err`, `pfil_dropped`, `rx_divert_lost` and `rx_divert_queued` are those of all ports together. " +
		"What engines made are the `divert_injected` towards the host. Every other counter is an event beside that sum.")
	d.text("The ports count in the middle of a pass over a ring and `rx_done` at its end. `sums.quiet` of the document says that no packet was being taken " +
		"from the first counter read to the last, so that they belong together: only then does `sums.difference` (`rx_done` less the addends; negative: they are more) " +
		"mean anything, and only then is a sum that does not close a lost or a doubled packet. Under traffic a reading is tried again a few times, " +
		"and may come out as not quiet: ask again.")

	means := map[string]string{}
	for _, m := range meanings {
		means[m.name] = m.moves
	}
	used := map[string]bool{}
	table := func(names []string) error {
		rows := make([][]string, 0, len(names))
		for _, n := range names {
			if means[n] == "" {
				return fmt.Errorf("counter %s has no meaning", n)
			}
			used[n] = true
			rows = append(rows, []string{quote(n), means[n]})
		}
		d.table([]string{"counter", "moves when, or is"}, rows)
		return nil
	}
	d.section("Of the rings")
	d.text("Counts of packets unless the text says otherwise.")
	if err := table(tags(reflect.TypeFor[ring.Stats]())); err != nil {
		return "", err
	}
	d.section("Instruments")
	d.text("`oxpd stats --instruments` shows, for each ring, how the last packet of the last pass began in memory (`last_prefix`, `last_frame_head`), " +
		"and the last that no interface owned and the last span (`last_untagged_prefix`, `last_untagged_head`, `last_span_prefix`, `last_span_head`): " +
		fmt.Sprintf("the %d bytes of prefix and %d bytes of frame. ", wire.PrefixSize, ring.HeadBytes) +
		"That is an Ethernet header with two VLAN tags; behind one without tags, eight bytes of layer 3, which end before the first address of IPv4, IPv6 and ARP. " +
		"A packet whose prefix is shorter than it should be shows more of its frame in place of the prefix; no interface owns such a packet. " +
		"They are bytes of users' frames: like everything on the control socket they are for root. " +
		"`rx_prefix_seq` goes up with each last packet; one a pass is copied.")
	d.section("Of one port")
	var names []string
	port.Stats{}.Each(func(name string, _ uint64) { names = append(names, name) })
	if err := table(names); err != nil {
		return "", err
	}
	d.section("Of one port's inspection")
	d.text("Frames that were to be [inspected](../guides/divert.md): in both directions together here, and each by itself in `oxpd divert show PORT`. At any moment")
	d.code("divert_seen = " + strings.Join(divertAddends(), " + "))
	if err := table(divertCounters()); err != nil {
		return "", err
	}
	for _, m := range meanings {
		if !used[m.name] {
			return "", fmt.Errorf("meaning of a counter that does not exist: %s", m.name)
		}
	}

	d.section("Of the wires of a simulated card")
	d.text("`oxpd stats` shows them when the card is simulated, by port; a real card has no such counters. See [Wires](../simulator/wires.md).")
	have, err := wireCounters(root)
	if err != nil {
		return "", err
	}
	rows := make([][]string, 0, len(wireMeanings))
	for _, m := range wireMeanings {
		if !have[m.name] {
			return "", fmt.Errorf("meaning of a wire's counter that does not exist: %s", m.name)
		}
		delete(have, m.name)
		rows = append(rows, []string{quote(m.name), m.moves})
	}
	for name := range have {
		return "", fmt.Errorf("counter %s of a wire has no meaning", name)
	}
	d.table([]string{"counter", "moves when"}, rows)

	d.section("Of the coprocessor")
	d.text("Its 182, by index; KN is the host. `TX_DROP` is a total beside the others and no addend. `TX_DROP_QUEUE_FULL` has two meanings: " +
		"a full ring of the host (`TX_KN` less `rx_done`) and a full queue towards a wire (`FROM_KN_TO_WIRE` less `TX_WIRE` less `TX_WIRE_ERR`).")
	rows = make([][]string, 0, len(msg.CounterNames))
	for i, n := range msg.CounterNames {
		rows = append(rows, []string{strconv.Itoa(i), quote(n)})
	}
	d.table([]string{"index", "name"}, rows)
	return d.String(), nil
}

// tags are the JSON names of a struct's numbers, embedded structs included.
func tags(t reflect.Type) []string {
	var names []string
	for i := range t.NumField() {
		f := t.Field(i)
		name := f.Tag.Get("json")
		switch {
		case f.Anonymous:
			names = append(names, tags(f.Type)...)
		case f.Type.Kind() != reflect.Slice && name != "ring": // the number of one queue
			names = append(names, name)
		}
	}
	return names
}

// commandLine is the program's own help.
func commandLine(root string) (string, error) {
	dir, err := os.MkdirTemp("", "oxpd-gen-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	exe := filepath.Join(dir, "oxpd")
	build := exec.Command("go", "build", "-o", exe, "./cmd/oxpd")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build oxpd: %w: %s", err, out)
	}
	help := func(args ...string) (string, error) {
		out, err := exec.Command(exe, append(args, "--help")...).Output()
		return string(out), err
	}
	d := head("Command line")
	d.text("What `--help` says. Data goes to standard output and talk to standard error. Exit status: 0 done, 1 tried and failed, " +
		"2 usage: an unknown port, a value that can never work; 3 of `oxpd run`: starting it again does not help. Reading commands take `--json`; their documents are those of the [control socket](control-socket.md).")
	d.text("Output that could not be written is a failure: a full disk, a pipe that nobody reads. Standard output that was closed (`>&-`) is none: the Go runtime " +
		"opens /dev/null in its place before the program begins, and nothing tells that from a caller's own.")
	top, err := help()
	if err != nil {
		return "", err
	}
	d.code(top)
	for _, c := range subcommands(top) {
		text, err := help(c)
		if err != nil {
			return "", err
		}
		d.section("oxpd " + c)
		d.code(text)
		for _, sub := range subcommands(text) {
			text, err := help(c, sub)
			if err != nil {
				return "", err
			}
			d.section("oxpd " + c + " " + sub)
			d.code(text)
		}
	}
	return d.String(), nil
}

// subcommands reads the list in a help text.
func subcommands(text string) []string {
	_, list, found := strings.Cut(text, "Available Commands:\n")
	if !found {
		return nil
	}
	var names []string
	for _, line := range strings.Split(list, "\n") {
		if line == "" {
			break
		}
		if name := strings.Fields(line)[0]; name != "help" {
			names = append(names, name)
		}
	}
	return names
}

// configuration is the file that `oxpd run --config` reads.
func configuration(root string) (string, error) {
	src, err := parse(root, "internal/daemon/config")
	if err != nil {
		return "", err
	}
	show := exec.Command("go", "run", "./cmd/oxpd", "config", "show")
	show.Dir = root
	var talk bytes.Buffer
	show.Stderr = &talk
	defaults, err := show.Output()
	if err != nil {
		return "", fmt.Errorf("oxpd config show: %w: %s", err, talk.String())
	}
	d := head("Configuration file")
	d.text("One YAML file, given with `oxpd run --config FILE`. Unknown keys and values out of range are refused with their line; " +
		"`oxpd config check FILE` is the same code as the daemon's. Without a file these hold (`oxpd config show`):")
	d.code(string(defaults))
	for _, s := range []struct{ title, name string }{{"Keys", "Config"}, {"Keys of switch", "Switch"}, {"Keys of one port", "Port"}, {"Keys of one of filters", "Filter"}, {"Keys of divert", "Divert"}, {"Keys of one of divert.ports", "DivertPort"}, {"Keys of tcpstats", "TCPStats"}, {"Keys of sim", "Sim"}} {
		fields, err := src.structure(s.name)
		if err != nil {
			return "", err
		}
		d.section(s.title)
		var rows [][]string
		for _, f := range fields {
			key, _, _ := strings.Cut(reflect.StructTag(f.tag).Get("yaml"), ",")
			if key == "-" {
				continue // no key of the file
			}
			rows = append(rows, []string{quote(key), strings.TrimPrefix(strings.TrimPrefix(f.comment, f.name+" "), "is ")})
		}
		d.table([]string{"key", "meaning"}, rows)
	}
	d.section("SIGHUP")
	d.text("The daemon reads the same file again, and lays the flags of its command line over it. A file that is wrong changes nothing: " +
		"the log has each reason with its line. Otherwise the log has a line for each of these:")
	d.table([]string{"key", "what happens"}, [][]string{
		{"`link-poll`, `reconcile`", "in force at once"},
		{"`switch.console`, `switch.jumbo`, `switch.size`, `switch.watch`", "in force at once: when one has changed, the switch is read, and with `jumbo` set, also where a command has set it otherwise. " +
			"Unchanged keys leave what a command has set. An MTU that is above a lowered `switch.size` stays, with a warning"},
		{"keys of a port", "asked for again, also when somebody has set them otherwise meanwhile; what is refused is tried again, as at the start, and keeps no other port from its own. " +
			"A port that is not up yet takes them when it is"},
		{"a key of a port that is not in the file any more", "stays as it is, and is no longer tried"},
		{"`filters`", "their files are read again, and one that does not compile makes the whole file wrong. What the file says of a filter, rules and links, holds again, also when a command has " +
			"changed it meanwhile; what has not changed is left alone, and a rule that was there before keeps its counters. A link that the file has no longer is taken back, and so is a filter, " +
			"unless a command has loaded other rules under its name. Filters and links that only commands have made stay. A new link comes behind those that are there; the order of the file holds at the next start"},
		{"`divert`, but for its `listeners`", "in force at once, where the value of the file has changed; what is queued stays queued. Unchanged keys leave what a command has set. " +
			"A larger `buffer-size` is that of engines which connect afterwards"},
		{"`tcpstats`, but for its `socket` and `group`", "in force at once, where the value of the file has changed; a table of flows whose size or time has changed begins empty. " +
			"Unchanged keys, and profiles that only commands have made, stay. Clients that are connected keep the filter of the profile that they have named"},
		{"`socket`, `workers`, `watermark`, `dma-bits`, `divert.listeners`, `tcpstats.socket`, `tcpstats.group`, `sim`", "stay as they are: `needs a restart`, with the value in force and the file's"},
	})
	d.section("Example")
	d.code(`switch: {size: 2048}
ports:
  F1: {mtu: 9000, up: true}
  Port1: {mtu: 2030, mac: 02:00:5e:00:53:01}
  Port2: {promisc: true}
filters:
  - name: flood
    file: filters/flood.rules
    link: [all in, F1 out]
divert:
  queue-bytes: 16mb
  on-absent: pass
  ports:
    F2: {frames: all}
tcpstats:
  group: adm
  flow: true
  profiles: {web: "local_port=443 exclude=listen,timewait"}
sim:
  wires:
    PortF1: tap:wire0@/run/netns/lab
    PortF2: pcap:web.pcap,answers.pcapng@wire,rewrite-mac
    Port1: loop:Port2`)
	return d.String(), nil
}

// options is what a simulated card can be told when it is made.
func options(root string) (string, error) {
	src, err := parse(root, "hwsim")
	if err != nil {
		return "", err
	}
	d := head("Options of the simulator")
	d.text("Fields of `hwsim.Options`: what a card is. What it does wrong on purpose is in [Faults](faults.md).")
	for _, s := range []struct{ title, name, text string }{
		{"Card", "Options", ""},
		{"Open points of the hardware", "Choices", "The zero value is the default of each row of [the table of choices](../hardware/ERRATA.md#choices); the number is the row. oxpd is tested under every alternative."},
		{"Software on the coprocessor", "TargetOptions", ""},
		{"Boot timeline", "Timeline", "`Compressed()` is a boot in well under a second, `Real()` the recorded one, minutes long."},
		{"Latencies", "Latencies", ""},
		{"Rates", "Rates", "Bits per second."},
		{"Queues", "Queues", ""},
	} {
		if err := d.fields(src, s.title, s.name, s.text); err != nil {
			return "", err
		}
	}
	return d.String(), nil
}

// faults is what a simulated card can be made to do wrong.
func faults(root string) (string, error) {
	src, err := parse(root, "hwsim")
	if err != nil {
		return "", err
	}
	d := head("Faults of the simulator")
	d.text("`Card.Faults` switches these on and off while the card runs. A number in brackets is the row of " +
		"[datapath.md](../hardware/datapath.md), section 7; F and a number the row of [endpoint.md](../hardware/endpoint.md), section 15.")
	for _, s := range []struct{ title, name string }{{"Endpoint and rings", "Faults"}, {"Software on the coprocessor", "TargetFaults"}, {"Serial console", "ConsoleFaults"}, {"Switch and MDIO bus", "SwitchFaults"}} {
		if err := d.fields(src, s.title, s.name, ""); err != nil {
			return "", err
		}
	}
	d.section("By name, at a moment, by chance")
	d.text("`--fault` of `oxpd run --sim` and `oxpd sim serve`, `oxpd sim fault` of a daemon that runs and, by way of `ParseInjection`, `Card.Inject` take `NAME[=ARGUMENT][@WHEN][%P]`. " +
		"NAME is a field above (case and hyphens do not matter), a row or its name ([the rows](fault-tests.md)), or an action below. @WHEN is a time since the card was made (`@10ms`), or its cycle (`@8000000`); " +
		"with a + in front, from now. %P is a probability above 0 and up to 1: the fault acts at so many of its opportunities, drawn from the card's seed; in stepped mode the same seed draws the same. " +
		"One that is marked once begins at one of its opportunities and then stays.")
	rows := [][]string{}
	for _, v := range hwsim.FaultActions() {
		rows = append(rows, []string{quote(v.Name), quote(v.Arg), v.Effect, v.Per + ", once"})
	}
	d.table([]string{"action", "argument", "what it does", "opportunity"}, rows)
	rows = nil
	for _, v := range hwsim.FaultSwitches() {
		per := v.Per
		switch {
		case per == "":
			per = "none: a number that others use"
		case v.Once:
			per += ", once"
		}
		rows = append(rows, []string{quote(v.Name), per})
	}
	d.table([]string{"field", "opportunity"}, rows)
	d.section("At once")
	d.text("Methods of `Card` that do something to the card at the moment of the call.")
	var calls [][]string
	for _, name := range []string{"Kill", "Reboot", "WipeLIFs", "SetLIF", "RestartAgent", "ForgetPorts", "StrandAgent"} {
		text, err := src.method("Card", name)
		if err != nil {
			return "", err
		}
		calls = append(calls, []string{quote(name), text})
	}
	d.table([]string{"method", "meaning"}, calls)
	d.section("Reports")
	d.text("What a driver did that it must not do. `Card.Reports` has them with cycle and address; a test of the driver ends by asking that there are none.")
	reports := src.constants("Report")
	if len(reports) == 0 {
		return "", fmt.Errorf("hwsim: no report names")
	}
	slices.SortFunc(reports, func(a, b field) int { return strings.Compare(a.value, b.value) })
	rows = nil
	for _, r := range reports {
		rows = append(rows, []string{quote(r.value), r.comment})
	}
	d.table([]string{"name", "meaning"}, rows)
	return d.String(), nil
}

// fields adds the fields of a struct of the simulator.
func (d *document) fields(src *source, title, name, text string) error {
	fields, err := src.structure(name)
	if err != nil {
		return err
	}
	d.section(title)
	if text != "" {
		d.text(text)
	}
	rows := make([][]string, 0, len(fields))
	for _, f := range fields {
		rows = append(rows, []string{quote(f.name), quote(f.typ), f.comment})
	}
	d.table([]string{"field of " + name, "type", "meaning"}, rows)
	return nil
}
