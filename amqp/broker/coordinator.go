// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"sync"

	"github.com/lockstep-mq/lockstep/amqp/session"
	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// coordinatorWindow is the maximum number of outstanding declares and discharges per link.
const coordinatorWindow = 100

// Capabilities of a coordinator (4.5.7).
const (
	localTransactions wire.Symbol = "amqp:local-transactions"
	multiTxns         wire.Symbol = "amqp:multi-txns-per-ssn"
)

type coordinator struct {
	c    *conn
	link *session.Link

	discharges sync.WaitGroup // discharges in progress; Add is called with conn.mu
}

func (c *conn) attachCoordinator(l *session.Link) {
	l.Data = &coordinator{c: c, link: l}
	if l.Accept(session.Reply{Target: &wire.Coordinator{Capabilities: []wire.Symbol{localTransactions, multiTxns}}}) {
		l.Window(coordinatorWindow)
	}
}

func (o *coordinator) deliver(d *session.Delivery) {
	body, err := wire.DecodeTransaction(d.Payload)
	if err != nil {
		o.link.Settle(d.ID, &wire.Rejected{Error: refusal(err)})
		return
	}
	switch body := body.(type) {
	case *wire.Declare:
		if body.GlobalID != nil {
			o.link.Settle(d.ID, &wire.Rejected{Error: session.Errorf(session.NotImplemented,
				"distributed transactions are not supported: declare without a global-id")})
			return
		}
		t, reason := o.c.txns.declare(o.link.Session())
		if reason != nil {
			o.link.Settle(d.ID, &wire.Rejected{Error: reason})
			return
		}
		o.link.Settle(d.ID, &wire.Declared{TxnID: t.accepted.TxnID})
	case *wire.Discharge:
		o.discharge(d.ID, body)
	}
}

// discharge ends a transaction. mu is held.
func (o *coordinator) discharge(id uint32, d *wire.Discharge) {
	t, reason := o.c.txns.find(d.TxnID)
	if reason != nil {
		o.link.Settle(id, &wire.Rejected{Error: reason})
		return
	}
	if d.Fail {
		t.rollback()
		o.link.Settle(id, wire.Accepted{})
		return
	}
	if t.tooMuch != nil {
		t.rollback()
		o.link.Settle(id, &wire.Rejected{Error: t.tooMuch})
		return
	}
	ops := t.operations()
	if len(ops) > maxOperations {
		t.rollback()
		o.link.Settle(id, &wire.Rejected{Error: tooManyOperations()})
		return
	}
	if len(ops) == 0 {
		t.all.close(t)
		t.committed()
		o.link.Settle(id, wire.Accepted{})
		return
	}
	at, reason := t.pairOfAcks(o.c.home)
	if reason != nil {
		t.rollback()
		o.link.Settle(id, &wire.Rejected{Error: reason})
		return
	}
	delete(t.all.open, t.id) // the transaction accepts no further operations
	o.discharges.Add(1)
	o.c.run(func() {
		defer o.discharges.Done()
		reason, known := o.c.commit(t, at, ops)
		o.c.mu.Lock()
		defer o.c.mu.Unlock()
		if !known {
			return // the connection ends without an outcome
		}
		if reason != nil {
			t.rollback()
			o.link.Settle(id, &wire.Rejected{Error: reason})
		} else {
			t.all.close(t)
			t.committed()
			o.link.Settle(id, wire.Accepted{})
		}
		o.c.handleEvents()
		o.c.signal()
	})
}

// detached ends the link when its discharges have completed. The other transactions of its session are rolled back.
func (o *coordinator) detached(bool) (wait func()) {
	o.c.txns.end(o.link.Session())
	return o.discharges.Wait
}

// finish does nothing: discharges in progress complete.
func (o *coordinator) finish() {}
