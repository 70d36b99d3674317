package client

import (
	"errors"
	"fmt"
	"strings"
)

// MaxSocket is how long the path of a unix socket may be, in bytes: the kernel's
// sun_path less its end.
const MaxSocket = 107

// CheckSocket refuses a path that no socket can have.
func CheckSocket(path string) error {
	switch {
	case path == "":
		return errors.New("empty: want a path")
	case len(path) > MaxSocket:
		return fmt.Errorf("%s has %d bytes: the path of a socket has at most %d", path, len(path), MaxSocket)
	case strings.ContainsRune(path, 0):
		return fmt.Errorf("%q has a zero byte in it", path)
	case strings.HasSuffix(path, "/"):
		return fmt.Errorf("%q is a directory: want the path of a socket", path)
	}
	return nil
}
