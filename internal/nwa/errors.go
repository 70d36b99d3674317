package nwa

import (
	"errors"
	"fmt"

	"oxpd/rpc/msg"
)

// Errors that callers branch on. A card that has left the bus is mmio.ErrGone.
var (
	// ErrNotAllowed refuses an operation or attribute that oxpd never sends.
	ErrNotAllowed = errors.New("not on the allow-list")
	// ErrNotReady says that the fast path has not published the mailbox yet.
	ErrNotReady = errors.New("mailbox is blank: NetAgent has not started")
	// ErrVersion says that the mailbox has another layout.
	ErrVersion = errors.New("mailbox layout is unknown")
	// ErrTimeout says that NetAgent did not answer in time.
	ErrTimeout = errors.New("no answer in time")
	// ErrUnanswered says that an earlier request has no answer yet, so that the next
	// reply could be the answer to that one.
	ErrUnanswered = errors.New("an earlier request is still unanswered")
	// ErrRestarted says that NetAgent has started anew under a request: that is gone, and
	// nothing answers it. Whether it was done before is not known.
	ErrRestarted = errors.New("NetAgent has started anew, and the request is lost")
	// ErrRefused says that NetAgent answered with a status other than 0.
	ErrRefused = errors.New("refused")
	// ErrMalformed says that a reply contradicts itself or the question.
	ErrMalformed = errors.New("malformed reply")
	// ErrNoMAC says that a port has no address yet: zeros before it is raised.
	ErrNoMAC = errors.New("no MAC address yet")
)

// StatusError is a well-formed refusal. It is ErrRefused.
type StatusError struct{ Status uint32 }

func (e *StatusError) Error() string {
	if e.Status == msg.ReplyNoSuch {
		return fmt.Sprintf("%v (status 1: no handler, or not now)", ErrRefused)
	}
	return fmt.Sprintf("%v (status %d, meaning unknown)", ErrRefused, e.Status)
}

// Unwrap makes the error ErrRefused.
func (e *StatusError) Unwrap() error { return ErrRefused }
