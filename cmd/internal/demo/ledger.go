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

// ledger records the results of the publisher and the consumer. The fields sent and undisturbed are relative to the
// start of the history.
type ledger struct {
	history *historycheck.History

	mu           sync.Mutex // guards all fields below
	records      []record   // one per message, by the number assigned by the publisher
	acknowledged int
	delivered    int
	redelivered  int
	active       string // address of the last acknowledging node

	killed   string // address of the killed node
	killedAt time.Time
	taken    chan time.Duration // capacity 1: time from killedAt to the first acknowledgement by another node

	disturbed   bool          // set from the kill until the pair is in sync again
	undisturbed time.Duration // end of the last disturbance
	longest     time.Duration // duration of the slowest publish outside disturbances
	longestAt   time.Time     // time of the acknowledgement of that publish
	longestKill time.Duration // duration of the slowest publish during a disturbance
}

type record struct {
	sent                    time.Duration
	acknowledged, delivered bool
}

func newLedger() *ledger { return &ledger{history: historycheck.NewHistory()} }

func (l *ledger) next() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records = append(l.records, record{sent: l.history.Now()})
	return len(l.records) - 1
}

// idOf returns the ID of message n in the history, where numbers start at 1.
func idOf(n int) historycheck.ID { return historycheck.ID{Producer: 1, N: uint64(n) + 1} }

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
	if l.disturbed || m.sent < l.undisturbed {
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

// expectTakeover returns a channel that receives the time to the first acknowledgement by a node other than killed;
// late responses of the killed node do not count.
func (l *ledger) expectTakeover(killed string) <-chan time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := make(chan time.Duration, 1)
	l.killed, l.killedAt, l.taken, l.disturbed = killed, time.Now(), taken, true
	return taken
}

// settled records that the pair is in sync again after a kill.
func (l *ledger) settled() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.disturbed, l.undisturbed = false, l.history.Now()
}

// pauses returns the duration of the slowest publish outside disturbances, the time of its acknowledgement, and the
// duration of the slowest publish during a disturbance.
func (l *ledger) pauses() (planned time.Duration, at time.Time, killed time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.longest, l.longestAt, l.longestKill
}

// deliver records a delivery, which the consumer acknowledges next.
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

func (l *ledger) confirm(sequences []uint64) {
	for _, s := range sequences {
		l.history.AddAck(historycheck.Ack{
			Queue: queueName, Sub: client.DefaultSubscription, Sequence: s, Confirmed: l.history.Now(),
		})
	}
}

// audit records a message that is in the queue at the end.
func (l *ledger) audit(m client.Stored) error {
	id, err := historycheck.ParseBody(m.Body)
	if err != nil {
		return fmt.Errorf("sequence %d: %w", m.Sequence, err)
	}
	l.history.AddFinal(historycheck.Stored{Queue: queueName, Sequence: m.Sequence, ID: id})
	return nil
}

// left returns the number of acknowledged messages that have not been delivered yet.
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

func (l *ledger) check(v *Verdict) {
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

func (l *ledger) line() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("published %d   acknowledged %d   delivered %d   active %s", len(l.records), l.acknowledged,
		l.delivered, l.active)
}

const (
	minBodyBytes = 64
	maxBodyBytes = 1024
)

func makeBody(seed uint64, n int) []byte {
	rng := rand.New(rand.NewPCG(seed, uint64(n)+1))
	return historycheck.Body(idOf(n), minBodyBytes+rng.IntN(maxBodyBytes-minBodyBytes))
}
