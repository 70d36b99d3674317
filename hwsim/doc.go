// Package hwsim is the card as a driver meets it: the PCIe endpoint of the
// OCTEON TX, the packet rings, the fast path between them and the twelve front
// ports, and the software on the coprocessor that brings all of it up.
package hwsim
