package console

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"oxpd/internal/sys"
)

const (
	redZone   = 256     // bytes under the stack pointer that the caller may use: 128 on amd64
	pathLimit = 4096    // PATH_MAX
	argsLimit = 1 << 12 // more arguments than that are left to the kernel
	word      = 8
)

var errTooLong = errors.New("too long")

// replace makes an execve of an aarch64 file one of the interpreter, and tells whether it
// did. Anything that cannot be read is left to the kernel, which says what is wrong with it.
func replace(pid int) bool {
	at, err := sys.PtraceSyscallStop(pid)
	if err != nil {
		return false
	}
	file, err := readString(pid, at.Args[0])
	if err != nil || !foreign(pid, file) {
		return false
	}
	argv, err := readPointers(pid, at.Args[1])
	if err != nil {
		return false
	}
	block, name, vector := build(at.SP, file, argv)
	return writeMemory(pid, vector, block) == nil && setArguments(pid, name, vector) == nil
}

// build lays out the interpreter's name and arguments under the stack pointer: the vector
// and behind it the texts. Arguments but the first are where they are.
func build(sp uint64, file string, argv []uint64) (block []byte, name, vector uint64) {
	own := append(append([]string{insideProgram}, interpreterArgs[:]...), file)
	if len(argv) > 0 {
		argv = argv[1:]
	}
	texts := 0
	for _, s := range own {
		texts += len(s) + 1
	}
	head := word * (len(own) + len(argv) + 1)
	vector = (sp - redZone - uint64(head+texts)) &^ 15
	next := vector + uint64(head)
	name = next
	for _, s := range own {
		block = binary.NativeEndian.AppendUint64(block, next)
		next += uint64(len(s) + 1)
	}
	for _, a := range argv {
		block = binary.NativeEndian.AppendUint64(block, a)
	}
	block = binary.NativeEndian.AppendUint64(block, 0)
	for _, s := range own {
		block = append(append(block, s...), 0)
	}
	return block, name, vector
}

// foreign tells whether a file, as a process names it, is a program for aarch64.
func foreign(pid int, file string) bool {
	f, err := openAs(pid, file)
	if err != nil {
		return false
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Mode()&0o111 == 0 {
		return false
	}
	var head [20]byte // e_ident, e_type, e_machine
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return false
	}
	return bytes.HasPrefix(head[:], []byte(elf.ELFMAG)) && elf.Class(head[elf.EI_CLASS]) == elf.ELFCLASS64 &&
		elf.Machine(binary.LittleEndian.Uint16(head[18:])) == elf.EM_AARCH64
}

// openAs opens a file by the name that it has for a process. Symbolic links do not lead
// out of that one's root.
func openAs(pid int, file string) (*os.File, error) {
	proc := fmt.Sprintf("/proc/%d/", pid)
	if !path.IsAbs(file) {
		root, err := os.Readlink(proc + "root")
		if err != nil {
			return nil, err
		}
		cwd, err := os.Readlink(proc + "cwd")
		if err != nil {
			return nil, err
		}
		inside, ok := strings.CutPrefix(cwd, strings.TrimSuffix(root, "/"))
		if !ok {
			return nil, fs.ErrNotExist
		}
		file = inside + "/" + file
	}
	root, err := unix.Open(proc+"root", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, file, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), file), nil
}

// readMemory reads what is there of a process's memory; it returns less at the end of a
// mapping.
func readMemory(pid int, at uint64, b []byte) (int, error) {
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(len(b))
	return unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: uintptr(at), Len: len(b)}}, 0)
}

func writeMemory(pid int, at uint64, b []byte) error {
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(len(b))
	n, err := unix.ProcessVMWritev(pid, local, []unix.RemoteIovec{{Base: uintptr(at), Len: len(b)}}, 0)
	if err == nil && n < len(b) {
		err = errTooLong
	}
	return err
}

// readString reads a text that a 0 ends, page by page: the next one may not exist.
func readString(pid int, at uint64) (string, error) {
	var text []byte
	for len(text) < pathLimit {
		var b [256]byte
		left := len(b) - int(at)%len(b)
		n, err := readMemory(pid, at, b[:left])
		if err != nil {
			return "", err
		}
		if end := bytes.IndexByte(b[:n], 0); end >= 0 {
			return string(append(text, b[:end]...)), nil
		}
		text = append(text, b[:n]...)
		at += uint64(n)
	}
	return "", errTooLong
}

// readPointers reads a vector that a 0 ends. There is none at 0.
func readPointers(pid int, at uint64) ([]uint64, error) {
	var all []uint64
	for at != 0 && len(all) < argsLimit {
		var b [word]byte
		if _, err := readMemory(pid, at, b[:]); err != nil {
			return nil, err
		}
		v := binary.NativeEndian.Uint64(b[:])
		if v == 0 {
			return all, nil
		}
		all = append(all, v)
		at += word
	}
	if at != 0 {
		return nil, errTooLong
	}
	return nil, nil
}
