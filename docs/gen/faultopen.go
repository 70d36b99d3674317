package main

// openFaults are the failure modes that are not tested both ways, with the reason.
// A row goes from here when its second half is tested.
var openFaults = map[string]string{
	"F17": "oxpd does not drive the management link",
	"F18": "oxpd does not drive the management link",
	"D27": "the symptom is memory that is used after it was given back, which Go rules out: nothing to see",
	"R53": "oxpd does not drive the management link",
	"R54": "oxpd does not drive the management link",
	"S18": "what the global registers do is not modelled",
	"S23": "neither the CPLD nor its tool is modelled",
	"S25": "the program that oxpd brings refuses such a word",
}
