package vfio

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// shop is a store on paper.
type shop struct {
	why  string
	most int
}

func (s shop) Why() string { return s.why }
func (s shop) Most() int   { return s.most }

func TestWhyNothingKeepsDescriptors(t *testing.T) {
	for _, tt := range []struct {
		name  string
		store Store
		want  string
	}{
		{"no store", nil, "there is no descriptor store"},
		{"one that is none", shop{"not started by a service manager", 0}, "not started by a service manager"},
		{"one that is too small", shop{"", 17}, "the descriptor store has 17 places, and oxpd needs 18"},
		{"one that does", shop{"", 18}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) { assert.Equal(t, tt.want, Options{Store: tt.store}.why()) })
	}
}
