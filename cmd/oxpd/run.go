package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"oxpd/hwsim"
	"oxpd/internal/daemon"
	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/internal/daemon/simcard"
	"oxpd/internal/fdstore"
	"oxpd/octep"
)

func (a *app) runCommand() *cobra.Command {
	var (
		card  choice
		debug bool
		file  string
	)
	cmd := &cobra.Command{
		Use: "run", Short: "the daemon", Args: args(0, 0),
		Long: "Brings the card up, gives the host its twelve ports as oxp1 to oxp12, and serves until SIGTERM, SIGINT or oxpd stop.\n" +
			"Drives the card of this machine; --device says which, if there are several. --sim drives a simulated card inside this process,\n" +
			"with --fault as oxpd sim serve has it; --device vfio-user:PATH one that oxpd sim serve shows on a socket. With access: vfio in the\n" +
			"configuration the card is reached through vfio-pci and an IOMMU (oxpd bind), and refused where that may reset it: what a reset does to a coprocessor that runs is on no record.\n" +
			"SIGHUP reads the configuration file again, with the same flags laid over it: settings of ports, link-poll, reconcile\n" +
			"and the switch's console, jumbo, size and watch, filters, divert and tcpstats are put into force, and the log names each other key that has changed, and needs a restart.\n" +
			"What a command has set at the switch stands unless one of its keys has changed. A file that is wrong changes nothing.\n" +
			"Under a service manager that keeps descriptors, only oxpd stop removes interfaces: the next start goes on where this one ended.\n" +
			"Exit status 3 when starting it again does not help: the coprocessor knows rings that cannot be taken over.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			r := &reader{named: cmd.Flags().Changed("config"), file: file, socket: a.socket}
			if r.named && file == "" {
				return &usageError{errNoFile, cmd.UseLine()}
			}
			cfg, err := r.read(cmd.Context())
			if err != nil {
				return err
			}
			wrong, err := parseFaults(card.faults)
			if err != nil {
				return &usageError{err, cmd.UseLine()}
			}
			from, err := opener(card, cfg, cmd.UseLine())
			if err != nil {
				return err
			}
			return a.run(cmd.Context(), cfg, r, debug, from, wrong)
		},
	}
	cmd.Flags().BoolVar(&card.sim, "sim", false, "drive the simulated card inside this process")
	cmd.Flags().StringVar(&card.device, "device", "", "drive the card at this PCI address, or at vfio-user:PATH, the socket of oxpd sim serve")
	cmd.Flags().BoolVar(&card.acceptReset, "i-accept-reset", false, "with access: vfio, open the card also where that, or its end, may reset it")
	cmd.Flags().StringArrayVar(&card.faults, "fault", nil, "with --sim, how the card misbehaves: NAME[=ARGUMENT][@WHEN][%P] (see oxpd sim faults)")
	cmd.Flags().StringVar(&file, "config", "", "configuration file (see oxpd config show)")
	cmd.Flags().BoolVar(&debug, "debug", false, "log each control operation")
	return cmd
}

// reader reads the configuration of a run, at its start and at each SIGHUP.
type reader struct {
	named        bool // a file was named; without one, the defaults hold
	file, socket string
}

// read returns the file's configuration with the flags laid over it.
func (r *reader) read(ctx context.Context) (config.Config, error) {
	cfg := config.Default()
	if r.named {
		var err error
		if cfg, err = load(ctx, r.file); err != nil {
			return cfg, err
		}
	}
	if r.socket != "" {
		cfg.Socket = r.socket
	}
	return cfg, nil
}

// run is the daemon, with the card of a source; nil: a simulated one of its own, with
// faults.
func (a *app) run(ctx context.Context, cfg config.Config, r *reader, debug bool, from *source, faults []hwsim.Injection) error {
	level := slog.LevelInfo
	if debug {
		level = slog.LevelDebug
	}
	a.log = newLogWriter(a.err)
	a.err = a.log // what is said at the end too: nobody may read it
	log := slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: level}))
	store := fdstore.Open()
	simulated := from == nil
	if simulated {
		from = &source{simcard.Name, func(context.Context, *fdstore.Store, *slog.Logger) (octep.Device, error) {
			return simcard.Open(cfg.Sim, log, faults...)
		}}
	}
	d := daemon.New(daemon.Options{
		Config:    cfg,
		Version:   buildVersion().String(),
		Simulated: simulated,
		Logger:    log,
		Device:    from.name,
		Open:      func(ctx context.Context) (octep.Device, error) { return from.open(ctx, store, log) },
		Store:     store,

		OpenSwitch: daemon.ConsoleWay(log),
	})
	defer r.heed(d, log)()
	err := d.Run(ctx)
	var running *daemon.RunningError
	if errors.As(err, &running) {
		if _, err := os.Lstat(cfg.Socket); errors.Is(err, fs.ErrNotExist) {
			return (&client.HeldError{Socket: running.Socket, PID: running.PID})
		}
		return &hinted{err, "use it (oxpd status" + socketFlag(cfg.Socket) + "), stop it (oxpd stop" + socketFlag(cfg.Socket) + "), or give --socket another path"}
	}
	return err
}

// heed reads the configuration again at each SIGHUP, and has the daemon heed it,
// until the function that it returns is called. Without a file there is nothing to
// read: SIGHUP, which also comes with a terminal that goes away, is then only logged.
func (r *reader) heed(d *daemon.Daemon, log *slog.Logger) (undo func()) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, unix.SIGHUP)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-hup:
				r.again(ctx, d, log)
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		signal.Stop(hup)
		cancel()
		<-done
	}
}

func (r *reader) again(ctx context.Context, d *daemon.Daemon, log *slog.Logger) {
	if !r.named {
		log.Warn("SIGHUP: no configuration file was named at the start, and nothing is read", "end", "SIGTERM or oxpd stop")
		return
	}
	cfg, err := r.read(ctx)
	if err == nil {
		log.Info("SIGHUP: the configuration file is read again", "file", r.file)
		d.Reload(ctx, cfg)
		return
	}
	for _, e := range parts(err) {
		log.Error("SIGHUP: the configuration file is refused, nothing changes", "err", e)
	}
}

// parts are the errors that were joined.
func parts(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}
