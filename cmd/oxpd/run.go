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

	"oxpd/internal/daemon"
	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/internal/daemon/simcard"
	"oxpd/octep"
)

// errNoCard says what this version cannot reach.
var errNoCard = errors.New("this version reaches no PCI device, only the simulated card")

func (a *app) runCommand() *cobra.Command {
	var (
		sim, debug bool
		file       string
	)
	cmd := &cobra.Command{
		Use: "run", Short: "the daemon", Args: args(0, 0),
		Long: "Brings the card up, gives the host its twelve ports as oxp1 to oxp12, and serves until SIGTERM, SIGINT or oxpd stop.\n" +
			"SIGHUP is logged and does nothing else: this version reads its configuration once, when it starts.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg := config.Default()
			if cmd.Flags().Changed("config") {
				var err error
				if cfg, err = load(cmd, file); err != nil {
					return err
				}
			}
			if a.socket != "" {
				cfg.Socket = a.socket
			}
			if !sim {
				return &hinted{errNoCard, "oxpd run --sim"}
			}
			return a.run(cmd.Context(), cfg, debug)
		},
	}
	cmd.Flags().BoolVar(&sim, "sim", false, "drive the simulated card inside this process")
	cmd.Flags().StringVar(&file, "config", "", "configuration file (see oxpd config show)")
	cmd.Flags().BoolVar(&debug, "debug", false, "log each control operation")
	return cmd
}

func (a *app) run(ctx context.Context, cfg config.Config, debug bool) error {
	level := slog.LevelInfo
	if debug {
		level = slog.LevelDebug
	}
	a.log = newLogWriter(a.err)
	a.err = a.log // what is said at the end too: nobody may read it
	log := slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: level}))
	defer ignore(log)()
	err := daemon.New(daemon.Options{
		Config:    cfg,
		Version:   buildVersion().String(),
		Simulated: true,
		Logger:    log,
		Open: func(context.Context) (octep.Device, error) {
			return simcard.Open(cfg.Sim, log)
		},
	}).Run(ctx)
	var running *daemon.RunningError
	if errors.As(err, &running) {
		if _, err := os.Lstat(cfg.Socket); errors.Is(err, fs.ErrNotExist) {
			return (&client.HeldError{Socket: running.Socket, PID: running.PID})
		}
		return &hinted{err, "use it (oxpd status" + socketFlag(cfg.Socket) + "), stop it (oxpd stop" + socketFlag(cfg.Socket) + "), or give --socket another path"}
	}
	return err
}

// ignore keeps SIGHUP, which comes with a terminal that goes away or from somebody
// who wants the configuration read again, from ending the daemon without its stop
// sequence, until the function that it returns is called.
func ignore(log *slog.Logger) (undo func()) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, unix.SIGHUP)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-hup:
				log.Warn("SIGHUP is ignored: the configuration is read once, at the start", "end", "SIGTERM or oxpd stop")
			case <-quit:
				return
			}
		}
	}()
	return func() {
		signal.Stop(hup)
		close(quit)
		<-done
	}
}
