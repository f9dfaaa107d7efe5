// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
)

// Transaction consumes messages and publishes the results atomically. An acknowledgement takes effect only if no other
// transaction or consumer has acknowledged the message before. Therefore the results of each message are published
// exactly once, even if the message is delivered several times or to several consumers. This holds after a failover,
// after the loss of a consumer, and after a Commit with an unknown outcome.
//
// All nodes must run release 0.2.0 or later, otherwise Commit returns [ErrRefused]. An active of release 0.1.0 ignores
// the condition and acknowledges unconditionally. A Transaction is not safe for concurrent use.
type Transaction struct {
	txn   *Txn
	taken []*Delivery
	ended bool
}

// Transaction starts a transaction that consumes the given deliveries, and those added by [Transaction.Take].
func (c *Client) Transaction(ds ...*Delivery) *Transaction {
	t := &Transaction{txn: c.Begin()}
	for _, d := range ds {
		t.Take(d)
	}
	return t
}

// Receive receives the next message of a consumer and adds it to the transaction. The errors are those of
// [Consumer.Receive].
func (t *Transaction) Receive(ctx context.Context, co *Consumer) (*Delivery, error) {
	d, err := co.Receive(ctx)
	if err != nil {
		return nil, err
	}
	t.Take(d)
	return d, nil
}

// Take adds a delivery to the transaction. The delivery must not be answered in another way. It counts as one
// operation.
func (t *Transaction) Take(d *Delivery) *Transaction {
	t.txn.Take(d)
	t.taken = append(t.taken, d)
	return t
}

// Publish adds messages for one queue. It counts as one operation.
func (t *Transaction) Publish(queue string, ms ...Message) *Transaction {
	t.txn.Publish(queue, ms...)
	return t
}

// Commit commits the transaction and returns when it is durable on every in-sync node.
//
// [ErrProcessed] means that one of the messages was processed elsewhere: nothing was stored, and the deliveries were
// requeued, except that acknowledged ones are not redelivered. After any other error, call Commit again, as for
// [Txn.Commit], or Rollback. The errors are those of Txn.Commit and ErrProcessed.
func (t *Transaction) Commit(ctx context.Context) (TxnResult, error) {
	if t.ended {
		return TxnResult{}, fmt.Errorf("%w: the transaction has ended", ErrInvalid)
	}
	r, err := t.txn.Commit(ctx)
	switch {
	case err == nil:
		t.ended = true
	case errors.Is(err, ErrProcessed) && !errors.Is(err, ErrOutcomeUnknown):
		t.Rollback()
	}
	return r, err
}

// Rollback requeues the deliveries: unacknowledged messages are redelivered with a higher DeliveryCount. It has no
// effect after a successful Commit. It is also safe after [ErrOutcomeUnknown]: if the Commit took effect, the messages
// are acknowledged and not redelivered. If they are processed again first, only one of the two transactions succeeds.
func (t *Transaction) Rollback() {
	if t.ended {
		return
	}
	t.ended = true
	for _, d := range t.taken {
		d.Nack()
	}
}

// Transact processes the messages of a consumer one by one until ctx ends. process adds the messages to publish to the
// transaction, which is then committed with retries until a node has responded. Several concurrent calls per consumer
// are allowed.
//
// If process returns an error, the message is requeued and Transact returns the error. A message that was processed
// elsewhere is skipped. Other errors are those of [Consumer.Receive] and [Txn.Commit]; an error without
// [ErrOutcomeUnknown] means that the message was requeued.
func (co *Consumer) Transact(
	ctx context.Context, process func(ctx context.Context, t *Transaction, d *Delivery) error,
) error {
	for {
		d, err := co.Receive(ctx)
		if err != nil {
			return err
		}
		t := co.client.Transaction(d)
		if err := process(ctx, t, d); err != nil {
			t.Rollback()
			return err
		}
		if _, err := t.Commit(ctx); err != nil && !errors.Is(err, ErrProcessed) {
			t.Rollback()
			return err
		}
	}
}
