// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"bytes"
	"sync"

	"github.com/lockstep-mq/lockstep/amqp/convert"
	"github.com/lockstep-mq/lockstep/amqp/session"
	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const publishWindow = 2000 // outstanding messages per link

type publisher struct {
	c       *conn
	link    *session.Link
	queue   string // empty: each message contains its address
	topic   bool
	exists  bool   // the queue existed when the link was attached, or later
	dynamic string // dynamic queue of the link; may be empty
	used    bool   // a message was received outside a transaction
	done    bool   // no further messages follow

	pipes  map[string]*pipeline // by name of the pair
	routes map[string]*route    // by queue; without a route, messages are sent to this pair
	moves  map[string]*route    // moving routes
	busy   sync.WaitGroup       // running pipelines and moving routes; Add is called with conn.mu
}

// deleted reports whether the queue of the link, if it is missing, was deleted. mu is held.
func (p *publisher) deleted() bool { return p.queue != "" && p.exists }

func (p *publisher) resourceDeleted(f *failure) *wire.Error {
	reason := f.toAMQP()
	reason.Condition = session.ResourceDeleted
	return reason
}

func (p *publisher) deliver(d *session.Delivery) {
	payload := d.Payload
	if !d.Owned {
		payload = bytes.Clone(payload)
	}
	message, to, err := convert.Decode(payload)
	queue := p.queue
	if err == nil && queue == "" {
		if queue = to; queue == "" {
			err = session.Errorf(session.InvalidField, "link has no address and message has no `to`")
		}
	}
	if err != nil {
		p.refuse(d.ID, d.Settled, refusal(err))
		return
	}
	if marked := p.c.server.marked.Load(); marked != nil && (*marked)[queue] {
		mark(message, p.c.core.Peer().ContainerID)
	}
	if state, ok := d.State.(*wire.TransactionalState); ok {
		p.publishIn(state, d, queue, message)
		return
	}
	p.used = true
	p.add(entry{id: d.ID, settled: d.Settled, queue: queue, message: message, bytes: len(d.Payload), topic: p.topic})
}

// publishIn accepts a message that is stored when its transaction is discharged.
func (p *publisher) publishIn(state *wire.TransactionalState, d *session.Delivery, queue string, message *pb.Message) {
	t, err := p.c.txns.find(state.TxnID)
	if err == nil {
		err = t.publish(p, queue, message, len(d.Payload), p.c.server.o.MaxTransactionBytes)
	}
	if err != nil {
		p.refuse(d.ID, d.Settled, err)
		return
	}
	p.link.Settle(d.ID, t.accepted)
}

// refuse rejects a message. If the client has settled the message, the link is detached instead, to notify the
// client.
func (p *publisher) refuse(id uint32, settled bool, reason *wire.Error) {
	if settled {
		p.link.Detach(true, reason)
		if wait := p.detached(true); wait != nil {
			p.c.run(wait)
		}
		return
	}
	p.link.Settle(id, &wire.Rejected{Error: reason})
}

// detached ends the link when all of its messages are stored or refused.
func (p *publisher) detached(closed bool) (wait func()) {
	p.finish()
	if !p.used && (p.dynamic == "" || !closed) {
		return nil
	}
	return func() {
		p.busy.Wait()
		if p.dynamic != "" && closed {
			p.c.dropNode(p.dynamic)
		}
	}
}

func (p *publisher) finish() {
	p.done = true
	for _, pl := range p.pipes {
		pl.signal()
	}
}
