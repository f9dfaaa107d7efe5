// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"
)

// Handler processes one delivery. Its result answers the delivery: nil acknowledges it, an error returned by [Reject]
// rejects it, and any other error requeues it. A Handler can answer the delivery itself, for example with
// [Delivery.NackAfter] or in a [Txn]: only the first answer counts. ctx contains the trace span of the delivery, if
// any.
type Handler func(ctx context.Context, d *Delivery) error

// Reject returns an error with which a [Handler] rejects a delivery: the message is dead-lettered or dropped. reason
// may be nil.
func Reject(reason error) error { return &rejection{reason} }

type rejection struct{ reason error }

func (r *rejection) Error() string {
	if r.reason == nil {
		return "message rejected"
	}
	return "message rejected: " + r.reason.Error()
}

func (r *rejection) Unwrap() error { return r.reason }

// Run receives messages and calls handle for each, in concurrency goroutines, at least one, until ctx ends or the
// consumer is closed. It returns nil or an error of [Consumer.Receive], after all handlers have returned. Answers are
// asynchronous; [Consumer.Close] sends the pending ones, and [Consumer.Flush] waits for their confirmation.
//
// If the consumer has an acknowledgement deadline, Run extends the deadlines of the messages that the consumer has
// received, until their handlers return.
func (co *Consumer) Run(ctx context.Context, handle Handler, concurrency int) error {
	extending, stop := context.WithCancel(context.WithoutCancel(ctx))
	extended := make(chan struct{})
	go func() {
		defer close(extended)
		co.keepExtended(extending)
	}()
	defer func() {
		stop()
		<-extended
	}()
	var workers errgroup.Group
	for range max(concurrency, 1) {
		workers.Go(func() error {
			for d, err := range co.All(ctx) {
				if err != nil {
					return err
				}
				d.settle(handle(d.Context(ctx), d))
			}
			return nil
		})
	}
	return workers.Wait()
}

// settle answers the delivery with the result of a Handler. It ignores errors: the message was already answered, or
// it is redelivered.
func (d *Delivery) settle(result error) {
	var rejected *rejection
	switch {
	case result == nil:
		_ = d.Ack()
	case errors.As(result, &rejected):
		_ = d.Reject()
	default:
		_ = d.Nack()
	}
}
