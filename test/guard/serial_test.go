// SPDX-License-Identifier: Apache-2.0

//go:build measure

package guard

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSerialAllocations counts what the serial sections of a pair allocate for each message, by the goroutine: time
// would differ from machine to machine, and what is allocated is most of what a section does beyond its copies.
func TestSerialAllocations(t *testing.T) {
	active, standby, conn := startPairOf(t, nodeSettings{Serial: true})
	const requests, messages = 300, 100
	next := uint64(0)
	l := load{"", requests, messages, 1, bodyBytes}
	publish(t, conn, l, warmUp, &next)
	stored := uint64(warmUp * messages)
	nodes := map[string]*process{"commit": active, "send": active, "receive": standby, "apply": standby}
	cost := map[string]float64{}
	// On a busy machine a request takes long, and what goes by the clock is counted with it, such as the standby's signs
	// of life: then it is counted again, and the least is what a message costs.
	for i := 0; i == 0 || i < 20 && tooDear(t, cost); i++ {
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

// serialWindow begins the names of the windows of serial sections.
const serialWindow = "serial: allocations per message, "

// leastSerial keeps the least that a section was counted to cost for a message. In all it must have allocated
// something, or its function has another name today.
func leastSerial(t *testing.T, cost map[string]float64, section string, allocated, inAll int64, messages uint64) {
	t.Helper()
	require.Positive(t, inAll, "%s: nothing was counted", section)
	c := float64(allocated) / float64(messages)
	if least, ok := cost[section]; !ok || c < least {
		cost[section] = c
	}
}

// tooDear says whether a section costs more than its window has.
func tooDear(t *testing.T, cost map[string]float64) bool {
	t.Helper()
	for section, c := range cost {
		if c > windowOf(t, serialWindow+section).most {
			return true
		}
	}
	return false
}
