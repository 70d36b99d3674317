package a64

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// System is what the program asks the kernel for. Results are as Linux has them: -errno
// for a failure. Slices are the program's own memory, valid during the call: what Read
// finds in p is what the program left there.
type System interface {
	Open(path string, flags int) int64
	Close(fd int) int64
	Read(fd int, p []byte) int64
	Write(fd int, p []byte) int64
}

// Bounds of a program.
const (
	// MaxSteps is how many instructions it may run; a helper's longest command takes some
	// hundred thousand.
	MaxSteps = 1 << 28

	maxMemory = 16 << 20 // bytes of all segments
	stackSize = 256 << 10
	stackTop  = 0x7fff_0000_0000
	maxPath   = 4096
)

// Fault is an instruction that could not be executed, after which nothing of the
// program runs any more.
type Fault struct {
	PC   uint64
	Word uint32 // the instruction, 0 when it could not be fetched
	Err  error
}

func (e *Fault) Error() string {
	return fmt.Sprintf("a64: pc %#x, instruction %08x: %v", e.PC, e.Word, e.Err)
}

// Unwrap returns why.
func (e *Fault) Unwrap() error { return e.Err }

var (
	// ErrImage says that a file is no program for this package.
	ErrImage = errors.New("not a static little-endian AArch64 program")
	// ErrUnsupported is an instruction that this package does not have, or that is none.
	ErrUnsupported = errors.New("instruction not supported")
	// ErrMemory is an access outside the program's segments and stack, or against their
	// permissions.
	ErrMemory = errors.New("bad memory access")
	// ErrSteps says that the program did not end within MaxSteps.
	ErrSteps = errors.New("too many instructions")
)

// Run loads a program, runs it with argv and an empty environment, and returns its exit
// status, 0 to 255. Errors: ErrImage; *Fault around ErrUnsupported, ErrMemory, ErrSteps.
func Run(image []byte, argv []string, sys System) (status int, err error) {
	return run(image, argv, sys, MaxSteps)
}

func run(image []byte, argv []string, sys System, steps int) (status int, err error) {
	m, err := load(image)
	if err != nil {
		return 0, err
	}
	m.sys = sys
	if err := m.arguments(argv); err != nil {
		return 0, err
	}
	for range steps {
		if err := m.step(); err != nil {
			return 0, err
		}
		if m.exited {
			return m.status, nil
		}
	}
	return 0, &Fault{PC: m.pc, Err: ErrSteps}
}

// machine is one program.
type machine struct {
	x  [32]uint64 // 31: the stack pointer; the zero register is none
	pc uint64
	f  flags

	segments []segment
	sys      System
	exited   bool
	status   int
}

type segment struct {
	base        uint64
	data        []byte
	read, write bool
	exec        bool
}

// load checks an ELF file and lays out its segments and a stack.
func load(image []byte) (*machine, error) {
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return nil, fmt.Errorf("a64: %w: %w", ErrImage, err)
	}
	if f.Class != elf.ELFCLASS64 || f.Data != elf.ELFDATA2LSB || f.Machine != elf.EM_AARCH64 || f.Type != elf.ET_EXEC {
		return nil, fmt.Errorf("a64: %w: %v %v %v %v", ErrImage, f.Class, f.Data, f.Machine, f.Type)
	}
	m := &machine{pc: f.Entry}
	total := uint64(0)
	for _, p := range f.Progs {
		switch p.Type {
		case elf.PT_INTERP, elf.PT_DYNAMIC:
			return nil, fmt.Errorf("a64: %w: it is linked dynamically", ErrImage)
		case elf.PT_LOAD:
		default:
			continue
		}
		if total += p.Memsz; p.Memsz > maxMemory || total > maxMemory || p.Filesz > p.Memsz || p.Vaddr+p.Memsz < p.Vaddr || p.Vaddr+p.Memsz > stackTop-stackSize {
			return nil, fmt.Errorf("a64: %w: a segment of %d bytes at %#x", ErrImage, p.Memsz, p.Vaddr)
		}
		data := make([]byte, p.Memsz)
		if _, err := io.ReadFull(p.Open(), data[:p.Filesz]); err != nil {
			return nil, fmt.Errorf("a64: %w: a segment is cut: %w", ErrImage, err)
		}
		m.segments = append(m.segments, segment{p.Vaddr, data, p.Flags&elf.PF_R != 0, p.Flags&elf.PF_W != 0, p.Flags&elf.PF_X != 0})
	}
	m.segments = append(m.segments, segment{base: stackTop - stackSize, data: make([]byte, stackSize), read: true, write: true})
	return m, nil
}

// arguments lays out what a program finds on its stack: argc, argv, an empty
// environment, an empty auxiliary vector.
func (m *machine) arguments(argv []string) error {
	sp := uint64(stackTop)
	words := []uint64{uint64(len(argv))}
	size := 0
	for _, a := range argv {
		size += len(a) + 1
	}
	if size+8*len(argv) > stackSize/2 {
		return fmt.Errorf("a64: arguments of %d bytes: at most %d", size, stackSize/2)
	}
	for _, a := range argv {
		sp -= uint64(len(a) + 1)
		p, _ := m.memory(sp, len(a)+1, false) // it is in the stack
		copy(p, a)
		words = append(words, sp)
	}
	words = append(words, 0, 0, 0, 0) // argv, environment, AT_NULL and its value
	sp = (sp - uint64(8*len(words))) &^ 15
	for i, w := range words {
		p, _ := m.memory(sp+uint64(8*i), 8, false)
		binary.LittleEndian.PutUint64(p, w)
	}
	m.x[31] = sp
	return nil
}

// memory is n bytes at an address, to be written or only read.
func (m *machine) memory(addr uint64, n int, write bool) ([]byte, error) {
	for i := range m.segments {
		s := &m.segments[i]
		off := addr - s.base // wraps for one below
		if off > uint64(len(s.data)) || uint64(n) > uint64(len(s.data))-off {
			continue
		}
		if write && !s.write || !write && !s.read {
			break
		}
		return s.data[off : off+uint64(n) : off+uint64(n)], nil
	}
	return nil, fmt.Errorf("%w: %d bytes at %#x", ErrMemory, n, addr)
}

// fetch is the instruction at the program counter.
func (m *machine) fetch() (uint32, error) {
	for i := range m.segments {
		s := &m.segments[i]
		if off := m.pc - s.base; s.exec && m.pc%4 == 0 && uint64(len(s.data)) >= 4 && off <= uint64(len(s.data))-4 {
			return binary.LittleEndian.Uint32(s.data[off:]), nil
		}
	}
	return 0, fmt.Errorf("%w: no program there", ErrMemory)
}

func (m *machine) step() error {
	at := m.pc
	w, err := m.fetch()
	if err == nil {
		m.pc += 4
		err = m.execute(at, w)
	}
	if err != nil {
		return &Fault{at, w, err}
	}
	return nil
}

// System calls of Linux for AArch64.
const (
	sysOpenat    = 56
	sysClose     = 57
	sysRead      = 63
	sysWrite     = 64
	sysExit      = 93
	sysExitGroup = 94

	enosys = 38
	efault = 14
	ebadf  = 9
)

// call is a system call: the number in x8, arguments from x0 on, the result in x0.
func (m *machine) call() {
	a := m.x[:6]
	r := int64(-enosys)
	switch m.x[8] {
	case sysOpenat: // every path is taken as absolute
		if path, ok := m.text(a[1]); ok {
			r = m.sys.Open(path, int(int32(a[2])))
		} else {
			r = -efault
		}
	case sysClose:
		r = m.sys.Close(int(int32(a[0])))
	case sysRead, sysWrite:
		r = m.transfer(int(int32(a[0])), a[1], a[2], m.x[8] == sysRead)
	case sysExit, sysExitGroup:
		m.exited, m.status = true, int(a[0]&0xff)
		return
	}
	m.x[0] = uint64(r)
}

func (m *machine) transfer(fd int, addr, n uint64, read bool) int64 {
	if fd < 0 {
		return -ebadf
	}
	if n > maxMemory {
		return -efault
	}
	p, err := m.memory(addr, int(n), read)
	switch {
	case err != nil:
		return -efault
	case read:
		return m.sys.Read(fd, p)
	}
	return m.sys.Write(fd, p)
}

// text is a string that ends in a zero byte.
func (m *machine) text(addr uint64) (string, bool) {
	var b []byte
	for range maxPath {
		p, err := m.memory(addr, 1, false)
		if err != nil {
			return "", false
		}
		if p[0] == 0 {
			return string(b), true
		}
		b = append(b, p[0])
		addr++
	}
	return "", false
}
