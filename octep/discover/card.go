package discover

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"oxpd/internal/board"
	"oxpd/internal/dma"
)

// Host is the machine, as far as the search goes.
type Host struct {
	Sys   string     // root of sysfs
	Proc  string     // root of procfs
	Root  bool       // the process is root
	Needs []dma.Need // memory that oxpd takes

	write func(path, text string) error // to a file of sysfs; nil is put
}

// Card is one function of the card: the physical one, which oxpd drives, or a virtual
// one, which it only shows.
type Card struct {
	Address  string `json:"address"`
	Vendor   string `json:"vendor"`
	Device   string `json:"device"`
	Class    string `json:"class"`
	Virtual  bool   `json:"virtual"`
	Driver   string `json:"driver,omitempty"`   // bound now
	Override string `json:"override,omitempty"` // driver_override
	IOMMU    *IOMMU `json:"iommu,omitempty"`    // nil: no IOMMU is in the way
	BARs     []BAR  `json:"bars"`
	Command  string `json:"command"`
	Memory   bool   `json:"memory_decoding"`
	Master   bool   `json:"bus_mastering"`
	Power    string `json:"power,omitempty"`

	Link         *Link        `json:"link,omitempty"`
	MSIX         *MSIX        `json:"msix,omitempty"`
	Capabilities []Capability `json:"capabilities"`
	Obstacles    []Obstacle   `json:"obstacles"`

	dir    string // of the function in sysfs
	config *Config
}

// IOMMU is the group that the function is in.
type IOMMU struct {
	Group   string   `json:"group"`
	Type    string   `json:"type"`    // of its domain: identity, DMA, DMA-FQ; empty: not known
	Members []string `json:"members"` // other functions
}

// BAR is a memory window of the function.
type BAR struct {
	Index int    `json:"bar"`
	At    string `json:"address"`
	Size  uint64 `json:"size"`
}

// address is a PCI address as sysfs writes it; short is one without its domain.
var (
	address = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)
	short   = regexp.MustCompile(`^[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)
)

// AddressError is a name that is no PCI address.
type AddressError struct{ Name string }

func (e *AddressError) Error() string {
	return fmt.Sprintf("device %q: want a PCI address such as 0000:01:00.0", e.Name)
}

// ParseAddress returns a PCI address as sysfs writes it; the domain may be left out.
// Error: *AddressError. What it returns has no separator of paths in it.
func ParseAddress(name string) (string, error) {
	a := strings.ToLower(name)
	if short.MatchString(a) {
		a = "0000:" + a
	}
	if !address.MatchString(a) {
		return "", &AddressError{name}
	}
	return a, nil
}

// ErrNone says that there is no card.
var ErrNone = fmt.Errorf("no card (%04x:%04x) is on the PCI bus", board.Vendor, board.DevicePF)

// SeveralError says that there is more than one card to drive.
type SeveralError struct{ Addresses []string }

func (e *SeveralError) Error() string {
	return fmt.Sprintf("%d cards are on the PCI bus: %s", len(e.Addresses), strings.Join(e.Addresses, ", "))
}

// Hint is what an operator can do.
func (e *SeveralError) Hint() string {
	return "say which one, as in --device " + e.Addresses[0] + "; oxpd devices shows them"
}

// NotTheCardError is a function that is something else.
type NotTheCardError struct {
	Address        string
	Vendor, Device uint16
}

func (e *NotTheCardError) Error() string {
	what := "not the card"
	if e.Vendor == board.Vendor && e.Device == board.DeviceVF {
		what = "a virtual function of the card, which is only shown"
	}
	return fmt.Sprintf("%s is %04x:%04x, %s (%04x:%04x)", e.Address, e.Vendor, e.Device, what, board.Vendor, board.DevicePF)
}

// Hint is what an operator can do.
func (e *NotTheCardError) Hint() string { return "oxpd devices shows the cards of this machine" }

// One finds the card when nobody named it. Errors: ErrNone, *SeveralError.
func (h Host) One() (*Card, error) {
	cards, err := h.Cards()
	if err != nil {
		return nil, err
	}
	var physical []*Card
	for i := range cards {
		if !cards[i].Virtual {
			physical = append(physical, &cards[i])
		}
	}
	switch len(physical) {
	case 0:
		return nil, ErrNone
	case 1:
		return physical[0], nil
	}
	several := &SeveralError{}
	for _, c := range physical {
		several.Addresses = append(several.Addresses, c.Address)
	}
	return nil, several
}

// Find returns the card of that name, or the only one for an empty name. Errors:
// those of One; *AddressError, *NotTheCardError, fs.ErrNotExist.
func (h Host) Find(name string) (*Card, error) {
	if name == "" {
		return h.One()
	}
	a, err := ParseAddress(name)
	if err != nil {
		return nil, err
	}
	c, err := h.Card(a)
	if err != nil {
		return nil, err
	}
	if c.Virtual {
		return nil, &NotTheCardError{a, board.Vendor, board.DeviceVF}
	}
	return c, nil
}

// File is a file of the function in sysfs.
func (c *Card) File(name string) string { return filepath.Join(c.dir, name) }

// Blocking are the obstacles that keep oxpd from driving the card.
func (c *Card) Blocking() (stops []Obstacle) {
	for _, o := range c.Obstacles {
		if o.Level == Stop {
			stops = append(stops, o)
		}
	}
	return stops
}

// BlockedError is a card that cannot be driven as it is.
type BlockedError struct {
	Address   string
	Obstacles []Obstacle
}

func (e *BlockedError) Error() string {
	texts := make([]string, len(e.Obstacles))
	for i, o := range e.Obstacles {
		texts[i] = o.Text
	}
	return fmt.Sprintf("%s cannot be driven: %s", e.Address, strings.Join(texts, "; "))
}

// Hint is every command that removes something, in order.
func (e *BlockedError) Hint() string {
	var commands []string
	for _, o := range e.Obstacles {
		if o.Command != "" {
			commands = append(commands, o.Command)
		}
	}
	return strings.Join(commands, "; then ")
}
