// SPDX-License-Identifier: Apache-2.0

package sweep

import "time"

const (
	// leastBatch is how many messages one transaction expires at first.
	leastBatch = 256
	// hurryAfter is after how long it becomes four times as many, and after the same time once more.
	hurryAfter = time.Minute
	// longestRest bounds a rest: under load a transaction waits longer for others than it takes itself.
	longestRest = 8 * time.Millisecond
)

// leisure makes work take its time, so that to expire a million messages is felt by no publisher and by no consumer:
// it is done in small transactions, since others have to wait for the end of one that is being applied, and each
// is followed by a rest of several times as long as it took. Work that has not come to an end after a minute may be
// less than what comes in meanwhile: it goes on in larger transactions, with shorter rests.
type leisure struct{ since time.Time }

// begin says that work begins.
func (l *leisure) begin() { l.since = time.Now() }

// hurry is how urgent it is, 0 to 2.
func (l *leisure) hurry() int { return int(min(time.Since(l.since)/hurryAfter, 2)) }

// batch is how many messages the next transaction may have.
func (l *leisure) batch() int { return leastBatch << (2 * l.hurry()) }

// rest is how long it is to rest after a transaction that took so long.
func (l *leisure) rest(took time.Duration) time.Duration {
	return min(took*[...]time.Duration{7, 3, 1}[l.hurry()], longestRest)
}
