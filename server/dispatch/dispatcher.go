// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
)

// maxReadMessages bounds one read, so that a large credit does not hold the store for long.
const maxReadMessages = 4096

// pollEvery is after how many steps of a busy dispatcher it is looked whether the queue was altered.
const pollEvery = 64

// damagedAgain is how often it is tried to read messages again that could not be read.
const damagedAgain = 5 * time.Second

// dispatcher serves one subscription.
type dispatcher struct {
	registry *Registry
	key      Key
	wake     chan struct{} // to the delivering goroutine: credit, room, redeliveries, or no longer paused
	work     chan struct{} // to the settling goroutine: something to commit
	room     chan struct{} // from the settling goroutine, closed and replaced when pending work was taken
	cancel   context.CancelFunc
	// matches tells whether a message matches the subscription's filter; nil if it has none.
	matches func(record []byte) bool
	// filters is Source.Filters before matches was asked for. Of the delivering goroutine, as matches is.
	filters uint64
	// others is how many messages of a turn did not match. Of the delivering goroutine alone.
	others  int
	running sync.WaitGroup // the two goroutines
	// noneTakes: no consumer can be given anything. Of the delivering goroutine alone.
	noneTakes bool
	// polls: what is new may have to go out before what was read. Of the delivering goroutine alone.
	polls bool

	mu        sync.Mutex // guards what is below, and the consumers' fields
	consumers []*Consumer
	order     order
	turn      int // index of the consumer whose turn it is
	paused    bool
	holding   int // calls of Withdraw under way
	stopped   error
	next      uint64    // above every sequence that was read
	later     later     // given back, and not yet to be given out again
	overdue   sequences // expired before they were sent
	ttl       int64     // of the queue, in milliseconds; 0 for none
	// could not be read; tried again now and then, and skipped meanwhile so that they hold up no other message
	damaged    sequences
	committing settlement // what the settling goroutine has taken and not yet committed; only what is answered
	returning  bool       // a lost consumer's messages are about to be given back: nothing newer goes out before them
	drains     bool       // a consumer has requested to drain, and nothing was looked for since
	reading    bool       // a read is going on, outside the lock
	pending    settlement
	skipped    skipped
	// deadWait: it is not yet time to try again to move the dead messages that are pending. deadFull: it was said why.
	deadWait, deadFull bool
	// ackedInRead was acknowledged while the read was going on: its result may still hold it.
	ackedInRead []Range
	// withheld is dropped from what is read, because it may be made deliverable at any moment and must not be delivered
	// twice; lettingOut are those of it for which that is over.
	withheld, lettingOut []Range
	// dueInRead became deliverable while it was going on, and its result does not have it.
	dueInRead []uint64
	// delivered is how many messages were handed to consumers.
	delivered uint64
}

func newDispatcher(r *Registry, key Key, paused bool) *dispatcher {
	d := &dispatcher{
		registry: r, key: key, paused: paused, next: 1,
		wake: make(chan struct{}, 1), work: make(chan struct{}, 1), room: make(chan struct{}),
		damaged: newSequences(), overdue: newSequences(), ttl: r.source.TTL(key.Queue),
	}
	d.order = orderOf(d)
	return d
}

// signal wakes the receiver of a coalescing channel.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default: // a signal is waiting already
	}
}

func (d *dispatcher) attach(from string, accepts func(*Message) bool) *Consumer {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := &Consumer{
		d: d, notify: make(chan struct{}, 1), inFlight: make(map[uint64]bool), err: d.stopped, accepts: accepts,
		from: from,
	}
	d.consumers = append(d.consumers, c)
	d.noteFirst()
	if accepts != nil {
		d.selects()
	}
	return c
}

func (d *dispatcher) setPaused(paused bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.paused = paused
	if paused {
		return
	}
	signal(d.wake)
	for _, c := range d.consumers {
		signal(c.notify)
	}
}

// stop ends the dispatcher and tells its consumers why.
func (d *dispatcher) stop(reason error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped == nil {
		d.stopped = reason
	}
	for _, c := range d.consumers {
		c.err = d.stopped
		signal(c.notify)
	}
	d.order.stop()
	d.later.stop()
	d.cancel()
}

func (d *dispatcher) stopIfIdle() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.consumers) > 0 || !d.pending.empty() || len(d.skipped.acks) > 0 {
		return false
	}
	d.stopped = ErrClosed
	d.cancel()
	return true
}

func (d *dispatcher) stats() (inFlight uint64, consumers uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.consumers {
		inFlight += uint64(len(c.inFlight))
	}
	return inFlight, uint32(len(d.consumers))
}

// noteFirst notes since when the consumer that has been attached for longest is that one. The dispatcher's lock is
// held.
func (d *dispatcher) noteFirst() {
	if len(d.consumers) > 0 && d.consumers[0].firstSince.IsZero() {
		d.consumers[0].firstSince = time.Now()
	}
}

// deliver is the delivering goroutine: it reads when a consumer can take something, and waits otherwise.
func (d *dispatcher) deliver(ctx context.Context) {
	changed, cancel := d.registry.source.Watch(d.key.Queue)
	defer cancel()
	again := time.NewTicker(damagedAgain)
	defer again.Stop()
	for steps, rounds := 0, 0; ; steps++ {
		if d.noneTakes || steps%pollEvery == 0 {
			select {
			case <-changed:
				d.news()
			default:
			}
		}
		progressed, err := d.step(ctx, changed)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			d.registry.fail(d, err)
			return
		}
		if progressed {
			continue
		}
		news := changed
		if d.noneTakes {
			news = nil // it stays there until a consumer can take a message; publishers need not wake those that cannot
		}
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
		case <-news:
			d.news()
		case <-again.C:
			d.retryDamaged()
			if rounds++; rounds%overdueAgain == 0 {
				d.retryOverdue()
			}
		}
	}
}

// news tells that the queue has changed, or its configuration.
func (d *dispatcher) news() {
	_, exclusive := d.registry.source.Order(d.key.Queue)
	ttl := d.registry.source.TTL(d.key.Queue)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ttl = ttl
	d.order.news()
	d.setExclusive(exclusive)
}

func (d *dispatcher) followExclusive() {
	_, exclusive := d.registry.source.Order(d.key.Queue)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.setExclusive(exclusive)
}

// step hands out one batch.
func (d *dispatcher) step(ctx context.Context, changed <-chan struct{}) (progressed bool, err error) {
	maxMessages, maxBytes := maxReadMessages, d.registry.batchBytes()
	if d.registry.throttle.isBusy() {
		maxMessages, maxBytes = turnMessages, min(maxBytes, turnBytes)
	}
	want, again, from, news := d.demand(maxMessages, changed)
	if news {
		d.news()
	}
	if want == 0 {
		return false, nil
	}
	if d.matches != nil {
		want = max(want, min(maxMessages, filterReadMessages))
		if err := d.waitForRoom(ctx, false); err != nil {
			return false, err
		}
	}
	var messages []Message
	if len(again) > 0 {
		var left []uint64
		messages, left, err = d.readAgain(ctx, again, maxBytes)
		var others []Range
		if err == nil {
			messages, others, err = d.match(messages)
		}
		d.handOutAgain(messages, left, others)
		progressed = true
	} else {
		messages, progressed, err = d.readOn(ctx, from, want, maxBytes)
	}
	d.registry.throttle.pay(ctx, messages, d.others)
	d.others = 0
	return progressed, err
}

// readOn reads new messages and hands them out.
func (d *dispatcher) readOn(
	ctx context.Context, from order, want, maxBytes int,
) (messages []Message, progressed bool, err error) {
	messages, next, err := from.read(ctx, want, maxBytes)
	if d.polls {
		d.followExclusive() // a message that was published after the queue was altered goes out as the queue is now
	}
	d.wasRead(messages)
	matching, others, filterErr := d.match(messages)
	err = errors.Join(err, filterErr)
	most := d.maxDeliveries(matching)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.skip(others)
	messages = d.endRead(matching, most)
	defer d.endWithholding()
	if err != nil {
		return messages, false, err
	}
	progressed = d.order.handOut(messages, next)
	d.endDue()
	return messages, progressed, nil
}

// demand gives out what waits in memory and tells how many more messages the consumers can take, not more than most:
// those in `again` first, and otherwise new ones, which from is to read. Unless want is 0 the caller must now read, and
// end with endRead. news tells that the queue has changed; the order knows that already.
func (d *dispatcher) demand(most int, changed <-chan struct{}) (want int, again []uint64, from order, news bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.gives() {
		d.noneTakes = true
		return 0, nil, nil, false
	}
	if d.polls {
		// What was published before a consumer asked for more must be known where that is seen: under the lock.
		select {
		case <-changed:
			news = true
			d.order.news()
		default:
		}
	}
	d.beginDrains()
	want, again = d.order.demand(most)
	d.answerDrains(want, again)
	if want > 0 {
		d.reading = true
	}
	return want, again, d.order, news
}

// endRead drops from the result what was acknowledged while it was read, which no consumer may get any more, and what
// was delivered as often as it may be (most; 0: there is no limit).
func (d *dispatcher) endRead(messages []Message, most uint64) []Message {
	acked := d.ackedInRead
	d.reading, d.ackedInRead = false, nil
	messages = d.setDamaged(withoutRanges(withoutRanges(messages, acked), d.withheld))
	if most > 0 {
		messages = d.setDead(messages, most)
	}
	return messages
}

// gives reports whether consumers may be given messages at present. The dispatcher's lock is held.
func (d *dispatcher) gives() bool { return !d.paused && d.holding == 0 && d.stopped == nil }

// nextConsumer finds the next consumer in turn that can take a message; nil if none can.
func (d *dispatcher) nextConsumer() *Consumer {
	if !d.gives() {
		return nil
	}
	for i := range d.consumers {
		at := (d.turn + i) % len(d.consumers)
		if c := d.consumers[at]; c.canTake() > 0 {
			d.turn = at + 1
			return c
		}
	}
	return nil
}

// readAgain reads given sequences (ascending), about as many as have maxBytes; left are the others. Those that were
// acknowledged meanwhile are in neither.
func (d *dispatcher) readAgain(
	ctx context.Context, sequences []uint64, maxBytes int,
) (found []Message, left []uint64, err error) {
	for len(sequences) > 0 {
		run := 1
		for run < len(sequences) && sequences[run] == sequences[0]+uint64(run) {
			run++
		}
		last := sequences[run-1]
		for from := sequences[0]; from <= last; {
			if maxBytes <= 0 {
				return found, sequences[from-sequences[0]:], nil
			}
			messages, next, err := d.registry.source.Read(ctx, d.key, from, int(last-from)+1, maxBytes, nil)
			if err != nil {
				return nil, nil, err
			}
			for _, m := range messages {
				if m.Sequence <= last {
					found = append(found, m)
					maxBytes -= len(m.Record)
				}
			}
			if next == from {
				break
			}
			from = next
		}
		sequences = sequences[run:]
	}
	return found, nil, nil
}

// handOutAgain gives messages out for another time, and skips others, which do not match (they were damaged before);
// those that no consumer can take now, and those that are left to be read, go back to wait.
func (d *dispatcher) handOutAgain(messages []Message, left []uint64, others []Range) {
	most := d.maxDeliveries(messages)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.skip(others)
	defer d.endWithholding()
	d.order.notRead(left)
	if given := d.order.handOutAgain(d.endRead(messages, most)); given > 0 {
		d.registry.counters.Redelivered.Add(given)
	}
	d.endDue()
}

// settled takes messages from the consumers that have them, because they were acknowledged or released from elsewhere.
func (d *dispatcher) settled(acks, releases []Range) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forget(acks)
	d.giveBackLater(d.takeFromConsumers(releases), nil)
}

// forget removes acknowledged sequences from everything that waits to be delivered or answered.
func (d *dispatcher) forget(acks []Range) {
	if len(acks) == 0 {
		return
	}
	if d.reading {
		d.ackedInRead = append(d.ackedInRead, acks...)
	}
	d.order.forget(acks)
	for _, r := range acks {
		d.damaged.removeRange(r)
		d.overdue.removeRange(r)
		d.later.removeRange(r)
	}
	d.takeFromConsumers(acks)
}

// takeFromConsumers takes the sequences away from the consumers that have them and returns those that one had.
func (d *dispatcher) takeFromConsumers(ranges []Range) []uint64 {
	var held []uint64
	for _, c := range d.consumers {
		for _, r := range ranges {
			c.drop(r, &held)
		}
	}
	if len(held) > 0 {
		signal(d.wake) // a consumer at its limit of outstanding messages can take one again
	}
	return held
}

// giveBack makes sequences deliverable again.
func (d *dispatcher) giveBack(sequences []uint64) {
	if len(sequences) == 0 {
		return
	}
	d.order.giveBack(sequences)
	signal(d.wake)
}

// detach removes a consumer. Messages that it was sent count as one more delivery and are redelivered when that is
// committed, together with those that it was not sent yet.
func (d *dispatcher) detach(c *Consumer) {
	d.mu.Lock()
	at := slices.Index(d.consumers, c)
	if at < 0 {
		d.mu.Unlock()
		return // closed before
	}
	d.consumers = slices.Delete(d.consumers, at, at+1)
	d.noteFirst()
	d.turn = 0
	var unsent, sent []uint64
	for sequence, wasSent := range c.inFlight {
		if wasSent {
			sent = append(sent, sequence)
		} else {
			unsent = append(unsent, sequence)
		}
	}
	c.inFlight, c.outbox, c.left = nil, nil, true
	c.outboxBytes, c.unheard = 0, 0
	c.recount(1)
	d.order.left(c)
	if d.stopped == nil {
		if len(sent) > 0 {
			d.pending.unsent = append(d.pending.unsent, unsent...) // so that they go out in order
		} else {
			d.giveBack(unsent)
		}
		d.pending.releases = append(d.pending.releases, sent...)
		d.returning = d.returning || len(sent) > 0
		d.pending.returns = d.pending.returns || len(sent) > 0
		signal(d.work) // also to let it notice that no consumer is left
	}
	d.mu.Unlock()
	if len(sent) > 0 {
		d.registry.log.Debug("consumer left with unacknowledged messages; they are given back",
			zap.Uint64("queue_id", d.key.Queue), zap.Uint32("subscription_id", d.key.Sub),
			zap.Int("messages", len(sent)))
	}
	d.registry.detached()
}
