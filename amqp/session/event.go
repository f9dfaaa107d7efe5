// SPDX-License-Identifier: Apache-2.0

package session

import "github.com/lockstep-mq/lockstep/amqp/wire"

// Event is an action of the peer. It is a pointer to one of the types below, valid until the next call of Receive or
// Tick.
type Event interface{ event() }

type (
	// Opened: the peer has opened the connection. The caller responds with Conn.Open, and may then Close the connection.
	Opened struct{ Open *wire.Open }
	// Began: the peer has begun a session, which is already answered.
	Began struct{ Session *Session }
	// Attached: the peer has attached a link. The caller responds with Link.Accept or Link.Refuse, immediately or later.
	Attached struct{ Link *Link }
	// Delivery is a complete message from the peer. The caller must call Link.Settle for each one, even if it is settled,
	// because that reopens the credit window (Link.Window). Tag and Payload are valid until the next Receive.
	Delivery struct {
		Link    *Link
		ID      uint32
		Tag     []byte
		Format  uint32
		Settled bool               // the peer has settled it and does not wait for an outcome
		State   wire.DeliveryState // *wire.TransactionalState within a transaction, otherwise usually nil
		// it is an unsettled delivery of an earlier attachment of the link (2.6.13)
		Resume  bool
		Payload []byte // the sections of the message (3.2)
		Owned   bool   // the caller owns the memory of Payload
	}
	// Credit: the peer accepts this many messages in addition to those passed to Link.Send so far. With Drain, the caller
	// sends the available messages immediately, up to the credit, and then calls Link.Drained. Credit granted before
	// Link.Accept is reported after it.
	Credit struct {
		Link   *Link
		Credit uint32
		Drain  bool
	}
	// Disposed: the peer has reported the state of messages sent to it. Refs are the values passed to Link.Send, of
	// deliveries with the numbers First, First+1, and so on. If they are not Settled and State is an outcome, the caller
	// calls Link.Settle for each when it has processed the outcome. Refs are valid until the next Receive.
	Disposed struct {
		Link  *Link
		First uint32
		Refs  []uint64
		// nil: the peer has settled without an outcome; the source's default outcome applies
		State   wire.DeliveryState
		Settled bool
	}
	// Detached: a link has ended. If the peer has detached it, the caller responds with Link.Detach when its work is done.
	// If it was detached here (by a violation, or with its session or connection), Ended is true and no response is
	// needed. It is the last event of the link; its waiting messages were not sent.
	Detached struct {
		Link   *Link
		Closed bool
		Err    *wire.Error
		Ended  bool
	}
	// Ended: a session has ended; all its links are detached already. If the peer has ended it, the caller responds with
	// Session.End; if Ended is true, no response is needed.
	Ended struct {
		Session *Session
		Err     *wire.Error
		Ended   bool
	}
	// Closed: the connection is closed; all its links and sessions have ended. If the peer has closed it, the caller
	// responds with Conn.Close. It is the last event.
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

// events is a queue with reused memory. It stores the events that are created for each message.
type events struct {
	queue    []Event
	muted    bool // caused by the caller, without events
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

// maxKept is the maximum number of elements of a buffer that is reused.
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
