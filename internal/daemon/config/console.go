package config

import (
	"fmt"
	"strings"
)

// Console is the serial console of a simulated card, as `sim: console:` has it:
//
//	[LINK][@OPTIONS]
//
// with commas between options: baud, no-echo, password, mdio-zero.
type Console struct {
	Link     string // symbolic link to the terminal; "" for none
	Baud     bool   // as slow as the real line, not as fast as it goes
	NoEcho   bool   // the coprocessor's terminal does not echo
	Password bool   // the login asks for a password, and takes the empty one
	MDIOZero bool   // the MDIO device's read and write return 0, and not 16
}

// ParseConsole reads the text of a console.
func ParseConsole(text string) (Console, error) {
	link, options, some := strings.Cut(text, "@")
	c := Console{Link: link}
	if !some {
		return c, nil
	}
	for _, o := range strings.Split(options, ",") {
		switch o {
		case "baud":
			c.Baud = true
		case "no-echo":
			c.NoEcho = true
		case "password":
			c.Password = true
		case "mdio-zero":
			c.MDIOZero = true
		default:
			return Console{}, fmt.Errorf("%q: want [LINK][@OPTIONS], options being baud, no-echo, password, mdio-zero with commas between them", text)
		}
	}
	return c, nil
}
