// SPDX-License-Identifier: Apache-2.0

//go:build measure

package guard

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The allocations per message of a pair's serial sections are within their windows. Apart from copies, allocations are
// most of a section's cost, and unlike time, they do not depend on the machine.
func TestSerialAllocations(t *testing.T) {
	active, standby, conn := startPairOf(t, nodeSettings{Serial: true})
	const requests, messages = 300, 100
	next := uint64(0)
	l := load{"", requests, messages, 1, bodyBytes}
	publish(t, conn, l, warmUp, &next)
	stored := uint64(warmUp * messages)
	nodes := map[string]*process{"commit": active, "send": active, "receive": standby, "apply": standby}
	cost := map[string]float64{}
	// On a busy machine, requests are slow, and the count includes timers such as the standby's heartbeats. In this case,
	// the measurement is repeated, and the cost of a message is the minimum.
	for i := 0; i == 0 || i < 20 && tooExpensive(t, cost); i++ {
		before := map[*process]map[string]int64{active: active.counts().Serial, standby: standby.counts().Serial}
		publish(t, conn, l, requests, &next)
		stored += requests * messages
		after := map[*process]map[string]int64{active: active.counts().Serial, standby: standby.counts().Serial}
		for section, p := range nodes {
			leastSerial(t, cost, section, after[p][section]-before[p][section], after[p][section], requests*messages)
		}
	}
	before := active.counts().Serial
	consume(t, conn, "default", stored)
	after := active.counts().Serial
	for _, section := range []string{"deliver", "settle"} {
		leastSerial(t, cost, section, after[section]-before[section], after[section], stored)
	}
	require.Len(t, cost, len(serialSections()))
	for section, c := range cost {
		check(t, serialWindow+section, c)
	}
}

// serialWindow is the prefix of the window names of serial sections.
const serialWindow = "serial: allocations per message, "

// leastSerial records the minimum cost of a section per message. It fails the test if the total is 0, because the
// function was then probably renamed.
func leastSerial(t *testing.T, cost map[string]float64, section string, allocated, inAll int64, messages uint64) {
	t.Helper()
	require.Positive(t, inAll, "%s: no allocations were counted", section)
	c := float64(allocated) / float64(messages)
	if least, ok := cost[section]; !ok || c < least {
		cost[section] = c
	}
}

// tooExpensive reports whether a section exceeds its window.
func tooExpensive(t *testing.T, cost map[string]float64) bool {
	t.Helper()
	for section, c := range cost {
		if c > windowOf(t, serialWindow+section).most {
			return true
		}
	}
	return false
}
