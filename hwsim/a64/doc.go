// Package a64 runs a small static AArch64 Linux program: the helper that a driver
// uploads to the simulated coprocessor is executed as the bytes that came over the
// console, on a host of any architecture.
//
// It has the base integer instructions of the Arm Architecture Reference Manual (DDI
// 0487, chapter C4) and the six system calls that such a program needs. Anything else is a Fault
// that says where: floating point and vectors, exclusive accesses, self-modifying or
// threaded programs, dynamic linking. No package for Go does this without a C library,
// and an emulator of the distribution cannot be started by an execve of the simulated
// coprocessor's shell.
package a64
