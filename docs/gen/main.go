// Command gen writes the reference pages that follow from the source: registers,
// commands, counters, ports, command line, configuration, and what the simulator
// can be told; and what follows from its times, a picture and the golden trace.
// `make generate` runs it; the files are committed, and a test compares them with
// what it would write.
//
// Tables come from the values that the program uses, sentences from the comments
// beside them. It needs the Go tool and no network.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"oxpd/internal/trace/scene"
)

func main() {
	root := flag.String("C", ".", "folder of the module")
	flag.Parse()
	pages, err := generate(*root)
	if err == nil {
		err = write(*root, pages)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "gen: %v\n", err)
		os.Exit(1)
	}
}

// page is one generated file.
type page struct {
	path string // from the module's folder
	text string
}

// generate makes all pages from the module in root.
func generate(root string) ([]page, error) {
	var pages []page
	for _, p := range []struct {
		path string
		text func(root string) (string, error)
	}{
		{"docs/reference/registers.md", registers},
		{"docs/reference/rpc.md", commands},
		{"docs/reference/counters.md", counters},
		{"docs/reference/ports.md", ports},
		{"docs/reference/cli.md", commandLine},
		{"docs/reference/config.md", configuration},
		{"docs/reference/probe.md", probeDocument},
		{"docs/reference/tcpstats-fields.md", statsFields},
		{"docs/simulator/options.md", options},
		{"docs/simulator/faults.md", faults},
		{"docs/contributing/mutants.md", mutantList},
		{"docs/simulator/fault-tests.md", faultTests},
		{"docs/simulator/constants.md", constants},
		{"docs/simulator/calibration.md", calibration},
		{"docs/simulator/trace.md", tracePage},
		{"docs/simulator/jumbo.svg", jumboPicture},
		{"internal/trace/scene/testdata/" + scene.Golden + ".json", goldenTrace},
	} {
		text, err := p.text(root)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.path, err)
		}
		pages = append(pages, page{p.path, text})
	}
	return pages, nil
}

func write(root string, pages []page) error {
	for _, p := range pages {
		path := filepath.Join(root, filepath.FromSlash(p.path))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("make folder: %w", err)
		}
		if err := os.WriteFile(path, []byte(p.text), 0o644); err != nil {
			return fmt.Errorf("write page: %w", err)
		}
	}
	return nil
}
