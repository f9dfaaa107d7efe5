// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"cmp"
	"slices"
	"time"

	"github.com/lockstep-mq/lockstep/store/mutate"
)

// Acknowledgement deadlines (INV-22). The deadline of a message is ack_timeout after Next returned it, unless Extend
// sets another deadline or the ack_timeout of the subscription has changed since.
//
// An overdue message is released like a message of a lost consumer. Its consumer is then silent until the client's
// next request: it receives no messages, and its unsent messages are requeued. A consumer is stalled if only unsent
// messages are overdue. It receives no messages until Next is called.

// deadlineStep is the maximum delay of an expiry, apart from scheduling.
const deadlineStep = 250 * time.Millisecond

// moment is the time since the creation of the registry, by the monotonic clock. 0 means that it is unset.
type moment time.Duration

func (r *Registry) elapsed() moment { return moment(time.Since(r.began) + 1) }

func (m moment) add(d time.Duration) moment { return m + moment(d) }

// deadlines is the deadline state of a subscription, guarded by dispatcher.mu.
type deadlines struct {
	timeout time.Duration // ack_timeout of the subscription; 0 means no deadline
	since   moment        // last change of timeout; messages then in flight count as delivered at that time
	next    moment        // time of the next check; 0 if none is scheduled
	timer   *time.Timer   // nil before the first check is scheduled
}

// consumerDeadlines is the deadline state of a consumer, guarded by dispatcher.mu.
type consumerDeadlines struct {
	timeout  time.Duration     // ack_timeout of the consumer; 0 means no deadline
	reported time.Duration     // last AckTimeout that was reported to the client
	extended map[uint64]moment // deadlines set by Extend; nil if none exist
	outbox   moment            // when Next last made progress with the outbox, or when it became non-empty
	answered moment            // time of the last outcome or Extend
	silent   bool              // a message has expired, and the client has sent no request since
	stalled  bool              // unsent messages were overdue, and Next has not been called since

	expired, refused []uint64 // sequences for the next event
	late             lateSet  // expired and not redelivered to the consumer; their acks and rejects are refused
}

// lateSet contains the most recently expired sequences. The zero lateSet is empty.
type lateSet struct {
	order   []uint64          // sequences in the order of their expiry, including removed ones
	first   uint64            // number of order[0], counted from the first expiry
	numbers map[uint64]uint64 // sequence: number of its last expiry
}

// add adds sequences, and removes the oldest entries beyond limit.
func (l *lateSet) add(sequences []uint64, limit int) {
	if l.numbers == nil {
		l.numbers = make(map[uint64]uint64)
	}
	for _, sequence := range sequences {
		l.numbers[sequence] = l.first + uint64(len(l.order))
		l.order = append(l.order, sequence)
	}
	for len(l.order) > limit {
		if oldest := l.order[0]; l.numbers[oldest] == l.first {
			delete(l.numbers, oldest) // the sequence has not expired again since
		}
		l.order = l.order[1:]
		l.first++
	}
}

func (l *lateSet) remove(sequence uint64) { delete(l.numbers, sequence) }

func (s *deadlines) stop() {
	if s.timer != nil {
		s.timer.Stop()
	}
}

// SetAckTimeout sets the acknowledgement deadline of the consumer; 0 means no deadline. It must be called before
// AddCredit.
func (c *Consumer) SetAckTimeout(timeout time.Duration) {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.deadlines.timeout = timeout
	c.deadlines.reported = c.timeout()
}

// AckTimeout returns the shorter of the acknowledgement deadlines of the consumer and its subscription; 0 if neither
// has one. Events report only later changes.
func (c *Consumer) AckTimeout() time.Duration {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.deadlines.reported = c.timeout()
	return c.deadlines.reported
}

// idle reports whether the consumer receives no messages because of its deadlines. The caller must hold d.mu.
func (c *Consumer) idle() bool { return c.deadlines.silent || c.deadlines.stalled }

// timeout returns the effective ack_timeout. The caller must hold d.mu.
func (c *Consumer) timeout() time.Duration {
	own, of := c.deadlines.timeout, c.d.deadlines.timeout
	if own == 0 || of == 0 {
		return max(own, of)
	}
	return min(own, of)
}

// Extend sets the deadline of the given messages to the current time plus by. If by is 0, AckTimeout is used.
// Extend ignores messages that are not in flight at the consumer, and sets no deadline without an AckTimeout. It counts
// as a request of the client: a silent consumer receives messages again.
func (c *Consumer) Extend(ranges []Range, by time.Duration) {
	d := c.d
	d.mu.Lock()
	defer d.mu.Unlock()
	c.clientResponded()
	timeout := c.timeout()
	if timeout == 0 {
		return
	}
	c.deadlines.answered = d.registry.elapsed()
	at := c.deadlines.answered.add(cmp.Or(by, timeout))
	if c.deadlines.extended == nil {
		c.deadlines.extended = make(map[uint64]moment)
	}
	for _, r := range merged(ranges) {
		inRange(c.inFlight, r, func(sequence uint64, sent moment) {
			if sent != 0 {
				c.deadlines.extended[sequence] = at
			}
		})
	}
	d.checkDeadlinesAt(at)
}

// startDeadlines starts the deadline of the outbox at the current time, and schedules a check for this deadline and
// for those of messages that Next returns now. The caller must hold d.mu.
func (c *Consumer) startDeadlines(now moment) {
	if timeout := c.timeout(); timeout > 0 {
		c.deadlines.outbox = now
		c.d.checkDeadlinesAt(now.add(timeout))
	}
}

// startOutbox starts the deadline by which the messages in the outbox must be sent. The caller must hold d.mu.
func (c *Consumer) startOutbox() {
	if c.timeout() > 0 {
		c.startDeadlines(c.d.registry.elapsed())
	}
}

// takeDeadlines moves the expired and the refused sequences, and a changed ack_timeout, to an event. The caller must
// hold d.mu.
func (c *Consumer) takeDeadlines(e *Event) {
	s := &c.deadlines
	e.Expired, s.expired = s.expired, nil
	e.Refused, s.refused = s.refused, nil
	if timeout := c.timeout(); timeout != s.reported {
		s.reported = timeout
		e.AckTimeout = new(timeout)
	}
}

// followAckTimeout reads the current ack_timeout of the subscription and applies it.
func (d *dispatcher) followAckTimeout() {
	timeout := d.registry.source.AckTimeout(d.key)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.setAckTimeout(timeout)
}

// setAckTimeout changes the ack_timeout of the subscription. For messages in flight, the new deadline starts now.
// Deadlines set by Extend do not change. The caller must hold d.mu.
func (d *dispatcher) setAckTimeout(timeout time.Duration) {
	if d.deadlines.timeout == timeout {
		return
	}
	d.deadlines.timeout, d.deadlines.since = timeout, d.registry.elapsed()
	for _, c := range d.consumers {
		signal(c.notify)
		if own := c.timeout(); own > 0 {
			d.checkDeadlinesAt(d.deadlines.since.add(own))
		}
	}
}

// checkDeadlinesAt schedules a check at the given time, unless an earlier check is scheduled. The caller must hold
// d.mu.
func (d *dispatcher) checkDeadlinesAt(at moment) {
	s := &d.deadlines
	if s.next != 0 && s.next <= at || d.stopped != nil {
		return
	}
	s.next = at
	wait := time.Duration(at - d.registry.elapsed())
	if s.timer == nil {
		s.timer = time.AfterFunc(wait, d.checkDeadlines)
		return
	}
	s.timer.Reset(wait)
}

// checkDeadlines releases all overdue messages.
func (d *dispatcher) checkDeadlines() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped != nil {
		return
	}
	d.deadlines.next = 0
	now := d.registry.elapsed()
	next := moment(0)
	for _, c := range slices.Clone(d.consumers) { // expire reorders d.consumers
		due, unsent, first := c.overdue(now)
		if len(due) > 0 || unsent {
			d.expire(c, due)
		}
		if first != 0 && (next == 0 || first < next) {
			next = first
		}
	}
	if next != 0 {
		d.checkDeadlinesAt(max(next, now.add(deadlineStep)))
	}
}

// overdue returns the overdue messages of a consumer, and whether its unsent messages are overdue. next is the next
// deadline of the other messages, or 0. The caller must hold d.mu.
func (c *Consumer) overdue(now moment) (due []uint64, unsent bool, next moment) {
	timeout := c.timeout()
	if timeout == 0 {
		return nil, false, 0
	}
	passed := func(at moment) bool {
		if at > now && (next == 0 || at < next) {
			next = at
		}
		return at <= now
	}
	since := c.d.deadlines.since
	for sequence, sent := range c.inFlight {
		at, extended := c.deadlines.extended[sequence]
		if !extended {
			at = max(sent, since).add(timeout)
		}
		if sent != 0 && passed(at) {
			due = append(due, sequence)
		}
	}
	unsent = len(c.outbox) > 0 && !c.d.paused && passed(max(c.deadlines.outbox, since).add(timeout))
	return due, unsent, next
}

// expire marks a consumer as silent or, without overdue messages in due, as stalled. It releases the overdue messages
// of the consumer and requeues the unsent messages. The caller must hold d.mu.
func (d *dispatcher) expire(c *Consumer, due []uint64) {
	if len(due) > 0 {
		c.deadlines.silent = true
	} else {
		c.deadlines.stalled = true
	}
	d.takeBack(c, due)
	d.passActive()
	d.order.left(c) // releases the message groups of c
}

// takeBack releases sent messages of a consumer and requeues its unsent messages. The caller must hold d.mu.
func (d *dispatcher) takeBack(c *Consumer, sent []uint64) {
	unsent := c.takeUnsent()
	if len(sent) == 0 {
		d.requeue(unsent)
		return
	}
	slices.Sort(sent)
	for _, sequence := range sent {
		c.removeInFlight(sequence, true)
	}
	c.addLate(sent)
	c.deadlines.expired = append(c.deadlines.expired, sent...)
	d.registry.counters.AckExpired.Add(uint64(len(sent)))
	d.pending.releases = append(d.pending.releases, sent...)
	d.pending.unsent = append(d.pending.unsent, unsent...) // keep the messages in order
	d.returning, d.pending.returns = true, true
	signal(c.notify)
	signal(d.work)
}

// addLate records expired messages. It retains at most as many as a consumer may have in flight.
func (c *Consumer) addLate(sequences []uint64) {
	c.deadlines.late.add(sequences, c.d.registry.limits.Load().Outstanding)
}

// passActive activates the next consumer of an exclusive queue that is not idle, if the active consumer is idle. It
// releases the messages of the idle consumer. The caller must hold d.mu.
func (d *dispatcher) passActive() {
	defer d.elect()
	s, selects := d.order.(*selective)
	if !selects || !s.exclusive || len(d.consumers) == 0 || !d.consumers[0].idle() {
		return
	}
	at := slices.IndexFunc(d.consumers, func(c *Consumer) bool { return !c.idle() })
	if at < 0 {
		return
	}
	idle, next := d.consumers[0], d.consumers[at]
	d.consumers = slices.Insert(slices.Delete(d.consumers, at, at+1), 0, next)
	idle.firstSince, next.firstSince = time.Time{}, time.Now()
	d.turn = 0
	var sent []uint64
	for sequence, at := range idle.inFlight {
		if at != 0 {
			sent = append(sent, sequence)
		}
	}
	d.takeBack(idle, sent)
	s.consumersChanged()
}

// resumed records that a consumer is no longer silent or stalled. The caller must hold d.mu.
func (d *dispatcher) resumed() {
	d.passActive()
	signal(d.wake)
}

// answered records the time of the outcomes, and removes acks and rejects of expired messages from a. The caller
// must hold d.mu.
func (c *Consumer) answered(a *Outcomes) {
	if len(a.Acks)+len(a.Nacks)+len(a.Rejects)+len(a.Releases) == 0 {
		return
	}
	s := &c.deadlines
	s.answered = c.d.registry.elapsed()
	if len(s.late.numbers) == 0 || mutate.Off("INV-22-a-late-ack-counts") {
		return
	}
	for _, ranges := range [...]*[]Range{&a.Acks, &a.Rejects} {
		sorted := merged(*ranges)
		var late []uint64
		for sequence := range s.late.numbers {
			i, found := slices.BinarySearchFunc(sorted, sequence, func(r Range, sequence uint64) int {
				return cmp.Compare(r.First, sequence)
			})
			if found || i > 0 && sorted[i-1].Last >= sequence {
				late = append(late, sequence)
			}
		}
		if len(late) > 0 {
			slices.Sort(late)
			*ranges = withoutSequences(sorted, late)
			s.refused = append(s.refused, late...)
			signal(c.notify)
		}
	}
}

// withoutSequences returns the ranges without the given sequences. Both arguments must be sorted, and each sequence
// must be in a range.
func withoutSequences(ranges []Range, sequences []uint64) (left []Range) {
	for _, r := range ranges {
		for len(sequences) > 0 && sequences[0] <= r.Last {
			if r.First < sequences[0] {
				left = append(left, Range{First: r.First, Last: sequences[0] - 1})
			}
			r.First = sequences[0] + 1
			sequences = sequences[1:]
		}
		if r.First <= r.Last {
			left = append(left, r)
		}
	}
	return left
}

// OldestInFlight returns the age of the oldest delivery in flight of a subscription; 0 if no message is in
// flight.
func (r *Registry) OldestInFlight(key Key) time.Duration {
	d := r.of(key)
	if d == nil {
		return 0
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	oldest := moment(0)
	for _, c := range d.consumers {
		oldest = earliest(oldest, c.oldest())
	}
	if oldest == 0 {
		return 0
	}
	return time.Duration(r.elapsed() - oldest)
}

// earliest returns the earlier of two moments. It ignores a moment that is unset.
func earliest(a, b moment) moment {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// oldest returns the time of the oldest delivery in flight. It returns 0 if no message is in flight. The caller must
// hold d.mu.
func (c *Consumer) oldest() (first moment) {
	for _, sent := range c.inFlight {
		first = earliest(first, sent)
	}
	return first
}

// Stuck describes a consumer that has messages in flight and has not settled or extended any of them for some
// time.
type Stuck struct {
	Key Key
	// From is the origin of the consumer.
	From     string
	InFlight int
	// For is the time since the last outcome or Extend, or since the oldest delivery in flight if that is later.
	For time.Duration
}

// stuckInterval is the minimum time between two checks for stuck consumers.
const stuckInterval = 10 * time.Second

// Stuck returns the consumers that have had a message in flight for at least the given time, without settling or
// extending any message. The result is cached for stuckInterval. The caller must not modify it.
func (r *Registry) Stuck(after time.Duration) []Stuck {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.elapsed()
	if r.checkedAt != 0 && now < r.checkedAt.add(stuckInterval) {
		return r.stuck
	}
	r.checkedAt, r.stuck = now, nil
	for _, d := range r.byKey {
		r.stuck = d.appendStuck(r.stuck, now, after)
	}
	slices.SortFunc(r.stuck, func(a, b Stuck) int {
		return cmp.Or(cmp.Compare(b.For, a.For), cmp.Compare(a.Key.Queue, b.Key.Queue), cmp.Compare(a.Key.Sub, b.Key.Sub))
	})
	return r.stuck
}

func (d *dispatcher) appendStuck(list []Stuck, now moment, after time.Duration) []Stuck {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.consumers {
		if len(c.inFlight) == 0 || now < c.deadlines.answered.add(after) {
			continue
		}
		first := c.oldest()
		if since := max(first, c.deadlines.answered); first != 0 && now >= since.add(after) {
			list = append(list, Stuck{
				Key: d.key, From: c.from, InFlight: len(c.inFlight), For: time.Duration(now - since),
			})
		}
	}
	return list
}
