// SPDX-License-Identifier: Apache-2.0

package session

import "github.com/lockstep-mq/lockstep/amqp/wire"

// Event reports an action of the peer, or the end of a link, a session or the connection. It is a pointer to one of the
// types below, valid until the next Receive.
type Event interface{ event() }

type (
	// Opened reports that the peer opened the connection. The caller responds with Conn.Open, and may then Close the
	// connection.
	Opened struct{ Open *wire.Open }
	// Began reports that the peer began a session. The begin is already answered.
	Began struct{ Session *Session }
	// Attached reports that the peer attached a link. The caller responds with Link.Accept or Link.Refuse, immediately or
	// later.
	Attached struct{ Link *Link }
	// Delivery is a complete message from the peer. The caller calls Link.Settle for each one, even if it is settled,
	// because that reopens the credit window (Link.Window). Unless Owned is set, Payload is valid until the next frame
	// is read.
	Delivery struct {
		Link    *Link
		ID      uint32
		Settled bool               // the peer expects no outcome
		State   wire.DeliveryState // *wire.TransactionalState within a transaction, otherwise usually nil
		Payload []byte             // the sections of the message (3.2)
		Owned   bool               // the caller owns the memory of Payload
	}
	// Credit reports that the peer accepts Credit messages in addition to the messages passed to Link.Send. With Drain,
	// the caller sends the available messages, up to the credit, and then calls Link.Drained. Credit that the peer
	// grants before Link.Accept is reported after Accept.
	Credit struct {
		Link   *Link
		Credit uint32
		Drain  bool
	}
	// Disposed reports that the peer sent the state of messages. Refs are the values passed to Link.Send, of deliveries
	// First, First+1, and so on, valid until the next Receive. If State is an outcome and Settled is false, the caller
	// calls Link.Settle for each delivery after it has processed the outcome.
	Disposed struct {
		Link    *Link
		First   uint32
		Refs    []uint64
		State   wire.DeliveryState // nil: settled without an outcome; the source's default outcome applies
		Settled bool
	}
	// Detached reports that a link ended. It is the last event of the link; waiting messages were not sent. If the peer
	// detached the link, the caller responds with Link.Detach when its work is done. If Ended is set (after a violation,
	// the end of the session or connection, or a detach before the response to the attach), no response is needed.
	Detached struct {
		Link   *Link
		Closed bool
		Err    *wire.Error
		Ended  bool
	}
	// Ended reports that a session and its links ended. If the peer ended the session, the caller responds with
	// Session.End; with Ended, no response is needed.
	Ended struct {
		Session *Session
		Err     *wire.Error
		Ended   bool
	}
	// Closed reports that the connection, its links and its sessions ended. If the peer closed the connection, the caller
	// responds with Conn.Close.
	Closed struct{ Err *wire.Error }
)

func (*Opened) event()   {}
func (*Began) event()    {}
func (*Attached) event() {}
func (*Delivery) event() {}
func (*Credit) event()   {}
func (*Disposed) event() {}
func (*Detached) event() {}
func (*Ended) event()    {}
func (*Closed) event()   {}

// events is a queue that reuses the memory of the events that occur for each message.
type events struct {
	queue    []Event
	muted    bool // the caller ends links: no events
	taken    int
	delivery Delivery
	credit   Credit
	disposed []Disposed
	refs     []uint64
	runs     []int // start index in refs for each of disposed
}

func (q *events) push(e Event) {
	if !q.muted {
		q.queue = append(q.queue, e)
	}
}

func (q *events) pending() bool { return q.taken < len(q.queue) }

func (q *events) next() (Event, bool) {
	if q.taken == len(q.queue) {
		return nil, false
	}
	e := q.queue[q.taken]
	q.taken++
	return e, true
}

// maxKept is the maximum number of elements of a reused buffer.
const maxKept = 1024

func (q *events) reset() {
	clear(q.queue)
	clear(q.disposed)
	q.queue, q.taken = reuse(q.queue), 0
	q.disposed, q.refs, q.runs = reuse(q.disposed), reuse(q.refs), reuse(q.runs)
}

func reuse[T any](s []T) []T {
	if cap(s) > maxKept {
		return nil
	}
	return s[:0]
}
