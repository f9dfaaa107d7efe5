// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
)

// Transaction takes messages from consumers, publishes what is made of them, and does both or nothing: what it takes is
// acknowledged only if no other transaction, and no other consumer, has acknowledged it before. So what is published is
// published once for each message, however often the message was delivered, and to however many consumers: after a
// failover, after a consumer was lost, and after a Commit of which the outcome was not known.
//
// All nodes must be of release 0.2.0 or later: while one is not, Commit ends with ErrRefused; an active of release
// 0.1.0 does not know the condition, and acknowledges without it. Not safe for concurrent use.
type Transaction struct {
	txn   *Txn
	taken []*Delivery
	ended bool
}

// Transaction starts a transaction that takes these deliveries, and those that Take adds.
func (c *Client) Transaction(ds ...*Delivery) *Transaction {
	t := &Transaction{txn: c.Begin()}
	for _, d := range ds {
		t.Take(d)
	}
	return t
}

// Receive takes the next message of a consumer into the transaction. The errors are those of Consumer.Receive.
func (t *Transaction) Receive(ctx context.Context, co *Consumer) (*Delivery, error) {
	d, err := co.Receive(ctx)
	if err != nil {
		return nil, err
	}
	t.Take(d)
	return d, nil
}

// Take takes a delivery, which must not be answered otherwise, into the transaction. One operation.
func (t *Transaction) Take(d *Delivery) *Transaction {
	t.txn.Take(d)
	t.taken = append(t.taken, d)
	return t
}

// Publish adds messages for one queue. One operation.
func (t *Transaction) Publish(queue string, ms ...Message) *Transaction {
	t.txn.Publish(queue, ms...)
	return t
}

// Commit does what was collected, and returns when it is durable on every in-sync node.
//
// With ErrProcessed, one of the messages was processed elsewhere: nothing was stored, and the deliveries were given
// back; those that are acknowledged are not delivered again. After any other error Commit may be called again, as that
// of a Txn, or Rollback. The errors are those of Txn.Commit, and ErrProcessed.
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

// Rollback gives the deliveries back: what is not acknowledged is delivered again, with a higher DeliveryCount. It does
// nothing after a Commit without an error. After one with ErrOutcomeUnknown it is safe as well: if that was carried
// out, the messages are acknowledged and are not delivered again; and if they are processed again before it is, only
// one of the two succeeds.
func (t *Transaction) Rollback() {
	if t.ended {
		return
	}
	t.ended = true
	for _, d := range t.taken {
		d.Nack()
	}
}

// Transact processes the messages of a consumer, one by one, until ctx ends: process adds to the transaction what is to
// be published for a message, and the transaction is committed, which is tried again until a node has answered. Many
// calls may be under way for one consumer.
//
// When process returns an error, the message is given back, and Transact ends with that error. A message that turns out
// to be processed elsewhere is passed over. The other errors are those of Consumer.Receive and Txn.Commit: an error
// without ErrOutcomeUnknown means that the message was given back.
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
