package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/internal/tcpstats"
	statsclient "oxpd/internal/tcpstats/client"
)

// Formats of output.
const (
	outTable  = "table"
	outJSON   = "json"
	outBinary = "binary"
)

// shortLook bounds a question to the daemon that the command does without if need be, such
// as that for the ports' MTUs, which diagnoses are better with.
const shortLook = 2 * time.Second

// statsQuery is what `oxpd tcpstats` was asked for.
type statsQuery struct {
	format, profile, by, socket string
	interval                    time.Duration
	count, top                  int
}

func (a *app) tcpStatsCommand() *cobra.Command {
	var q statsQuery
	cmd := &cobra.Command{
		Use:   "tcpstats [FILTER...]",
		Short: "TCP connections that cross this host, and what slows them down",
		Long: "Lists TCP sockets of this host (source=host), or TCP flows that were seen at the ports (source=flow), with their MSS, round trips,\n" +
			"windows, retransmissions and queues, and says in a line what those numbers show. FILTER is directives, all of which must hold:\n\n" +
			"  local_port=443,8443        remote_port=...            up to eight ports\n" +
			"  exclude=listen,timewait    include_state=established  states\n" +
			"  local_addr=10.0.0.0/8      remote_addr=2001:db8::/32  an address, or a prefix\n" +
			"  ipv4_only                  ipv6_only\n" +
			"  via=oxp9                   what is routed over a port, or crosses it; via=any: all, each with its port\n" +
			"  source=host|flow           format=compact|full        fields=rtt,counters,...|default|all\n\n" +
			"docs/guides/tcpstats.md shows how to find out why a transfer is slow, docs/guides/tcpstats-filter.md has every rule of the language.",
		Example: "  oxpd tcpstats 'local_port=443 exclude=listen,timewait'\n  oxpd tcpstats via=oxp9 --top 20 --by retrans --interval 1s",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.json {
				if cmd.Flags().Changed("format") && q.format != outJSON {
					return &usageError{fmt.Errorf("--json and --format %s", q.format), cmd.UseLine()}
				}
				q.format = outJSON
			}
			if err := q.check(args); err != nil {
				return &usageError{err, cmd.UseLine()}
			}
			return a.tcpStats(cmd.Context(), &q, strings.Join(args, " "))
		},
	}
	f := cmd.Flags()
	f.StringVar(&q.format, "format", outTable, "table, json (a line each), or binary (for oxpd tcpstats decode)")
	f.StringVar(&q.profile, "profile", "", "use the filter of a profile")
	f.DurationVar(&q.interval, "interval", 0, "read again and again; counters are what was added since (at least 10ms)")
	f.IntVar(&q.count, "count", 0, "end after so many reads; without it, one, or with --interval until interrupted")
	f.IntVar(&q.top, "top", 0, "only the N largest, by --by")
	f.StringVar(&q.by, "by", "", "what --top sorts by: a field, such as retrans, or rtt, bytes, rate, mss, segs, queue (default bytes)")
	f.StringVar(&q.socket, "stats-socket", "", "socket of the service (default "+config.StatsSocketOf(client.DefaultSocket)+", or beside --socket)")
	a.jsonFlag(cmd)
	cmd.AddCommand(a.tcpStatsParseCommand(), a.tcpStatsDecodeCommand(), a.tcpStatsShowCommand(), a.tcpStatsSetCommand(), a.tcpStatsProfileCommand())
	return cmd
}

// check finds what contradicts itself.
func (q *statsQuery) check(args []string) error {
	switch {
	case q.format != outTable && q.format != outJSON && q.format != outBinary:
		return fmt.Errorf("--format %q: want %s, %s or %s", q.format, outTable, outJSON, outBinary)
	case q.profile != "" && len(args) > 0:
		return errors.New("--profile has a filter of its own: want a filter or --profile")
	case q.interval < 0 || q.interval > 0 && q.interval < 10*time.Millisecond:
		return fmt.Errorf("--interval %v: want 10ms or more", q.interval)
	case q.count < 0:
		return fmt.Errorf("--count %d: want 1 or more", q.count)
	case q.count > 1 && q.interval == 0:
		return errors.New("--count needs --interval")
	case q.top < 0 || q.top > 100_000:
		return fmt.Errorf("--top %d: want 1 to 100000", q.top)
	case q.by != "" && q.top == 0:
		return errors.New("--by needs --top")
	case q.format == outBinary && (q.interval > 0 || q.top > 0):
		return errors.New("--format binary is the records as they come: without --interval and --top")
	}
	return nil
}

// tcpStats reads, once or again and again.
func (a *app) tcpStats(ctx context.Context, q *statsQuery, text string) error {
	var order tcpstats.Order
	if q.top > 0 {
		var err error
		if order, err = tcpstats.ParseOrder(defaultTo(q.by, "bytes")); err != nil {
			return &usageError{fmt.Errorf("--by: %w", err), "oxpd tcpstats FILTER --top N --by FIELD"}
		}
	}
	filter, err := tcpstats.Parse(text)
	if err != nil {
		return filterError(err)
	}
	conn, err := a.statsDial(ctx, q.socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	if q.profile != "" {
		if text, err = conn.Profile(ctx, q.profile); err == nil {
			filter, err = tcpstats.Parse(text)
		}
		if err != nil {
			return statsError(err)
		}
	}
	if q.profile == "" || q.format != outBinary { // a profile in force stays as it is for those who want just that
		if text, err = conn.Filter(ctx, q.wants(filter, order).String()); err != nil {
			return statsError(err)
		}
	}
	p := &statsPrinter{a: a, q: q, order: order, filter: text, mtu: a.portMTUs(ctx)}
	p.w = bufio.NewWriterSize(a.out, 64<<10)
	if q.interval > 0 {
		p.before = map[[2]uint64]*tcpstats.Record{}
		if err := p.read(ctx, conn, true); err != nil { // what the first differences are from
			return err
		}
	}
	for n := 1; ; n++ {
		if q.interval > 0 {
			select {
			case <-time.After(q.interval):
			case <-ctx.Done():
				return nil // that is how it ends
			}
		}
		err := p.read(ctx, conn, false)
		switch {
		case err == nil:
		case q.interval > 0 && ctx.Err() != nil:
			return nil
		case q.interval > 0 && n != q.count && isBusy(err):
			// The service has too much to do, or wants longer pauses: the next turn may be better.
			fmt.Fprintf(a.err, "this turn is left out: %v\n", err)
		default:
			return err
		}
		if q.interval == 0 || n == q.count {
			return nil
		}
	}
}

// wants adds to a filter what is shown besides it.
func (q *statsQuery) wants(f tcpstats.Filter, order tcpstats.Order) tcpstats.Filter {
	if q.format == outBinary {
		return f
	}
	if f.Fields == tcpstats.DefaultGroups {
		f.Fields = tcpstats.Needed // what a diagnosis looks at
	}
	f.Fields |= order.Groups()
	if f.Via == 0 {
		f.Via = tcpstats.ViaAny // the port is a column
	}
	return f
}

// statsDial connects to the service: at a socket, or without one at the socket beside the
// control socket, or where the daemon says that it is.
func (a *app) statsDial(ctx context.Context, socket string) (*statsclient.Conn, error) {
	beside := socket == ""
	if beside {
		socket = config.StatsSocketOf(defaultTo(a.socket, client.DefaultSocket))
	}
	if err := client.CheckSocket(socket); err != nil {
		return nil, &usageError{fmt.Errorf("socket %s: %w", socket, err), "oxpd tcpstats [FILTER...] --stats-socket PATH"}
	}
	conn, err := statsclient.Dial(ctx, socket)
	if err == nil {
		return conn, nil
	}
	if beside && !errors.Is(err, fs.ErrPermission) {
		at, told := a.statsSocket(ctx)
		switch {
		case told != nil:
			return nil, told
		case at != "" && at != socket:
			return a.statsDial(ctx, at)
		}
	}
	return nil, statsDialError(socket, a.socket, err)
}

// statsSocket asks the daemon where its socket is, and why there is none when that is so.
// Both are empty when it does not tell.
func (a *app) statsSocket(ctx context.Context) (path string, err error) {
	ctx, cancel := context.WithTimeout(ctx, shortLook)
	defer cancel()
	s, err := a.client().TCPStats(ctx)
	switch {
	case err != nil:
		return "", nil // there may be none, which the caller says
	case s.Warning != "":
		return "", &hinted{errors.New(s.Warning), "tcpstats.socket of the configuration may name another, and a restart makes it"}
	}
	return s.Socket, nil
}

func defaultTo(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// filterError is a filter that was not understood, with what its reader can do.
func filterError(err error) error {
	return &usageError{fmt.Errorf("filter: %w", err), "oxpd tcpstats [FILTER...]; oxpd tcpstats --help lists the directives"}
}

// statsError is a refusal of the service.
func statsError(err error) error {
	var refused *statsclient.RefusedError
	if !errors.As(err, &refused) {
		return err
	}
	hint := ""
	switch refused.Code {
	case tcpstats.CodeInvalid, tcpstats.CodeTooLong:
		return filterError(err)
	case tcpstats.CodeTooManyOpen:
		hint = "wait until another client has ended, or: oxpd tcpstats set max_open_fds=N"
	case tcpstats.CodeBusy:
		hint = "try again, or: oxpd tcpstats show, and set max_concurrent_readers=N or min_read_interval_ms=N"
	case tcpstats.CodeNoProfile:
		hint = "oxpd tcpstats profile list"
	case tcpstats.CodeNoSource:
		hint = "oxpd tcpstats set flow=on, or tcpstats.flow of the configuration"
	}
	if hint == "" {
		return err
	}
	return &hinted{err, hint}
}

// statsDialError says what to do about a socket that nobody answers at.
func statsDialError(socket, control string, err error) error {
	why := err
	var op *net.OpError
	if errors.As(err, &op) {
		why = op.Err // without the path, which is named here
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return &hinted{fmt.Errorf("open %s: %w", socket, fs.ErrPermission), "run it as root (sudo), or have tcpstats.group of the configuration name a group of yours"}
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return &hinted{fmt.Errorf("%w on %s: %w", client.ErrNoDaemon, socket, why), "start it with: oxpd run --sim" + socketFlag(control) + "; oxpd tcpstats show says which socket it has"}
	}
	return fmt.Errorf("connect to %s: %w", socket, why)
}

// portMTUs are the MTUs of the ports' interfaces, nil when the daemon does not tell.
func (a *app) portMTUs(ctx context.Context) map[int]int {
	ctx, cancel := context.WithTimeout(ctx, shortLook)
	defer cancel()
	ports, err := a.client().Ports(ctx)
	if err != nil {
		return nil // diagnoses do without
	}
	out := map[int]int{}
	for _, p := range ports.Ports {
		if b, err := board.Parse(p.IfName); err == nil && p.MTU > 0 {
			out[b.Index] = p.MTU
		}
	}
	return out
}

// statsPrinter prints what reads give.
type statsPrinter struct {
	a      *app
	q      *statsQuery
	w      *bufio.Writer
	order  tcpstats.Order
	filter string
	mtu    map[int]int
	before map[[2]uint64]*tcpstats.Record // of the read before, with an interval
	line   []byte
	begun  bool
}

// backlog is what has come of a read and is not printed yet: a pager that nobody turns
// would else hold the read up until its time is over.
type backlog struct {
	mu     sync.Mutex
	came   sync.Cond // of mu
	chunks [][]byte
	ended  bool
}

func newBacklog() *backlog {
	b := new(backlog)
	b.came.L = &b.mu
	return b
}

// add copies a chunk.
func (b *backlog) add(chunk []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.chunks = append(b.chunks, bytes.Clone(chunk))
	b.came.Signal()
}

// end says that nothing follows.
func (b *backlog) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	b.came.Signal()
}

// take waits for chunks. None are the end.
func (b *backlog) take() [][]byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.chunks) == 0 && !b.ended {
		b.came.Wait()
	}
	out := b.chunks
	b.chunks = nil
	return out
}

// read reads once and prints what comes. A quiet read only keeps what the next differences
// are from.
func (p *statsPrinter) read(ctx context.Context, conn *statsclient.Conn, quiet bool) error {
	var (
		top  *tcpstats.Top
		seen = p.print
	)
	if p.q.top > 0 {
		top = tcpstats.NewTop(p.q.top, p.order)
		seen = top.Add
	}
	if quiet {
		seen = func(*tcpstats.Record) {}
	}
	now := map[[2]uint64]*tcpstats.Record{}
	each := func(r *tcpstats.Record) error {
		if key, ok := r.Key(); ok && p.before != nil {
			kept := *r
			now[key] = &kept
			r.Delta(p.before[key])
		}
		seen(r)
		return nil
	}
	var (
		came = newBacklog()
		end  tcpstats.End
		err  error
	)
	go func() {
		defer came.end()
		end, err = conn.Read(ctx, func(chunk []byte, _ int) error { came.add(chunk); return nil })
	}()
	begun := quiet
	head := func() {
		if !begun {
			p.head()
		}
		begun = true
	}
	var bad error // what the service sent is no records
	for {
		chunks := came.take()
		if len(chunks) == 0 {
			break
		}
		head()
		for _, c := range chunks {
			if p.q.format == outBinary {
				_, _ = p.w.Write(c) // Flush tells
			} else if bad == nil {
				bad = statsclient.Records(c, each)
			}
		}
	}
	if err = errors.Join(bad, statsError(err)); err != nil {
		return errors.Join(err, p.w.Flush())
	}
	head() // of none
	if p.before != nil {
		p.before = now
	}
	if quiet {
		return whole(ctx, &end) // differences from half of them would be wrong
	}
	if top != nil {
		for _, r := range top.Sorted() {
			p.print(&r)
		}
	}
	return p.end(ctx, &end)
}

// head begins the output of a read.
func (p *statsPrinter) head() {
	switch p.q.format {
	case outTable:
		if p.begun {
			fmt.Fprintln(p.w)
		}
		fmt.Fprintf(p.w, "%-12s %-28s %-28s %-6s %9s %6s %6s %9s %8s %11s %11s  %s\n", "STATE", "LOCAL", "REMOTE", "PORT", "RTT", "MSS", "CWND", "SND-WND", "RETRANS", "SENT", "RECEIVED", "DIAGNOSIS")
	case outJSON:
		b, _ := json.Marshal(struct {
			Schema int    `json:"schema"`
			Filter string `json:"filter,omitempty"` // absent of records that were decoded
		}{client.Schema, p.filter}) // plain strings
		fmt.Fprintf(p.w, "%s\n", b)
	}
	p.begun = true
}

// diagnose says what a record shows. In one of an interval the counters are of that time.
func (p *statsPrinter) diagnose(r *tcpstats.Record) []tcpstats.Diagnosis {
	mtu := 0
	if i, ok := r.Uint(tcpstats.FieldPort); ok {
		mtu = p.mtu[int(i)]
	}
	return tcpstats.Diagnose(r, mtu)
}

func (p *statsPrinter) print(r *tcpstats.Record) {
	found := p.diagnose(r)
	if p.q.format == outJSON {
		var extra [][2]string
		if len(found) > 0 {
			b, _ := json.Marshal(found) // strings and numbers
			extra = [][2]string{{"diagnosis", string(b)}}
		}
		p.line = append(r.AppendJSON(p.line[:0], extra...), '\n')
		_, _ = p.w.Write(p.line) // Flush tells
		return
	}
	printStatsRow(p.w, r, tcpstats.Line(found))
}

// printStatsRow prints a record as a row of the table. What is absent is a dash.
func printStatsRow(w io.Writer, r *tcpstats.Record, diagnosis string) {
	first := func(of ...tcpstats.Field) string {
		for _, f := range of {
			if v, ok := r.Uint(f); ok {
				return fmt.Sprint(v)
			}
		}
		return "-"
	}
	word := func(f tcpstats.Field) string {
		if v, ok := r.Uint(f); ok {
			if s, ok := tcpstats.Word(f, v); ok {
				return s
			}
			return fmt.Sprint(v)
		}
		return "-"
	}
	rtt := "-"
	if v, ok := r.Uint(tcpstats.FieldRTT); ok {
		rtt = (time.Duration(v) * time.Microsecond).String()
	}
	fmt.Fprintf(w, "%-12s %-28s %-28s %-6s %9s %6s %6s %9s %8s %11s %11s  %s\n", word(tcpstats.FieldState),
		endpoint(r, tcpstats.FieldLocalAddr, tcpstats.FieldLocalPort), endpoint(r, tcpstats.FieldRemoteAddr, tcpstats.FieldRemotePort), word(tcpstats.FieldPort),
		rtt, first(tcpstats.FieldSndMSS, tcpstats.FieldPeerMSS), first(tcpstats.FieldCWnd), first(tcpstats.FieldSndWnd), first(tcpstats.FieldRetrans),
		first(tcpstats.FieldBytesSent), first(tcpstats.FieldBytesReceived), diagnosis)
}

// endpoint is an address and a port, a dash when both are absent.
func endpoint(r *tcpstats.Record, addr, port tcpstats.Field) string {
	a := r.Addr(addr)
	n, ok := r.Uint(port)
	switch {
	case !ok && !a.IsValid():
		return "-"
	case a.Is6():
		return fmt.Sprintf("[%s]:%d", a, n)
	}
	return fmt.Sprintf("%s:%d", a, n)
}

// end prints the end of a read, and makes an error of one that was cut short.
func (p *statsPrinter) end(ctx context.Context, end *tcpstats.End) error {
	if p.q.format == outJSON {
		b, err := json.Marshal(struct {
			End *tcpstats.End `json:"end"`
		}{end})
		if err != nil {
			return err
		}
		fmt.Fprintf(p.w, "%s\n", b)
	}
	if err := p.w.Flush(); err != nil {
		return err
	}
	if p.q.format == outTable {
		note := ""
		if len(end.PushedDown) > 0 {
			note = "; the kernel tested " + strings.Join(end.PushedDown, ", ") + " itself"
		}
		fmt.Fprintf(p.a.err, "%d of %d in %v%s\n", end.Emitted, end.Visited, (time.Duration(end.ElapsedUS) * time.Microsecond).Round(10*time.Microsecond), note)
		if end.Inconsistent {
			fmt.Fprintln(p.a.err, "sockets came and went meanwhile: some may be listed twice, or not at all")
		}
	}
	return whole(ctx, end)
}

// isBusy tells whether the service refused a read for now.
func isBusy(err error) bool {
	var refused *statsclient.RefusedError
	return errors.As(err, &refused) && refused.Code == tcpstats.CodeBusy
}

// whole makes an error of a read that was cut short. One that was interrupted here is the
// context's.
func whole(ctx context.Context, end *tcpstats.End) error {
	switch {
	case !end.Partial:
		return nil
	case end.Code == tcpstats.CodeCancelled && ctx.Err() != nil:
		return ctx.Err()
	case end.Code == tcpstats.CodeTimedOut:
		return &hinted{fmt.Errorf("the list is not whole: %s (%s)", end.Reason, end.Code), "oxpd tcpstats show has the limits, and oxpd tcpstats set changes them"}
	}
	return fmt.Errorf("the list is not whole: %s (%s)", end.Reason, end.Code)
}
