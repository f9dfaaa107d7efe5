// SPDX-License-Identifier: Apache-2.0

package expiry

import "time"

const (
	// leastBatch is the initial number of messages that one transaction expires.
	leastBatch = 256
	// hurryAfter is the time after which the batch size is multiplied by four, twice.
	hurryAfter = time.Minute
	// longestRest bounds a pause: under load, a transaction takes longer because it waits for others.
	longestRest = 8 * time.Millisecond
)

// leisure limits the rate of background work, so that the expiry of a million messages does not delay publishers and
// consumers. The work is done in small transactions, since others wait for a transaction that is being applied. Each
// is followed by a pause of several times its duration. If the work is not done after a minute, it may be slower than
// the arrival of new work: it continues in larger transactions with shorter pauses.
type leisure struct{ since time.Time }

// begin starts the clock.
func (l *leisure) begin() { l.since = time.Now() }

// hurry returns the urgency, 0 to 2.
func (l *leisure) hurry() int { return int(min(time.Since(l.since)/hurryAfter, 2)) }

// batch returns the maximum number of messages of the next transaction.
func (l *leisure) batch() int { return leastBatch << (2 * l.hurry()) }

// rest returns the pause after a transaction of this duration.
func (l *leisure) rest(took time.Duration) time.Duration {
	return min(took*[...]time.Duration{7, 3, 1}[l.hurry()], longestRest)
}
