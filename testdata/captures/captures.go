// Package captures carries the captures of this folder inside a program; what is
// in each of them says its README. It has the name of a folder of test data, for
// it is the same files: `oxpd demo` replays what the tests read.
package captures

import "embed"

// files is read only.
//
//go:embed *.pcap *.pcapng
var files embed.FS

// Names lists the captures in order of name.
func Names() ([]string, error) {
	entries, err := files.ReadDir(".")
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// Read returns a capture, whole. Errors: fs.ErrNotExist (errors.Is).
func Read(name string) ([]byte, error) { return files.ReadFile(name) }
