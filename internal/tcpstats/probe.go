package tcpstats

import (
	"context"
	"runtime/trace"
)

// Point is a place that shows in a trace of the runtime (go tool trace) as a region.
type Point string

// Points.
const (
	PointRead           Point = "tcpstats.read"
	PointReadDone       Point = "tcpstats.read-done"
	PointSkip           Point = "tcpstats.filter-skip"
	PointMatch          Point = "tcpstats.filter-match"
	PointFill           Point = "tcpstats.fill-done"
	PointProfileCreate  Point = "tcpstats.profile-create"
	PointProfileDestroy Point = "tcpstats.profile-destroy"
)

// Points are all of them.
func Points() []Point {
	return []Point{PointRead, PointReadDone, PointSkip, PointMatch, PointFill, PointProfileCreate, PointProfileDestroy}
}

// Probe marks a point. It is a load and a branch when nobody traces.
func Probe(ctx context.Context, p Point) {
	if trace.IsEnabled() {
		mark(ctx, p)
	}
}

// Tracing tells whether anybody traces: a loop asks once and spares itself the calls.
func Tracing() bool { return trace.IsEnabled() }

func mark(ctx context.Context, p Point) { trace.StartRegion(ctx, string(p)).End() }
