// SPDX-License-Identifier: Apache-2.0

package bound

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
)

// RelayOptions configures a relay.
type RelayOptions struct {
	Transport Transport
	// Next is the address of the next relay, host:port; empty for the last relay.
	Next string
	// Sync is the directory of the log files; if empty, nothing is stored. A relay writes received messages to a log
	// file and syncs the file before it responds.
	Sync string
}

// Serve relays messages until stop is closed. It calls ready with its listen address, host:port.
func Serve(o RelayOptions, stop <-chan struct{}, ready func(address string) error) error {
	l, err := listen(o.Transport)
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	fail := func(err error) {
		select {
		case failed <- err:
		default:
		}
	}
	var files atomic.Int64
	go func() {
		fail(l.serve(func(c conn) {
			if err := relay(c, o, files.Add(1)); err != nil && !isEnd(err) {
				fail(err)
			}
		}))
	}()
	if err := ready(l.address()); err != nil {
		return err
	}
	select {
	case <-stop:
		return nil
	case err := <-failed:
		return err
	}
}

// relay forwards the messages of a connection. It responds with the number of messages that are safe on this relay and
// all following ones.
func relay(from conn, o RelayOptions, number int64) error {
	log, err := openLog(o, number)
	if err != nil {
		return err
	}
	defer log.close()
	first, err := from.receive() // its first byte reports whether responses may be combined
	if err != nil {
		return err
	}
	together := len(first.parts()) > 0 && first.parts()[0][0] != 0
	a := &answers{to: from, together: together}
	a.wake = sync.NewCond(&a.mu)
	if o.Next == "" {
		a.remote = never
	}
	defer a.close()
	var to conn
	if o.Next != "" {
		if to, err = dial(context.Background(), o.Transport, o.Next); err != nil {
			return err
		}
		defer to.Close()
		if err := errors.Join(to.send(first), to.flush()); err != nil {
			return err
		}
		go a.follow(to)
	}
	if together {
		go a.run()
	}
	return pass(from, to, log, a)
}

func pass(from, to conn, log *log, a *answers) error {
	for n := uint64(1); ; n++ {
		m, err := from.receive()
		if err != nil {
			return err
		}
		if to != nil {
			if err := to.send(m); err != nil {
				return err
			}
		}
		log.add(m)
		if from.waiting() {
			continue
		}
		if to != nil {
			if err := to.flush(); err != nil {
				return err
			}
		}
		if err := log.sync(); err != nil {
			return err
		}
		if err := a.local(n); err != nil {
			return err
		}
	}
}

// never is a count that does not limit the responses.
const never = 1 << 62

// answers sends responses to the sender: the number of messages that are safe on this relay and all following ones.
type answers struct {
	to       conn
	together bool // sent by a goroutine that combines counts

	mu       sync.Mutex // guards all fields below
	wake     *sync.Cond // wakes run
	own      uint64
	remote   uint64
	notified uint64
	closed   bool
}

func (a *answers) local(n uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.own = n
	return a.notify()
}

func (a *answers) follow(to conn) {
	for {
		m, err := to.receive()
		if err != nil {
			return // the upstream connection ends as well, or its client detects missing responses
		}
		a.mu.Lock()
		a.remote = count(m)
		if !to.waiting() {
			err = a.notify()
		}
		a.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// notify sends the count or wakes run, if the count has increased. The caller holds mu.
func (a *answers) notify() error {
	n := min(a.own, a.remote)
	if n <= a.notified {
		return nil
	}
	if a.together {
		a.wake.Signal()
		return nil
	}
	a.notified = n
	return errors.Join(a.to.send(number(n)), a.to.flush())
}

// run sends the newest count after each change, until close.
func (a *answers) run() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for {
		for min(a.own, a.remote) <= a.notified && !a.closed {
			a.wake.Wait()
		}
		if a.closed {
			return
		}
		n := min(a.own, a.remote)
		a.notified = n
		a.mu.Unlock()
		err := errors.Join(a.to.send(number(n)), a.to.flush())
		a.mu.Lock()
		if err != nil {
			return
		}
	}
}

func (a *answers) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	a.wake.Signal()
}

func number(n uint64) message { return plain(binary.BigEndian.AppendUint64(nil, n)) }

func count(m message) uint64 {
	var b [8]byte
	at := 0
	for _, p := range m.parts() {
		at += copy(b[at:], p)
	}
	return binary.BigEndian.Uint64(b[:])
}
