// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep && measure

package real

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
)

// TestLag logs the lag of the replica while 20,000 messages per second, of 512 bytes each, are published for 20 s.
//
//	go test -tags deep,measure ./test/sites/real -run TestLag -v
func TestLag(t *testing.T) {
	const (
		period   = 20 * time.Second
		every    = 5 * time.Millisecond
		perBatch = 100
	)
	w := newWorld(t, nil, kept)
	p, err := w.client().NewProducer(t.Context(), client.ProducerOptions{})
	require.NoError(t, err)
	sampled := make(chan []lagSample)
	end := make(chan struct{})
	go func() { sampled <- w.sampleLag(t, end) }()
	tick := time.NewTicker(every)
	defer tick.Stop()
	began := time.Now()
	sent := 0
	for time.Since(began) < period {
		<-tick.C
		for float64(sent) < time.Since(began).Seconds()*perBatch/every.Seconds() {
			batch := make([]client.Message, perBatch)
			for i := range batch {
				batch[i].Body = body(sent+i, smallBody)
			}
			p.PublishBatchAsync(t.Context(), kept, batch)
			sent += perBatch
		}
	}
	require.NoError(t, p.Flush(limited(t)))
	took := time.Since(began)
	close(end)
	all := <-sampled
	require.NotEmpty(t, all)
	t.Logf("%.0f messages/s for %v", float64(sent)/took.Seconds(), took.Round(time.Millisecond))
	printQuantiles(t, "age of the status", all, func(s lagSample) time.Duration { return s.age })
	printQuantiles(t, "lag at that time", all, func(s lagSample) time.Duration { return s.lag })
	records := slices.MaxFunc(all, func(a, b lagSample) int { return int(a.records) - int(b.records) })
	t.Logf("lag: at most %d records, %d bytes", records.records, records.bytes)
}

// lagSample is a status of the replica.
type lagSample struct {
	age            time.Duration // since the primary reported the end of its log
	lag            time.Duration
	records, bytes uint64
}

func (w *world) sampleLag(t *testing.T, end <-chan struct{}) (all []lagSample) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-end:
			return all
		case <-tick.C:
		}
		if _, r := w.replication(t.Context(), w.west); r.GetConnected() {
			all = append(all, lagSample{
				time.Since(r.GetHeardAt().AsTime()), r.GetLag().AsDuration(), r.GetLagRecords(), r.GetLagBytes(),
			})
		}
	}
}

func printQuantiles(t *testing.T, what string, all []lagSample, of func(lagSample) time.Duration) {
	t.Helper()
	values := make([]time.Duration, len(all))
	for i := range all {
		values[i] = of(all[i])
	}
	slices.Sort(values)
	t.Logf("%s: median %v, 99%% %v, maximum %v", what, values[len(values)/2], values[len(values)*99/100],
		values[len(values)-1])
}
