package console

import (
	"encoding/binary"
	"errors"

	"oxpd/switchcfg/reg"
)

// A message on the socket of the MDIO device: what is asked, and the driver's struct; and
// the answer: what the call returns, and the struct.
const (
	askRead  = 0
	askWrite = 1

	askSize    = 1 + reg.RequestSize
	answerHead = 4 // s32, in the byte order of this machine
	answerSize = answerHead + reg.RequestSize
)

var errAsk = errors.New("want a request of 17 bytes that begins with 0 or 1")

// eio is what the driver returns when the bus fails.
const eio = -5

// serveMDIO makes one transaction of a request and puts the answer into answer.
func serveMDIO(card Card, zero bool, request []byte, answer *[answerSize]byte) error {
	var r reg.Request
	if len(request) != askSize || request[0] > askWrite || !r.Decode(request[1:]) {
		return errAsk
	}
	var err error
	if request[0] == askRead {
		var v uint16
		if v, err = card.MDIORead(int(r.Bus), int(r.Phy), int(r.Reg)); err == nil {
			r.Data = v
		}
	} else {
		err = card.MDIOWrite(int(r.Bus), int(r.Phy), int(r.Reg), r.Data)
	}
	status := int32(reg.RequestSize)
	switch {
	case err != nil:
		status = eio
	case zero:
		status = 0
	}
	r.Append(binary.NativeEndian.AppendUint32(answer[:0], uint32(status)))
	return nil
}
