//go:build !linux

package daemon

// mayMakeInterfaces leaves it to the first interface to say that there is none.
func mayMakeInterfaces() error { return nil }
