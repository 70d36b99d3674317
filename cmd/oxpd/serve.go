package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"oxpd/hwsim"
	"oxpd/hwsim/vfiouser"
	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/internal/daemon/simcard"
	"oxpd/internal/sys"
	"oxpd/octep/csr"
)

func (a *app) serveCommand() *cobra.Command {
	var (
		path          string
		function      = functionPF
		wires, faults []string
		sim           = config.Default().Sim
		debug         bool
	)
	cmd := &cobra.Command{
		Use: "serve --vfio-user PATH", Short: "a simulated card as a PCI device on a unix socket", Args: args(0, 0),
		Long: "Makes a simulated card and shows it at PATH as a PCI device, in the vfio-user protocol: to QEMU (-device vfio-user-pci), and\n" +
			"to oxpd run --device vfio-user:PATH. One client at a time. The process is one boot of the coprocessor, whoever connects: a\n" +
			"client that comes back finds the card as it left it.\n\n" +
			"--wire says what hangs at a front port, and may be given once for each: tap:NAME[@NETNS] (root), pcap:IN[,OUT][@OPTIONS],\n" +
			"loop:PORT, or unix:PATH, a SOCK_SEQPACKET socket on which a message is a frame. The link of a unix wire is up while somebody\n" +
			"is connected to it, that of a port without a wire is down.\n\n" +
			"--console makes a symbolic link to the terminal of the coprocessor's serial console, with a boot loader, a login (root, no password) and\n" +
			"a shell, which is busybox. Options behind an @: baud (115,200, as the real line), no-echo, password, mdio-zero.\n\n" +
			"--fault has the card misbehave from the start, by a name or row of oxpd sim faults or a field of docs/simulator/faults.md: Gone, LateTail=0,3 (rings),\n" +
			"LateBy=1ms, SkipEntries=0:5 (ring 0, five of them). With @10ms or @8000000 behind it, from that time or cycle on; with %0.01, at one in\n" +
			"a hundred opportunities (a packet, a doorbell, a command ...): LoseMessages=3@1s%0.01.\n\n" +
			"--function vf shows one virtual function (177d:a303) instead, for a driver of those, which oxpd is not: one ring, and what is\n" +
			"sent on it comes back on it. Nothing boots behind it and no front port is: --wire and --timeline are for pf.\n\n" +
			"Prints one line, ready, when all sockets listen, and serves until SIGTERM or SIGINT.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if path == "" {
				return &usageError{errors.New("where? --vfio-user is missing"), cmd.UseLine()}
			}
			if err := client.CheckSocket(path); err != nil {
				return &usageError{fmt.Errorf("--vfio-user %q: %w", path, err), cmd.UseLine()}
			}
			shown, err := parseFunction(function)
			if err == nil && shown == hwsim.VF {
				err = onlyPF(cmd)
			}
			if err != nil {
				return &usageError{err, cmd.UseLine()}
			}
			sim.Wires = map[string]string{}
			for _, w := range wires {
				port, spec, ok := strings.Cut(w, "=")
				if !ok {
					return &usageError{fmt.Errorf("--wire %q: want PORT=WIRE, such as F1=unix:/run/f1.sock", w), cmd.UseLine()}
				}
				if _, twice := sim.Wires[port]; twice {
					return &usageError{fmt.Errorf("--wire %q: %s has a wire already", w, port), cmd.UseLine()}
				}
				sim.Wires[port] = spec
			}
			wrong, err := parseFaults(faults)
			if err != nil {
				return &usageError{err, cmd.UseLine()}
			}
			cfg := config.Default()
			cfg.Sim = sim
			if err := cfg.Check(); err != nil {
				return err
			}
			level := slog.LevelInfo
			if debug {
				level = slog.LevelDebug
			}
			a.log = newLogWriter(a.err)
			a.err = a.log
			return a.serve(cmd.Context(), path, shown, sim, wrong, slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: level})))
		},
	}
	f := cmd.Flags()
	f.StringVar(&path, "vfio-user", "", "socket that the card is shown on")
	f.StringVar(&function, "function", function, "what is shown: pf (the card) or vf (a virtual function with a loopback behind it)")
	f.StringArrayVar(&wires, "wire", nil, "what hangs at a front port: PORT=WIRE")
	f.StringVar(&sim.Console, "console", "", "give the coprocessor a serial console: LINK[@OPTIONS], a symbolic link that is made to its terminal")
	f.StringArrayVar(&faults, "fault", nil, "how the card misbehaves: NAME[=ARGUMENT][@WHEN][%P] (see oxpd sim faults)")
	f.Uint64Var(&sim.Seed, "seed", sim.Seed, "seed of what the model draws at random")
	f.StringVar(&sim.Timeline, "timeline", sim.Timeline, "boot of the card: compressed (well under a second) or real (minutes)")
	f.BoolVar(&debug, "debug", false, "log each command that is refused")
	return cmd
}

// parseFaults reads the arguments of --fault.
func parseFaults(list []string) (wrong []hwsim.Injection, err error) {
	for _, text := range list {
		i, err := hwsim.ParseInjection(text)
		if err == nil {
			err = i.Check()
		}
		if err == nil && i.After {
			err = errors.New("nothing has begun: leave the + out")
		}
		if err != nil {
			return nil, fmt.Errorf("--fault %q: %w", text, err)
		}
		wrong = append(wrong, i)
	}
	return wrong, nil
}

// What --function takes.
const (
	functionPF = "pf"
	functionVF = "vf"
)

func parseFunction(s string) (hwsim.Function, error) {
	switch s {
	case functionPF:
		return hwsim.PF, nil
	case functionVF:
		return hwsim.VF, nil
	}
	return 0, fmt.Errorf("--function %q: want %s or %s", s, functionPF, functionVF)
}

// onlyPF refuses flags that say something about what a virtual function does not have.
func onlyPF(cmd *cobra.Command) error {
	for _, f := range []struct{ name, why string }{{"wire", "no front port is"}, {"timeline", "nothing boots"}, {"console", "nothing boots"}} {
		if cmd.Flags().Changed(f.name) {
			return fmt.Errorf("--%s with --function %s: %s behind a virtual function; leave one of them out", f.name, functionVF, f.why)
		}
	}
	return nil
}

// serve shows a card until ctx ends.
func (a *app) serve(ctx context.Context, path string, shown hwsim.Function, sim config.Sim, faults []hwsim.Injection, log *slog.Logger) (err error) {
	bar2, err := vfiouser.NewMemory()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bar2.Close()) }()
	card, err := simcard.NewBoard(sim, log, func(o *hwsim.Options) {
		o.Function, o.HostVectors, o.Windows = shown, true, bar2.Windows()
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, card.Close()) }()
	if sim.Console != "" {
		if err := card.OpenConsole(sim.Console); err != nil {
			return err
		}
	}
	if err := card.Card.Inject(faults...); err != nil {
		return err
	}
	for _, p := range unwired(sim.Wires) {
		card.Card.Wire(uint16(p.Tag)).SetLink(false)
	}
	ln, err := sys.ListenUnix("unix", path)
	if err != nil {
		return err
	}
	s := vfiouser.New(ln, card.Card, bar2, log)
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	defer tell(card.Card, log)
	card.Card.Start()
	fmt.Fprintln(a.out, "ready")
	select {
	case <-ctx.Done():
		return errors.Join(s.Close(), <-served)
	case err := <-served:
		return errors.Join(err, s.Close())
	}
}

// tell logs at the end what was done to the card that is done once in a boot. What must
// not be done to one at all is told by the board.
func tell(card *hwsim.Card, log *slog.Logger) {
	offers, bases := 0, uint64(0)
	for _, w := range card.HandshakeWrites() {
		if w.Value == csr.HostLoaded {
			offers++
		}
	}
	for reg, n := range card.Accesses() {
		if strings.HasPrefix(reg, "IN_INSTR_BADDR[") || strings.HasPrefix(reg, "OUT_SLIST_BADDR[") {
			bases += n.Writes
		}
	}
	log.Info("card ends", "handshakes", offers, "base_writes", bases)
}

// unwired are the ports that nothing hangs at; a cable hangs at both of its ends.
func unwired(wires map[string]string) []board.Port {
	at := map[int]bool{}
	for name, text := range wires {
		p, err := board.Parse(name)
		w, bad := config.ParseWire(text)
		if err != nil || bad != nil {
			continue // refused before
		}
		at[p.Index] = true
		if w.Kind == config.WireLoop {
			at[w.Peer.Index] = true
		}
	}
	var out []board.Port
	for _, p := range board.All() {
		if !at[p.Index] {
			out = append(out, p)
		}
	}
	return out
}
