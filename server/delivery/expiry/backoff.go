// SPDX-License-Identifier: Apache-2.0

package expiry

import "time"

const (
	// minBatch is the initial number of messages that one transaction expires.
	minBatch = 256
	// urgencyInterval is the time after which the batch size is multiplied by four, twice.
	urgencyInterval = time.Minute
	// maxPause bounds a pause: under load, a transaction takes longer because it waits for others.
	maxPause = 8 * time.Millisecond
)

// backoff limits the rate of background work, so that the expiry of a million messages does not delay publishers and
// consumers. The work is done in small transactions, since others wait for a transaction that is being applied. Each
// is followed by a pause of several times its duration. If the work is not done after a minute, it may be slower than
// the arrival of new work: it continues in larger transactions with shorter pauses.
type backoff struct{ since time.Time }

// begin starts the clock.
func (l *backoff) begin() { l.since = time.Now() }

// urgency returns the urgency, 0 to 2.
func (l *backoff) urgency() int { return int(min(time.Since(l.since)/urgencyInterval, 2)) }

// batch returns the maximum number of messages of the next transaction.
func (l *backoff) batch() int { return minBatch << (2 * l.urgency()) }

// pause returns the pause after a transaction of this duration.
func (l *backoff) pause(took time.Duration) time.Duration {
	return min(took*[...]time.Duration{7, 3, 1}[l.urgency()], maxPause)
}
