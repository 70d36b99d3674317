package pfiltest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
)

// HasTCPDump tells whether tcpdump can be run.
func HasTCPDump() bool {
	_, err := exec.LookPath("tcpdump")
	return err == nil
}

// Compile is the program of an expression for Ethernet frames, as `tcpdump -ddd`
// prints it.
func Compile(expression string) ([]byte, error) {
	return tcpdump(nil, "-y", "EN10MB", "-ddd", expression)
}

// Disassemble is an expression's program as `tcpdump -d` prints it.
func Disassemble(expression string) ([]byte, error) {
	return tcpdump(nil, "-y", "EN10MB", "-d", expression)
}

// Records of a pcap file, in bytes.
const (
	fileHeader   = 24
	recordHeader = 16
)

// PCAP is a capture file of the frames. The seconds of each are its index.
func PCAP(frames []Frame) []byte {
	le := binary.LittleEndian
	b := make([]byte, fileHeader)
	le.PutUint32(b, 0xa1b2c3d4)
	le.PutUint16(b[4:], 2)
	le.PutUint16(b[6:], 4)
	le.PutUint32(b[16:], 262144) // snap length
	le.PutUint32(b[20:], 1)      // Ethernet
	for i, f := range frames {
		for _, v := range []int{i, 0, len(f.Bytes), f.Wire} {
			b = le.AppendUint32(b, uint32(v))
		}
		b = append(b, f.Bytes...)
	}
	return b
}

// Judge tells which of the n frames of a file of PCAP an expression takes.
func Judge(file []byte, n int, expression string) ([]bool, error) {
	out, err := tcpdump(file, "-r", "-", "-w", "-", expression)
	if err != nil {
		return nil, err
	}
	takes := make([]bool, n)
	r := bytes.NewReader(out)
	if _, err := r.Seek(fileHeader, io.SeekStart); err != nil {
		return nil, err
	}
	for {
		var head [4]uint32
		err := binary.Read(r, binary.LittleEndian, &head)
		if errors.Is(err, io.EOF) {
			return takes, nil
		}
		if err != nil || int(head[0]) >= n {
			return nil, fmt.Errorf("read what tcpdump wrote for %q: record %v: %w", expression, head, err)
		}
		takes[head[0]] = true
		if _, err := r.Seek(int64(head[2]), io.SeekCurrent); err != nil {
			return nil, err
		}
	}
}

func tcpdump(stdin []byte, args ...string) ([]byte, error) {
	cmd := exec.Command("tcpdump", args...)
	cmd.Stdin = bytes.NewReader(stdin)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("run tcpdump %q: %w: %s", args, err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}
