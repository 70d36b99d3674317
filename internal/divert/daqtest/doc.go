// Package daqtest has an inline engine that knows nothing of oxpd: a C program of 200
// lines around libdaq 2, Snort's acquisition library, which bridges two interfaces by
// the library's module afpacket. Tests only. Debian's packages are libdaq-dev (with
// libdaq2) and gcc; `make test` installs them.
//
//	Build   the program, compiled
//	Start   an engine between two interfaces of a namespace
//	Stop    its end, and what it counted
//
// What the module does that one would not expect (libdaq 2.0.7, read and seen; the
// package's tests show it):
//
//   - A frame longer than its snaplen is cut, and the rest forwarded without a word. A
//     snaplen of 1,518 makes slots for 1,530 bytes, so that is what is left of a frame of
//     9,014.
//   - A frame is forwarded by a slot of the sending ring of the other interface. When that
//     interface's MTU has become too small for the frame, the kernel refuses the slot
//     (TP_STATUS_WRONG_FORMAT) and stays at it, while the module goes on to the next: this
//     direction of the engine is dead from then on, until it is started again, however
//     short the frames are.
//   - A frame whose outer tag is 802.1ad comes back with 0x8100 in its place.
//   - The rings have 128 MB unless told otherwise: Options.Buffer is smaller.
package daqtest
