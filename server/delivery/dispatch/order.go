// SPDX-License-Identifier: Apache-2.0

package dispatch

import "context"

// order decides which messages are read next and which consumer receives them. A dispatcher uses a fifo until it
// needs a selective order. The caller must hold d.mu for all methods except read. Only the deliver goroutine calls
// read.
type order interface {
	// demand delivers buffered messages. It returns how many more messages the consumers can accept (want), limited to
	// most. The sequences that again contains (ascending) must be read and delivered before new messages. demand sets
	// dispatcher.noReceiver.
	demand(most int) (want int, again []uint64)
	read(ctx context.Context, want, maxBytes int) (messages []Message, next uint64, err error)
	// deliverRead delivers the messages of a read, and buffers those that no consumer can accept now. It reports
	// whether the read has made progress.
	deliverRead(messages []Message, next uint64) (progressed bool)
	// notRead requeues sequences that demand has returned and a limited read has not reached. It is called before
	// redeliverRead.
	notRead(sequences []uint64)
	// redeliverRead delivers messages that demand has requested, and requeues those that no consumer can accept now. It
	// returns the number of delivered messages that had been delivered before.
	redeliverRead(messages []Message) (redelivered uint64)
	// unread removes messages that were read and not assigned to a consumer. The caller requeues the messages.
	unread(ranges []Range)
	// passedAll reports whether all messages that existed when a consumer requested a drain have been read, and none of
	// them must still be delivered to the consumer.
	passedAll(c *Consumer) bool
	// passed reports whether the read position is past a sequence. It must not be called during a read.
	passed(sequence uint64) bool
	// requeue requeues messages that no longer have a consumer.
	requeue(sequences []uint64)
	remove(acks []Range) // the messages are acknowledged
	// tracks reports whether settled must be called when consumers acknowledge or reject messages.
	tracks() bool
	settled(sequences []uint64) // the messages are acknowledged, rejected or dead-lettered
	// left records that a consumer has left or has become idle. Its messages are requeued by other calls.
	left(c *Consumer)
	queueChanged()
	// stop releases all records.
	stop()
}

type fifo struct {
	d         *dispatcher
	ready     []Message // read and not yet assigned to a consumer
	redeliver sequences // requeued and not yet redelivered
	atEnd     bool      // the last message of the queue was read
}

func (f *fifo) demand(most int) (want int, again []uint64) {
	d := f.d
	if f.redeliver.len() == 0 && !d.returning {
		f.deliverReady()
	}
	for _, c := range d.consumers {
		want += c.capacity()
	}
	want = min(want, most)
	d.noReceiver = want == 0
	for len(again) < want && f.redeliver.len() > 0 {
		again = append(again, f.redeliver.pop())
	}
	if len(again) == 0 && (f.atEnd || len(f.ready) > 0 || d.returning) {
		return 0, nil
	}
	return want, again
}

func (f *fifo) read(ctx context.Context, want, maxBytes int) ([]Message, uint64, error) {
	return f.d.registry.source.Read(ctx, f.d.key, f.d.next, want, maxBytes, nil)
}

func (f *fifo) deliverRead(messages []Message, next uint64) (progressed bool) {
	progressed = next != f.d.next
	f.atEnd = !progressed
	f.d.next = next
	f.ready = append(f.ready, messages...)
	if !f.d.returning {
		f.deliverReady()
	}
	return progressed
}

func (f *fifo) deliverReady() {
	given := 0
	for _, m := range f.ready {
		c := f.d.nextConsumer()
		if c == nil {
			break
		}
		given++
		c.deliver(m, min((len(f.ready)-given)/len(f.d.consumers), c.capacity()))
	}
	f.ready = f.ready[given:]
	if len(f.ready) == 0 {
		f.ready = nil // release the records
	}
}

func (f *fifo) redeliverRead(messages []Message) (redelivered uint64) {
	for _, m := range messages {
		if c := f.d.nextConsumer(); c != nil {
			c.deliver(m, 0)
			if m.DeliveryCount > 0 {
				redelivered++
			}
		} else {
			f.redeliver.push(m.Sequence)
		}
	}
	return redelivered
}

func (f *fifo) notRead(sequences []uint64) { f.requeue(sequences) }

func (f *fifo) unread(ranges []Range) { f.ready = withoutRanges(f.ready, ranges) }

func (f *fifo) passed(sequence uint64) bool { return sequence < f.d.next }

func (f *fifo) requeue(sequences []uint64) {
	for _, sequence := range sequences {
		f.redeliver.push(sequence)
	}
}

func (f *fifo) remove(acks []Range) {
	f.ready = withoutRanges(f.ready, acks)
	for _, r := range acks {
		f.redeliver.removeRange(r)
	}
}

func (f *fifo) tracks() bool { return false }

func (f *fifo) settled([]uint64) {}

func (f *fifo) left(*Consumer) {}

func (f *fifo) queueChanged() { f.atEnd = false }

func (f *fifo) stop() { f.ready = nil }
