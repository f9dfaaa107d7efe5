// SPDX-License-Identifier: Apache-2.0

package session

import "github.com/lockstep-mq/lockstep/amqp/wire"

// Event is what the peer has done. It is one of the types below, each behind a pointer, and valid until the next call
// of Receive or Tick.
type Event interface{ event() }

type (
	// Opened: the peer has opened the connection. The caller answers with Conn.Open, and may Close the connection then.
	Opened struct{ Open *wire.Open }
	// Began: the peer has begun a session, which is answered already.
	Began struct{ Session *Session }
	// Attached: the peer has attached a link. The caller answers with Link.Accept or Link.Refuse, now or later.
	Attached struct{ Link *Link }
	// Delivery is a whole message that the peer has sent. The caller calls Link.Settle for each one, for settled ones
	// too, as a window of credit (Link.Window) opens with that. Tag and Payload are valid until the next Receive.
	Delivery struct {
		Link    *Link
		ID      uint32
		Tag     []byte
		Format  uint32
		Settled bool               // the peer has settled it, and waits for no outcome
		State   wire.DeliveryState // *wire.TransactionalState within a transaction, else nil usually
		// it is one of the unsettled deliveries of an earlier attachment of the link (2.6.13)
		Resume  bool
		Payload []byte // the sections of the message (3.2)
		Owned   bool   // the memory of Payload is the caller's
	}
	// Credit: the peer takes this many messages more than were given to Link.Send until now. If it drains, the caller
	// sends what there is at once, up to the credit, and then calls Link.Drained. It never comes before Link.Accept:
	// what the peer gives before follows that.
	Credit struct {
		Link   *Link
		Credit uint32
		Drain  bool
	}
	// Disposed: the peer has told the state of messages that were sent to it. Refs are those given to Link.Send, of
	// deliveries with the numbers First, First+1, and so on. If they are not Settled, and State is an outcome, the
	// caller calls Link.Settle for each when it has processed the outcome. Refs are valid until the next Receive.
	Disposed struct {
		Link  *Link
		First uint32
		Refs  []uint64
		// nil: the peer has settled without an outcome; the source's default outcome is meant
		State   wire.DeliveryState
		Settled bool
	}
	// Detached: a link is gone. If the peer has detached it, the caller answers with Link.Detach when it has done what
	// is to be done; if it was detached here (the peer has violated a rule, its session has ended, the connection has
	// closed), Ended is true and there is nothing to answer. No event of the link follows, and what waited in
	// it was not sent.
	Detached struct {
		Link   *Link
		Closed bool
		Err    *wire.Error
		Ended  bool
	}
	// Ended: a session is gone; all its links are detached already. If the peer has ended it, the caller answers with
	// Session.End; with Ended true there is nothing to answer.
	Ended struct {
		Session *Session
		Err     *wire.Error
		Ended   bool
	}
	// Closed: the connection is closed; all its links and sessions are gone already. If the peer has closed it, the
	// caller answers with Conn.Close. It is the last event.
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

// events is a queue whose memory is used again. The events that come with each message are kept in it.
type events struct {
	queue    []Event
	muted    bool // the caller has done it, and is not told
	taken    int
	delivery Delivery
	credit   Credit
	disposed []Disposed
	refs     []uint64
	runs     []int // where in refs those of each of disposed begin
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

// maxKept is how many elements a buffer may have that is kept for the next time.
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
