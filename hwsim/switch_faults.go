package hwsim

import "oxpd/switchcfg/reg"

// SwitchFaults are the faults of the switch and of the MDIO bus that leads to it
// (switch.md 9); the zero value is a switch without any. A field that counts is
// used up as it acts.
type SwitchFaults struct {
	SwitchSilent      bool           // nothing answers at the switch's address: reads 0xffff, writes are lost
	SwitchStuckBusy   bool           // the switch's busy bit stays set, and the command is not run
	SwitchPHYStuck    bool           // the same for the PHY command register in Global2
	SwitchWrongReads  int            // every nth reading of the switch's data register is wrong, 0x007f and 0x0000 in turn; 2 is what pokes at the MDIO controller gave
	SwitchForeignData int            // the next n times that the data register is written, a command of somebody else falls in behind it and overwrites it
	SwitchForeignRead int            // the next n reads: the same, before the data register is read
	SwitchForeignBusy int            // the next n commands meet one of somebody else, and are lost
	SwitchNoStick     [reg.Ports]int // the next n writes of a port's register 8 are lost; negative: all
	SwitchID          uint32         // instead of 0x1930 in the identifier registers, when not 0
	SwitchRewrite     bool           // NetAgent writes register 8 as it was found when it raises or lowers a port
	SwitchUplink      uint32         // port 0 is found with the mode of so many bytes (1522 or 2048) instead of 10240, when not 0
}
