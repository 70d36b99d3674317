package hwsim_test

import (
	"fmt"
	"time"

	"oxpd/hwsim"
)

// A card comes out of reset, its coprocessor boots, and the readiness register
// shows the magic with the place of the barmap.
func Example() {
	card := hwsim.New(hwsim.Options{Timeline: hwsim.Compressed()})
	defer card.Close()
	fmt.Printf("id %08x\n", card.ConfigRead(0, 4))
	card.ConfigWrite(4, 2, 0x0006) // memory decoding and bus mastering
	fmt.Printf("at reset %#x\n", card.Load(0, 0x20180, 8))
	card.Advance(100 * time.Millisecond)
	fmt.Printf("booted   %#x\n", card.Load(0, 0x20180, 8))
	fmt.Println("misuse:", len(card.Reports()))
	// Output:
	// id a300177d
	// at reset 0x0
	// booted   0x2000000abcdabcd
	// misuse: 0
}
