// SPDX-License-Identifier: Apache-2.0

package expiry

import "time"

const (
	minBatch = 256
	// urgencyInterval is the time after which the batch size is multiplied by four, twice.
	urgencyInterval = time.Minute
	// maxPause bounds a pause: under load, a transaction takes longer because it waits for others.
	maxPause = 8 * time.Millisecond
)

// backoff limits the rate of background work, so that the expiry of a million messages does not delay publishers and
// consumers. Transactions are small, since others wait while one is applied, and each is followed by a pause of several
// times its duration. Work that is not done after a minute may arrive faster than it is done, and continues in larger
// transactions with shorter pauses.
type backoff struct{ since time.Time }

func (l *backoff) begin() { l.since = time.Now() }

func (l *backoff) urgency() int { return int(min(time.Since(l.since)/urgencyInterval, 2)) }

func (l *backoff) batch() int { return minBatch << (2 * l.urgency()) }

func (l *backoff) pause(took time.Duration) time.Duration {
	return min(took*[...]time.Duration{7, 3, 1}[l.urgency()], maxPause)
}
