// SPDX-License-Identifier: Apache-2.0

package dispatch

import "context"

// order decides who gets what next: what is read, and which consumer it is given to. A dispatcher has a fifo, until
// something asks for more than that: see selective.
//
// The dispatcher's lock is held in every call but read, which is for the delivering goroutine alone.
type order interface {
	// demand gives out what waits in memory and tells how many more messages the consumers can take, not more than
	// most. again are sequences, ascending, that must be read and handed out before anything new. It sets
	// dispatcher.noneTakes.
	demand(most int) (want int, again []uint64)
	// read reads new messages. What next means is for handOut alone.
	read(ctx context.Context, want, maxBytes int) (messages []Message, next uint64, err error)
	// handOut gives out messages that read has read, as far as they are still to be delivered; what no consumer can
	// take now waits. It tells whether read has found anything.
	handOut(messages []Message, next uint64) (progressed bool)
	// notRead has sequences wait again that demand has named and that were not read, since what was read with them is
	// enough for one time. It is called before handOutAgain.
	notRead(sequences []uint64)
	// handOutAgain gives out messages of which demand has named the sequences; what no consumer can take now waits. It
	// tells how many were given to a consumer that a consumer was given before.
	handOutAgain(messages []Message) (redelivered uint64)
	// unread drops messages that were read and that no consumer was given: they are given back in another way.
	unread(ranges []Range)
	// passedAll reports whether all messages were looked at that were there when a consumer has requested to drain.
	passedAll(c *Consumer) bool
	// passed tells whether new messages are read from behind a sequence on. Not to be called while a read is going on.
	passed(sequence uint64) bool
	// giveBack has sequences delivered again that are with no consumer any more.
	giveBack(sequences []uint64)
	// forget drops what is acknowledged from all that waits.
	forget(acks []Range)
	// tracks tells whether answered must be called for what consumers answer.
	tracks() bool
	// answered tells that messages are acknowledged, rejected or dead.
	answered(sequences []uint64)
	// left tells that a consumer has left. What it had is given back by other calls.
	left(c *Consumer)
	// news tells that the queue has changed: there may be something to read.
	news()
	// stop lets go of all records.
	stop()
}

// fifo is the order of a plain queue: messages in the order of their sequences, each to the next consumer in turn that
// can take it; those that were given back before new ones, the lowest sequence first.
type fifo struct {
	d         *dispatcher
	ready     []Message // read, not yet given to a consumer
	redeliver sequences // given back; not yet given out again
	atEnd     bool      // the last message of the queue was read
}

func (f *fifo) demand(most int) (want int, again []uint64) {
	d := f.d
	if f.redeliver.len() == 0 && !d.returning {
		f.handOutReady()
	}
	for _, c := range d.consumers {
		want += c.canTake()
	}
	want = min(want, most)
	d.noneTakes = want == 0
	for len(again) < want && f.redeliver.len() > 0 {
		again = append(again, f.redeliver.pop())
	}
	if len(again) == 0 && (f.atEnd || len(f.ready) > 0 || d.returning) {
		return 0, nil
	}
	return want, again
}

// read goes on behind what was read before: only the delivering goroutine changes that.
func (f *fifo) read(ctx context.Context, want, maxBytes int) ([]Message, uint64, error) {
	return f.d.registry.source.Read(ctx, f.d.key, f.d.next, want, maxBytes, nil)
}

func (f *fifo) handOut(messages []Message, next uint64) (progressed bool) {
	progressed = next != f.d.next
	f.atEnd = !progressed
	f.d.next = next
	f.ready = append(f.ready, messages...)
	if !f.d.returning {
		f.handOutReady()
	}
	return progressed
}

// handOutReady gives ready messages to the consumers, each to the next one in turn that can take it.
func (f *fifo) handOutReady() {
	given := 0
	for _, m := range f.ready {
		c := f.d.nextConsumer()
		if c == nil {
			break
		}
		given++
		c.give(m, min((len(f.ready)-given)/len(f.d.consumers), c.canTake()))
	}
	f.ready = f.ready[given:]
	if len(f.ready) == 0 {
		f.ready = nil // let go of the records
	}
}

func (f *fifo) handOutAgain(messages []Message) (redelivered uint64) {
	for _, m := range messages {
		if c := f.d.nextConsumer(); c != nil {
			c.give(m, 0)
			if m.DeliveryCount > 0 {
				redelivered++
			}
		} else {
			f.redeliver.push(m.Sequence)
		}
	}
	return redelivered
}

func (f *fifo) notRead(sequences []uint64) { f.giveBack(sequences) }

func (f *fifo) unread(ranges []Range) { f.ready = withoutRanges(f.ready, ranges) }

func (f *fifo) passed(sequence uint64) bool { return sequence < f.d.next }

func (f *fifo) giveBack(sequences []uint64) {
	for _, sequence := range sequences {
		f.redeliver.push(sequence)
	}
}

func (f *fifo) forget(acks []Range) {
	f.ready = withoutRanges(f.ready, acks)
	for _, r := range acks {
		f.redeliver.removeRange(r)
	}
}

func (f *fifo) tracks() bool { return false }

func (f *fifo) answered([]uint64) {}

func (f *fifo) left(*Consumer) {}

func (f *fifo) news() { f.atEnd = false }

func (f *fifo) stop() { f.ready = nil }
