// Package guard holds what a message costs in things that can be counted: allocations, bytes written, syncs. They do not depend on how
// fast a machine is, so that CI can refuse a change that makes a message dearer.
package guard

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// pollEvery is how often a condition is looked at.
const pollEvery = 5 * time.Millisecond

// limits of what a message may cost: what was counted when the line was written last, and about 15 % more. Who makes a message
// cheaper lowers its line; who makes it dearer says in the commit why that is worth it.
func limits() map[string]float64 {
	const (
		off100, always100 = ", sync=off, 100 of 512 B", ", sync=always, 100 of 512 B"
		always1, always5  = ", sync=always, 1 of 512 B", ", sync=always, 5 of 15000 B"
		consumed          = ", sync=off, 100 of 512 B, consumed"
	)
	return map[string]float64{
		// Pipelining puts as many requests into a batch as the machine lets come together, so that its counts differ (0.3 and 0.03
		// are usual); its limits are those of 100 at a time, which it cannot exceed.
		"active: allocations per message, pipelined requests of 100":  0.65,
		"standby: allocations per message, pipelined requests of 100": 0.35,
		"active: allocations per message, 100 at a time":              0.65, // 0.51; what a slow machine does by the clock meanwhile counts, too
		"standby: allocations per message, 100 at a time":             0.35, // 0.20
		"active: allocations per message, 1 at a time":                61,   // 53.1
		"standby: allocations per message, 1 at a time":               24.2, // 21.0
		"active: allocations per message, written to pages":           0.43, // 0.37

		"log: bytes per message" + off100:    605,    // 525.9
		"log: bytes per message" + always100: 605,    // 525.9
		"log: bytes per message" + always1:   708,    // 616
		"log: bytes per message" + always5:   17_285, // 15030
		"log: bytes per message" + consumed:  606,    // 526.8: its acknowledgement is in it

		"log: syncs per transaction" + off100:    0.1, // 0.01
		"log: syncs per transaction" + always100: 1.1, // 1
		"log: syncs per transaction" + always1:   1.1, // 1
		"log: syncs per transaction" + always5:   1.1, // 1
		"log: syncs per transaction" + consumed:  0.1, // 0.01

		"page.db: bytes per message" + off100:    790,    // 687.6
		"page.db: bytes per message" + always100: 790,    // 687.6
		"page.db: bytes per message" + always1:   806,    // 700.6
		"page.db: bytes per message" + always5:   18_867, // 16406
		"page.db: bytes per message" + consumed:  50,     // 0.2: what is consumed in time is never written to it

		// A consumer with 256 messages of credit, as the client has.
		"consume: allocations per message, memory": 0.29, // 0.23
		"consume: allocations per message, pages":  0.47, // 0.40
		"consume: allocations per message, again":  0.40, // 0.34: what another subscription has read from the pages

		"read: allocations per message, in memory": 0.01, // 0.003
		"read: allocations per message, in pages":  0.12, // 0.09
	}
}

// check compares what was counted with its limit.
func check(t *testing.T, what string, got float64) {
	t.Helper()
	limit, ok := limits()[what]
	require.True(t, ok, "%s has no limit", what)
	limit *= raceFactor
	t.Logf("%-60s %10.3f, limit %10.3f", what, got, limit)
	if got > limit { // and go on: the other counts tell more
		t.Errorf("%s: %.3f is above %.3f: a message has become dearer; see limits in test/guard", what, got, limit)
	}
}
