package guest

import (
	"fmt"
	"io"
	"path"
	"sort"
)

// Types of an entry, with its permissions.
const (
	cpioDir  = 0o040755
	cpioFile = 0o100755
	cpioLink = 0o120777
	cpioPerm = 0o777
)

// writeInitrd writes files by their path as an archive that the kernel unpacks as
// its first file system (cpio, "newc"). Directories are made as they are needed.
func writeInitrd(w io.Writer, files map[string][]byte) error {
	dirs := map[string]bool{}
	var names []string
	for name := range files {
		names = append(names, name)
		for d := path.Dir(name); d != "." && d != "/"; d = path.Dir(d) {
			dirs[d] = true
		}
	}
	for d := range dirs {
		names = append(names, d)
	}
	sort.Strings(names) // a directory comes before what is in it
	for i, name := range names {
		mode, body := uint32(cpioFile), files[name]
		if dirs[name] {
			mode = cpioDir
		}
		if err := writeEntry(w, i+1, name, mode, body); err != nil {
			return err
		}
	}
	return writeEntry(w, 0, "TRAILER!!!", 0, nil)
}

// writeEntry writes one file: 13 numbers of 8 hexadecimal digits, the name, the
// body, both padded to 4 bytes.
func writeEntry(w io.Writer, inode int, name string, mode uint32, body []byte) error {
	const headerSize, links = 110, 1
	head := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		inode, mode, 0, 0, links, 0, len(body), 0, 0, 0, 0, len(name)+1, 0)
	for _, part := range []struct {
		b    []byte
		size int // from the last multiple of 4
	}{{[]byte(head + name + "\x00"), headerSize + len(name) + 1}, {body, len(body)}} {
		pad := make([]byte, (4-part.size%4)%4)
		if _, err := w.Write(append(part.b[:len(part.b):len(part.b)], pad...)); err != nil {
			return fmt.Errorf("guest: write initrd: %s: %w", name, err)
		}
	}
	return nil
}
