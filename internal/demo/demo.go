package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
)

// Options of Run.
type Options struct {
	JSON bool      // print the Report as JSON when all is done, instead of lines as it goes
	Out  io.Writer // the lines or the document
	Err  io.Writer // why there are none
	Exe  string    // the oxpd program to start
}

// Exit statuses of Run.
const (
	exitOK     = 0
	exitFailed = 1
)

// Run shows and checks everything and returns the exit status: 0 when each
// check holds, 1 when one does not or when the demo could not be run. It ends
// early with the context, and then with 1.
func Run(ctx context.Context, o Options) int {
	r := &reporter{start: now(), quiet: o.JSON, out: o.Out}
	err := run(ctx, o, r)
	if err != nil {
		fmt.Fprintf(o.Err, "oxpd demo: %v\n", err)
	}
	doc := r.finish(err)
	if o.JSON {
		b, err := json.MarshalIndent(doc, "", "  ")
		if err == nil {
			_, err = fmt.Fprintf(o.Out, "%s\n", b)
		}
		if err != nil {
			fmt.Fprintf(o.Err, "oxpd demo: print the document: %v\n", err)
			return exitFailed
		}
	}
	if !doc.OK {
		return exitFailed
	}
	return exitOK
}
