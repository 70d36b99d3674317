package console

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"

	"oxpd/switchcfg/reg"
)

// serve answers at the MDIO device of the world.
func (w *world) serve(card Card, zero bool) error {
	dev, err := os.Open(w.at(filepath.Dir(reg.Device)))
	if err != nil {
		return err
	}
	defer dev.Close()
	// By the descriptor: the name of a socket has 107 bytes at most.
	name := fmt.Sprintf("/proc/self/fd/%d/%s", dev.Fd(), filepath.Base(reg.Device))
	w.mdio, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: name, Net: "unixpacket"})
	if err != nil {
		return err
	}
	w.mdio.SetUnlinkOnClose(false)
	w.served = make(chan struct{})
	go func() {
		defer close(w.served)
		serveAll(w.mdio, func(request []byte, answer *[answerSize]byte) error { return serveMDIO(card, zero, request, answer) })
	}()
	return nil
}

// serveAll serves every process that has the device open, until the listener is closed.
func serveAll(ln *net.UnixListener, one func(request []byte, answer *[answerSize]byte) error) {
	var (
		threads sync.WaitGroup
		mu      sync.Mutex
		open    = map[*net.UnixConn]bool{}
	)
	for {
		peer, err := ln.AcceptUnix()
		if err != nil {
			break
		}
		mu.Lock()
		open[peer] = true
		mu.Unlock()
		threads.Add(1)
		go func() {
			defer threads.Done()
			defer func() {
				mu.Lock()
				delete(open, peer)
				mu.Unlock()
				_ = peer.Close() // nothing is left to be said
			}()
			servePeer(peer, one)
		}()
	}
	mu.Lock()
	for peer := range open {
		_ = peer.Close() // its reader ends with it
	}
	mu.Unlock()
	threads.Wait()
}

// servePeer answers one process, until it closes the device or says what is no request.
func servePeer(peer *net.UnixConn, one func(request []byte, answer *[answerSize]byte) error) {
	var (
		request [askSize + 1]byte
		answer  [answerSize]byte
	)
	for {
		n, err := peer.Read(request[:])
		if err != nil || n == 0 || one(request[:n], &answer) != nil {
			return
		}
		if _, err := peer.Write(answer[:]); err != nil {
			return
		}
	}
}
