# Everything that is built, shown, tested and checked here; `make help` lists it.
# A fresh machine needs Go and make. Go modules come from the module proxy; the
# few programs that a target runs besides are installed by tools/need.

GO       ?= go
FUZZTIME ?= 30s
# CI gives each of the fuzz targets a moment: it runs the committed corpus and looks around.
CIFUZZTIME := 2s
# How long `make soak` runs, and what. CI leaves the fresh worlds out: it shall not be red
# by luck, and has run 2,000 that are always the same.
DURATION ?= 1m
SOAKS    := MTUChangesUnderLoad|FreshWorlds
# A hang guard for one package; the slowest takes about two minutes.
TIMEOUT  := 1200s

# What the tests of switchcfg/mvsw build its program with, and run it by.
HELPERTOOLS := gcc:gcc aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu qemu-aarch64:qemu-user

# What internal/divert/daqtest builds its engine with: the package brings libdaq2 and the
# C library's headers. Its program is only there to be asked for.
DAQTOOLS := gcc:gcc daq-modules-config:libdaq-dev

# A checkout that belongs to somebody else still builds.
export GOFLAGS := $(GOFLAGS) -buildvcs=$(if $(shell git rev-parse HEAD 2>/dev/null),auto,false)

.DEFAULT_GOAL := build
.PHONY: build demo test guest witness calibrate mutants soak race fuzz bench lint helper generate docs cross ci clean help

build: ## build bin/oxpd
	$(GO) build -o bin/oxpd ./cmd/oxpd

demo: build ## the simulated card on this machine: twelve ports, jumbo frames, TCP, the sums (half a minute; root, or a user namespace; busybox for the switch)
	@bin/oxpd demo

test: ## go vet and all tests
	@tools/need ip:iproute2 xz:xz-utils busybox:busybox tcpdump:tcpdump iptables-legacy:iptables $(HELPERTOOLS) $(DAQTOOLS)
	$(GO) vet ./...
	$(GO) test -timeout $(TIMEOUT) ./...

guest: ## the card as a PCI device in a QEMU guest, verbosely (fetched once, 115 MB; OXPD_NO_GUEST=1 leaves it out)
	@tools/need xz:xz-utils
	$(GO) test -count=1 -v -timeout $(TIMEOUT) -run '^Test(Guest|Unit)$$' ./internal/guest

witness: ## the card driven by Debian's DPDK: 1,000,000 and 100,000 frames through its testpmd, compared (fetched once, 30 MB; root)
	OXPD_WITNESS=1 $(GO) test -count=1 -v -timeout $(TIMEOUT) -run '^Test(DPDK|RegisterBudget)$$' ./internal/witness

calibrate: build ## the published measurements beside what the simulated card gives (seconds)
	@bin/oxpd sim calibrate

soak: ## for DURATION (1m): MTU changes under TCP and UDP on every port (root), and random worlds of fresh seeds beside it
	@tools/need ip:iproute2
	OXPD_SOAK=$(DURATION) $(GO) test -count=1 -v -timeout 0 -run '^Test($(SOAKS))$$' ./internal/loadtest ./internal/worlds

mutants: ## breaks of the source, one at a time: each must be killed by the test that it names (four minutes)
	$(GO) run ./internal/mutants/cmd -go $(GO)

race: ## all tests but the guest's and the witness's under the race detector
	@tools/need ip:iproute2 gcc:libc6-dev busybox:busybox tcpdump:tcpdump iptables-legacy:iptables $(HELPERTOOLS) $(DAQTOOLS)
	OXPD_NO_GUEST=1 OXPD_NO_WITNESS=1 CGO_ENABLED=1 $(GO) test -race -timeout $(TIMEOUT) ./...

fuzz: ## every fuzz target for FUZZTIME (30s)
	@tools/fuzz $(FUZZTIME)

bench: ## the datapath beside a bare copy of the same bytes; what dropping a frame costs, by rules and by place, verdicts by socket, streams behind slow engines, TCP statistics, beside their bounds
	@tools/need ip:iproute2 iptables-legacy:iptables
	$(GO) test -run '^$$' -bench 'OQVisit|IQPost' -benchmem ./ring/...
	OXPD_BENCH=1 $(GO) test -p 1 -count=1 -v -timeout $(TIMEOUT) -run '^Test(CostOf|RateOf)' ./internal/daemon ./internal/loadtest ./internal/divert ./internal/tcpstats/...
	$(GO) test -run '^$$' -bench FlowsAtAPort ./internal/daemon

lint: bin/staticcheck bin/exhaustive ## gofmt, go vet, staticcheck; switches over verdicts are exhaustive
	@unformatted="$$(gofmt -l $$(git ls-files '*.go'))"; [ -z "$$unformatted" ] || { echo "gofmt -w $$unformatted"; exit 1; }
	$(GO) vet ./...
	bin/staticcheck ./...
	bin/exhaustive -explicit-exhaustive-switch ./...

# The linters are pinned in a module of their own, so that users of the packages do not inherit them.
bin/staticcheck: tools/go.mod tools/go.sum
	cd tools && $(GO) build -o ../bin/staticcheck honnef.co/go/tools/cmd/staticcheck

bin/exhaustive: tools/go.mod tools/go.sum
	cd tools && $(GO) build -o ../bin/exhaustive github.com/nishanths/exhaustive/cmd/exhaustive

helper: ## build the program for the coprocessor again (switchcfg/mvsw/helper)
	@tools/need aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu
	cd switchcfg/mvsw/helper && ./build aarch64-linux-gnu-gcc mvsw.aarch64 && chmod 644 mvsw.aarch64
	cd switchcfg/mvsw/helper && sha256sum mvsw.aarch64 >mvsw.sha256 && ./build aarch64-linux-gnu-gcc >mvsw.compiler

generate: ## write the generated reference pages again
	$(GO) run ./docs/gen

docs: ## check that no link is dead and that the generated pages are those of this source
	$(GO) test ./docs/...

cross: ## compile everything, tests too, for linux and freebsd on amd64 and arm64
	@for os in linux freebsd; do for arch in amd64 arm64; do \
		echo "$$os/$$arch"; \
		GOOS=$$os GOARCH=$$arch CGO_ENABLED=0 $(GO) build ./... && GOOS=$$os GOARCH=$$arch CGO_ENABLED=0 $(GO) vet ./... || exit 1; \
	done; done

ci: test race mutants lint cross docs ## what CI runs: test, race, mutants, lint, cross, docs, a short fuzz, the witness, the soak, demo
	@tools/fuzz $(CIFUZZTIME)
	@$(MAKE) --no-print-directory witness
	@$(MAKE) --no-print-directory soak SOAKS=MTUChangesUnderLoad
	@$(MAKE) --no-print-directory demo

clean: ## remove what was built
	rm -rf bin

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12
