package port

import "os"

// Wire is a TAP that stands for a cable: one Read or Write is one frame, and
// Read waits for one. It is up, with carrier. Read, Write and Close may be called
// concurrently; Close ends a waiting Read.
type Wire struct {
	file *os.File
	name string
}

// Name is the interface's name.
func (w *Wire) Name() string { return w.name }

// Read takes the next frame that the kernel sends. A frame longer than b is cut.
func (w *Wire) Read(b []byte) (int, error) { return w.file.Read(b) }

// Write hands a frame to the kernel. Frames shorter than an Ethernet header are
// refused (EINVAL), and all while the interface is down (EIO).
func (w *Wire) Write(b []byte) (int, error) { return w.file.Write(b) }

// Close removes the interface.
func (w *Wire) Close() error { return w.file.Close() }
