package main

import (
	"bytes"
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/octep/discover"
	"oxpd/octep/vfio"
)

// leftBehind are the names that the process before left, and what is done about them.
type leftBehind struct {
	names []string
	did   []string
}

func (l *leftBehind) Why() string             { return "" }
func (l *leftBehind) Most() int               { return 64 }
func (l *leftBehind) Came(name string) bool   { return slices.Contains(l.names, name) }
func (l *leftBehind) Take(string) (int, bool) { l.did = append(l.did, "take"); return -1, false }
func (l *leftBehind) Remove(name string) error {
	l.did = append(l.did, "remove "+name)
	return nil
}
func (l *leftBehind) Settle(context.Context) error { l.did = append(l.did, "settle"); return nil }

// A process that died while it left its card had told it nothing: what it left is thrown
// away, and gone, before the card is opened. A card that was left is gone on with, or left
// alone.
func TestOpenVFIO(t *testing.T) {
	var all []string
	for _, n := range vfio.Kept() {
		all = append(all, "remove "+n)
	}
	for _, tt := range []struct {
		name  string
		left  []string
		did   []string
		adopt bool
	}{
		{"nothing was left", []string{"state", "tap oxp1"}, nil, false},
		{"all but the function", []string{vfio.KeptLock, vfio.KeptIOMMU, vfio.KeptGroup, vfio.KeptMemory}, append(all, "settle"), false},
		{"one descriptor", []string{vfio.KeptLock}, append(all, "settle"), false},
		{"all", vfio.Kept(), slices.Repeat([]string{"take"}, len(vfio.Kept())), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			store := &leftBehind{names: tt.left}
			c := &discover.Card{Address: "0000:01:00.0", IOMMU: &discover.IOMMU{Group: "7"}}
			_, err := openVFIO(context.Background(), discover.Host{Sys: t.TempDir()}, c, store, false)
			var adopt *vfio.AdoptError
			if tt.adopt {
				require.ErrorAs(t, err, &adopt)
				assert.Equal(t, exitFinal, (&app{err: &bytes.Buffer{}}).report(err), "another start does not help")
			} else {
				require.ErrorIs(t, err, vfio.ErrNotBound, "it is opened")
			}
			assert.Equal(t, tt.did, store.did)
		})
	}
}
