// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep && measure

package real

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// catchUpMargin is the lag at which a replica has caught up while the primary is in use.
const catchUpMargin = time.Second

// TestReplicaOutage stops the replica while the primary is in use. It compares the 99th percentile of the publish
// latency during the catch-up with the one before the replica starts again.
//
//	go test -tags deep,measure ./test/sites/real -run TestReplicaOutage -timeout 3h -v
//	LOCKSTEP_AWAY=2m     duration of the outage
//	LOCKSTEP_BACKLOG=0   publishes at full speed during the outage; 7200000 simulates an hour of LOCKSTEP_RATE
//	LOCKSTEP_PERIOD=10s  duration of the measurement before the end of the outage, and after the catch-up
//	LOCKSTEP_RATE=2000   publishes per second, of 512 bytes each
//	LOCKSTEP_REPLICA_DIR=dir  parent directory of the replica's data, for example on another disk
//
// All processes share one machine. TestCost describes how to run the replica on separate CPUs. Connections
// between the sites use no relays.
func TestReplicaOutage(t *testing.T) {
	away, period := duration(t, "LOCKSTEP_AWAY", 2*time.Minute), duration(t, "LOCKSTEP_PERIOD", 10*time.Second)
	rate := perSecond(t)
	const perMessage = 2 * smallBody // in the log, with a margin
	parent := os.Getenv("LOCKSTEP_REPLICA_DIR")
	if parent != "" {
		var err error
		parent, err = os.MkdirTemp(parent, "lockstep-replica-")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, os.RemoveAll(parent)) })
	}
	backlog := integer(t, "LOCKSTEP_BACKLOG", 0)
	keep := (int(away.Seconds()+3*period.Seconds()+60)*rate+backlog)*perMessage + 256<<20
	w := newSites(t, map[string]string{"wal.keep-bytes": strconv.Itoa(keep)})
	w.west.start, w.west.parent = replicaCommand(), parent
	w.east.direct, w.west.direct = true, true
	w.begin(kept)
	p := startPaced(t, pairClient(t, w.east.pair), kept, rate)
	for _, n := range w.west.pair.Nodes {
		require.NoError(t, n.Kill())
	}
	publish(t, w.east.pair, backlog)
	pass(t, period) // the pages of the backlog are written
	pass(t, away)
	p.take()
	pass(t, period)
	before := p.take()
	started := time.Now()
	for _, n := range w.west.pair.Nodes {
		require.NoError(t, n.Start())
	}
	w.lagBelow(w.west, catchUpMargin)
	took := time.Since(started)
	catchUp := p.take()
	pass(t, period)
	after := p.end()
	t.Logf("%d messages/s; %v to start and to catch up", rate, took.Round(time.Millisecond))
	t.Logf("99%% of publishes: before %v, during the catch-up %v, afterwards %v", p99(before).Round(time.Microsecond),
		p99(catchUp).Round(time.Microsecond), p99(after).Round(time.Microsecond))
	t.Logf("ratio of the catch-up to before: %.3f (goal at most 1.2)", float64(p99(catchUp))/float64(p99(before)))
	w.caughtUp(w.east)
	w.equal()
}

// publish publishes n messages at full speed.
func publish(t *testing.T, p *harness.Pair, n int) {
	t.Helper()
	producer, err := pairClient(t, p).NewProducer(t.Context(), client.ProducerOptions{})
	require.NoError(t, err)
	pending := make(chan *client.Pending, 1000)
	go func() {
		defer close(pending)
		for i := range n {
			pending <- producer.PublishAsync(t.Context(), kept, client.Message{Body: body(i, smallBody)})
		}
	}()
	for sent := range pending {
		_, err := sent.Wait(t.Context())
		require.NoError(t, err)
	}
	require.NoError(t, producer.Close())
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
