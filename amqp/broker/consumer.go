// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/amqp/convert"
	"github.com/lockstep-mq/lockstep/amqp/session"
	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const (
	maxCredit = 10_000   // maximum credit of a link at the node; further credit is granted as messages arrive
	passBytes = 64 << 10 // size at which a batch of encoded messages is sent
	maxRanges = 5000     // per request; the node accepts 10,000 of each kind
)

type consumer struct {
	c            *conn
	link         *session.Link
	reply        session.Reply
	queue        string
	subscription string // empty: the default subscription
	filter       string
	dynamic      string      // dynamic queue of the link; may be empty
	volatile     bool        // the subscription is deleted with the link
	durable      bool        // the subscription is deleted when the link is closed, not when it is detached
	single       bool        // only one link, on any connection, can use the subscription
	leave        func() bool // leaves a volatile subscription; reports whether this was the last link
	left         sync.Once
	wasLast      bool
	wake         chan struct{}
	ended        chan struct{}   // closed when the stream has ended
	ctx          context.Context //nolint:containedctx // context of the stream
	cancel       context.CancelFunc
	way          path   // owned by the stream's goroutine
	attachTo     uint64 // ID of the queue at way.at; 0 if unknown. Owned by the stream's goroutine

	encoded struct { // owned by the stream's goroutine
		b    []byte
		ends []int
	}

	// guarded by conn.mu
	queueID uint64
	from    *pair // that delivers
	// generation is the number of streams that ended and were to be replaced. Deliveries of earlier streams cannot be
	// answered.
	generation uint64
	asked      uint32 // credit of the client, minus the messages sent
	granted    uint32 // unused credit granted to the node
	given      uint32 // credit to be sent to the node
	answers    answers
	confirms   uint64 // last confirmation number requested
	confirmed  uint64
	waiting    []settling // deliveries to be settled when confirmed
	// rejects that wait for space in the dead-letter queue, by sequence; count is 0 if the client has settled the
	// delivery
	rejects map[uint64]settling
	syncs   []syncing   // browsers that wait for a confirmation
	drain   *drain      // pending drain, or nil
	limit   *time.Timer // cancels the stream; nil before finish
	drains  uint64      // number of the last drain request
	gone    bool
	silent  bool      // messages have expired, and the client has sent no frame since
	alive   bool      // the node waits for a request
	unseen  *pb.Leave // nil: unanswered messages count as delivered
}

type settling struct { // deliveries to be settled when their outcome is durable
	confirm   uint64
	first     uint32
	count     uint32
	state     wire.DeliveryState
	sequences []uint64 // sequences of rejected messages
}

func newConsumer(c *conn, l *session.Link, queue string) *consumer {
	s := &consumer{
		c: c, link: l, queue: queue, wake: make(chan struct{}, 1), ended: make(chan struct{}), way: path{at: c.home},
	}
	s.ctx, s.cancel = context.WithCancel(c.calls)
	return s
}

// start opens the stream; the link is accepted when the node has attached the consumer. mu is held.
func (s *consumer) start() {
	s.c.server.register(s)
	s.c.run(s.run)
}

// withdraw ends a consumer that was not started because the client detached the link. mu is held.
func (s *consumer) withdraw() {
	s.gone = true
	s.cancel()
	close(s.ended)
	if s.volatile {
		s.c.run(s.remove)
	}
}

// discard ends the consumer of a refused link. If no other link uses its volatile subscription, a later call of endIdle
// deletes it.
func (s *consumer) discard() {
	s.cancel()
	if s.leave != nil {
		s.last()
	}
}

func (s *consumer) run() {
	if s.single {
		s.c.server.takeOverLink(s)
	}
	err := s.consume()
	s.c.mu.Lock()
	gone := s.gone
	s.gone = true
	s.c.mu.Unlock()
	if s.leave != nil && !gone {
		s.last() // endIdle deletes the subscription
	}
	if err == nil || gone || s.c.ctx.Err() != nil {
		return
	}
	f := failed(err)
	if s.way.at.own() && f.again() && f.reason != "SUBSCRIPTION_MOVED" && f.reason != "DIRECTORY_UNAVAILABLE" &&
		f.reason != "" {
		s.c.lost(f.text)
		return
	}
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	reason := f.toAMQP()
	if f.reason == "QUEUE_NOT_FOUND" && s.queueID != 0 {
		reason.Condition = session.ResourceDeleted
	}
	if s.queueID == 0 {
		s.link.Refuse(reason)
	} else {
		s.link.Detach(true, reason)
	}
	s.c.handleEvents()
	s.c.signal()
}

func (s *consumer) consume() error {
	defer s.cancel()
	defer s.c.server.unregister(s)
	defer close(s.ended)
	defer s.stopLimit()
	for {
		err := s.stream()
		if err == nil || !s.reattach(err) {
			return err
		}
	}
}

func (s *consumer) stopLimit() {
	s.c.locked(func() {
		if s.limit != nil {
			s.limit.Stop()
		}
	})
}

func (s *consumer) stream() error {
	limit := s.c.server.o.MaxMessageBytes + 2*maxEnvelope
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	stream, err := s.way.at.queues.Consume(ctx, grpc.MaxCallRecvMsgSize(limit))
	if err != nil {
		return err
	}
	if err := stream.Send(&pb.ConsumeRequest{Attach: &pb.Attach{
		Queue: s.queue, Subscription: s.subscription, Filter: s.filter, MaxResponseBytes: uint32(limit),
		ReportWaiting: true, QueueId: s.attachTo,
	}}); err != nil {
		_, err = stream.Recv()
		return err //nolint:wrapcheck // failed reads it
	}
	first, err := stream.Recv()
	if err != nil {
		return err //nolint:wrapcheck // failed reads it
	}
	s.accept(first.GetQueueId())
	sent := make(chan struct{})
	s.c.run(func() {
		defer close(sent)
		s.sendRequests(ctx, stream)
	})
	defer func() {
		cancel()
		<-sent
	}()
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err //nolint:wrapcheck // failed reads it
		}
		s.pass(resp)
	}
}

func (s *consumer) accept(queueID uint64) {
	s.way.progress()
	s.attachTo = queueID
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.queueID == 0 {
		s.link.Accept(s.reply)
	} else {
		s.resumed()
	}
	s.queueID, s.from = queueID, s.way.at
	s.c.handleEvents()
	s.c.signal()
}

func (s *consumer) sendRequests(ctx context.Context, stream pb.QueueService_ConsumeClient) {
	for {
		req, over := s.nextRequest()
		if over {
			_ = stream.CloseSend() // it never fails
			return
		}
		if req != nil {
			if stream.Send(req) != nil {
				return // Recv returns the cause
			}
			continue
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return
		}
	}
}

func (s *consumer) nextRequest() (req *pb.ConsumeRequest, over bool) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	req = s.request()
	return req, req == nil && s.gone
}

// request returns the next request to the node, or nil. mu is held.
func (s *consumer) request() *pb.ConsumeRequest {
	confirm := s.confirms > s.confirmed && s.answers.confirm < s.confirms
	drain := s.drain != nil && s.drain.number != 0 && !s.drain.sent
	if s.given == 0 && s.answers.empty() && !confirm && !drain && !s.alive {
		return nil
	}
	req := s.answers.take()
	req.Credit, s.given, s.alive = s.given, 0, false
	if drain {
		req.Drain, s.drain.sent = s.drain.number, true
	}
	if confirm && s.answers.empty() {
		req.Confirm, s.answers.confirm = s.confirms, s.confirms
		if s.gone {
			req.Leave = s.unseen
		}
	}
	return req
}

func (s *consumer) pass(resp *pb.ConsumeResponse) {
	if len(resp.GetExpired()) > 0 {
		s.c.locked(func() { s.expire(resp.GetExpired()) })
	}
	list := resp.GetMessages()
	for len(list) > 0 {
		// Messages are encoded without mu, which is locked once per batch.
		n := 0
		s.encoded.b, s.encoded.ends = s.encoded.b[:0], s.encoded.ends[:0]
		for ; n < len(list) && len(s.encoded.b) < passBytes; n++ {
			s.encoded.b = convert.Append(s.encoded.b, list[n], time.Now())
			s.encoded.ends = append(s.encoded.ends, len(s.encoded.b))
		}
		if !s.passEncoded(list[:n]) {
			return
		}
		list = list[n:]
	}
	if cap(s.encoded.b) > 4*passBytes {
		s.encoded.b = nil
	}
	if resp.GetConfirmed() != 0 || resp.GetDrained() != 0 || len(resp.GetWaiting()) > 0 || len(resp.GetMoved()) > 0 {
		s.c.mu.Lock()
		defer s.c.mu.Unlock()
		s.rejected(resp.GetWaiting(), resp.GetMoved())
		if resp.GetConfirmed() != 0 {
			s.confirm(resp.GetConfirmed())
		}
		if resp.GetDrained() != 0 {
			s.drained(resp.GetDrained(), resp.GetDrainedCredit())
		}
		s.c.handleEvents()
	}
	s.c.signal()
}

// passEncoded sends encoded messages. It returns false if the link has ended.
func (s *consumer) passEncoded(list []*pb.StoredMessage) bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	from := 0
	for i, end := range s.encoded.ends {
		if !s.passOne(list[i].GetSequence(), s.encoded.b[from:end]) {
			return false
		}
		from = end
	}
	s.c.handleEvents()
	return true
}

// passOne sends one message. It returns false if the link has ended. mu is held, and released while the output is full.
func (s *consumer) passOne(sequence uint64, payload []byte) bool {
	c := s.c
	for !c.ended && !s.gone && (c.core.Buffered() > maxOutput || c.core.Unsent() > maxUnsent) {
		s.drainBlocked()
		c.signal()
		c.room.Wait()
	}
	if c.ended || s.gone {
		return false
	}
	s.granted -= min(s.granted, 1)
	if s.asked -= min(s.asked, 1); s.granted < maxCredit/2 {
		s.grant()
	}
	if s.link.Send(&session.Message{Ref: sequence, Payload: payload}) != nil {
		return false // the message is redelivered
	}
	if s.link.Peer().SenderSettleMode == wire.SenderSettled {
		s.answers.ack.add(sequence)
		s.signal()
	}
	return true
}

// rejected records rejects that wait for space in the dead-letter queue, and settles the rejects of messages that
// were moved. mu is held.
func (s *consumer) rejected(waiting, moved []*pb.SequenceRange) {
	if s.rejects == nil && len(waiting) > 0 {
		s.rejects = make(map[uint64]settling)
	}
	for _, r := range waiting {
		for sequence := r.GetFirst(); sequence <= r.GetLast(); sequence++ {
			s.rejects[sequence] = settling{}
		}
	}
	for _, r := range moved {
		for sequence := r.GetFirst(); sequence <= r.GetLast(); sequence++ {
			if w := s.rejects[sequence]; w.count > 0 {
				s.link.Settle(w.first, w.state)
			}
			delete(s.rejects, sequence)
		}
	}
}

// pendingMove reports whether delivery i of w is a reject that waits for space in the dead-letter queue. If so, it
// records the delivery, which is settled when the message is moved. mu is held.
func (s *consumer) pendingMove(w *settling, i uint32) bool {
	if len(w.sequences) == 0 {
		return false
	}
	_, waits := s.rejects[w.sequences[i]]
	if waits {
		s.rejects[w.sequences[i]] = settling{first: w.first + i, count: 1, state: w.state}
	}
	return waits
}

// confirm settles the deliveries that the confirmation with the given number covers, because their outcomes are
// durable. mu is held.
func (s *consumer) confirm(number uint64) {
	s.confirmed = max(s.confirmed, number)
	n := 0
	for ; n < len(s.waiting) && s.waiting[n].confirm <= s.confirmed; n++ {
		w := &s.waiting[n]
		for i := range w.count {
			if !s.pendingMove(w, i) {
				s.link.Settle(w.first+i, w.state)
			}
		}
	}
	s.waiting = s.waiting[n:]
	s.synced()
	s.confirmedDrain()
}

// signal wakes sendRequests. mu is held.
func (s *consumer) signal() { s.c.wakeUp(s.wake) }

func (s *consumer) credit(e *session.Credit) {
	s.asked = e.Credit
	s.grant()
	s.drain = nil
	if e.Drain {
		s.beginDrain()
	}
}

// grant passes the client's credit on to the node, up to maxCredit. mu is held.
func (s *consumer) grant() {
	if s.silent {
		return
	}
	if credit := min(s.asked, maxCredit); credit > s.granted {
		s.given += credit - s.granted
		s.granted = credit
		s.signal()
	}
}

func (s *consumer) disposed(e *session.Disposed) {
	state := e.State
	if t, ok := state.(*wire.TransactionalState); ok {
		s.disposedIn(t, e)
		return
	}
	if state == nil {
		if !e.Settled {
			return
		}
		state = s.link.Peer().Source.DefaultOutcome // the client settled without an outcome
	}
	if _, ok := state.(*wire.Received); ok {
		return
	}
	list := s.answer(state, e.Refs)
	if !e.Settled {
		s.confirms++
		w := settling{confirm: s.confirms, first: e.First, count: uint32(len(e.Refs)), state: e.State}
		if list == &s.answers.reject {
			w.sequences = slices.Clone(e.Refs)
		}
		s.waiting = append(s.waiting, w)
	}
	s.signal()
}

// answer records the outcome of messages, and returns the list to which it added them. mu is held.
func (s *consumer) answer(state wire.DeliveryState, sequences []uint64) (list *ranges) {
	list = &s.answers.release
	switch state := state.(type) {
	case wire.Accepted:
		list = &s.answers.ack
	case *wire.Rejected:
		list = &s.answers.reject
	case *wire.Modified:
		switch {
		case state.UndeliverableHere:
			list = &s.answers.reject
		case state.DeliveryFailed:
			list = &s.answers.nack
		}
	}
	for _, sequence := range sequences {
		list.add(sequence)
	}
	return list
}

// detached ends the link when the reported outcomes are durable. Unanswered messages are redelivered; they count as
// delivered unless the client has ended the link without an error.
func (s *consumer) detached(closed bool) (wait func()) {
	was := s.gone
	s.finish()
	goes := s.volatile || s.durable && closed || s.dynamic != "" && closed
	return func() {
		<-s.ended // its messages are requeued before the subscription is deleted
		if !was && goes {
			s.remove()
		}
	}
}

// finish ends the stream when the node has confirmed all answers, or after a timeout.
func (s *consumer) finish() {
	if s.gone {
		return
	}
	s.gone = true
	if s.drain = nil; s.link.Left() {
		s.unseen = &pb.Leave{Seen: s.c.txns.acknowledges(s)}
	}
	s.answers.requeue(s.link.Recall())
	s.confirms++
	s.limit = time.AfterFunc(finishLimit, s.cancel)
	s.signal()
	s.c.room.Broadcast()
}
