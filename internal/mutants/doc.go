// Package mutants breaks the source one line at a time and asks a named test whether
// it notices. A test that nobody has seen fail proves nothing; here each of the bugs
// that matter is put back in on every run of CI, and the test that is said to be about
// it must go red.
//
//	testdata/mutants/*.txt --Load--> Mutant --Apply--> the file, broken
//	                                                      | go test -overlay, never the tree
//	                                                      v
//	            killed: the named test fails   anything else fails the run
//
// A build that fails is no kill, nor is a test that hangs, nor the failure of another
// test. Before a test counts for anything it is run once without a mutant and must be
// green.
//
// The files are plain text. A mutant begins with its name and ends with an empty line:
//
//	name: credit per packet
//	file: ring/oq.go
//	test: ./ring TestOrderOfOnePass
//	why: a packet over six buffers gives one back, and the ring starves
//	-	o.owed += n
//	+	o.owed++
//
// Lines with a minus stand in the file one after the other, exactly once; those with a
// plus take their place. How far a line is indented does not matter. Lines that begin
// with # are comments.
package mutants
