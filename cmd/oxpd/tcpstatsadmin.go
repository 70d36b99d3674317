package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/internal/tcpstats"
)

// statsSetLimit bounds a change: memory for a million flows may be made.
const statsSetLimit = 20 * time.Second

// parsed is `oxpd tcpstats parse --json`.
type parsed struct {
	Schema int    `json:"schema"`
	Filter string `json:"filter,omitempty"`
	Source string `json:"source,omitempty"`
	Code   string `json:"code,omitempty"`
	Offset *int   `json:"offset,omitempty"`
	Word   string `json:"word,omitempty"`
	Reason string `json:"reason,omitempty"`
}

func (a *app) tcpStatsParseCommand() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "parse FILTER", Short: "check a filter and print its canonical form",
		Long: "Prints the filter in its canonical form, which is empty for the default filter, or says what is wrong with it, and where, and ends\n" +
			"with exit status 2. It asks no daemon.",
		Args: func(cmd *cobra.Command, words []string) error { return args(1, max(1, len(words)))(cmd, words) },
		RunE: func(_ *cobra.Command, words []string) error {
			f, err := tcpstats.Parse(strings.Join(words, " "))
			if !a.json {
				if err != nil {
					return filterError(err)
				}
				_, err = fmt.Fprintln(a.out, f.String())
				return err
			}
			doc := parsed{Schema: client.Schema}
			var syntax *tcpstats.SyntaxError
			switch {
			case errors.As(err, &syntax):
				doc.Code, doc.Offset, doc.Word, doc.Reason = string(syntax.Code()), &syntax.Offset, syntax.Word, syntax.Reason
			case err != nil:
				return err
			default:
				doc.Filter, doc.Source = f.String(), f.Source.String()
			}
			if perr := show(a, &doc, nil); perr != nil {
				return perr
			}
			if err != nil {
				return exitCode(exitUsage)
			}
			return nil
		},
	})
}

func (a *app) tcpStatsDecodeCommand() *cobra.Command {
	cmd := a.jsonFlag(&cobra.Command{
		Use: "decode [FILE]", Short: "print records that oxpd tcpstats --format binary has written", Args: args(0, 1),
		Long: "Reads records from a file, or from standard input for - or without one, and prints them as a table, or with --json one a line. What\n" +
			"does not decode, or ends in the middle of a record, is an error that says at which byte; what came before it is printed.",
		RunE: func(cmd *cobra.Command, words []string) error {
			in := io.Reader(os.Stdin)
			if len(words) == 1 && words[0] != "-" {
				f, err := os.Open(words[0])
				if err != nil {
					return err
				}
				defer f.Close()
				in = f
			}
			format := outTable
			if a.json {
				format = outJSON
			}
			p := &statsPrinter{a: a, q: &statsQuery{format: format}, w: bufio.NewWriterSize(a.out, 64<<10)}
			p.head()
			err := decodeRecords(in, p.print)
			if ferr := p.w.Flush(); ferr != nil {
				return ferr
			}
			return err
		},
	})
	return cmd
}

// decodeRecords calls each for every record of a stream.
func decodeRecords(in io.Reader, each func(r *tcpstats.Record)) error {
	var (
		r  tcpstats.Record
		at int64
	)
	br := bufio.NewReaderSize(in, 64<<10) // more than a record, whose size is two bytes, can have
	for {
		b, err := br.Peek(tcpstats.MaxRecord)
		if len(b) == 0 && err == io.EOF {
			return nil
		}
		n, derr := r.Decode(b)
		if derr != nil && err != nil && err != io.EOF { // there would have been more
			return fmt.Errorf("read records at byte %d: %w", at, err)
		}
		if derr != nil {
			return fmt.Errorf("record at byte %d: %w", at, derr)
		}
		each(&r)
		at += int64(n)
		_, _ = br.Discard(n) // it was peeked at
	}
}

func (a *app) tcpStatsShowCommand() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "show", Short: "settings, profiles and counters of the service", Args: args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := ask(cmd, readLimit)
			defer cancel()
			s, err := a.client().TCPStats(ctx)
			if err != nil {
				return err
			}
			return show(a, s, printTCPStats)
		},
	})
}

func (a *app) tcpStatsSetCommand() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "set KEY=VALUE...", Short: "change settings, at once",
		Args: func(cmd *cobra.Command, words []string) error { return args(1, max(1, len(words)))(cmd, words) },
		Long: "Changes all of the settings, or none when one is refused. They are gone after a restart of the daemon; the configuration (tcpstats)\n" +
			"is for what shall stay.\n\n" +
			"  max_open_fds=N             clients at a time (EMFILE)\n" +
			"  max_concurrent_readers=N   reads at a time (EBUSY)\n" +
			"  max_read_duration_ms=N     after which a read ends with what it has; 0: never\n" +
			"  min_read_interval_ms=N     between two reads of a client (EBUSY); 0: none\n" +
			"  flow=on|off                follow the TCP flows that cross the ports; off forgets them\n" +
			"  flow_max=N                 flows that are kept, 1024 to 1048576; a change forgets them\n" +
			"  flow_idle=DURATION         after which a flow is forgotten; a change forgets all",
		RunE: func(cmd *cobra.Command, words []string) error {
			var set []client.TCPStatsSetting
			for _, word := range words {
				key, value, ok := strings.Cut(word, "=")
				if !ok {
					return &usageError{fmt.Errorf("%q: want KEY=VALUE, such as max_open_fds=32", word), cmd.UseLine()}
				}
				set = append(set, client.TCPStatsSetting{Key: key, Value: value})
			}
			ctx, cancel := ask(cmd, statsSetLimit)
			defer cancel()
			s, err := a.client().SetTCPStats(ctx, set...)
			if err != nil {
				return err
			}
			return show(a, s, printTCPStatsSettings)
		},
	})
}

func (a *app) tcpStatsProfileCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "profile", Short: "filters with names, which clients share",
		Long: "A profile is a filter with a name of a to z, 0 to 9 and _. A client copies it when it connects: a change reaches those that come.",
		Args: func(_ *cobra.Command, words []string) error {
			if len(words) > 0 {
				return &usageError{fmt.Errorf("unknown command %q of oxpd tcpstats profile", words[0]), "oxpd tcpstats profile list, set or rm"}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		a.jsonFlag(&cobra.Command{
			Use: "list", Short: "the profiles", Args: args(0, 0),
			RunE: func(cmd *cobra.Command, _ []string) error {
				ctx, cancel := ask(cmd, readLimit)
				defer cancel()
				s, err := a.client().TCPStats(ctx)
				if err != nil {
					return err
				}
				return show(a, s, printTCPStatsProfiles)
			},
		}),
		a.jsonFlag(&cobra.Command{
			Use: "set NAME FILTER", Short: "make a profile, or change it",
			Args: func(cmd *cobra.Command, words []string) error { return args(2, max(2, len(words)))(cmd, words) },
			RunE: func(cmd *cobra.Command, words []string) error {
				text := strings.Join(words[1:], " ")
				if err := checkProfileName(words[0], cmd); err != nil {
					return err
				}
				if _, err := tcpstats.Parse(text); err != nil {
					return filterError(err)
				}
				ctx, cancel := ask(cmd, readLimit)
				defer cancel()
				s, err := a.client().SetTCPStatsProfile(ctx, words[0], text)
				if err != nil {
					return err
				}
				return show(a, s, printTCPStatsProfiles)
			},
		}),
		a.jsonFlag(&cobra.Command{
			Use: "rm NAME", Short: "remove a profile; clients that have it keep its filter", Args: args(1, 1),
			RunE: func(cmd *cobra.Command, words []string) error {
				if err := checkProfileName(words[0], cmd); err != nil {
					return err
				}
				ctx, cancel := ask(cmd, readLimit)
				defer cancel()
				s, err := a.client().RemoveTCPStatsProfile(ctx, words[0])
				if err != nil {
					return err
				}
				return show(a, s, printTCPStatsProfiles)
			},
		}),
	)
	return cmd
}

func checkProfileName(name string, cmd *cobra.Command) error {
	if err := config.CheckProfileName(name); err != nil {
		return &usageError{err, cmd.UseLine()}
	}
	return nil
}

func printTCPStatsSettings(w io.Writer, s *client.TCPStats) {
	for _, v := range s.Settings {
		fmt.Fprintf(w, "%-24s %s\n", v.Key, v.Value)
	}
}

func printTCPStatsProfiles(w io.Writer, s *client.TCPStats) {
	if len(s.Profiles) == 0 {
		fmt.Fprintln(w, "(no profiles)")
	}
	for _, p := range s.Profiles {
		fmt.Fprintf(w, "%s: %s\n", p.Name, p.Filter)
	}
}

func printTCPStats(w io.Writer, s *client.TCPStats) {
	fmt.Fprintf(w, "socket                   %s\n", s.Socket)
	if s.Warning != "" {
		fmt.Fprintf(w, "warning                  %s\n", s.Warning)
	}
	printTCPStatsSettings(w, s)
	fmt.Fprintf(w, "open                     %d\nreading                  %d\n", s.Open, s.Reading)
	printStatsCounters(w, "", s.Counters)
	fmt.Fprintf(w, "%-24s %v\n%-24s %v\n", "time", time.Duration(s.TimeUS)*time.Microsecond, "longest", time.Duration(s.MaxUS)*time.Microsecond)
	if f := s.Flow; f != nil {
		fmt.Fprintf(w, "%-24s %d of %d\n%-24s %d of %d\n", "flows", f.Flows, f.MaxFlows, "flows half-open", f.HalfOpen, f.HalfLimit)
		printStatsCounters(w, "flows ", f.Counters)
	}
	for _, p := range s.Profiles {
		fmt.Fprintf(w, "%-24s %s\n", "profile "+p.Name, p.Filter)
	}
}

func printStatsCounters(w io.Writer, prefix string, counters map[string]uint64) {
	for _, name := range slices.Sorted(maps.Keys(counters)) {
		fmt.Fprintf(w, "%-24s %d\n", prefix+strings.ReplaceAll(name, "_", " "), counters[name])
	}
}
