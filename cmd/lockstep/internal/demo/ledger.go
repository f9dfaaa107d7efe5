// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/client"
)

// ledger keeps the books: one record per message, by the number that the publisher gave it.
type ledger struct {
	mu           sync.Mutex // guards all below
	records      []record
	bySequence   map[uint64]int // which message was acknowledged under a sequence; the first one, if there are more
	stored       map[int]uint64 // under which sequence the queue holds a message at the end
	acknowledged int
	delivered    int
	highest      uint64 // sequence that was delivered for the first time
	outOfOrder   int
	lastStored   int // number of the message that the audit read last
	redelivered  int
	duplicated   int
	active       string // address that acknowledged last

	killed   string // address of the killed node
	killedAt time.Time
	taken    chan time.Duration // capacity 1: time from killedAt to the first acknowledgement by another node

	disturbed   bool          // since the kill, until the pair is in sync again
	calm        time.Time     // end of the last disturbance
	longest     time.Duration // that a publish took
	longestAt   time.Time     // when it was acknowledged
	longestKill time.Duration // the same of those that a disturbance fell into
}

// record is what is known about one message.
type record struct {
	published    time.Time
	acknowledged uint64 // sequence that the pair acknowledged; 0: none
	delivered    uint64 // sequence that it was first delivered under; 0: none
	confirmed    bool   // the consumer's acknowledgement was confirmed
	overwritten  bool   // its sequence was acknowledged for another message, too
}

func newLedger() *ledger {
	return &ledger{bySequence: make(map[uint64]int), stored: make(map[int]uint64), lastStored: -1}
}

// next begins the record of another message and returns its number.
func (l *ledger) next() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records = append(l.records, record{published: time.Now()})
	return len(l.records) - 1
}

// acknowledge notes the answer to a publish.
func (l *ledger) acknowledge(n int, r client.Receipt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := &l.records[n]
	m.acknowledged = r.Sequence
	l.acknowledged++
	// Two nodes have acknowledged, each on its own: one of the two messages is gone.
	if other, taken := l.bySequence[r.Sequence]; taken && other != n {
		l.records[other].overwritten = true
	} else {
		l.bySequence[r.Sequence] = n
	}
	took := time.Since(m.published)
	if l.disturbed || m.published.Before(l.calm) {
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
	l.disturbed, l.calm = false, time.Now()
}

// pauses returns how long the slowest publish took and when it was answered, and how long the slowest of those that the
// kill fell into.
func (l *ledger) pauses() (planned time.Duration, at time.Time, killed time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.longest, l.longestAt, l.longestKill
}

// deliver notes a delivery and returns the number of the message.
func (l *ledger) deliver(seed uint64, m client.Stored) (int, error) {
	n, err := checkBody(seed, m.Body)
	if err != nil {
		return 0, fmt.Errorf("sequence %d: %w", m.Sequence, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if n >= len(l.records) {
		return 0, fmt.Errorf("sequence %d is message %d, which was never published", m.Sequence, n)
	}
	switch r := &l.records[n]; {
	case r.delivered == 0:
		r.delivered = m.Sequence
		l.delivered++
		if m.Sequence < l.highest && m.DeliveryCount == 0 {
			l.outOfOrder++
		}
		l.highest = max(l.highest, m.Sequence)
	case r.delivered != m.Sequence, r.confirmed:
		l.duplicated++
	default:
		l.redelivered++
	}
	return n, nil
}

// audit notes what the queue holds at the end, message by message.
func (l *ledger) audit(seed uint64, m client.Stored) error {
	n, err := checkBody(seed, m.Body)
	if err != nil {
		return fmt.Errorf("sequence %d: %w", m.Sequence, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if n >= len(l.records) {
		return fmt.Errorf("sequence %d is message %d, which was never published", m.Sequence, n)
	}
	if _, twice := l.stored[n]; twice {
		l.duplicated++
		return nil
	}
	if n < l.lastStored {
		l.outOfOrder++
	}
	l.stored[n], l.lastStored = m.Sequence, n
	return nil
}

// confirm notes that the consumer's acknowledgements of these messages are committed.
func (l *ledger) confirm(numbers []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range numbers {
		l.records[n].confirmed = true
	}
}

// left is how many acknowledged messages are not yet delivered.
func (l *ledger) left() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := 0
	for _, r := range l.records {
		if r.acknowledged != 0 && r.delivered == 0 {
			left++
		}
	}
	return left
}

// count fills the verdict in.
func (l *ledger) count(v *Verdict) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v.Published, v.Acknowledged, v.Delivered = len(l.records), l.acknowledged, l.delivered
	v.Duplicated, v.Redelivered, v.OutOfOrder = l.duplicated, l.redelivered, l.outOfOrder
	for n, r := range l.records {
		if r.acknowledged != 0 && (r.delivered != r.acknowledged || l.stored[n] != r.acknowledged || r.overwritten) {
			v.Lost++
		}
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
	headBytes   = 8
	minPadBytes = 56
	maxPadBytes = 1016
)

// makeBody makes the body of message n: its number, and content that only this message has.
func makeBody(seed uint64, n int) []byte {
	rng := rand.New(rand.NewPCG(seed, uint64(n)+1))
	b := make([]byte, headBytes+minPadBytes+rng.IntN(maxPadBytes-minPadBytes))
	binary.BigEndian.PutUint64(b, uint64(n))
	for i := headBytes; i < len(b); i += 8 {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], rng.Uint64())
		copy(b[i:], word[:])
	}
	return b
}

// checkBody returns the number of a message whose body is as it was made.
func checkBody(seed uint64, body []byte) (int, error) {
	if len(body) < headBytes {
		return 0, fmt.Errorf("the body has %d bytes only", len(body))
	}
	n := binary.BigEndian.Uint64(body)
	if n > 1<<40 || !bytes.Equal(body, makeBody(seed, int(n))) {
		return 0, fmt.Errorf("the body is not what was published as message %d", n)
	}
	return int(n), nil
}
