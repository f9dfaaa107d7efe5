// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// wipeBound bounds the time until a wiped standby is in sync again.
const wipeBound = 30 * time.Minute

// fillBytes is the size of the messages that fill the store.
const fillBytes = 4096

// WipeOptions configure the stored data and the load.
type WipeOptions struct {
	// StoreBytes is the total size of the bodies in the store.
	StoreBytes int64
	// SizeBytes, PerSecond and Publishers define the load: message size, total rate, and the number of publishers, each
	// of which waits for its acknowledgements.
	SizeBytes, PerSecond, Publishers int
	// Before is the duration of the measurement with both nodes, at the start and again at the end.
	Before time.Duration
	// Settle is the pause after the store was filled. A disk with a write limit needs it to recover.
	Settle time.Duration
}

// WipeResult is the result of Wipe. Latencies are in milliseconds, from the time at which a message was due; MB are
// 10^6 bytes.
type WipeResult struct {
	Workload  string  `json:"workload"`
	Sync      string  `json:"sync"`
	StoreMB   float64 `json:"store_mb"`
	SizeBytes int     `json:"size_bytes"`
	PerSecond int     `json:"per_second"`
	// Before is the phase with both nodes, While lasts from the stop of the standby until it is in sync again, and
	// After follows.
	Before Latencies `json:"before"`
	While  Latencies `json:"while"`
	After  Latencies `json:"after"`
	// P99Ratio is the p99 in While, divided by that in Before.
	P99Ratio float64 `json:"p99_ratio"`
	// SnapshotMB was copied and installed in SnapshotSeconds.
	SnapshotMB      float64 `json:"snapshot_mb"`
	SnapshotSeconds float64 `json:"snapshot_s"`
	SnapshotRate    float64 `json:"snapshot_mb_per_s"`
	// InSyncSeconds is the time from the start of the wiped standby until it was in sync.
	InSyncSeconds float64 `json:"in_sync_s"`
}

// Wipe fills the store, publishes at a constant rate, and wipes the standby: it is killed, its data is removed, and it
// is restarted immediately.
func Wipe(ctx context.Context, t bench.Target, o WipeOptions) (WipeResult, error) {
	r := WipeResult{Workload: "wipe", Sync: t.Sync, SizeBytes: o.SizeBytes, PerSecond: o.PerSecond}
	names := bench.QueueNames(2)
	err := bench.WithQueues(ctx, t.Client, names, func() error {
		if err := fillStore(ctx, t, names[0], o.StoreBytes); err != nil {
			return err
		}
		r.StoreMB = float64(o.StoreBytes) / 1e6
		if err := elapse(ctx, o.Settle); err != nil {
			return err
		}
		return publishSteadily(ctx, t, steady{
			queue: names[1], sizeBytes: o.SizeBytes, perSecond: o.PerSecond, publishers: o.Publishers,
		}, func(ctx context.Context, p *steadyLoad) error { return r.wipe(ctx, t, p, o) })
	})
	return r, err
}

// wipe runs the phases while messages are published.
func (r *WipeResult) wipe(ctx context.Context, t bench.Target, p *steadyLoad, o WipeOptions) error {
	if err := elapse(ctx, o.Before/4); err != nil { // until connections and caches are warm
		return err
	}
	p.next()
	if err := elapse(ctx, o.Before); err != nil {
		return err
	}
	active, err := bench.ActiveNode(ctx, t)
	if err != nil {
		return err
	}
	standby := t.Pair.Other(active)
	r.Before = p.next()
	if err := standby.Kill(); err != nil {
		return err
	}
	// Renaming avoids deletion during the measurement. Deleting gigabytes delays everything else on the same filesystem
	// for half a second, including the coordinator. A lost disk does not affect the other machines that way.
	lost := standby.DataDir() + ".lost"
	if err := os.Rename(standby.DataDir(), lost); err != nil {
		return fmt.Errorf("wipe the standby: %w", err)
	}
	defer func() { _ = os.RemoveAll(lost) }() // it is in the benchmark's own directory
	started := time.Now()
	if err := standby.Start(); err != nil {
		return err
	}
	limit, cancel := context.WithTimeout(ctx, wipeBound)
	defer cancel()
	if err := t.Pair.WaitReady(limit, nil); err != nil {
		return err
	}
	r.InSyncSeconds = time.Since(started).Seconds()
	r.While = p.next()
	if err := elapse(ctx, o.Before); err != nil {
		return err
	}
	r.After = p.next()
	r.P99Ratio = r.While.P99 / max(r.Before.P99, 1e-3)
	r.SnapshotMB, r.SnapshotSeconds, err = readSnapshot(standby, started)
	r.SnapshotRate = r.SnapshotMB / max(r.SnapshotSeconds, 1e-3)
	return err
}

// readSnapshot returns the size of the received snapshot from the standby's log, in MB, and its duration.
func readSnapshot(n *harness.Node, since time.Time) (mb, seconds float64, err error) {
	f, err := os.Open(n.LogFile())
	if err != nil {
		return 0, 0, fmt.Errorf("bench: %w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	var start time.Time
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct {
			TS    string `json:"ts"`
			Msg   string `json:"msg"`
			Bytes uint64 `json:"bytes"`
		}
		if json.Unmarshal(lines.Bytes(), &line) != nil {
			continue // a line that is not JSON
		}
		at, err := time.Parse("2006-01-02T15:04:05.000Z0700", line.TS)
		if err != nil || at.Before(since.Add(-time.Second)) {
			continue
		}
		switch line.Msg {
		case "receiving a snapshot":
			start, mb = at, float64(line.Bytes)/1e6
		case "snapshot installed":
			seconds = at.Sub(start).Seconds()
		}
	}
	if err := lines.Err(); err != nil {
		return 0, 0, fmt.Errorf("bench: %s: %w", n.LogFile(), err)
	}
	if seconds == 0 {
		return 0, 0, errors.New("bench: the standby rejoined without a snapshot, because the log was sufficient; " +
			"increase --store")
	}
	return mb, seconds, nil
}
