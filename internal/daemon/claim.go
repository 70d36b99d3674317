package daemon

import (
	"fmt"
	"strconv"
)

// TakenError says that another daemon has the ports of the network namespace,
// under whatever control socket. It is found before the card is touched.
type TakenError struct {
	PID    int    // 0 when it could not be found out
	Socket string // the other's control socket, empty when it does not say
}

func (e *TakenError) Error() string {
	who := "another daemon"
	if e.PID != 0 {
		who += " (pid " + strconv.Itoa(e.PID) + ")"
	}
	if e.Socket != "" {
		who += ", whose control socket is " + e.Socket + ","
	}
	return who + " has the ports oxp1 to oxp12 of this network namespace"
}

// Hint says what to do.
func (e *TakenError) Hint() string {
	const apart = "run this one in a network namespace of its own (ip netns exec)"
	switch {
	case e.Socket != "":
		return fmt.Sprintf("use it (oxpd status --socket %s), stop it (oxpd stop --socket %s), or %s", e.Socket, e.Socket, apart)
	case e.PID != 0:
		return fmt.Sprintf("stop it (kill %d), or %s", e.PID, apart)
	}
	return "stop it, or " + apart
}
