package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"oxpd/internal/daemon/client"
)

// version is this tree's. A build from a checkout adds the revision.
const version = "0.1.0"

// versionDoc is what `oxpd version --json` prints.
type versionDoc struct {
	Schema   int    `json:"schema"`
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"` // built from a changed checkout
	Go       string `json:"go"`
}

func buildVersion() versionDoc {
	v := versionDoc{Schema: client.Schema, Version: version, Go: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

// String is "0.1.0 (5a9c85f0b1c2, modified)".
func (v versionDoc) String() string {
	const short = 12
	if v.Revision == "" {
		return v.Version
	}
	s := v.Version + " (" + v.Revision[:min(short, len(v.Revision))]
	if v.Modified {
		s += ", modified"
	}
	return s + ")"
}

func printVersion(w io.Writer, v *versionDoc) { fmt.Fprintf(w, "oxpd %s, %s\n", v, v.Go) }
