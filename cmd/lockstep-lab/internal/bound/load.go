// SPDX-License-Identifier: Apache-2.0

package bound

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// LoadOptions configures the load on the relays.
type LoadOptions struct {
	Transport Transport
	// Address of the first relay, host:port.
	Address     string
	Connections int
	// Window is the number of messages in flight per connection; 1 is synchronous.
	Window int
	Body   []byte
	// Duration is the time during which messages are sent.
	Duration time.Duration
	// Record is called with the time from sending each message to its response, by one goroutine at a time.
	Record func(time.Duration)
}

// Load sends messages for Duration, and waits for all responses. It returns the number of messages and the elapsed
// time, without the time for connecting. It returns early if ctx ends.
func Load(ctx context.Context, o LoadOptions) (messages int, took time.Duration, err error) {
	conns := make([]conn, o.Connections)
	defer func() {
		for _, c := range conns {
			if c != nil {
				_ = c.Close() // all messages were answered, or the load failed
			}
		}
	}()
	first := []byte{0}
	if o.Window > 1 && o.Transport == GRPC {
		first[0] = 1 // responses may be combined
	}
	for i := range conns {
		if conns[i], err = dial(ctx, o.Transport, o.Address); err != nil {
			return 0, 0, err
		}
		s := &sender{conn: conns[i], o: o}
		if err := errors.Join(s.conn.send(plain(first)), s.one()); err != nil {
			return 0, 0, fmt.Errorf("bound: %w", err)
		}
	}
	defer context.AfterFunc(ctx, func() {
		for _, c := range conns {
			_ = c.Close() // unblocks receivers
		}
	})()
	start := time.Now()
	messages, err = loadAll(ctx, conns, o, start.Add(o.Duration))
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return messages, time.Since(start), err
}

func loadAll(ctx context.Context, conns []conn, o LoadOptions, until time.Time) (messages int, err error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	record := o.Record
	o.Record = func(d time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		record(d)
		messages++
	}
	failures := make([]error, len(conns))
	for i, c := range conns {
		s := &sender{conn: c, o: o, until: until, sent: 1, answered: 1}
		s.room = sync.NewCond(&s.mu)
		s.at = make([]time.Time, o.Window)
		wg.Go(func() {
			if o.Window == 1 {
				failures[i] = s.each(ctx)
			} else {
				failures[i] = s.pipelined()
			}
		})
	}
	wg.Wait()
	if err := errors.Join(failures...); err != nil {
		return messages, fmt.Errorf("bound: %w", err)
	}
	return messages, nil
}

type sender struct {
	conn  conn
	o     LoadOptions
	until time.Time

	mu       sync.Mutex // guards all fields below
	room     *sync.Cond
	sent     uint64
	answered uint64
	done     bool // the last message was sent
	failed   error
	at       []time.Time // send time of message n, at n modulo the window
}

func (s *sender) one() error {
	if err := errors.Join(s.conn.send(plain(s.o.Body)), s.conn.flush()); err != nil {
		return err
	}
	_, err := s.conn.receive()
	return err
}

func (s *sender) each(ctx context.Context) error {
	for start := time.Now(); start.Before(s.until); start = time.Now() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.one(); err != nil {
			return err
		}
		s.o.Record(time.Since(start))
	}
	return nil
}

func (s *sender) pipelined() error {
	var receiver sync.WaitGroup
	receiver.Go(s.receive)
	for last := false; !last; {
		var err error
		if last, err = s.next(); err == nil {
			err = s.conn.send(plain(s.o.Body))
		}
		if err != nil {
			s.fail(err)
			break
		}
	}
	if err := s.conn.flush(); err != nil {
		s.fail(err)
	}
	receiver.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// next waits for space in the window, and reports whether the next message is the last one.
func (s *sender) next() (last bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.full() {
		s.mu.Unlock()
		err = s.conn.flush()
		s.mu.Lock()
		for err == nil && s.full() {
			s.room.Wait()
		}
	}
	if err := errors.Join(err, s.failed); err != nil {
		return false, err
	}
	now := time.Now()
	s.at[s.sent%uint64(s.o.Window)] = now
	s.sent++
	s.done = !now.Before(s.until)
	return s.done, nil
}

// full reports whether the window is full. The caller holds mu.
func (s *sender) full() bool { return s.failed == nil && s.sent-s.answered >= uint64(s.o.Window) }

func (s *sender) receive() {
	for {
		m, err := s.conn.receive()
		if err != nil {
			s.fail(err)
			return
		}
		now := time.Now()
		s.mu.Lock()
		for n := count(m); s.answered < n; s.answered++ {
			s.o.Record(now.Sub(s.at[s.answered%uint64(s.o.Window)]))
		}
		end := s.done && s.answered == s.sent
		s.room.Signal()
		s.mu.Unlock()
		if end {
			return
		}
	}
}

func (s *sender) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil {
		s.failed = err
	}
	_ = s.conn.Close() // stops the other goroutine
	s.room.Signal()
}
