// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep && measure

package real

import (
	"strconv"
	"testing"
	"time"
)

// catchUpMargin is the lag at which a replica has caught up while the primary is in use.
const catchUpMargin = time.Second

// TestLinkOutage cuts the link to the replica while the primary is in use. It compares the 99th percentile of the
// publish latency before the cut with that during the catch-up.
//
//	go test -tags deep,measure ./test/sites/real -run TestLinkOutage -timeout 3h -v
//	LOCKSTEP_AWAY=2m     duration of the cut
//	LOCKSTEP_PERIOD=10s  duration of the load before the cut, and after the catch-up
//	LOCKSTEP_RATE=2000   publishes of 512 bytes per second
//
// All processes share one machine, or its CPUs: see TestCost.
func TestLinkOutage(t *testing.T) {
	away, period := duration(t, "LOCKSTEP_AWAY", 2*time.Minute), duration(t, "LOCKSTEP_PERIOD", 10*time.Second)
	rate := perSecond(t)
	const perMessage = 2 * smallBody // in the log, with a margin
	keep := int(away.Seconds()+period.Seconds()+60)*rate*perMessage + 256<<20
	w := newSites(t, map[string]string{"wal.keep-bytes": strconv.Itoa(keep)})
	w.west.start = replicaCommand()
	w.begin(kept)
	p := startPaced(t, pairClient(t, w.east.pair), kept, rate)
	pass(t, period) // warm-up
	p.take()
	pass(t, period)
	before := p.take()
	w.east.cut()
	pass(t, away)
	during := p.take()
	w.east.heal()
	healed := time.Now()
	w.lagBelow(w.west, catchUpMargin)
	took := time.Since(healed)
	catchUp := p.take()
	pass(t, period)
	after := p.end()
	t.Logf("%d messages/s; away for %v, then %v to catch up", rate, away, took.Round(time.Millisecond))
	t.Logf("99%% of publishes: before %v, while away %v, during the catch-up %v, afterwards %v",
		p99(before).Round(time.Microsecond), p99(during).Round(time.Microsecond), p99(catchUp).Round(time.Microsecond),
		p99(after).Round(time.Microsecond))
	t.Logf("ratio of the catch-up to before: %.3f (goal at most 1.2)", float64(p99(catchUp))/float64(p99(before)))
	w.caughtUp(w.east)
	w.equal()
}

// lagBelow waits until the lag of a connected replica is at most d. The primary may take longer than the bound of other
// waits to send its log.
func (w *world) lagBelow(s *site, d time.Duration) {
	w.t.Helper()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		_, r := w.replication(w.t.Context(), s)
		if r.GetConnected() && time.Since(r.GetHeardAt().AsTime()) < d && r.GetLag().AsDuration() < d {
			return
		}
		select {
		case <-tick.C:
		case <-w.t.Context().Done():
			return
		}
	}
}
