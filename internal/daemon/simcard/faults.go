package simcard

import (
	"oxpd/hwsim"
	"oxpd/internal/daemon/client"
)

// Faults are the card's faults that are on, that wait or that have acted.
func (d *Board) Faults() client.Faults {
	now := d.Card.Now()
	doc := client.Faults{Schema: client.Schema, Cycle: now, Now: float64(now) / hwsim.Hz, Faults: []client.Fault{}}
	for _, s := range d.Card.FaultStates() {
		doc.Faults = append(doc.Faults, client.Fault{Name: s.Name, Argument: s.Arg, State: s.State, At: s.At.Seconds(), Probability: s.P, Opportunity: s.Per, Acted: s.Acted})
	}
	return doc
}

// SetFaults puts faults into force, all of them or none: hwsim.ParseInjection.
func (d *Board) SetFaults(texts []string) error {
	list := make([]hwsim.Injection, len(texts))
	for n, text := range texts {
		i, err := hwsim.ParseInjection(text)
		if err != nil {
			return err
		}
		list[n] = i
	}
	if err := d.Card.Inject(list...); err != nil {
		return err
	}
	for _, text := range texts {
		d.log.Warn("fault of the simulated card", "fault", text)
	}
	return nil
}

// ClearFault ends a fault by name; all ends every one.
func (d *Board) ClearFault(name string) error {
	if err := d.Card.ClearFault(name); err != nil {
		return err
	}
	d.log.Info("fault of the simulated card has ended", "fault", name)
	return nil
}
