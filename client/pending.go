// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Pending is an asynchronous publish. It keeps its messages in memory.
type Pending struct {
	queue    string
	body     []byte   // body of a single message that has no other fields
	more     *content // content of any other publish; nil if body is used
	producer *Producer
	route    *route               // guarded by Producer.mu; nil for a queue without a route
	traced   func(Receipt, error) // callback of the Tracer; may be nil
	outcome  atomic.Pointer[outcome]
	cost     int64
	bytes    int    // size of the bodies
	count    uint32 // number of messages
	offset   uint32 // number of earlier messages in its request
	invalid  error  // why it cannot be assigned to a partition

	async     bool // Flush reports the error of this publish
	taken     bool // part of a request, so it may be committed; guarded by Producer.mu
	withdrawn bool // canceled before it was part of a request; guarded by Producer.mu
}

// content contains the messages of a publish that consists of several messages, or of one message with more than a
// body. Exactly one of the fields is set.
type content struct {
	bodies   [][]byte // bodies of messages that have no other fields
	messages []*pb.Message
}

// outcome is the result of one publish, or the common result of publishes that are answered together and for which no
// caller waits. A caller that waits creates an outcome for its publish before the response arrives.
type outcome struct {
	done     chan struct{} // closed when answered is set
	answered atomic.Bool
	receipt  Receipt
	err      error
}

// closed is the channel of an outcome that no caller waited for.
var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }() //nolint:gochecknoglobals // a constant

// Done returns a channel that is closed when the publish is committed or has failed. Committed publishes of a Producer
// to the same queue or partition complete in the order of the calls.
func (p *Pending) Done() <-chan struct{} { return p.waiter().done }

func (p *Pending) waiter() *outcome {
	if o := p.outcome.Load(); o != nil {
		return o
	}
	o := &outcome{done: make(chan struct{})}
	if !p.outcome.CompareAndSwap(nil, o) {
		return p.outcome.Load()
	}
	return o
}

// Wait waits until the publish has completed or ctx ends. Errors are those of [Producer.Publish]. If ctx ends first,
// the publish continues, and the error matches [ErrOutcomeUnknown].
func (p *Pending) Wait(ctx context.Context) (Receipt, error) {
	if o := p.outcome.Load(); o == nil || !o.answered.Load() {
		select {
		case <-p.waiter().done:
		case <-ctx.Done():
			return Receipt{}, p.producer.giveUp(p, ctx.Err(), true)
		}
	}
	return p.result()
}

// Err returns the error of a publish that has failed; nil if it is committed or has not completed.
func (p *Pending) Err() error {
	if o := p.outcome.Load(); o != nil && o.answered.Load() {
		return o.err
	}
	return nil
}

func (p *Pending) result() (Receipt, error) {
	o := p.outcome.Load()
	r := o.receipt
	if o.err == nil {
		r.Sequence += uint64(p.offset)
	}
	return r, o.err
}

// complete sets the result. p.offset must be set before. It returns the outcome shared by publishes without a
// waiting caller, which it creates if shared is nil.
func (p *Pending) complete(shared *outcome, r Receipt, err error) *outcome {
	o := p.outcome.Load()
	if o == nil {
		if shared == nil {
			shared = &outcome{done: closed, receipt: r, err: err}
			shared.answered.Store(true)
		}
		if p.outcome.CompareAndSwap(nil, shared) {
			return shared
		}
		o = p.outcome.Load()
	}
	o.receipt, o.err = r, err
	o.answered.Store(true)
	close(o.done)
	return shared
}

func (p *Pending) finish(shared *outcome, r Receipt, err error) *outcome {
	shared = p.complete(shared, r, err)
	if p.traced != nil {
		p.traced(p.result())
	}
	return shared
}

const maxFailures = 16 // maximum number of errors retained for Flush

type failures struct {
	count int
	errs  []error
}

func (f *failures) add(n int, err error) {
	if n == 0 || err == nil {
		return
	}
	f.count += n
	if len(f.errs) < maxFailures {
		f.errs = append(f.errs, err)
	}
}

func (f *failures) take() error {
	all := *f
	*f = failures{}
	switch {
	case all.count == 0:
		return nil
	case all.count == 1:
		return all.errs[0]
	default:
		return fmt.Errorf("%d publishes failed: %w", all.count, errors.Join(all.errs...))
	}
}
