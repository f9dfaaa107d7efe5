// SPDX-License-Identifier: Apache-2.0

// Package guard limits the countable costs of a message: allocations, bytes written, and syncs. These costs do not
// depend on the speed of the machine, so that CI can reject a change that increases them.
package guard

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// queue is the name of the only queue of a test.
const queue = "guard"

// window is the valid range of a count. A count below least means that the cost was reduced and the limits must be
// lowered, or that a required operation, such as a sync, is missing.
type window struct{ least, most float64 }

// windows returns the limits of a message's cost. Comments contain the count at the last change. Bytes and syncs of a
// store do not depend on the machine; allocations of a node vary slightly because of timers. A change that reduces a
// cost lowers its limits. A change that increases a cost explains it in the commit message.
func windows() map[string]window {
	const (
		off100, always100 = ", sync=off, 100 of 512 B", ", sync=always, 100 of 512 B"
		always1, always5  = ", sync=always, 1 of 512 B", ", sync=always, 5 of 15000 B"
		consumed          = ", sync=off, 100 of 512 B, consumed"
	)
	return map[string]window{
		// The size of a pipelined batch depends on the machine, so the counts vary (usually 0.3 and 0.03). They cannot
		// exceed the counts of 100 at a time.
		"active: allocations per message, pipelined requests of 100":  {0.15, 0.65},
		"standby: allocations per message, pipelined requests of 100": {0.005, 0.35},
		"active: allocations per message, 100 at a time":              {0.4, 0.65}, // 0.51; 0.59 on a busy machine
		"standby: allocations per message, 100 at a time":             {0.1, 0.35}, // 0.20
		"active: allocations per message, 1 at a time":                {45, 61},    // 53.1
		"standby: allocations per message, 1 at a time":               {17, 24.2},  // 21.0
		// 0.37; less if the pages were written before
		"active: allocations per message, written to pages": {0.01, 0.43},

		// In simulated time.
		"pair and client: allocations per message, 100 at a time": {1.9, 2.2}, // 2.07
		"pair and client: allocations per message, 1 at a time":   {140, 152}, // 147

		// Copies to the log frame, which stream and memory share, and to the page.
		"active: copies of a large body": {1.9, 2.3}, // 2.0
		// A copy to the page. In a batch of several bodies, the first 16 KiB are also copied to the receive buffer. With two
		// bodies per batch, the count is 1.55.
		"standby: copies of a large body":    {0.95, 1.65}, // 1.2
		"active: checksums of a large body":  {0.95, 1.1},  // 1.0
		"standby: checksums of a large body": {0.95, 1.1},  // 1.0

		"log: bytes per message" + off100:    {510, 542},       // 525.9
		"log: bytes per message" + always100: {510, 542},       // 525.9
		"log: bytes per message" + always1:   {598, 634},       // 616
		"log: bytes per message" + always5:   {15_000, 15_480}, // 15030
		"log: bytes per message" + consumed:  {511, 543},       // 526.8, including the acknowledgement

		"log: syncs per transaction" + off100:    {0, 0.01}, // 2 or 3 of 300
		"log: syncs per transaction" + always100: {1, 1.02}, // 1
		"log: syncs per transaction" + always1:   {1, 1.02}, // 1
		"log: syncs per transaction" + always5:   {1, 1.02}, // 1
		"log: syncs per transaction" + consumed:  {0, 0.01}, // 2 or 3 of 300

		"page.db: bytes per message" + off100:    {570, 605},       // 587.8
		"page.db: bytes per message" + always100: {570, 605},       // 587.8
		"page.db: bytes per message" + always1:   {576, 612},       // 594.1
		"page.db: bytes per message" + always5:   {15_914, 16_898}, // 16406
		// 0.2: messages consumed before a checkpoint are never written
		"page.db: bytes per message" + consumed: {0.05, 1},

		"page.db: bytes per message, pages of 2 KiB":       {570, 605}, // 587.8
		"page.db: bytes per message, pages of 32 KiB":      {524, 556}, // 539.6
		"page.db: bytes read per message, pages of 2 KiB":  {571, 607}, // 588.9
		"page.db: bytes read per message, pages of 32 KiB": {551, 585}, // 568.0

		"store: allocations per message, subscriptions: 1":   {0.33, 0.41}, // 0.37
		"store: allocations per message, subscriptions: 100": {0.33, 0.41}, // 0.37

		// A consumer with 256 messages of credit, like the client.
		"consume: allocations per message, memory": {0.15, 0.29}, // 0.23
		"consume: allocations per message, pages":  {0.28, 0.47}, // 0.40
		// 0.34: messages that another subscription has read from the pages
		"consume: allocations per message, again": {0.23, 0.40},

		// 100 at a time, counted in the goroutine of the serial section.
		"serial: allocations per message, commit":  {0, 0.02},    // 0.000
		"serial: allocations per message, send":    {0.05, 0.2},  // 0.14
		"serial: allocations per message, receive": {0.02, 0.32}, // 0.23
		"serial: allocations per message, apply":   {0, 0.03},    // 0.002
		"serial: allocations per message, deliver": {0.02, 0.09}, // 0.055
		"serial: allocations per message, settle":  {0.02, 0.11}, // 0.065

		"read: allocations per message, in memory": {0.001, 0.006}, // 0.003
		"read: allocations per message, in pages":  {0.05, 0.11},   // 0.09
	}
}

// windowOf returns the window of a count. With the race detector, the window is larger.
func windowOf(t *testing.T, label string) window {
	t.Helper()
	w, ok := windows()[label]
	require.True(t, ok, "%s has no window", label)
	if strings.Contains(label, "allocations") {
		w.most *= raceFactor
	}
	return w
}

// check compares a count with its window.
func check(t *testing.T, label string, got float64) {
	t.Helper()
	w := windowOf(t, label)
	t.Logf("%-60s %10.3f, from %10.3f to %10.3f", label, got, w.least, w.most)
	if got > w.most { // continue after a failure, because the other counts add information
		t.Errorf("%s: %.3f is above %.3f: the cost per message has increased; see windows in test/guard", label, got, w.most)
	}
	if got < w.least {
		t.Errorf("%s: %.3f is below %.3f: required work may be missing; see windows in test/guard", label,
			got, w.least)
	}
}
