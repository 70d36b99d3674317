// Package cputime reads how much CPU time one thread of this process has used, in its own
// code and in the kernel for it. It is how measurements tell the driver's time from that of
// a simulated card in the same process: each goroutine that is to be told apart is bound to a
// thread (Bind), whose clock anybody may read.
//
// The clock is the kernel's for a thread (clock_getcpuclockid(3)): nanoseconds that it was
// running, whoever else wanted the core. What the kernel does within a system call is the
// caller's: a write to a TAP interface takes the frame through the receive path,
// netfilter's tables included, before it returns. What the kernel puts off to ksoftirqd is
// nobody's; Softirq reads that, in the ticks of 10 ms that /proc has.
//
// Left out: time of other processes, hardware counters. Of a bound goroutine, what the Go
// runtime does elsewhere on its behalf: garbage, the wake-up by another thread.
package cputime
