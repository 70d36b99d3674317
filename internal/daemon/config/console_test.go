package config

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestParseConsole(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       Console
		bad        bool
	}{
		{name: "nothing"},
		{name: "link", text: "/run/con", want: Console{Link: "/run/con"}},
		{name: "options alone", text: "@baud", want: Console{Baud: true}},
		{name: "all of it", text: "con@baud,no-echo,password,mdio-zero", want: Console{"con", true, true, true, true}},
		{name: "no options", text: "con@", bad: true},
		{name: "unknown option", text: "con@baud,fast", bad: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ParseConsole(tc.text)
			assert.Equal(t, tc.want, got)
			assert.Equal(t, tc.bad, err != nil)
		})
	}
}
