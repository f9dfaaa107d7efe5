// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
)

// ledger records what the demo's publisher and consumer are told, for the audit at the end, and counts for the screen
// meanwhile. Times count from the beginning of the history.
type ledger struct {
	history *historycheck.History

	mu           sync.Mutex // guards all below
	records      []record   // one per message, by the number that the publisher gave it
	acknowledged int
	delivered    int
	redelivered  int
	active       string // address that acknowledged last

	killed   string // address of the killed node
	killedAt time.Time
	taken    chan time.Duration // capacity 1: time from killedAt to the first acknowledgement by another node

	disturbed   bool          // since the kill, until the pair is in sync again
	calm        time.Duration // end of the last disturbance
	longest     time.Duration // that a publish took
	longestAt   time.Time     // when it was acknowledged
	longestKill time.Duration // the same of those that a disturbance fell into
}

// record is what is known about one message.
type record struct {
	sent                    time.Duration
	acknowledged, delivered bool
}

func newLedger() *ledger { return &ledger{history: historycheck.NewHistory()} }

// next begins the record of another message and returns its number.
func (l *ledger) next() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records = append(l.records, record{sent: l.history.Now()})
	return len(l.records) - 1
}

// idOf names message n in the history, where counts begin with 1.
func idOf(n int) historycheck.ID { return historycheck.ID{Producer: 1, N: uint64(n) + 1} }

// acknowledge notes the answer to a publish.
func (l *ledger) acknowledge(n int, r client.Receipt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := &l.records[n]
	m.acknowledged = true
	l.acknowledged++
	now := l.history.Now()
	l.history.AddPublish(historycheck.Publish{
		ID: idOf(n), Queue: queueName, Sent: m.sent, Done: now, Outcome: historycheck.Acked, Sequence: r.Sequence, LSN: r.LSN,
		Address: r.Address,
	})
	took := now - m.sent
	if l.disturbed || m.sent < l.calm {
		l.longestKill = max(l.longestKill, took)
	} else if took > l.longest {
		l.longest, l.longestAt = took, time.Now()
	}
	l.active = r.Address
	if l.taken != nil && r.Address != l.killed {
		l.taken <- time.Since(l.killedAt)
		l.taken = nil
	}
}

// expectTakeover starts the clock. The channel gets the time to the first acknowledgement by another node than killed;
// answers of that one which are still on their way do not count.
func (l *ledger) expectTakeover(killed string) <-chan time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := make(chan time.Duration, 1)
	l.killed, l.killedAt, l.taken, l.disturbed = killed, time.Now(), taken, true
	return taken
}

// settled notes that the pair is in sync again after a kill.
func (l *ledger) settled() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.disturbed, l.calm = false, l.history.Now()
}

// pauses returns how long the slowest publish took and when it was answered, and how long the slowest of those that the
// kill fell into.
func (l *ledger) pauses() (planned time.Duration, at time.Time, killed time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.longest, l.longestAt, l.longestKill
}

// deliver notes a delivery, which the consumer acknowledges next.
func (l *ledger) deliver(m client.Stored) error {
	id, err := historycheck.ParseBody(m.Body)
	if err != nil {
		return fmt.Errorf("sequence %d: %w", m.Sequence, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if id.N > uint64(len(l.records)) {
		return fmt.Errorf("sequence %d is message %d, which was never published", m.Sequence, id.N)
	}
	if r := &l.records[id.N-1]; r.delivered {
		l.redelivered++
	} else {
		r.delivered = true
		l.delivered++
	}
	l.history.AddDelivery(historycheck.Delivery{
		Queue: queueName, Sub: client.DefaultSubscription, Sequence: m.Sequence, ID: id, At: l.history.Now(), Stream: 1,
		Repeated: m.DeliveryCount > 0,
	})
	l.history.AddAckSent(historycheck.Ack{Queue: queueName, Sub: client.DefaultSubscription, Sequence: m.Sequence})
	return nil
}

// confirm notes that the consumer's acknowledgements are committed.
func (l *ledger) confirm(sequences []uint64) {
	for _, s := range sequences {
		l.history.AddAck(historycheck.Ack{
			Queue: queueName, Sub: client.DefaultSubscription, Sequence: s, Confirmed: l.history.Now(),
		})
	}
}

// audit notes what the queue holds at the end, message by message.
func (l *ledger) audit(m client.Stored) error {
	id, err := historycheck.ParseBody(m.Body)
	if err != nil {
		return fmt.Errorf("sequence %d: %w", m.Sequence, err)
	}
	l.history.AddFinal(historycheck.Stored{Queue: queueName, Sequence: m.Sequence, ID: id})
	return nil
}

// left is how many acknowledged messages are not yet delivered.
func (l *ledger) left() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := 0
	for _, r := range l.records {
		if r.acknowledged && !r.delivered {
			left++
		}
	}
	return left
}

// judge fills the verdict in, after audit and digests.
func (l *ledger) judge(v *Verdict) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v.Published, v.Acknowledged, v.Delivered = len(l.records), l.acknowledged, l.delivered
	v.Redelivered = l.redelivered
	for n, r := range l.records {
		if !r.acknowledged {
			l.history.AddPublish(historycheck.Publish{
				ID: idOf(n), Queue: queueName, Sent: r.sent, Outcome: historycheck.Unknown,
			})
		}
	}
	l.history.Edit(func(h *historycheck.History) {
		h.FinalRead, h.MaxUnknown = true, v.Published-v.Acknowledged
		h.Drained = []string{queueName + "/" + client.DefaultSubscription}
	})
	for _, broken := range l.history.Check() {
		v.add(broken)
	}
}

// line is the progress for the screen.
func (l *ledger) line() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("published %d   acknowledged %d   delivered %d   active %s", len(l.records), l.acknowledged,
		l.delivered, l.active)
}

// Lengths of the messages' bodies.
const (
	minBodyBytes = 64
	maxBodyBytes = 1024
)

// makeBody makes the body of message n, with content that only this message has.
func makeBody(seed uint64, n int) []byte {
	rng := rand.New(rand.NewPCG(seed, uint64(n)+1))
	return historycheck.Body(idOf(n), minBodyBytes+rng.IntN(maxBodyBytes-minBodyBytes))
}
